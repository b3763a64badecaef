"""The two-level layout on PostgreSQL, spoken to through functions that take one round trip each.

Why functions: their plans are kept for the session, they work behind PgBouncer, and the several looks that a claim
needs happen inside the server. ``sql/`` holds them, one file each; a file that was released is never edited, its
successor carries the next version.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.db import OperationalError, connections, transaction

from ..core.progress import Progress
from ..core.states import Claim, ClaimAnswer, Record, RecordedResponse, Sealing, Verdict
from .base import CLAIM_COLUMNS, COLUMNS, record_from
from .transactions import sqlstate, transaction_on

_CLAIM = "SELECT * FROM idempotency_claim_v1(%s, %s, %s, %s, %s::smallint, %s, %s, %s, %s, %s)"
_SEAL = "SELECT idempotency_seal_v1(%s, %s, %s, %s::smallint, %s::jsonb, %s, %s, %s)"
_TAKE_OVER = "SELECT idempotency_take_over_v1(%s, %s, %s, %s, %s, %s)"
_RELEASE = "DELETE FROM idempotency_key_in_flight WHERE id = %s AND owner_token = %s AND steps IS NULL"
_ADVANCE = "SELECT idempotency_advance_v1(%s, %s, %s, %s::jsonb, %s::jsonb, %s, %s, %s, %s)"
_HOLD = """
UPDATE idempotency_key_in_flight SET
    held_reason = %s,
    held_at = coalesce(held_at, clock_timestamp()),
    sweep_after = coalesce(clock_timestamp() + make_interval(secs => %s), 'infinity')
WHERE id = %s AND owner_token = %s
"""
_RECORD = ", ".join(f"{{row}}.{column}" for column in COLUMNS) + (
    ", extract(epoch FROM {row}.lease_expires_at - clock_timestamp())::float8"
)
_FIND = f"SELECT {_RECORD.format(row='k')} FROM idempotency_key AS k WHERE k.id = %s"  # noqa: S608 - names of columns
_RENEW = """
UPDATE idempotency_key_in_flight AS k SET lease_expires_at = clock_timestamp() + make_interval(secs => lease.seconds)
FROM unnest(%s::uuid[], %s::uuid[], %s::float8[]) AS lease (id, owner_token, seconds)
WHERE k.id = lease.id AND k.owner_token = lease.owner_token
RETURNING k.id
"""
_STALE = """
FROM idempotency_key_in_flight AS k
WHERE k.lease_expires_at + make_interval(secs => coalesce(k.stale_after, %s)) <= clock_timestamp()
    AND (k.sweep_after IS NULL OR k.sweep_after <= clock_timestamp())
ORDER BY k.lease_expires_at
LIMIT %s
"""
_LIST_STALE = f"SELECT {_RECORD.format(row='k')} {_STALE}"
_TAKE_STALE = f"""
UPDATE idempotency_key_in_flight AS taken SET
    owner_token = %s,
    attempts = least(taken.attempts + 1, 32767),
    sweeps = least(taken.sweeps + 1, 32767),
    lease_expires_at = clock_timestamp() + make_interval(secs => %s)
