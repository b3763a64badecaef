"""Minutes that are long over are kept by the hour: a screen that shows days would read millions of rows otherwise."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

# Of each table: what its rows are told apart by beside their minute, the number that they hold, and how two become one.
_TABLES = {
    "idempotency_outcome_count": ("route, outcome", "n", "sum(n)", "kept.n + excluded.n"),
    "idempotency_oldest_in_flight": ("route", "seconds", "max(seconds)", "max(kept.seconds, excluded.seconds)"),
}
# One statement: of two that come at once, the second one finds nothing left to add.
_POSTGRESQL = """
WITH old AS (
    DELETE FROM {table} WHERE minute < %s AND minute <> date_bin('1 hour', minute, 'epoch') RETURNING *
)
INSERT INTO {table} AS kept (minute, {keys}, {value})
SELECT date_bin('1 hour', minute, 'epoch'), {keys}, {all} FROM old GROUP BY 1, {keys}
ON CONFLICT (minute, {keys}) DO UPDATE SET {value} = {both}
"""
# Its moments are text: "2026-11-30 15:07:00".
_SQLITE = (
    """
    INSERT INTO {table} AS kept (minute, {keys}, {value})
    SELECT substr(minute, 1, 13) || ':00:00', {keys}, {all} FROM {table}
    WHERE minute < %s AND substr(minute, 15) <> '00:00' GROUP BY 1, {keys}
    ON CONFLICT (minute, {keys}) DO UPDATE SET {value} = {both}
    """,
    "DELETE FROM {table} WHERE minute < %s AND substr(minute, 15) <> '00:00'",
)


def add_up(connection: BaseDatabaseWrapper, before: datetime) -> None:
    """Make one row of those of each hour, of counts and of readings.

    :param before: a full hour.
    """
    moment = connection.ops.adapt_datetimefield_value(before)
    for table, (keys, value, every, both) in _TABLES.items():
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            for statement in (_POSTGRESQL,) if connection.vendor == "postgresql" else _SQLITE:
                words = {"table": table, "keys": keys, "value": value, "all": every, "both": both}
                if connection.vendor == "postgresql":
                    words["both"] = both.replace("max(", "greatest(")
                cursor.execute(statement.format(**words), (moment,))
