"""What a PostgreSQL server says of itself and of the table of keys. Facts for the system checks, which judge them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ..conf import current
from ..core.intervals import reach_of
from .partitions import covered
from .schema import FUNCTIONS


@dataclass(frozen=True)
class Server:
    read_only: bool
    isolation: str
    """What a transaction gets here, by Django's options or by the defaults of server, database and role."""
    deadlock_timeout: timedelta
    statement_timeout: timedelta
    """What a statement of this role may take here; zero for as long as it wants."""


@dataclass(frozen=True)
class Layout:
    missing: tuple[str, ...]
    """What the migrations make and is not there."""
    denied: tuple[str, ...]
    """What this role needs to be granted in order to serve."""
    may_create: bool
    """Whether this role can make partitions."""


_SERVER = """
SELECT
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
    current_setting('transaction_isolation'),
    current_setting('deadlock_timeout')::interval,
    current_setting('statement_timeout')::interval
"""

_MISSING = """
SELECT 'the partitioned table ' || name
FROM unnest(ARRAY['idempotency_key', 'idempotency_key_sealed', 'idempotency_tombstone']) AS name
WHERE NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = to_regclass(name) AND c.relkind = 'p')
UNION ALL
SELECT 'the table ' || name
FROM unnest(ARRAY['idempotency_key_in_flight', 'idempotency_outcome_count', 'idempotency_oldest_in_flight']) AS name
WHERE to_regclass(name) IS NULL
UNION ALL
SELECT 'the function ' || name FROM unnest(%s::text[]) AS name WHERE to_regproc(name) IS NULL
"""

# Renewal and release go to the leaf of the claims by its name, where a right on the table itself does not count.
_DENIED = """
SELECT needed.privilege || ' on ' || needed.relation
FROM (
    VALUES
        ('SELECT', 'idempotency_key'), ('UPDATE', 'idempotency_key'),
        ('SELECT', 'idempotency_key_in_flight'), ('INSERT', 'idempotency_key_in_flight'),
        ('UPDATE', 'idempotency_key_in_flight'), ('DELETE', 'idempotency_key_in_flight'),
        ('SELECT', 'idempotency_key_sealed'), ('DELETE', 'idempotency_key_sealed')
    UNION ALL
    -- A sweep writes to both of them, and makes older lines coarser.
    SELECT privilege, relation
    FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
    CROSS JOIN unnest(ARRAY['idempotency_outcome_count', 'idempotency_oldest_in_flight']) AS relation
    WHERE %(counts)s
    UNION ALL
    SELECT 'SELECT', 'idempotency_tombstone' WHERE %(tombstones)s
) AS needed (privilege, relation)
WHERE NOT has_table_privilege(needed.relation, needed.privilege)
"""

_MAY_CREATE = """
SELECT pg_has_role(c.relowner, 'USAGE') AND has_schema_privilege(current_schema(), 'CREATE')
FROM pg_class AS c WHERE c.oid = 'idempotency_key_sealed'::regclass
"""


_UPKEEP = """
SELECT n_dead_tup, clock_timestamp() - greatest(last_vacuum, last_autovacuum)
FROM pg_stat_all_tables WHERE relid = 'idempotency_key_in_flight'::regclass
"""


def server(connection: BaseDatabaseWrapper) -> Server:
    # In a transaction: outside of one, the isolation level that Django asks for does not show.
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute(_SERVER)
        return Server(*cursor.fetchone())


def layout(connection: BaseDatabaseWrapper) -> Layout:
    with connection.cursor() as cursor:
        cursor.execute(_MISSING, ([f"idempotency_{name}" for name in FUNCTIONS],))
        missing = tuple(row[0] for row in cursor.fetchall())
        if missing:
            return Layout(missing, (), may_create=False)
        wanted = {"counts": current().COUNTS, "tombstones": current().TOMBSTONES is not None}
        cursor.execute(_DENIED, wanted)
        denied = tuple(row[0] for row in cursor.fetchall())
        cursor.execute(_MAY_CREATE)
        return Layout((), denied, may_create=cursor.fetchone()[0])


@dataclass(frozen=True)
class Upkeep:
    """What vacuum makes of the leaf that each claim goes through."""

    dead: int
    """Rows that are no more and still lie there."""
    vacuumed: timedelta | None
    """Since when; None where it never was."""


def upkeep(connection: BaseDatabaseWrapper) -> Upkeep:
    with connection.cursor() as cursor:
        cursor.execute(_UPKEEP)
        return Upkeep(*cursor.fetchone())


def cover(connection: BaseDatabaseWrapper) -> timedelta:
    """How long from now on every record that is sealed finds its partition."""
    now, intervals = covered(connection)
    reach: datetime = reach_of(intervals, now)
    return reach - now
