"""The steps by which a leaf goes: marked as leaving, buried where tombstones are wanted, detached, dropped.

Each looks for itself whether it may, so that it does no harm after an interruption, beside another pruner, or behind a
pooler that keeps no session. How far a leaf has come is written on it: in the catalog, and in its comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.intervals import Interval, fill, interval_length
from ..core.pruning import Attachment, Leaf
from .partitions import SEALED, TOMBSTONES, Tree, clock, create_leaves, creating, taken, utc
from .transactions import transaction_on

_LEAVING = ", leaving"
_BURIED = re.compile(r", buried for ([0-9.]+) seconds$")

_ADVISORY_LOCK = 0x1DE3_0002

# What waits for a leaf that we have asked for waits no longer than this.
_BRIEFLY = "50ms"

# A batch of tombstones is what this many pages of a leaf hold: some thousand records without bodies, fewer with them.
_PAGES = 256

# Strays are looked for beside the table, where our leaves are made. Bounds that cannot be written out are those of a
# leaf that somebody has dropped since this began, which newer servers even wait for: it is left out. Its size is null.
# OFFSET 0 has them written once: what is looked at must not differ from what is left out.
_LEAVES = r"""
WITH session AS MATERIALIZED (
    SELECT set_config('datestyle', 'ISO', true) || set_config('lock_timeout', '2s', true) AS is_set
),
leaf AS (
    SELECT inhrelid AS oid, CASE WHEN inhdetachpending THEN 'pending' ELSE 'attached' END AS attachment
    FROM pg_inherits WHERE inhparent = %(table)s::regclass
    UNION ALL
    SELECT c.oid, 'detached'
    FROM pg_class AS c JOIN pg_class AS parent ON parent.oid = %(table)s::regclass
    WHERE c.relnamespace = parent.relnamespace AND c.relkind = 'r' AND NOT c.relispartition
        AND starts_with(obj_description(c.oid, 'pg_class'), %(mark)s)
)
SELECT
    format('%%I.%%I', n.nspname, c.relname), leaf.attachment,
    extract(epoch FROM bounds[1]::timestamptz), extract(epoch FROM bounds[2]::timestamptz),
    coalesce(obj_description(c.oid, 'pg_class'), ''),
    greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0), coalesce(pg_total_relation_size(c.oid), 0)
FROM session CROSS JOIN leaf
JOIN pg_class AS c ON c.oid = leaf.oid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT CASE WHEN session.is_set <> '' THEN pg_get_expr(c.relpartbound, c.oid) END OFFSET 0
) AS bound(written)
LEFT JOIN LATERAL regexp_match(
    bound.written, '^FOR VALUES FROM [(]''([^'']+)''[)] TO [(]''([^'']+)''[)]$'
) AS bounds ON true
WHERE (%(name)s::text IS NULL OR format('%%I.%%I', n.nspname, c.relname) = %(name)s)
    AND (c.relpartbound IS NULL OR bound.written IS NOT NULL)
"""

# Left alone where there is one: made by the run that was interrupted, or, by less than a leaf's length, for an earlier
# use of the key, if the setting was off in between.
_BURY = """
INSERT INTO idempotency_tombstone (id, fingerprint, fingerprint_scheme, forget_at)
SELECT id, fingerprint, fingerprint_scheme, expires_at + make_interval(secs => %s)
FROM {leaf}
WHERE ctid >= %s::tid AND ctid < %s::tid AND expires_at + make_interval(secs => %s) > clock_timestamp()
ON CONFLICT DO NOTHING
"""

_EXPIRIES = "SELECT extract(epoch FROM min(expires_at)), extract(epoch FROM max(expires_at)) FROM {leaf}"

_OLDEST = """
SELECT a.pid, extract(epoch FROM clock_timestamp() - a.xact_start)
FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation IN (%s::regclass, %s::regclass) AND l.granted
    AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
