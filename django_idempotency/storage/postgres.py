"""The two-level layout on PostgreSQL, spoken to through functions that take one round trip each.

Why functions: their plans are kept for the session, they work behind PgBouncer, and the several looks that a claim
needs happen inside the server. ``sql/`` holds them, one file each; a file that was released is never edited, its
successor carries the next version.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any
from uuid import UUID
from weakref import WeakSet

from django.db import OperationalError, connections, transaction

from ..core.progress import Progress
from ..core.states import Claim, ClaimAnswer, Record, RecordedResponse, Sealing, Seen, Verdict
from .base import NEVER, readable, record_from
from .transactions import (
    awaits_begin,
    bringing_begin,
    may_bring_commit,
    passing,
    sqlstate,
    stopped_before_commit,
    takes_several,
    transaction_on,
)

_TAKE_OVER = "SELECT idempotency_take_over_v1(%s, %s, %s, %s, %s, %s::smallint, %s, %s, %s)"
_RELEASE = "DELETE FROM idempotency_key_in_flight WHERE id = %s AND owner_token = %s AND steps IS NULL"
_ADVANCE = "SELECT idempotency_advance_v1(%s, %s, %s, %s::jsonb, %s::jsonb, %s, %s, %s, %s)"
_HOLD = """
UPDATE idempotency_key_in_flight SET
    held_reason = %s,
    held_at = coalesce(held_at, clock_timestamp()),
    sweep_after = coalesce(clock_timestamp() + make_interval(secs => %s), %s)
WHERE id = %s AND owner_token = %s
"""
_FIND = "SELECT idempotency_record_v1(k)::text FROM idempotency_key AS k WHERE k.id = %s"
_LIMIT_SILENCE = "SELECT idempotency_limit_silence_v1({})"
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
# A row that somebody holds, whose owner is just sealing or whose lapsed lease is being taken over, must not keep all
# other leases from being renewed.
_RENEW = """
WITH lease (id, owner_token, seconds) AS (SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::float8[])),
free AS (
    SELECT id, seconds FROM idempotency_key_in_flight AS k JOIN lease USING (id, owner_token)
    FOR NO KEY UPDATE OF k SKIP LOCKED
),
renewed AS (
    UPDATE idempotency_key_in_flight AS k SET lease_expires_at = clock_timestamp() + make_interval(secs => free.seconds)
    FROM free WHERE k.id = free.id
)
SELECT id FROM idempotency_key_in_flight JOIN lease USING (id, owner_token)
"""
_STALE = """
FROM idempotency_key_in_flight AS k
WHERE k.lease_expires_at + make_interval(secs => coalesce(k.stale_after, %s)) <= clock_timestamp()
    AND (k.sweep_after IS NULL OR k.sweep_after <= clock_timestamp())
ORDER BY k.lease_expires_at
LIMIT %s
"""
_LIST_STALE = f"SELECT k.id, idempotency_record_v1(k)::text {_STALE}"
_TAKE = """
UPDATE idempotency_key_in_flight AS taken SET
    owner_token = %s,
    attempts = least(taken.attempts + 1, 32767),
    sweeps = least(taken.sweeps + 1, 32767),
    lease_expires_at = clock_timestamp() + make_interval(secs => %s)
