"""How the store stands, asked when somebody looks. Cheap beside ten million sealed rows, which are only estimated."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.states import State
from ..models import IdempotencyKey
from . import inspection
from .base import as_kept, first_never


@dataclass(frozen=True)
class Gauges:
    """None is what this kind of database does not know cheaply. Times are in seconds."""

    in_flight: int
    """Claims that others can see: in ATOMIC mode they see none."""
    oldest_in_flight: float | None
    """Since the oldest of them was claimed; None where there is none."""
    held: int
    stuck: int
    """Those that a sweeper could take up now, held ones included; not what is for a person or to be tried later."""
    left_to_a_person: int
    """Those that no sweeper takes up again."""
    cover: float | None
    """From now until the partitions end."""
    size: int | None
    """Bytes of the keys and tombstones, with their indexes."""
    sealed: int | None
    """Estimated."""


_IN_FLIGHT = """
SELECT
    count(*),
    extract(epoch FROM clock_timestamp() - min(claimed_at))::float8,
    count(held_at),
    count(*) FILTER (
        WHERE lease_expires_at + make_interval(secs => coalesce(stale_after, %s)) <= clock_timestamp()
            AND (sweep_after IS NULL OR sweep_after <= clock_timestamp())
    ),
    count(*) FILTER (WHERE sweep_after >= %s)
FROM idempotency_key_in_flight
"""
# What the statistics count as rows go in is newer than what the last ANALYZE found, and is lost with a crash.
_STORED = """
SELECT
    sum(pg_total_relation_size(tree.relid))::bigint + (
        SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_partition_tree('idempotency_tombstone')
    ),
    coalesce(sum(greatest(pg_stat_get_live_tuples(c.oid), c.reltuples, 0)) FILTER (WHERE tree.level = 2), 0)::bigint
FROM pg_partition_tree('idempotency_key') AS tree JOIN pg_class AS c ON c.oid = tree.relid
"""


def gauges(connection: BaseDatabaseWrapper, *, stale_after: float) -> Gauges:
    """:param stale_after: for claims without their own, in seconds."""
    return (_partitioned if connection.vendor == "postgresql" else _plain)(connection, stale_after)


def _partitioned(connection: BaseDatabaseWrapper, stale_after: float) -> Gauges:
    with connection.cursor() as cursor:
        cursor.execute(_IN_FLIGHT, (stale_after, first_never()))
        in_flight, oldest, held, stuck, left = cursor.fetchone()
        cursor.execute(_STORED)
        size, sealed = cursor.fetchone()
    cover = inspection.cover(connection).total_seconds()
    return Gauges(in_flight, oldest, held, stuck, left, cover, size, sealed)


def _plain(connection: BaseDatabaseWrapper, stale_after: float) -> Gauges:
    now = as_kept(datetime.now(timezone.utc))
    claims = IdempotencyKey.objects.using(connection.alias).filter(state=State.IN_FLIGHT.value)
    rows = list(claims.values_list("claimed_at", "held_at", "lease_expires_at", "stale_after", "sweep_after"))
    oldest = max(((now - claimed_at).total_seconds() for claimed_at, *_ in rows), default=None)
    held = sum(held_at is not None for _, held_at, *_ in rows)
    stuck = sum(
        (now - lease_expires_at).total_seconds() >= (stale_after if own is None else own)
        for _, _, lease_expires_at, own, sweep_after in rows
        if lease_expires_at is not None and (sweep_after is None or sweep_after <= now)
    )
    left = sum(sweep_after is not None and sweep_after >= first_never() for *_, sweep_after in rows)
    return Gauges(len(rows), oldest, held, stuck, left, None, None, None)
