"""One plain table, through the ORM, for SQLite: the primary key does the work.

SQLite has one writer at a time, so rivals meet on the database's lock instead of on the key: a claim that cannot get it
within the connection's own time-out is refused as unavailable. Rows leave by replacement at the next claim or by
deletion in batches.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial
from uuid import UUID

from django.db import IntegrityError, models, transaction
from django.db.models import Case, Q, When
from django.db.models.functions import Coalesce

from ..core.progress import Progress
from ..core.states import Claim, ClaimAnswer, IdempotencyMode, Record, RecordedResponse, Sealing, Seen, State, Verdict
from ..models import IdempotencyKey, Tombstone
from .base import COLUMNS, NEVER, as_kept, readable, record_from


class PortableStore:
    renews_leases = False
    partitioned = False

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def _keys(self) -> models.QuerySet[IdempotencyKey]:
        return IdempotencyKey.objects.using(self.alias)

    def claim(self, claim: Claim, *, limit_silence: bool, savepoint: str | None) -> ClaimAnswer:
        now = _now()
        standing = self._standing(claim.id, now)
        if standing is not None:
            return ClaimAnswer(Verdict.FOUND, standing)
        expired = self._keys.filter(id=claim.id, state=State.SEALED.value, expires_at__lte=now)
        if claim.refuse_expired_for and self._refused(claim, expired, now):
            return ClaimAnswer(Verdict.EXPIRED)
        expired.delete()
        try:
            with transaction.atomic(using=self.alias):
                self._keys.create(
                    id=claim.id,
                    state=State.IN_FLIGHT.value,
                    scope=claim.scope,
                    key=claim.key,
                    fingerprint=claim.fingerprint,
                    fingerprint_scheme=claim.fingerprint_scheme,
                    mode=claim.mode.value,
                    owner_token=claim.owner_token,
                    claimed_at=now,
                    lease_expires_at=now + timedelta(seconds=claim.lease),
                )
        except IntegrityError:
            standing = self._standing(claim.id, now)
            return ClaimAnswer(Verdict.FOUND if standing else Verdict.WAITED, standing)
        return ClaimAnswer(Verdict.CLAIMED)

    def _refused(self, claim: Claim, expired: models.QuerySet[IdempotencyKey], now: datetime) -> bool:
        since = now - timedelta(seconds=claim.refuse_expired_for)
        buried = Tombstone.objects.using(self.alias).filter(id=claim.id, forget_at__gt=now)
        return expired.filter(expires_at__gt=since).exists() or buried.exists()

    def claim_committed(self, claim: Claim) -> ClaimAnswer:
        with transaction.atomic(using=self.alias):
            return self.claim(claim, limit_silence=False, savepoint=None)

    def can_claim_and_begin(self) -> bool:
        return False

    def claim_and_begin(self, claim: Claim, *, silence: float) -> ClaimAnswer:
        raise NotImplementedError

    def seal_and_commit(
        self,
        id: UUID,
        owner_token: UUID,
        response: RecordedResponse,
        *,
        retention: float,
        lease: float,
    ) -> bool:
        return False

    def limit_silence(self, seconds: float) -> None:
        """There is no such limit. A process that dies frees the file, and one that hangs has to be killed."""

    def take_over(self, record: Record, claim: Claim) -> bool:
        now = _now()
        seen = self._keys.filter(
            id=record.id,
            state=State.IN_FLIGHT.value,
            owner_token=record.owner_token,
            lease_expires_at__lte=now,
            steps__isnull=record.progress is None,
        )
        if claim.mode is not IdempotencyMode.PHASED:
            seen = seen.filter(steps__isnull=True)
        request = {"fingerprint": claim.fingerprint, "fingerprint_scheme": claim.fingerprint_scheme}
        taken = seen.update(
            owner_token=claim.owner_token,
            mode=claim.mode.value,
            attempts=models.F("attempts") + 1,
            lease_expires_at=now + timedelta(seconds=claim.lease),
            **({} if record.progress else request),
        )
        return taken == 1

    def seal(
        self,
        id: UUID,
        owner_token: UUID,
        response: RecordedResponse,
        *,
        retention: float,
        lease: float,
        durable: bool,
    ) -> Sealing:
        now = _now()
        sealed = self._owned(id, owner_token).update(
            state=State.SEALED.value,
            lease_expires_at=None,
            sealed_at=now,
            expires_at=now + timedelta(seconds=retention),
            response_status=response.status,
            response_headers=[list(pair) for pair in response.headers],
            response_body=response.body,
            parameters=None,
            steps=None,
            held_reason=None,
            held_at=None,
            sweep_after=None,
        )
        return Sealing.SEALED if sealed == 1 else Sealing.LOST

    def release(self, id: UUID, owner_token: UUID) -> bool:
        deleted, _ = self._owned(id, owner_token).filter(steps__isnull=True).delete()
        return deleted == 1

    def advance(
        self,
        id: UUID,
        owner_token: UUID,
        progress: Progress,
        *,
        lease: float,
        stale_after: float,
        durable: bool,
    ) -> bool:
        stands_still = Q(recovery_point=progress.recovery_point)
        advanced = self._owned(id, owner_token).update(
            operation=progress.operation,
            parameters=progress.parameters,
            steps=progress.steps_document(),
            recovery_point=progress.recovery_point,
            held_reason=Case(When(stands_still, then="held_reason")),
            held_at=Case(When(stands_still, then="held_at")),
            sweep_after=None,
            stale_after=stale_after,
            lease_expires_at=_now() + timedelta(seconds=lease),
        )
        return advanced == 1

    def hold(self, id: UUID, owner_token: UUID, reason: str, *, sweep_after: float | None) -> bool:
        now = _now()
        held = self._owned(id, owner_token).update(
            held_reason=reason,
            held_at=Coalesce("held_at", models.Value(now)),
            sweep_after=as_kept(NEVER) if sweep_after is None else now + timedelta(seconds=sweep_after),
        )
        return held == 1

    def stale(self, limit: int, *, stale_after: float) -> list[Record]:
        now = _now()
        rows = self._stale(limit, stale_after, now)
        return readable(self.alias, [(row.id, partial(_record, row, now)) for row in rows])

    def _stale(self, limit: int, stale_after: float, now: datetime) -> list[IdempotencyKey]:
        due = Q(sweep_after=None) | Q(sweep_after__lte=now)
        lapsed = self._keys.filter(due, state=State.IN_FLIGHT.value, lease_expires_at__lte=now)
        # Durations are not for every database to add up; the rows in flight are few.
        return [row for row in lapsed.order_by("lease_expires_at") if _stale_at(row, stale_after) <= now][:limit]

    def take_stale(self, owner_token: UUID, *, lease: float, stale_after: float) -> Record | None:
        for row in self._stale(_TRIES, stale_after, _now()):
            # Its owner may have come further since: the same token, and trusted again.
            lapsed = self._owned(row.id, row.owner_token).filter(lease_expires_at__lte=_now())
            if self._take(lapsed, owner_token, lease):
                return self.find(row.id)
        return None

    def take_seen(self, seen: Seen, owner_token: UUID, *, lease: float) -> Record | None:
        return self.find(seen.id) if self._take(self._as_seen(seen), owner_token, lease) else None

    def release_seen(self, seen: Seen, *, whatever_happened: bool) -> bool:
        nothing_happened = Q(steps__isnull=True) & ~Q(mode=IdempotencyMode.ATOMIC.value)
        deleted, _ = self._as_seen(seen).filter(Q() if whatever_happened else nothing_happened).delete()
        return deleted == 1

    def now(self) -> float:
        return datetime.now(timezone.utc).timestamp()

    def find(self, id: UUID) -> Record | None:
        return _found(self._keys.filter(id=id), _now())

    def _standing(self, id: UUID, now: datetime) -> Record | None:
        present = Q(state=State.IN_FLIGHT.value) | Q(expires_at__gt=now)
        return _found(self._keys.filter(present, id=id), now)

    def _owned(self, id: UUID, owner_token: UUID) -> models.QuerySet[IdempotencyKey]:
        return self._keys.filter(id=id, state=State.IN_FLIGHT.value, owner_token=owner_token)

    def _as_seen(self, seen: Seen) -> models.QuerySet[IdempotencyKey]:
        lapsed = Q(lease_expires_at=seen.lease_expires_at) & Q(lease_expires_at__lte=_now())
        return self._owned(seen.id, seen.owner_token).filter(lapsed)

    @staticmethod
    def _take(keys: models.QuerySet[IdempotencyKey], owner_token: UUID, lease: float) -> bool:
        taken = keys.update(
            owner_token=owner_token,
            attempts=models.F("attempts") + 1,
            sweeps=models.F("sweeps") + 1,
            lease_expires_at=_now() + timedelta(seconds=lease),
        )
        return taken == 1


# Rivals that may be ahead of a sweeper before it gives up for this round.
_TRIES = 20


def _now() -> datetime:
    return as_kept(datetime.now(timezone.utc))


def _stale_at(row: IdempotencyKey, stale_after: float) -> datetime:
    return (row.lease_expires_at or as_kept(NEVER)) + timedelta(
        seconds=stale_after if row.stale_after is None else row.stale_after
    )


def _found(keys: models.QuerySet[IdempotencyKey], now: datetime) -> Record | None:
    row = keys.first()
    return None if row is None else _record(row, now)


def _record(row: IdempotencyKey, now: datetime) -> Record:
    lease_left = (row.lease_expires_at - now).total_seconds() if row.lease_expires_at else None
    return record_from({column: getattr(row, column) for column in COLUMNS}, lease_left)