WHERE {condition}
RETURNING taken.id, idempotency_record_v1(taken)::text
"""
_TAKE_STALE = _TAKE.format(condition=f"id = (SELECT k.id {_STALE} FOR UPDATE SKIP LOCKED)")
_AS_SEEN = "id = %s AND owner_token = %s AND lease_expires_at = %s AND lease_expires_at <= clock_timestamp()"
_TAKE_SEEN = _TAKE.format(condition=_AS_SEEN)
_RELEASE_SEEN = (
    f"DELETE FROM idempotency_key_in_flight WHERE {_AS_SEEN}"  # noqa: S608 - nothing of a caller's
    " AND (%s OR (steps IS NULL AND mode <> 'atomic'))"
)

# What a seal that raises is undone to, so that COMMIT is not reached and nothing is lost.
_BEFORE_SEAL = "idempotency_before_seal"

# Owners that a sweeper may meet in the act of sealing before it gives up for this round.
_TRIES = 20

# Sessions whose transactions begin in another isolation level than READ COMMITTED. That is asked for once.
_otherwise_isolated: WeakSet[Any] = WeakSet()

JUST_MOVING = "40001"
"""SQLSTATE of a write to a row that somebody is moving to another partition: it is not ours any more."""


class PostgresStore:
    renews_leases = True
    partitioned = True

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def claim(self, claim: Claim, *, limit_silence: bool, savepoint: str | None) -> ClaimAnswer:
        return self._claim(claim, limit_silence=limit_silence, then=savepoint)

    def _claim(self, claim: Claim, *, limit_silence: bool, then: str | None) -> ClaimAnswer:
        begins = then is not None and awaits_begin(connections[self.alias])
        statement = _claim_statement(
            begins=begins,
            scheme=claim.fingerprint_scheme,
            mode=claim.mode.value,
            lease=claim.lease,
            max_wait=claim.max_wait,
            limit_silence=limit_silence,
            refuse_expired_for=claim.refuse_expired_for,
            then=then,
        )
        arguments = (claim.id, claim.scope, claim.key, claim.fingerprint, claim.owner_token)
        answer: str = (self._value_after_begin if begins else self._value)(statement, arguments)
        if answer.startswith("{"):
            return ClaimAnswer(Verdict.FOUND, _record(claim.id, answer))
        return ClaimAnswer(Verdict(answer))

    def claim_committed(self, claim: Claim) -> ClaimAnswer:
        # In autocommit, a statement is a transaction of its own, in most projects a READ COMMITTED one.
        answer = self.claim(claim, limit_silence=False, savepoint=None)
        connection = connections[self.alias]
        if answer.verdict is not Verdict.WRONG_ISOLATION or connection.in_atomic_block:
            return answer
        with transaction.atomic(using=self.alias), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            return self.claim(claim, limit_silence=False, savepoint=None)

    def can_claim_and_begin(self) -> bool:
        connection = connections[self.alias]
        return (
            takes_several(connection)
            and not connection.in_atomic_block
            and connection.connection not in _otherwise_isolated
        )

    def claim_and_begin(self, claim: Claim, *, silence: float) -> ClaimAnswer:
        then = f"COMMIT AND CHAIN; {_LIMIT_SILENCE.format(silence)}"
        answer = self._claim(claim, limit_silence=False, then=then)
        if answer.verdict is Verdict.WRONG_ISOLATION:
            _otherwise_isolated.add(connections[self.alias].connection)
        return answer

    def limit_silence(self, seconds: float) -> None:
        connection = connections[self.alias]
        begins = awaits_begin(connection) and not connection.execute_wrappers
        with bringing_begin(connection) if begins else nullcontext(), connection.cursor() as cursor:
            # Without parameters, so that server-side binding lets two statements through.
            cursor.execute(f"{'BEGIN; ' if begins else ''}{_LIMIT_SILENCE.format(seconds)}")

    def take_over(self, record: Record, claim: Claim) -> bool:
        arguments = (
            record.id,
            record.owner_token,
            record.progress is not None,
            claim.owner_token,
            claim.fingerprint,
            claim.fingerprint_scheme,
            claim.mode.value,
            claim.lease,
            claim.max_wait,
        )
        return bool(self._value(_TAKE_OVER, arguments))

    def seal(
        self, id: UUID, owner_token: UUID, response: RecordedResponse, *, retention: float, lease: float, durable: bool
    ) -> Sealing:
        statement = _seal_statement(retention, durable, lease)
        arguments = _to_seal(id, owner_token, response)
        return Sealing(self._value(statement, arguments))

    def seal_and_commit(
        self, id: UUID, owner_token: UUID, response: RecordedResponse, *, retention: float, lease: float
    ) -> bool:
        connection = connections[self.alias]
        if not may_bring_commit(connection):
            return False
        arguments = _to_seal(id, owner_token, response)
        try:
            with connection.cursor() as cursor:
                cursor.execute(_seal_and_commit_statement(retention, lease), arguments)
        except Exception as error:
            # What a repetition of the request gets past, another seal would have to wait for again.
            if not stopped_before_commit(connection, _BEFORE_SEAL) or passing(error):
                raise
            return False
        return True

    def release(self, id: UUID, owner_token: UUID) -> bool:
        return self._changed(_RELEASE, (id, owner_token)) == 1

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
        return bool(self._value(_ADVANCE, arguments))

    def hold(self, id: UUID, owner_token: UUID, reason: str, *, sweep_after: float | None) -> bool:
        return self._changed(_HOLD, (reason, sweep_after, NEVER, id, owner_token)) == 1

    def stale(self, limit: int, *, stale_after: float) -> list[Record]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(_LIST_STALE, (stale_after, limit))
            return readable(self.alias, [(row[0], partial(_record, row[0], row[1])) for row in cursor.fetchall()])

    def take_stale(self, owner_token: UUID, *, lease: float, stale_after: float) -> Record | None:
        # Meeting one that its owner is just sealing says nothing about those behind it.
        for _ in range(_TRIES):
            with connections[self.alias].cursor() as cursor:
                if _executed(cursor, _TAKE_STALE, (owner_token, lease, stale_after, 1)):
                    return _first(cursor)
        return None

    def take_seen(self, seen: Seen, owner_token: UUID, *, lease: float) -> Record | None:
        return self._taken(_TAKE_SEEN, (owner_token, lease, seen.id, seen.owner_token, seen.lease_expires_at))

    def release_seen(self, seen: Seen, *, whatever_happened: bool) -> bool:
        arguments = (seen.id, seen.owner_token, seen.lease_expires_at, whatever_happened)
        return self._changed(_RELEASE_SEEN, arguments) == 1

    def now(self) -> float:
        return float(self._value(_NOW, ()))

    def find(self, id: UUID) -> Record | None:
        found = self._value(_FIND, (id,))
        return None if found is None else _record(id, found)

    def _taken(self, statement: str, arguments: tuple[Any, ...]) -> Record | None:
        with connections[self.alias].cursor() as cursor:
            return _first(cursor) if _executed(cursor, statement, arguments) else None

    def _changed(self, statement: str, arguments: tuple[Any, ...]) -> int:
        """How many rows a fenced statement changed."""
        with connections[self.alias].cursor() as cursor:
            return int(cursor.rowcount) if _executed(cursor, statement, arguments) else 0

    def _value(self, statement: str, arguments: tuple[Any, ...]) -> Any:
        """The only column of the only row; None where there is no row."""
        with connections[self.alias].cursor() as cursor:
            cursor.execute(statement, arguments)
            row = cursor.fetchone()
            return None if row is None else row[0]

    def _value_after_begin(self, statement: str, arguments: tuple[Any, ...]) -> Any:
        """The same of a statement that brings along the BEGIN, whose own answer comes first."""
        connection = connections[self.alias]
        with bringing_begin(connection), connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            cursor.nextset()
            return cursor.fetchone()[0]


def renewable(connection: Any) -> bool:
    """Whether an owner on such a connection can seal what was renewed since its transaction began.

    Under a stricter isolation than READ COMMITTED it cannot: the renewed row is newer than its snapshot.
    """
    with transaction_on(connection), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        (level,) = cursor.fetchone()
    return bool(level == "read committed")


# What a policy fixes is part of the text, which the driver keeps: converting it cost each request as much again as its
# own arguments.


@lru_cache
def _claim_statement(
    *,
    begins: bool,
    scheme: int,
    mode: str,
    lease: float,
    max_wait: float,
    limit_silence: bool,
    refuse_expired_for: float,
    then: str | None,
) -> str:
    terms = [f"{scheme}::smallint", f"'{mode}'", f"{lease}", f"{max_wait}", f"{limit_silence}"]
    if refuse_expired_for:
        terms.append(f"{refuse_expired_for}")
    claim = f"SELECT idempotency_claim_v1(%s, %s, %s, %s, %s, {', '.join(terms)})"
    return "; ".join(filter(None, ("BEGIN" if begins else None, claim, then)))


def _to_seal(id: UUID, owner_token: UUID, response: RecordedResponse) -> tuple[Any, ...]:
    return id, owner_token, response.status, json.dumps(response.headers), response.body


@lru_cache
def _seal_statement(retention: float, durable: bool, lease: float, *more: str) -> str:
    terms = ", ".join((f"{retention}", f"{durable}", f"{lease}", *more))
    return f"SELECT idempotency_seal_v1(%s, %s, %s::smallint, %s::jsonb, %s, {terms})"


@lru_cache
def _seal_and_commit_statement(retention: float, lease: float) -> str:
    seal = _seal_statement(retention, True, lease, "true")
    return f"SAVEPOINT {_BEFORE_SEAL}; {seal}; COMMIT"


def _executed(cursor: Any, statement: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a fenced statement met the row at rest, or none. One that is just moving is not ours any more."""
    try:
        cursor.execute(statement, arguments)
    except OperationalError as error:
        if sqlstate(error) == JUST_MOVING:
            return False
        raise
    return True


def _first(cursor: Any) -> Record | None:
    row = cursor.fetchone()
    return _record(row[0], row[1]) if row else None


def renew(connection: Any, leases: list[tuple[UUID, UUID, float]]) -> set[UUID]:
    """Extend leases, given as (id, owner token, seconds), in one statement that waits for no row.

    :returns: the ids that are still owned under their token, whether or not their rows were free.
    """
    ids, tokens, seconds = (list(column) for column in zip(*leases, strict=True))
    with connection.cursor() as cursor:
        cursor.execute(_RENEW, (ids, tokens, seconds))
        return {row[0] for row in cursor.fetchall()}


def _record(id: UUID, text: str) -> Record:
    """The JSON of ``sql/record_v1.sql`` as a value."""
    standing = json.loads(text)
    body = standing["response_body"]
    columns = standing | {
        "id": id,
        "fingerprint": bytes.fromhex(standing["fingerprint"]),
        "owner_token": UUID(standing["owner_token"]),
        "response_body": None if body is None else bytes.fromhex(body),
    }
    return record_from(columns, standing["lease_left"])
