"""What one operation promises about its keys: by which key, scoped to what, stored where, kept for how long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from .fingerprint import FingerprintRules
from .outcomes import OutcomeRules
from .states import IdempotencyMode

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""RFC 9110, section 9.2.1: repeating these is safe already, so a key has no effect on them."""

UNSAFE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class PolicyError(ValueError):
    """A policy that cannot be kept. Raised where the policy is written, so that it is found at import."""


@dataclass(frozen=True)
class BodyCodec:
    """How a response body is stored: encrypted, or as a compact form that is rendered again.

    :param pack: body bytes to stored bytes, called inside the transaction of the effect.
    :param unpack: stored bytes to the body, called on each replay; it must return the same bytes each time.
    """

    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes], bytes]

    def __post_init__(self) -> None:
        if not (callable(self.pack) and callable(self.unpack)):
            raise PolicyError("BodyCodec: pack and unpack must be callables from bytes to bytes.")


@dataclass(frozen=True, kw_only=True)
class IdempotencyPolicy:
    """The terms of an operation. A field left at None falls back to the setting of its name, then to the built-in.

    :param required: refuse a request without a key (400 missing-key). With False it runs unprotected; in PHASED mode
        under a key of its own, which a sweeper can go on with and no client can repeat.
    :param methods: HTTP methods that look at the key.
    :param mode: how claim, effect and seal share transactions.
    :param scope: ``callable(request) -> str``, the principal that keys belong to, in place of the authenticated user.
        An empty answer refuses the request.
    :param fingerprint: which parts of the body and which headers tell one intent from another.
    :param lease: how long a claim is trusted. In ATOMIC mode also the longest silence of the open transaction.
    :param max_wait: how long a duplicate waits for a rival's uncommitted claim before it hears 409.
    :param retention: how long a sealed record answers retries; at most the setting MAX_RETENTION.
    :param outcomes: which outcomes are recorded and which leave the key free.
    :param max_response_bytes: the largest body that is recorded. 0 records none (retries hear response-not-stored).
    :param replay_headers: names of the response headers to replay. None replays every one that describes the result.
    :param using: database alias that the effects commit in, or ``callable(scope) -> alias``.
    :param operation: a name for the operation that outlives a renaming of the view.
    :param body_codec: how bodies are stored.
    :param refuse_late: refuse (410 too-late) what was first sent longer ago than the retention and has no record,
        instead of running it as new. When that was, the client says by the setting FIRST_SENT_HEADER or by its key.
    :param trust_uuid7: take the time in a key that is a UUID of version 7 for when the request was first sent.
    """

    required: bool | None = None
    methods: Collection[str] | None = None
    mode: IdempotencyMode | None = None
    scope: Callable[[Any], str | None] | None = None
    fingerprint: FingerprintRules | None = None
    lease: timedelta | None = None
    max_wait: timedelta | None = None
    retention: timedelta | None = None
    outcomes: OutcomeRules | None = None
    max_response_bytes: int | None = None
    replay_headers: Collection[str] | None = None
    using: str | Callable[[str], str] | None = None
    operation: str | None = None
    body_codec: BodyCodec | None = None
    refuse_late: bool | None = None
    trust_uuid7: bool | None = None

    def __post_init__(self) -> None:
        for name, validate in FIELD_VALIDATORS.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, validate(name, value))

    def __hash__(self) -> int:
        try:
            return hash(tuple(vars(self).values()))
        except TypeError:
            # A callable may be a dataclass, whose objects cannot be hashed.
            return hash((self.mode, self.methods, self.operation, self.lease, self.retention, self.outcomes))

    def overridden(self, other: IdempotencyPolicy) -> IdempotencyPolicy:
        """This policy with every field that ``other`` sets taken from ``other``."""
        return replace(self, **other.set_fields())

    def set_fields(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def resolved(self, defaults: dict[str, Any], *, max_retention: timedelta) -> ResolvedPolicy:
        """Fill what is unset from ``defaults``.

        :raises PolicyError: the retention exceeds ``max_retention``, which is how far partitions are made ahead.
        """
        values: dict[str, Any] = {each.name: None for each in fields(self)} | defaults | self.set_fields()
        if values["retention"] > max_retention:
            raise PolicyError(
                f"retention={values['retention']} exceeds MAX_RETENTION={max_retention}. "
                "Raise IDEMPOTENCY['MAX_RETENTION'] or keep the record for a shorter time."
            )
        return ResolvedPolicy(**values)


def declared(policy: IdempotencyPolicy | None, fields: dict[str, Any]) -> IdempotencyPolicy:
    """What a decorator was given: a whole policy, or single fields, or both, where the fields win.

    :raises PolicyError: a field does not exist, or is wrong.
    """
    known = IdempotencyPolicy.__dataclass_fields__
    for name in fields:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else f"Known: {', '.join(known)}."
            raise PolicyError(f"IdempotencyPolicy has no field {name!r}. {hint}")
    return replace(policy or IdempotencyPolicy(), **fields)


@dataclass(frozen=True, kw_only=True)
class ResolvedPolicy:
    """A policy with nothing left open: what one request is handled by."""

    required: bool
    methods: frozenset[str]
    mode: IdempotencyMode
    scope: Callable[[Any], str | None] | None
    fingerprint: FingerprintRules
    lease: timedelta
    max_wait: timedelta
    retention: timedelta
    outcomes: OutcomeRules
    max_response_bytes: int
    replay_headers: tuple[str, ...] | None
    using: str | Callable[[str], str] | None
    operation: str | None
    body_codec: BodyCodec | None
    refuse_late: bool
    trust_uuid7: bool

    def stored_body(self, body: bytes) -> bytes | None:
        """What is kept of a response body: packed by the codec, and nothing of one that is over the limit."""
        if len(body) > self.max_response_bytes:
            return None
        return body if self.body_codec is None else _bytes(self.body_codec.pack(body), "pack")

    def original_body(self, stored: bytes | None) -> bytes | None:
        """The body that was stored so."""
        if stored is None or self.body_codec is None:
            return stored
        return _bytes(self.body_codec.unpack(stored), "unpack")


def _bytes(body: object, of: str) -> bytes:
    """:raises TypeError: text, say, which the database would read in its own way."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(f"BodyCodec.{of} must return bytes, not {type(body).__name__}.")
    return bytes(body)


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise PolicyError(f"{name} must be True or False, not {value!r}.")
    return value


def _methods(name: str, value: object) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise PolicyError(f"{name} must be a collection of HTTP methods, such as ('POST', 'PATCH'), not {value!r}.")
    methods = frozenset(str(method).upper() for method in value)
    if safe := methods & SAFE_METHODS:
        raise PolicyError(f"{name}: a key has no effect on {', '.join(sorted(safe))}, which are safe to repeat.")
    if unknown := methods - UNSAFE_METHODS:
        raise PolicyError(f"{name}: unknown HTTP method {', '.join(sorted(unknown))}.")
    return methods


def _mode(name: str, value: object) -> IdempotencyMode:
    try:
        return IdempotencyMode(value)
    except ValueError:
        known = ", ".join(mode.name for mode in IdempotencyMode)
        raise PolicyError(f"{name} must be one of IdempotencyMode.{{{known}}}, not {value!r}.") from None


def _instance(cls: type) -> Callable[[str, object], Any]:
    def validate(name: str, value: object) -> object:
        if not isinstance(value, cls):
            raise PolicyError(f"{name} must be a {cls.__name__}, not {value!r}.")
        return value

    return validate


def _callable(name: str, value: object) -> object:
    if not callable(value):
        raise PolicyError(f"{name} must be a callable, not {value!r}.")
    return value


def _alias(name: str, value: object) -> object:
    if not (callable(value) or (isinstance(value, str) and value)):
        raise PolicyError(f"{name} must be a database alias or a callable from scope to alias, not {value!r}.")
    return value


def _duration(minimum: timedelta) -> Callable[[str, object], timedelta]:
    def validate(name: str, value: object) -> timedelta:
        if not isinstance(value, timedelta):
            raise PolicyError(f"{name} must be a timedelta, not {value!r}.")
        if value < minimum:
            raise PolicyError(f"{name} must be at least {minimum.total_seconds():g} s, not {value}.")
        if value > _LONGEST:
            raise PolicyError(f"{name} must be at most {_LONGEST.days} days, not {value}.")
        return value

    return validate


def _size(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise PolicyError(f"{name} must be a number of bytes, 0 or more, not {value!r}.")
    return value


def _headers(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise PolicyError(f"{name} must be a collection of header names, not {value!r}.")
    return tuple(str(header).lower() for header in value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise PolicyError(f"{name} must be a non-empty printable string, not {value!r}.")
    return value


# A hundred years: what is added to the present has to be a time still, in Python and in the database.
_LONGEST = timedelta(days=36_500)
# PostgreSQL reads a lock time-out of 0 as "for ever", so the smallest wait is its smallest unit.
_SMALLEST_WAIT = timedelta(milliseconds=1)
# Retry-After counts whole seconds, and renewal needs room for three attempts within a lease.
_SMALLEST_LEASE = timedelta(seconds=1)

FIELD_VALIDATORS: dict[str, Callable[[str, object], Any]] = {
    "required": _boolean,
    "methods": _methods,
    "mode": _mode,
    "scope": _callable,
    "fingerprint": _instance(FingerprintRules),
    "lease": _duration(_SMALLEST_LEASE),
    "max_wait": _duration(_SMALLEST_WAIT),
    "retention": _duration(timedelta(seconds=1)),
    "outcomes": _instance(OutcomeRules),
    "max_response_bytes": _size,
    "replay_headers": _headers,
    "using": _alias,
    "operation": _text,
    "body_codec": _instance(BodyCodec),
    "refuse_late": _boolean,
    "trust_uuid7": _boolean,
}
