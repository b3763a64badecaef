"""How long the admin's pages about keys take beside many sealed records.

python -m tests.bench.screens                       # ten million of them; some minutes to make, and 7 GB
python -m tests.bench.screens --output docs/_generated/screens.md
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .command import run

if TYPE_CHECKING:
    from django.test import Client

LIST = "/admin/django_idempotency/idempotencykey/"
PAGES = {
    "list, stuck": f"{LIST}?state=stuck",
    "list, held": f"{LIST}?state=held",
    "list, in flight": LIST,
    "list, sealed": f"{LIST}?state=sealed",
    "dashboard, 1 hour": f"{LIST}dashboard/?range=1h",
    "dashboard, 24 hours": f"{LIST}dashboard/",
    "dashboard, 7 days": f"{LIST}dashboard/?range=7d",
    "dashboard, 14 days": f"{LIST}dashboard/?range=14d",
    "dashboard, signs in records": f"{LIST}dashboard/?signs=records",
}
ROUTES = 20
CLAIMS = 300

# Expiry grows with n, so that one leaf is filled after the other and its index fits into memory meanwhile.
_SEALED = """
INSERT INTO idempotency_key (
    id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at, sealed_at,
    expires_at, response_status, response_headers, response_body, sweeps
)
SELECT
    md5(n::text)::uuid, 'sealed', 'auth.user:' || n %% 5000 || ' shop.views.View' || n %% %(routes)s || ':create:POST',
    md5((-n)::text), decode(md5(n::text), 'hex'), 1, 'atomic', md5(n::text)::uuid, 1, now(), now(),
    now() + n * interval '7 days' / %(rows)s, 201, '[["Content-Type", "application/json"]]',
    convert_to(repeat('x', 100), 'UTF8'), 0
FROM generate_series(1, %(rows)s) AS n
"""
_CLAIMS = """
INSERT INTO idempotency_key (
    id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at, lease_expires_at,
    held_reason, held_at, sweeps
)
SELECT
    md5('claim' || n)::uuid, 'in_flight', 'auth.user:' || n || ' shop.views.View' || n %% %(routes)s || ':create:POST',
    'key-' || n, '\\x00', 1, 'phased', md5(n::text)::uuid, 1, now() - n * interval '1 minute',
    now() + (n %% 3 - 1) * interval '5 minutes', CASE n %% 3 WHEN 0 THEN 'a time-out' END,
    CASE n %% 3 WHEN 0 THEN now() END, 0
FROM generate_series(1, %(claims)s) AS n
"""
_COUNTS = """
INSERT INTO idempotency_outcome_count (minute, route, outcome, n)
SELECT
    date_trunc('minute', now()) - m * interval '1 minute', 'shop.views.View' || r || ':create:POST', outcome,
    (1 + abs(hashtext(m || outcome)) %% 50)
FROM generate_series(0, 14 * 1440 - 1) AS m, generate_series(0, %(routes)s - 1) AS r,
    unnest(ARRAY['new', 'replayed', 'conflict', 'mismatch', 'released']) AS outcome
"""
_READINGS = """
INSERT INTO idempotency_oldest_in_flight (minute, route, seconds)
SELECT date_trunc('minute', now()) - m * interval '1 minute', 'shop.views.View' || r || ':create:POST', 1 + m %% 50
FROM generate_series(0, 14 * 1440 - 1) AS m, generate_series(0, %(routes)s - 1) AS r
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.screens", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sealed", type=int, default=10_000_000, help="sealed records")
    parser.add_argument("--rounds", type=int, default=20, help="requests to each page")
    run(parser, _report, durable=False, settings="example_project.settings", within=_database)


@contextmanager
def _database() -> Iterator[None]:
    """Made for this, gone when it ends. Not the environment of tests, which keeps a copy of all that is rendered."""
    from django.test.utils import setup_databases, teardown_databases

    made = setup_databases(verbosity=0, interactive=False)
    try:
        yield
    finally:
        teardown_databases(made, verbosity=0)


def _fill(rows: int) -> None:
    from django.db import connection

    from django_idempotency.numbers import readings

    terms = {"rows": rows, "routes": ROUTES, "claims": CLAIMS}
    with connection.cursor() as cursor:
        for statement in (_SEALED, _CLAIMS, _COUNTS, _READINGS):
            cursor.execute(statement, terms)
        readings.coarsen("default")
        # A fortnight came in at once. As a sweeper leaves it, minute by minute, it is not full of holes.
        cursor.execute("VACUUM FULL idempotency_outcome_count, idempotency_oldest_in_flight")
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")


def _report(options: argparse.Namespace) -> Iterator[str]:
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client

    from .report import machine

    rows, rounds = options.sealed, options.rounds
    _fill(rows)
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(User.objects.create_superuser("root"))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_size_pretty(sum(pg_total_relation_size(relid))) FROM pg_partition_tree('idempotency_key')"
        )
        (size,) = cursor.fetchone()
    yield f"`{' '.join(['python -m tests.bench.screens', *sys.argv[1:]])}` on:"
    yield ""
    yield from (f"- {fact}" for fact in machine())
    yield ""
    yield (
        f"Beside {rows:,} sealed records of {ROUTES} routes ({size}), {CLAIMS} claims in flight, and 14 days of counts "
        f"with five outcomes on each route in each minute. Each page {rounds} times, in the process that serves it:"
    )
    yield ""
    # The admin's own page loads what all of them need. A process that serves has done that for whoever came before.
    _turn(client, "/admin/")
    yield "| page | first, ms | median, ms | processor time: application, ms | database, ms |"
    yield "|---|---:|---:|---:|---:|"
    for name, url in PAGES.items():
        first, *others = [_turn(client, url) for _ in range(rounds)]
        columns = zip(*others, strict=True)
        cells = " | ".join(f"{each:.0f}" for each in (first[0], *(median(column) for column in columns)))
        yield f"| {name} | {cells} |"


def _turn(client: Client, url: str) -> tuple[float, float, float]:
    """How long a page took by the clock, and by the processor, here and in the database. In ms."""
    before = time.perf_counter(), time.process_time(), _of_database()
    if client.get(url).status_code != 200:
        raise RuntimeError("Not the expected answer.")
    after = time.perf_counter(), time.process_time(), _of_database()
    clock, here, there = ((later - earlier) * 1000 for later, earlier in zip(after, before, strict=True))
    return clock, here, there


def _of_database() -> float:
    """Seconds that the session has had of the processor. No page here is large enough for parallel workers."""
    from django.db import connection

    fields = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat").read_text(encoding="ascii").split()
    return int(fields[0]) / 1e9


if __name__ == "__main__":
    main()