WHERE taken.id = (SELECT k.id {_STALE} FOR UPDATE SKIP LOCKED)
RETURNING {_RECORD.format(row="taken")}
"""  # noqa: S608 - names of columns

JUST_MOVING = "40001"
"""SQLSTATE of a write to a row that somebody is moving to another partition: it is not ours any more."""


class PostgresStore:
    renews_leases = True
    partitioned = True

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def claim(self, claim: Claim, *, limit_silence: bool, savepoint: str | None) -> ClaimAnswer:
        statement = f"{_CLAIM}; {savepoint}" if savepoint else _CLAIM
        return _answer(claim, self._row(statement, _arguments(claim, limit_silence)))

    def claim_committed(self, claim: Claim) -> ClaimAnswer:
        connection = connections[self.alias]
        arguments = _arguments(claim, False)
        if connection.in_atomic_block or connection.settings_dict["OPTIONS"].get("server_side_binding"):
            return self._claim_in_block(claim, arguments)
        statement = f"BEGIN ISOLATION LEVEL READ COMMITTED; {_CLAIM}; COMMIT"
        with connection.cursor() as cursor:
            try:
                cursor.execute(statement, arguments)
            except BaseException:
                connection.rollback()
                raise
            cursor.nextset()
            return _answer(claim, cursor.fetchone())

    def _claim_in_block(self, claim: Claim, arguments: tuple[Any, ...]) -> ClaimAnswer:
        outermost = not connections[self.alias].in_atomic_block
        with transaction.atomic(using=self.alias), connections[self.alias].cursor() as cursor:
            if outermost:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute(_CLAIM, arguments)
            return _answer(claim, cursor.fetchone())

    def take_over(self, record: Record, claim: Claim) -> bool:
        arguments = (
            record.id,
            record.owner_token,
            claim.owner_token,
            claim.mode.value,
            claim.lease,
            claim.max_wait,
        )
        (taken,) = self._row(_TAKE_OVER, arguments)
        return bool(taken)

    def seal(
        self, id: UUID, owner_token: UUID, response: RecordedResponse, *, retention: float, lease: float, durable: bool
    ) -> Sealing:
        arguments = (
            id,
            owner_token,
            retention,
            response.status,
            json.dumps(response.headers),
            response.body,
            durable,
            lease,
        )
        return Sealing(self._row(_SEAL, arguments)[0])

    def release(self, id: UUID, owner_token: UUID) -> bool:
        with connections[self.alias].cursor() as cursor:
            try:
                cursor.execute(_RELEASE, (id, owner_token))
            except OperationalError as error:
                if sqlstate(error) == JUST_MOVING:
                    return False
                raise
            return bool(cursor.rowcount)

    def advance(
        self, id: UUID, owner_token: UUID, progress: Progress, *, lease: float, stale_after: float, durable: bool
    ) -> bool:
        arguments = (
            id,
            owner_token,
            progress.operation,
            json.dumps(progress.parameters),
            json.dumps(progress.steps_document()),
            progress.recovery_point,
            lease,
            stale_after,
            durable,
        )
        (advanced,) = self._row(_ADVANCE, arguments)
        return bool(advanced)

    def hold(self, id: UUID, owner_token: UUID, reason: str, *, sweep_after: float | None) -> bool:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(_HOLD, (reason, sweep_after, id, owner_token))
            return bool(cursor.rowcount)

    def stale(self, limit: int, *, stale_after: float) -> list[Record]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(_LIST_STALE, (stale_after, limit))
            return [_record(row) for row in cursor.fetchall()]

    def take_stale(self, owner_token: UUID, *, lease: float, stale_after: float) -> Record | None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(_TAKE_STALE, (owner_token, lease, stale_after, 1))
            row = cursor.fetchone()
        return _record(row) if row else None

    def find(self, id: UUID) -> Record | None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(_FIND, (id,))
            row = cursor.fetchone()
        return _record(row) if row else None

    def _row(self, statement: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(statement, arguments)
            row: tuple[Any, ...] = cursor.fetchone()
            return row


def renewable(connection: Any) -> bool:
    """Whether an owner on such a connection can seal what was renewed since its transaction began.

    Under a stricter isolation than READ COMMITTED it cannot: the renewed row is newer than its snapshot.
    """
    with transaction_on(connection), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        (level,) = cursor.fetchone()
    return bool(level == "read committed")


def renew(connection: Any, leases: list[tuple[UUID, UUID, float]]) -> set[UUID]:
    """Extend leases, given as (id, owner token, seconds), in one statement.

    :returns: the ids that are still owned under their token.
    """
    ids, tokens, seconds = (list(column) for column in zip(*leases, strict=True))
    with connection.cursor() as cursor:
        cursor.execute(_RENEW, (ids, tokens, seconds))
        return {row[0] for row in cursor.fetchall()}


def _arguments(claim: Claim, limit_silence: bool) -> tuple[Any, ...]:
    return (
        claim.id,
        claim.scope,
        claim.key,
        claim.fingerprint,
        claim.fingerprint_scheme,
        claim.owner_token,
        claim.mode.value,
        claim.lease,
        claim.max_wait,
        limit_silence,
    )


def _answer(claim: Claim, row: tuple[Any, ...]) -> ClaimAnswer:
    verdict, *standing = row
    if verdict == Verdict.FOUND.value:
        return ClaimAnswer(Verdict.FOUND, _record((claim.id, *standing), CLAIM_COLUMNS))
    return ClaimAnswer(Verdict(verdict))


def _record(row: tuple[Any, ...], names: tuple[str, ...] = COLUMNS) -> Record:
    *columns, lease_left = row
    return record_from(dict(zip(names, columns, strict=True)), lease_left)
