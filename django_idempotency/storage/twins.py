"""Equal requests under different keys, among the records that were sealed lately and claimed within a day.

Read when somebody looks: a request pays nothing, and it does not matter which process served which attempt.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.signatures import Twins
from .sections import Condition, latest

_TWINS = """
SELECT route, count(CASE WHEN apart <= %s THEN 1 END), count(*) FROM (
    SELECT {route} AS route,
        {claimed_at} - lag({claimed_at}) OVER (PARTITION BY fingerprint, scope ORDER BY claimed_at, id) AS apart
    FROM idempotency_key WHERE {section} AND {claimed_at} > {now} - 86400
) AS record
GROUP BY route
"""
_WORDS = {
    "postgresql": {
        "route": "substr(scope, strpos(scope, ' ') + 1)",
        "claimed_at": "extract(epoch FROM claimed_at)::float8",
        "now": "extract(epoch FROM clock_timestamp())",
    },
    "sqlite": {
        "route": "substr(scope, instr(scope, ' ') + 1)",
        "claimed_at": "(julianday(claimed_at) * 86400)",
        "now": "julianday('now') * 86400",
    },
}


def twins(connection: BaseDatabaseWrapper, *, within: float) -> Iterator[Twins]:
    """Of each route, how many of the latest records repeat one that was claimed at most ``within`` seconds before."""
    found: dict[str, tuple[int, int]] = {}
    for section in latest(connection):
        for route, repeating, records in _asked(connection, section, within):
            before = found.get(route, (0, 0))
            found[route] = before[0] + repeating, before[1] + records
    return (Twins(route, *numbers) for route, numbers in sorted(found.items()))


def _asked(connection: BaseDatabaseWrapper, section: Condition, within: float) -> list[tuple[str, int, int]]:
    statement = _TWINS.format(section=section.sql, **_WORDS[connection.vendor])
    with connection.cursor() as cursor:
        cursor.execute(statement, (within, *section.arguments))
        return list(cursor.fetchall())
