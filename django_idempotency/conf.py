"""The one reader of ``settings.IDEMPOTENCY``: lazy, so that importing the app reads nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .core.fingerprint import FingerprintRules
from .core.outcomes import OutcomeRules
from .core.policy import FIELD_VALIDATORS, IdempotencyPolicy, PolicyError, ResolvedPolicy
from .core.states import IdempotencyMode


@dataclass(frozen=True)
class Setting:
    """One key of ``IDEMPOTENCY``: its default, how a value is checked, and what it is for."""

    default: Any
    validate: Callable[[str, object], Any]
    help: str


def _policy(field: str, default: Any, help: str) -> Setting:
    return Setting(default, FIELD_VALIDATORS[field], help)


def _aliases(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise PolicyError(f"{name} must be a collection of database aliases, not {value!r}.")
    aliases = tuple(str(alias) for alias in value)
    unknown = [alias for alias in aliases if alias not in django_settings.DATABASES]
    if unknown or not aliases:
        raise PolicyError(f"{name} must name aliases of settings.DATABASES; {unknown or 'nothing'} does not.")
    return aliases


def _header_name(name: str, value: object) -> str:
    text = str(FIELD_VALIDATORS["operation"](name, value))
    if not all(character.isascii() and (character.isalnum() or character == "-") for character in text):
        raise PolicyError(f"{name} must be a header name of letters, digits and hyphens, not {value!r}.")
    return text


SETTINGS: dict[str, Setting] = {
    "REQUIRED": _policy("required", True, "Refuse a request without a key."),
    "METHODS": _policy("methods", frozenset({"POST", "PATCH"}), "HTTP methods that look at the key."),
    "MODE": _policy("mode", IdempotencyMode.ATOMIC, "How claim, effect and seal share transactions."),
    "SCOPE": _policy("scope", None, "Callable from request to the principal, for every view that names none."),
    "FINGERPRINT": _policy("fingerprint", FingerprintRules(), "What tells one intent from another."),
    "LEASE": _policy(
        "lease", timedelta(seconds=30), "How long a claim is trusted; the longest wait after a killed worker."
    ),
    "MAX_WAIT": _policy(
        "max_wait",
        timedelta(seconds=1.5),
        "How long a duplicate waits for a rival. Below twice deadlock_timeout (1 s), or the owner may be the victim.",
    ),
    "RETENTION": _policy("retention", timedelta(days=1), "How long a sealed record answers retries."),
    "MAX_RETENTION": Setting(
        timedelta(days=7),
        FIELD_VALIDATORS["retention"],
        "The longest retention of any policy. Partitions are made this far ahead, in eight intervals of whole days.",
    ),
    "TOMBSTONES": Setting(
        None,
        FIELD_VALIDATORS["retention"],
        "How long after its expiry a key is refused instead of being run as new. Its id and fingerprint are kept so "
        "long, without the response. None: an expired key counts as absent.",
    ),
    "DETACH_TIMEOUT": Setting(
        timedelta(minutes=1),
        FIELD_VALIDATORS["lease"],
        "How long pruning waits, at each partition, for transactions that have used the table. The next run goes on.",
    ),
    "OUTCOMES": _policy("outcomes", OutcomeRules(), "Which outcomes are recorded and which leave the key free."),
    "MAX_RESPONSE_BYTES": _policy("max_response_bytes", 1024 * 1024, "The largest body that is recorded, in bytes."),
    "REPLAY_HEADERS": _policy(
        "replay_headers", None, "Response headers to replay; None: all that describe the result."
    ),
    "BODY_CODEC": _policy("body_codec", None, "How response bodies are stored."),
    "USING": _policy(
        "using",
        None,
        "Alias that the effects commit in, or a callable from scope to alias; None: the router's.",
    ),
    "DATABASES": Setting(("default",), _aliases, "Aliases that hold keys. A claim on any other alias is refused."),
    "HEADER": Setting("Idempotency-Key", _header_name, "Request header that carries the key."),
    "STRICT_KEYS": Setting(
        False,
        FIELD_VALIDATORS["required"],
        "Accept only the quoted form of RFC 9651, not the bare form that vendors document.",
    ),
    "REPLAYED_HEADER": Setting("Idempotent-Replayed", _header_name, "Response header that marks a replay."),
    "PROBLEM_BASE_URI": Setting(
        "https://django-idempotency.readthedocs.io/en/stable/reference/problems.html#",
        FIELD_VALIDATORS["operation"],
        "What the slug of a problem is appended to, to form its type URI.",
    ),
    "RENEWAL_CAP": Setting(
        timedelta(minutes=15),
        FIELD_VALIDATORS["lease"],
        "How long after its claim a lease is still renewed, and how long its transaction may be silent, so that a hung "
        "view holds neither key nor rows for ever.",
    ),
    "STALE_AFTER": Setting(
        timedelta(seconds=20),
        FIELD_VALIDATORS["max_wait"],
        "How long after the end of its lease a sweeper takes a claim up; an operation may say otherwise.",
    ),
    "FIRST_SENT_HEADER": Setting(
        None, _header_name, "Request header in which clients say when they first sent a request; None: they do not."
    ),
    "REFUSE_LATE": _policy(
        "refuse_late", False, "Refuse what was first sent longer ago than the retention and has no record."
    ),
    "TRUST_UUID7": _policy("trust_uuid7", False, "Take the time in a UUIDv7 key for when its request was first sent."),
    "COUNTS": Setting(
        True,
        FIELD_VALIDATORS["required"],
        "Keep how often each outcome occurs, by minute, in the first of DATABASES.",
    ),
    "COUNTS_RETENTION": Setting(timedelta(days=14), FIELD_VALIDATORS["retention"], "How long these counts are kept."),
    "PROMETHEUS": Setting(
        False, FIELD_VALIDATORS["required"], 'Export metrics through prometheus-client (the extra "prometheus").'
    ),
    "OBSERVE_ONLY": Setting(
        False,
        FIELD_VALIDATORS["required"],
        "Protect nothing: count and log what clients send, and let every request through. For the time before a "
        "roll-out.",
    ),
    "FAILPOINTS_ENABLED": Setting(
        False,
        FIELD_VALIDATORS["required"],
        "Obey the environment variable IDEMPOTENCY_FAILPOINTS. For tests only.",
    ),
}


def problems() -> list[tuple[str, str]]:
    """Every fault of ``settings.IDEMPOTENCY`` as (message, hint); empty when it is sound."""
    configured = getattr(django_settings, "IDEMPOTENCY", {})
    if not isinstance(configured, dict):
        return [("IDEMPOTENCY must be a dictionary.", f"It is a {type(configured).__name__}.")]
    found = []
    for name, value in configured.items():
        if name not in SETTINGS:
            nearest = get_close_matches(str(name).upper(), SETTINGS, n=1)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else f"Known: {', '.join(sorted(SETTINGS))}."
            found.append((f"IDEMPOTENCY has an unknown key {name!r}.", hint))
        elif value is not None or SETTINGS[name].default is not None:
            try:
                SETTINGS[name].validate(f"IDEMPOTENCY[{name!r}]", value)
            except PolicyError as error:
                found.append((str(error), SETTINGS[name].help))
    longest, usual = (configured.get(name, SETTINGS[name].default) for name in ("MAX_RETENTION", "RETENTION"))
    if not found and usual > longest:
        found.append((f"IDEMPOTENCY['RETENTION'] ({usual}) exceeds MAX_RETENTION ({longest}).", "Raise MAX_RETENTION."))
    return found


@cache
def current() -> Settings:
    """The settings in force.

    :raises ImproperlyConfigured: any of them is wrong. Nothing is run under half a configuration.
    """
    if faults := problems():
        raise ImproperlyConfigured(" ".join(f"{message} {hint}" for message, hint in faults))
    configured = getattr(django_settings, "IDEMPOTENCY", {})
    values = {}
    for name, setting in SETTINGS.items():
        value = configured.get(name, setting.default)
        values[name] = value if value is None else setting.validate(name, value)
    return Settings(values)


class Settings:
    """Attribute access to the validated values: ``current().RETENTION``."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        fields = IdempotencyPolicy.__dataclass_fields__
        self._policy_defaults = {field: values[field.upper()] for field in fields if field.upper() in values}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"There is no IDEMPOTENCY setting {name!r}.")

    @lru_cache(maxsize=1024)  # noqa: B019 - policies live as long as their views; settings as long as the process
    def resolve(self, policy: IdempotencyPolicy) -> ResolvedPolicy:
        """Complete a policy with the settings.

        :raises ImproperlyConfigured: its retention exceeds MAX_RETENTION.
        """
        try:
            return policy.resolved(self._policy_defaults, max_retention=self.MAX_RETENTION)
        except PolicyError as error:
            raise ImproperlyConfigured(str(error)) from error


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("IDEMPOTENCY", "DATABASES"):
        current.cache_clear()


setting_changed.connect(_forget)
