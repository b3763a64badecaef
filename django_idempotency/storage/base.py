"""What a store can do: one method a transition, each conditional on the state that it leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Protocol, TypeVar
from uuid import UUID

from django.conf import settings

from ..core.progress import Progress
from ..core.states import Claim, ClaimAnswer, IdempotencyMode, Record, RecordedResponse, Sealing, Seen, State

logger = logging.getLogger("django_idempotency")

NEVER = datetime(9999, 1, 1, tzinfo=timezone.utc)
"""When a sweeper takes up what is for a person. Not infinity, which Python has no date for."""


def as_kept(moment: datetime) -> datetime:
    """Naive where USE_TZ is off, and in UTC all the same: local clocks are put back an hour once a year."""
    return moment if settings.USE_TZ else moment.replace(tzinfo=None)


def first_never() -> datetime:
    """The earliest time that a column may show NEVER as: without USE_TZ it is read in some local time."""
    return as_kept(NEVER - timedelta(days=1))


class Store(Protocol):
    """One database that holds keys. Durations are in seconds.

    Every method runs in whatever transaction is open on ``alias``. Only what says so by its name commits it.
    """

    alias: str
    renews_leases: bool
    """Whether other connections can extend a lease while the owner's transaction is open."""

    partitioned: bool
    """Whether sealing needs a partition that covers the expiry."""

    def claim(self, claim: Claim, *, limit_silence: bool, savepoint: str | None) -> ClaimAnswer:
        """Own the key or learn who does. ``savepoint`` is a statement that travels along, after the claim."""
        ...

    def claim_committed(self, claim: Claim) -> ClaimAnswer:
        """Claim in a READ COMMITTED transaction of its own, whatever the session's default is."""
        ...

    def can_claim_and_begin(self) -> bool:
        """Whether the connection, as it is now, takes several statements in one round trip."""
        ...

    def claim_and_begin(self, claim: Claim, *, silence: float) -> ClaimAnswer:
        """Claim as the first that is done in the open transaction, commit that, and begin the next one in its place,
        with its ``silence`` limited as below. All in one round trip, and whatever the claim comes to."""
        ...

    def limit_silence(self, seconds: float) -> None:
        """End the open transaction when its client sends no statement for so long, unless it is to end sooner."""
        ...

    def take_over(self, record: Record, claim: Claim) -> bool:
        """Own a lapsed claim, if it is still the one that ``record`` shows. Where no operation has begun under it, it
        is a claim for the request of ``claim`` from then on, which may be another one; where one has, it is owned in
        PHASED mode only."""
        ...

    def seal(
        self, id: UUID, owner_token: UUID, response: RecordedResponse, *, retention: float, lease: float, durable: bool
    ) -> Sealing:
        """Record the outcome. ``lease`` limits the silence of a ``durable`` transaction between here and COMMIT."""
        ...

    def seal_and_commit(
        self, id: UUID, owner_token: UUID, response: RecordedResponse, *, retention: float, lease: float
    ) -> bool:
        """Record the outcome and commit the open transaction, in one round trip.

        :returns: False where that cannot be, or did not come to the COMMIT: the transaction is as it was before.
        :raises django.db.Error: of the COMMIT, or of a session that is lost. The transaction has ended.
        """
        ...

    def release(self, id: UUID, owner_token: UUID) -> bool:
        """Free the key, unless an operation has begun under it."""
        ...

    def advance(
        self, id: UUID, owner_token: UUID, progress: Progress, *, lease: float, stale_after: float, durable: bool
    ) -> bool:
        """Record how far an operation has come, and trust its owner for another ``lease``. A sweeper may take over
        ``stale_after`` the end of that. Why it is held stays recorded until its recovery point moves."""
        ...

    def hold(self, id: UUID, owner_token: UUID, reason: str, *, sweep_after: float | None) -> bool:
        """Say why a claim stays in flight. A sweeper takes it up in ``sweep_after`` seconds at the earliest; never, if
        that is None: it is for a person."""
        ...

    def stale(self, limit: int, *, stale_after: float) -> list[Record]:
        """Claims that a sweeper may take over and that can be read, the longest lapsed first. ``stale_after`` is for
        those without their own."""
        ...

    def take_stale(self, owner_token: UUID, *, lease: float, stale_after: float) -> Record | None:
        """Own the longest lapsed of them, passing by those that another sweeper is just taking."""
        ...

    def take_seen(self, seen: Seen, owner_token: UUID, *, lease: float) -> Record | None:
        """Own a lapsed claim as a sweeper does, if nothing has touched it since a person saw it."""
        ...

    def release_seen(self, seen: Seen, *, whatever_happened: bool) -> bool:
        """Free the key of a lapsed claim that nothing has touched since; unless something may have happened under it,
        or ``whatever_happened``."""
        ...

    def now(self) -> float:
        """Seconds since the epoch, by the clock that leases are measured with."""
        ...

    def find(self, id: UUID) -> Record | None:
        """What is recorded, expired or not: proof of what was committed, not an answer to a claim."""
        ...


_Read = TypeVar("_Read")


def readable(alias: str, records: Iterable[tuple[UUID, Callable[[], _Read]]]) -> list[_Read]:
    """Those that can be read; of the others the log tells."""
    read = []
    for number, record in records:
        try:
            read.append(record())
        except Exception:
            logger.exception("%s on %r cannot be read. Another release may have written it.", number, alias)
    return read


COLUMNS = (
    "id",
    "scope",
    "key",
    "state",
    "mode",
    "fingerprint",
    "fingerprint_scheme",
    "owner_token",
    "attempts",
    "response_status",
    "response_headers",
    "response_body",
    "operation",
    "parameters",
    "steps",
    "held_reason",
    "sweeps",
)


def record_from(columns: Mapping[str, Any], lease_left: float | None) -> Record:
    """A row of ``COLUMNS`` as a value."""
    response = None
    if columns["state"] == State.SEALED.value:
        headers, body = columns["response_headers"], columns["response_body"]
        response = RecordedResponse(
            status=columns["response_status"],
            headers=tuple((name, value) for name, value in headers),
            body=None if body is None else bytes(body),
        )
    progress = None
    if columns["steps"] is not None:
        progress = Progress.from_documents(columns["operation"], columns["parameters"], columns["steps"])
    return Record(
        id=columns["id"],
        scope=columns["scope"],
        key=columns["key"],
        state=State(columns["state"]),
        mode=IdempotencyMode(columns["mode"]),
        fingerprint=bytes(columns["fingerprint"]),
        fingerprint_scheme=columns["fingerprint_scheme"],
        owner_token=columns["owner_token"],
        attempts=columns["attempts"],
        lease_left=lease_left,
        response=response,
        progress=progress,
        held_reason=columns["held_reason"],
        sweeps=columns["sweeps"],
    )
