"""Leaves of the past, as a table has them that nobody has pruned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from django_idempotency.core.intervals import Interval
from django_idempotency.storage import partitions, pruning
from django_idempotency.storage.transactions import own_connection

from .keys import Keys, new_claim
from .laboratory import Laboratory

DAY = timedelta(days=1)


def today() -> datetime:
    return datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)


def past(days: float) -> Interval:
    """The day that ended ``days`` before this one began."""
    upper = today() - days * DAY
    return Interval(upper - DAY, upper)


def make_past(lab: Laboratory, *days: float) -> list[str]:
    """Leaves for days that are past, as this app made them when they lay ahead; their names, with the schema."""
    with own_connection(lab.aliases[0]) as connection, partitions.creating(connection):
        partitions.create_leaves(connection, [past(each) for each in days])
    return [name_of(lab, past(each)) for each in days]


def name_of(lab: Laboratory, interval: Interval) -> str:
    return f"{lab.schema}.idempotency_key_sealed_{interval.lower:%Y%m%d}"


def expire_in(lab: Laboratory, days: float, count: int = 1) -> list[Any]:
    """Sealed records, in the leaf of the day that ended ``days`` before this one began."""
    keys = Keys(lab.aliases[0])
    expiry = (past(days).lower + DAY / 2 - datetime.now(timezone.utc)).total_seconds()
    return [keys.sealed(new_claim(), retention=expiry) for _ in range(count)]


def is_there(lab: Laboratory, name: str) -> bool:
    return bool(lab.ask("SELECT to_regclass(%s) IS NOT NULL", name))


def is_attached(lab: Laboratory, name: str) -> bool:
    return bool(lab.ask("SELECT relispartition FROM pg_class WHERE oid = to_regclass(%s)", name))


def is_pending(lab: Laboratory, name: str) -> bool:
    return bool(lab.ask("SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = to_regclass(%s)", name))


_FILL = """
INSERT INTO {leaf} (
    id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at, sealed_at,
    expires_at, response_status, response_headers, response_body, sweeps
)
SELECT
    gen_random_uuid(), 'sealed', 'user:5 charge:POST', gen_random_uuid(), sha256(n::text::bytea), 1, 'atomic',
    gen_random_uuid(), 1, now(), now(), %s, 201, '[["Content-Type", "application/json"]]', 'body', 0
FROM generate_series(1, %s) AS n
"""


def fill_past(lab: Laboratory, days: float, rows: int) -> None:
    """Many expired records at once."""
    lab.rows(_FILL.format(leaf=name_of(lab, past(days))), past(days).lower + DAY / 2, rows)


def make_expired(alias: str, days: int, rows: int) -> None:
    """A leaf of the past with so many records, on a database that others use."""
    day = past(days)
    with own_connection(alias) as connection:
        with partitions.creating(connection):
            partitions.create_leaves(connection, [day])
        with connection.cursor() as cursor:
            fill = _FILL.format(leaf=f"idempotency_key_sealed_{day.lower:%Y%m%d}")
            cursor.execute(fill, (day.lower + DAY / 2, rows))


def drop_farthest(alias: str) -> None:
    """The leaf that is needed last goes, as if nobody had made it yet. Nothing that is sealed now reaches so far."""
    with own_connection(alias) as connection:
        found = pruning.leaves(connection, partitions.SEALED)
        _, farthest = max((leaf.interval.upper, leaf.name) for leaf in found if leaf.interval)
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '1s'")
            cursor.execute(f"DROP TABLE {farthest}")


@contextmanager
def older_transaction(lab: Laboratory) -> Iterator[Keys]:
    """One that has looked at all the keys before the pruner came, and is open."""
    keys = Keys(lab.session())
    with keys.atomic():
        lab.rows("SELECT FROM idempotency_key WHERE id = gen_random_uuid()", alias=keys.alias)
        yield keys
