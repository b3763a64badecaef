"""How large the leaves of the sealed rows are, by what the server knows without reading them."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.intervals import Interval
from .partitions import MARK, utc

_LEAVES = """
WITH session AS MATERIALIZED (SELECT set_config('datestyle', 'ISO', true) AS is_set)
SELECT
    leaf.oid::regclass::text,
    extract(epoch FROM bounds[1]::timestamptz), extract(epoch FROM bounds[2]::timestamptz),
    leaf.reltuples::bigint, pg_total_relation_size(leaf.oid), coalesce(obj_description(leaf.oid, 'pg_class'), '') = %s
FROM session
CROSS JOIN pg_inherits AS i
JOIN pg_class AS leaf ON leaf.oid = i.inhrelid
CROSS JOIN LATERAL regexp_match(
    CASE WHEN session.is_set <> '' THEN pg_get_expr(leaf.relpartbound, leaf.oid) END,
    'FROM [(]''([^'']+)''[)] TO [(]''([^'']+)''[)]'
) AS bounds
WHERE i.inhparent = 'idempotency_key_sealed'::regclass AND bounds IS NOT NULL
ORDER BY 2
"""


@dataclass(frozen=True)
class Leaf:
    name: str
    interval: Interval
    rows: int | None
    """About how many, by the statistics of the server; None where it has not made any yet."""
    size: int
    """In bytes, with indexes and all."""
    ours: bool


def leaves(connection: BaseDatabaseWrapper) -> list[Leaf]:
    with connection.cursor() as cursor:
        cursor.execute(_LEAVES, (MARK,))
        return [
            Leaf(name, Interval(utc(lower), utc(upper)), None if rows < 0 else rows, size, ours)
            for name, lower, upper, rows, size, ours in cursor.fetchall()
        ]
