"""The one vocabulary for the life of a key, and the values that storage hands back.

::

                 claim                    seal
    (no row) ───────────▶ IN_FLIGHT ─────────────▶ SEALED ──▶ (expired: dropped, or replaced by a claim)
        ▲                 │  ▲   │                 │   ▲
        └─── release ─────┘  └───┘                 └───┘
                             renew, take over      forget
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from uuid import UUID

from .progress import Progress


class State(str, Enum):
    IN_FLIGHT = "in_flight"
    """Somebody owns the key; its owner token decides who may seal or release it."""

    SEALED = "sealed"
    """The outcome is recorded, and the record never says anything else until it expires.

    It can be made to say less: where a person asks for it, body and headers are forgotten. Retries hear then what they
    hear of a body that was never kept, so that no answer changes into another one, and nothing runs again.
    """


class IdempotencyMode(str, Enum):
    ATOMIC = "atomic"
    """Claim, effect and seal commit together: a process that dies leaves nothing behind."""

    LEASED = "leased"
    """The claim commits first, under a lease; effect and seal follow in a second, fenced transaction."""

    PHASED = "phased"
    """The claim commits first; an operation then commits phase by phase, with calls to other systems in between."""


@dataclass(frozen=True)
class RecordedResponse:
    """A response as a retry will receive it.

    ``headers`` keep their order and their repetitions. ``body`` is None where it was not kept: over
    ``max_response_bytes``, in which case a retry is told so instead of receiving a part.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes | None = field(repr=False)


@dataclass(frozen=True)
class Record:
    """One key as the store knows it. ``lease_left`` is in seconds by the database's clock, negative once lapsed."""

    id: UUID
    scope: str
    key: str
    state: State
    mode: IdempotencyMode
    fingerprint: bytes
    fingerprint_scheme: int
    owner_token: UUID
    attempts: int
    lease_left: float | None = None
    response: RecordedResponse | None = None
    progress: Progress | None = None
    held_reason: str | None = None
    sweeps: int = 0

    @property
    def is_vacant(self) -> bool:
        """Whether nothing can have taken effect under a claim whose owner is not trusted any more: whoever takes it
        over may ask for something else, as after a release.

        An ATOMIC claim that others can see was committed without its outcome, and perhaps with an effect.
        """
        lapsed = self.lease_left is not None and self.lease_left <= 0
        return lapsed and self.progress is None and self.mode is not IdempotencyMode.ATOMIC


@dataclass(frozen=True)
class Seen:
    """A claim in flight as a person was shown it.

    Whatever an owner, its renewer or a sweeper does changes one of these, so that a decision can be refused that was
    made on what is no longer so.
    """

    id: UUID
    owner_token: UUID
    lease_expires_at: datetime


class Verdict(str, Enum):
    """What a claim came to. Never inferred from an empty answer: an empty answer once meant two effects."""

    CLAIMED = "claimed"
    """The key is ours: run."""

    FOUND = "found"
    """A record stands, sealed or in flight: replay, refuse, or take over."""

    WAITED = "waited"
    """A rival's uncommitted claim outlasted ``max_wait``."""

    WRONG_ISOLATION = "wrong_isolation"
    """The transaction is not READ COMMITTED, where a claim can be doubled."""


class Sealing(str, Enum):
    """What an attempt to seal came to."""

    SEALED = "sealed"
    LOST = "lost"
    """The owner token is no longer ours: roll everything back."""

    NO_PARTITION = "no_partition"
    """Nothing covers the expiry time: make the partition and seal again."""


@dataclass(frozen=True)
class ClaimAnswer:
    verdict: Verdict
    record: Record | None = None


@dataclass(frozen=True)
class Claim:
    """What a caller brings to the store in order to own a key. Durations are in seconds."""

    id: UUID
    scope: str
    key: str
    fingerprint: bytes
    fingerprint_scheme: int
    owner_token: UUID
    mode: IdempotencyMode
    lease: float
    max_wait: float
