"""Sealed rows piece by piece, for what no index answers: each statement is short, however many rows there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from .partitions import covered

# 64 MiB: read within a second from a disk that is slow.
_BLOCKS = 8192
_ROWS = 50_000
# What was sealed lately, of each leaf: some ten thousand records, in milliseconds.
_LATEST_BLOCKS = 512
_LATEST_ROWS = 10_000

_SIZE = """
SELECT pg_relation_size(tableoid) / current_setting('block_size')::integer FROM idempotency_key_sealed
WHERE expires_at >= %s AND expires_at < %s LIMIT 1
"""


@dataclass(frozen=True)
class Condition:
    """A part of a WHERE, in which nothing is a caller's, and what it is given."""

    sql: str
    arguments: tuple[Any, ...]

    def __and__(self, other: Condition) -> Condition:
        return Condition(f"{self.sql} AND {other.sql}", self.arguments + other.arguments)


_SEALED = Condition("state = 'sealed'", ())
_SAYS_SOMETHING = Condition("(response_body IS NOT NULL OR response_headers <> '[]')", ())


def sections(connection: BaseDatabaseWrapper) -> list[Condition]:
    """Together all sealed rows, those that expire last first. A row that is sealed meanwhile may be in none of them."""
    return list(_blocks(connection) if connection.vendor == "postgresql" else _row_numbers(connection))


def latest(connection: BaseDatabaseWrapper) -> list[Condition]:
    """Where the rows lie that were sealed last: at the end of each leaf, since hardly anything leaves one before it is
    dropped."""
    if connection.vendor == "postgresql":
        leaves = ((leaf, size) for leaf, size in _leaves(connection) if size)
        return [leaf & _from("ctid", "'({},0)'::tid", size - _LATEST_BLOCKS) for leaf, size in leaves]
    return [_SEALED & _from("rowid", "{}", _last_row(connection) - _LATEST_ROWS)]


def _blocks(connection: BaseDatabaseWrapper) -> Iterator[Condition]:
    for leaf, size in _leaves(connection):
        yield from (leaf & part for part in _parts("ctid", "'({},0)'::tid", size, _BLOCKS))


def _leaves(connection: BaseDatabaseWrapper) -> Iterator[tuple[Condition, int]]:
    """Each leaf, by the bounds that lead the planner to it and to no other, and its size in blocks."""
    _, intervals = covered(connection)
    for interval in sorted(intervals, reverse=True):
        bounds = (interval.lower, interval.upper)
        with connection.cursor() as cursor:
            cursor.execute(_SIZE, bounds)
            row = cursor.fetchone()
        yield _SEALED & Condition("expires_at >= %s AND expires_at < %s", bounds), row[0] if row else 0


def _row_numbers(connection: BaseDatabaseWrapper) -> Iterator[Condition]:
    parts = list(_parts("rowid", "{}", _last_row(connection), _ROWS))
    return (_SEALED & part for part in reversed(parts))


def _last_row(connection: BaseDatabaseWrapper) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(max(rowid), 0) FROM idempotency_key")
        return int(cursor.fetchone()[0])


def _parts(column: str, literal: str, length: int, step: int) -> Iterator[Condition]:
    """The last one has no end: rows may be added while the first ones are looked at."""
    *starts, last = range(0, max(length, 1), step)
    for start in starts:
        yield _from(column, literal, start) & Condition(f"{column} < {literal.format(start + step)}", ())
    yield _from(column, literal, last)


def _from(column: str, literal: str, start: int) -> Condition:
    return Condition(f"{column} >= {literal.format(max(start, 0))}", ())


def of_scope(scope: str) -> Condition:
    """:param scope: a whole one, or the principal that those of several operations begin with."""
    if " " in scope:
        return Condition("scope = %s", (scope,))
    return Condition("substr(scope, 1, %s) = %s", (len(scope) + 1, f"{scope} "))


def sealed_under(connection: BaseDatabaseWrapper, section: Condition, key: str) -> list[UUID]:
    """The ids of the records with this key, whosever they are."""
    return _ids(connection, section & Condition("key = %s", (key,)))


def in_flight_of(connection: BaseDatabaseWrapper, scope: str) -> list[UUID]:
    return _ids(connection, Condition("state = 'in_flight'", ()) & of_scope(scope))


def _ids(connection: BaseDatabaseWrapper, where: Condition) -> list[UUID]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM idempotency_key WHERE {where.sql}", where.arguments)  # noqa: S608
        return [each if isinstance(each, UUID) else UUID(each) for (each,) in cursor.fetchall()]


def count_forgettable(connection: BaseDatabaseWrapper, section: Condition, scope: str) -> int:
    """How many records :func:`forget` would change."""
    where = section & of_scope(scope) & _SAYS_SOMETHING
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM idempotency_key WHERE {where.sql}", where.arguments)  # noqa: S608
        return int(cursor.fetchone()[0])


def forget(connection: BaseDatabaseWrapper, section: Condition, scope: str) -> int:
    """Drop bodies and headers; that the key was used, for what, and with which status, stays.

    :returns: how many records that changed.
    """
    where = section & of_scope(scope) & _SAYS_SOMETHING
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE idempotency_key SET response_body = NULL, response_headers = '[]' WHERE {where.sql}",  # noqa: S608
            where.arguments,
        )
        return int(cursor.rowcount)