ORDER BY a.xact_start LIMIT 1
"""


# --- the session ---


def begin(connection: BaseDatabaseWrapper, *, patience: timedelta) -> bool:
    """Prepare a connection of the pruner's own.

    :param patience: how long a DETACH may wait, whatever the role's statement_timeout. It blocks nobody meanwhile.
    :returns: whether no other pruner is at work.
    """
    connection.ensure_connection()
    driver: Any = connection.connection
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        if cursor.fetchone()[0] != driver.info.backend_pid:
            # A pooler is in between. What is set for the session, locks included, would stay with somebody else's.
            return True
        cursor.execute(f"SET statement_timeout = {max(1, round(patience.total_seconds() * 1000))}")
        cursor.execute("SET lock_timeout = 0")
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s::regclass::oid::integer)", (_ADVISORY_LOCK, SEALED.table))
        return bool(cursor.fetchone()[0])


def trusted_now(connection: BaseDatabaseWrapper) -> datetime:
    """The earlier of two clocks: one that has jumped ahead says nothing about what has expired."""
    return min(clock(connection), datetime.now(timezone.utc))


@contextmanager
def _briefly(connection: BaseDatabaseWrapper) -> Iterator[Any]:
    """A short transaction, with limits that hold behind a pooler as well."""
    with transaction_on(connection), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = '{_BRIEFLY}'")
        cursor.execute("SET LOCAL statement_timeout = '30s'")
        # Lets the bounds of a leaf prove that nothing in it is unexpired, without reading it.
        cursor.execute("SET LOCAL constraint_exclusion = on")
        yield cursor


# --- looking ---


def leaves(connection: BaseDatabaseWrapper, tree: Tree) -> list[Leaf]:
    """The leaves of a table, whoever made them, and what was once one of ours."""
    return _leaves(connection, tree, None)


def look(connection: BaseDatabaseWrapper, tree: Tree, name: str) -> Leaf | None:
    """How far one of them has come; None where it is gone."""
    return next(iter(_leaves(connection, tree, name)), None)


def _leaves(connection: BaseDatabaseWrapper, tree: Tree, name: str | None) -> list[Leaf]:
    with connection.cursor() as cursor:
        cursor.execute(_LEAVES, {"table": tree.table, "mark": tree.mark, "name": name})
        return [_leaf(tree, row) for row in cursor.fetchall()]


def _leaf(tree: Tree, row: tuple[Any, ...]) -> Leaf:
    name, attachment, lower, upper, comment, rows, size = row
    ours, said = comment.startswith(tree.mark), comment.removeprefix(tree.mark)
    buried = _BURIED.search(said) if ours else None
    return Leaf(
        name=name,
        attachment=Attachment(attachment),
        interval=None if lower is None or upper is None else Interval(utc(lower), utc(upper)),
        ours=ours,
        leaving=ours and said.startswith(_LEAVING),
        rows=rows,
        size=size,
        buried_for=float(buried[1]) if buried else None,
    )


def holds_unexpired(connection: BaseDatabaseWrapper, tree: Tree, name: str) -> bool:
    """Whether a row of a leaf may still answer somebody: the last look before each step that cannot be undone."""
    with _briefly(connection) as cursor:
        return _holds_unexpired(cursor, tree, name, trusted_now(connection))


def _holds_unexpired(cursor: Any, tree: Tree, name: str, now: datetime) -> bool:
    # The moment is written out: only a constant can be compared with the leaf's constraint beforehand.
    other_state = " OR state <> 'sealed'" if tree is SEALED else ""
    cursor.execute(
        f"SELECT EXISTS (SELECT FROM {name}"  # noqa: S608 - a name that the catalog has quoted
        f" WHERE {tree.column} > '{now.isoformat()}' OR {tree.column} IS NULL{other_state})"
    )
    return bool(cursor.fetchone()[0])


def oldest_transaction(connection: BaseDatabaseWrapper, tree: Tree, name: str) -> tuple[int, float] | None:
    """The backend that has used the table for longest, and for how many seconds its transaction has been open."""
    with connection.cursor() as cursor:
        cursor.execute(_OLDEST, (tree.table, name))
        found = cursor.fetchone()
        return (found[0], float(found[1])) if found else None


# --- the steps ---


def mark_as_leaving(connection: BaseDatabaseWrapper, tree: Tree, name: str, *, buried_for: float | None) -> None:
    """Say on the leaf that a pruner has begun: if it is found detached, nobody detached it to keep it."""
    said = "" if buried_for is None else f", buried for {buried_for} seconds"
    with _briefly(connection) as cursor:
        cursor.execute(f"COMMENT ON TABLE {name} IS '{tree.mark}{_LEAVING}{said}'")


def detach(connection: BaseDatabaseWrapper, tree: Tree, name: str) -> None:
    """Wait for all transactions that use the table, and block none. Interrupted, it has to be finalized."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {tree.table} DETACH PARTITION {name} CONCURRENTLY")


def finalize(connection: BaseDatabaseWrapper, tree: Tree, name: str) -> None:
    with _briefly(connection) as cursor:
        cursor.execute(f"ALTER TABLE {tree.table} DETACH PARTITION {name} FINALIZE")


def drop(connection: BaseDatabaseWrapper, tree: Tree, name: str) -> bool:
    """Drop a leaf that is detached.

    :returns: whether it is gone. A table that was attached again, or holds what has not expired, stays.
    """
    with _briefly(connection) as cursor:
        cursor.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
        cursor.execute("SELECT relispartition FROM pg_class WHERE oid = %s::regclass", (name,))
        # Dropping an attached one would lock the table that it belongs to, and all traffic with it.
        if cursor.fetchone()[0] or _holds_unexpired(cursor, tree, name, trusted_now(connection)):
            return False
        cursor.execute(f"DROP TABLE {name}")
    return True


def bury(connection: BaseDatabaseWrapper, name: str, seconds: float) -> Iterator[int]:
    """Keep the ids of the records in a leaf until ``seconds`` after their expiry, batch by batch.

    Begun again, it goes on where there is something left to do.

    :returns: how many each batch has added.
    """
    if not _make_graves(connection, name, timedelta(seconds=seconds)):
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::integer", (name,))
        (pages,) = cursor.fetchone()
    for page in range(0, pages, _PAGES):
        with _briefly(connection) as cursor:
            cursor.execute(_BURY.format(leaf=name), (seconds, f"({page},0)", f"({page + _PAGES},0)", seconds))
            yield int(cursor.rowcount)


def _make_graves(connection: BaseDatabaseWrapper, name: str, kept: timedelta) -> bool:
    """Make the leaves that the tombstones of these records belong into, if there is anything to bury."""
    with _briefly(connection) as cursor:
        cursor.execute(_EXPIRIES.format(leaf=name))
        lower, upper = cursor.fetchone()
    if upper is None or utc(upper) + kept <= clock(connection):
        return False
    wanted = Interval(max(utc(lower) + kept, clock(connection)), utc(upper) + kept + timedelta(seconds=1))
    length = interval_length(kept)
    if fill(taken(connection, TOMBSTONES), wanted, length):
        with creating(connection):
            create_leaves(connection, fill(taken(connection, TOMBSTONES), wanted, length), TOMBSTONES)
    return True
