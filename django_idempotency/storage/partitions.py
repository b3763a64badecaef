"""The leaves of the sealed rows, and of the tombstones: one for each interval of time. Known by their bounds, never by
their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from ..conf import current
from ..core.intervals import Interval, plan
from .transactions import transaction_on


@dataclass(frozen=True)
class Tree:
    """A table with a leaf for each interval of a time in its rows."""

    table: str
    column: str
    mark: str
    """The comment on every leaf that this app made begins with it. A table without it is never touched."""


SEALED = Tree("idempotency_key_sealed", "expires_at", "django_idempotency: leaf of sealed keys")
TOMBSTONES = Tree("idempotency_tombstone", "forget_at", "django_idempotency: leaf of tombstones")
MARK = SEALED.mark

# Two creators that both see a gap would collide; the second waits here and then finds it filled.
_ADVISORY_LOCK = 0x1DE3_0001

# Set for this statement alone, and before any bound is looked at: dates that are read as they were written ("IST" is
# not), and an end to waiting where DDL has locked the table.
_BOUNDS = """
WITH session AS MATERIALIZED (
    SELECT set_config('datestyle', 'ISO', true) || set_config('lock_timeout', '2s', true) AS is_set
)
SELECT extract(epoch FROM bounds[1]::timestamptz), extract(epoch FROM bounds[2]::timestamptz)
FROM session
CROSS JOIN pg_inherits AS i
JOIN pg_class AS leaf ON leaf.oid = i.inhrelid
CROSS JOIN LATERAL regexp_match(
    CASE WHEN session.is_set <> '' THEN pg_get_expr(leaf.relpartbound, leaf.oid) END,
    'FROM [(]''([^'']+)''[)] TO [(]''([^'']+)''[)]'
) AS bounds
WHERE i.inhparent = %s::regclass AND bounds IS NOT NULL AND (%s OR NOT i.inhdetachpending)
ORDER BY 1
"""

# The role that makes a leaf may not be the one that serves: what the parent allows, the leaf allows.
_COPY_OWNER_AND_GRANTS = """
DO $do$
DECLARE
    leaf constant regclass := '{name}'::regclass;
    parent constant regclass := '{parent}'::regclass;
    owner_of_parent text;
    granted record;
BEGIN
    SELECT r.rolname INTO owner_of_parent FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = parent;
    EXECUTE format('ALTER TABLE %s OWNER TO %I', leaf, owner_of_parent);
    FOR granted IN
        SELECT a.privilege_type, a.is_grantable, r.rolname
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS a LEFT JOIN pg_roles r ON r.oid = a.grantee
        WHERE c.oid = parent
    LOOP
        EXECUTE format(
            'GRANT %s ON %s TO %s%s', granted.privilege_type, leaf,
            CASE WHEN granted.rolname IS NULL THEN 'PUBLIC' ELSE quote_ident(granted.rolname) END,
            CASE WHEN granted.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
        );
    END LOOP;
END
$do$
"""


def covered(connection: BaseDatabaseWrapper) -> tuple[datetime, list[Interval]]:
    """The database's clock, and the intervals that have a leaf, in order of time.

    One that is being detached takes no rows any more.
    """
    return clock(connection), _bounds(connection, SEALED, pending=False)


def taken(connection: BaseDatabaseWrapper, tree: Tree) -> list[Interval]:
    """The intervals in which no leaf can be attached: those that have one, and those of which one is being detached."""
    return _bounds(connection, tree, pending=True)


def _bounds(connection: BaseDatabaseWrapper, tree: Tree, *, pending: bool) -> list[Interval]:
    with connection.cursor() as cursor:
        cursor.execute(_BOUNDS, (tree.table, pending))
        return [Interval(utc(lower), utc(upper)) for lower, upper in cursor.fetchall()]


def clock(connection: BaseDatabaseWrapper) -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        return utc(cursor.fetchone()[0])


def utc(epoch: Any) -> datetime:
    # Read as a number, because USE_TZ = False would hand out naive local times.
    return datetime.fromtimestamp(float(epoch), timezone.utc)


@contextmanager
def creating(connection: BaseDatabaseWrapper, *, lock_timeout: str = "2s") -> Iterator[None]:
    """One short transaction in which this process alone creates leaves.

    A failure inside leaves nothing: a table that was created and not attached would block its interval for good.
    """
    with transaction_on(connection), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = '{lock_timeout}'")
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
        yield


def create_leaves(connection: BaseDatabaseWrapper, intervals: list[Interval], tree: Tree = SEALED) -> None:
    with connection.cursor() as cursor:
        # Beside their parent, which may not be where this session makes tables: the schema of a tenant may go.
        cursor.execute(
            "SELECT quote_ident(nspname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE c.oid = %s::regclass",
            (tree.table,),
        )
        (schema,) = cursor.fetchone()
        for interval in intervals:
            name = _free_name(cursor, f"{schema}.{_name(interval, tree)}")
            for statement in _statements(name, interval, tree):
                cursor.execute(statement)


def create_leaf_statements() -> list[str]:
    """What makes the first leaves of a new table, for a migration that may only print its SQL."""
    first = plan([], datetime.now(timezone.utc), current().MAX_RETENTION)
    return [statement for interval in first for statement in _statements(_name(interval, SEALED), interval, SEALED)]


def _free_name(cursor: Any, wanted: str) -> str:
    name, attempt = wanted, 1
    while True:
        cursor.execute("SELECT to_regclass(%s) IS NULL", (name,))
        if cursor.fetchone()[0]:
            return name
        attempt += 1
        name = f"{wanted}_{attempt}"


def _name(interval: Interval, tree: Tree) -> str:
    return f"{tree.table}_{interval.lower:%Y%m%d}"


def _statements(name: str, interval: Interval, tree: Tree) -> Iterator[str]:
    # Created apart and then attached: CREATE ... PARTITION OF would wait behind every open transaction on the parent.
    yield f"CREATE TABLE {name} (LIKE {tree.table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
    yield f"ALTER TABLE {name} ADD PRIMARY KEY (id)"
    yield f"COMMENT ON TABLE {name} IS '{tree.mark}'"
    yield (
        f"ALTER TABLE {tree.table} ATTACH PARTITION {name} "
        f"FOR VALUES FROM ('{interval.lower.isoformat()}') TO ('{interval.upper.isoformat()}')"
    )
    yield _COPY_OWNER_AND_GRANTS.replace("{name}", name).replace("{parent}", tree.table)
