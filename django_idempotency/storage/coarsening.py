"""Counts and readings of what is long over are kept by longer pieces of time: a screen that shows a day would add up
hundreds of thousands of rows otherwise, and one that shows a week millions.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

# Of each table: what its rows are told apart by beside their minute, the number that they hold, and how two become one.
_TABLES = {
    "idempotency_outcome_count": ("route, outcome", "n", "sum(n)", "kept.n + excluded.n"),
    "idempotency_oldest_in_flight": ("route", "seconds", "max(seconds)", "{max}(kept.seconds, excluded.seconds)"),
}
# One statement: of two that come at once, the second one finds nothing left to add.
_POSTGRESQL = (
    """
    WITH old AS (DELETE FROM {table} WHERE minute < %s AND minute <> {piece} RETURNING *)
    INSERT INTO {table} AS kept (minute, {keys}, {value})
    SELECT {piece}, {keys}, {all} FROM old GROUP BY 1, {keys}
    ON CONFLICT (minute, {keys}) DO UPDATE SET {value} = {both}
    """,
)
_SQLITE = (
    """
    INSERT INTO {table} AS kept (minute, {keys}, {value})
    SELECT {piece}, {keys}, {all} FROM {table} WHERE minute < %s AND minute <> {piece} GROUP BY 1, {keys}
    ON CONFLICT (minute, {keys}) DO UPDATE SET {value} = {both}
    """,
    "DELETE FROM {table} WHERE minute < %s AND minute <> {piece}",
)
# When the piece began that a minute lies in, by the length of pieces in minutes. On SQLite moments are text, such as
# "2026-11-30 15:07:00".
_PIECES = {
    "postgresql": {10: "date_bin('10 minutes', minute, 'epoch')", 60: "date_bin('1 hour', minute, 'epoch')"},
    "sqlite": {10: "(substr(minute, 1, 15) || '0:00')", 60: "(substr(minute, 1, 13) || ':00:00')"},
}


def coarsen(connection: BaseDatabaseWrapper, before: datetime, minutes: int) -> None:
    """Make one row of those of each piece.

    :param before: the beginning of a piece.
    :param minutes: how long a piece is: 10 or 60.
    """
    vendor = connection.vendor
    statements = _POSTGRESQL if vendor == "postgresql" else _SQLITE
    moment = connection.ops.adapt_datetimefield_value(before)
    for table, (keys, value, every, both) in _TABLES.items():
        words = {"table": table, "keys": keys, "value": value, "all": every, "piece": _PIECES[vendor][minutes]}
        words["both"] = both.format(max="greatest" if vendor == "postgresql" else "max")
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.format(**words), (moment,))
