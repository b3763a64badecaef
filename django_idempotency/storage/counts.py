"""The counts by minute: added to, all lines in one statement, and forgotten in batches.

Time is in minutes since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from django.conf import settings as django_settings
from django.db.backends.base.base import BaseDatabaseWrapper

Line = tuple[int, str, str]
"""A minute, a route and an outcome."""

_ADD = """
INSERT INTO idempotency_outcome_count (minute, route, outcome, n)
{lines}
ON CONFLICT (minute, route, outcome) DO UPDATE SET n = idempotency_outcome_count.n + excluded.n
"""
_FORGET = """
DELETE FROM idempotency_outcome_count WHERE (minute, route, outcome) IN (
    SELECT minute, route, outcome FROM idempotency_outcome_count WHERE minute < %s ORDER BY minute LIMIT %s
)
"""
_OLDER = "SELECT count(*) FROM idempotency_outcome_count WHERE minute < %s"
_LINES = {
    "postgresql": "SELECT * FROM unnest(%s::timestamptz[], %s::text[], %s::text[], %s::bigint[])",
    # As one document, whose length the number of parameters that a statement may have does not limit. Without WHERE,
    # SQLite would take ON for that of a join.
    "sqlite": (
        "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),"
        " json_extract(value, '$[3]') FROM json_each(%s) WHERE true"
    ),
}


def add(connection: BaseDatabaseWrapper, counts: Mapping[Line, int]) -> None:
    """Add ``counts`` to what is there already, in a statement that is a transaction of its own."""
    # In one order, or two processes that add to the same lines would wait for each other.
    rows = [(_stored(connection, minute), route, outcome, n) for (minute, route, outcome), n in sorted(counts.items())]
    if connection.vendor == "postgresql":
        arguments: tuple[Any, ...] = tuple(list(column) for column in zip(*rows, strict=True))
    else:
        arguments = (json.dumps(rows),)
    with connection.cursor() as cursor:
        cursor.execute(_ADD.format(lines=_LINES[connection.vendor]), arguments)


def forget(connection: BaseDatabaseWrapper, before: int, limit: int) -> int:
    """Delete at most ``limit`` lines of minutes before ``before``, the oldest first, and say how many."""
    with connection.cursor() as cursor:
        cursor.execute(_FORGET, (_stored(connection, before), limit))
        return int(cursor.rowcount)


def older(connection: BaseDatabaseWrapper, before: int) -> int:
    """How many lines are of minutes before ``before``."""
    with connection.cursor() as cursor:
        cursor.execute(_OLDER, (_stored(connection, before),))
        return int(cursor.fetchone()[0])


def _stored(connection: BaseDatabaseWrapper, minute: int) -> Any:
    """A minute as the column of a DateTimeField has it."""
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=minute)
    if not django_settings.USE_TZ and connection.vendor != "postgresql":
        moment = moment.replace(tzinfo=None)
    return connection.ops.adapt_datetimefield_value(moment)
