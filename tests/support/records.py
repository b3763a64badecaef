"""Rows as tests of the admin want them: claims, sealed records by the thousand, counts and readings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.db import connection
from django.utils import timezone

from django_idempotency.core.counted import Counted
from django_idempotency.models import IdempotencyKey, OldestInFlight, OutcomeCount

from .commits import vacuum_at_the_end

PAY = "shop.views.pay:POST"


def claim(*, route: str = PAY, age: timedelta = timedelta(minutes=5), **changes: Any) -> IdempotencyKey:
    """In flight, with a lease that has not lapsed."""
    now = timezone.now()
    values = {
        "id": uuid4(),
        "state": "in_flight",
        "scope": f"auth.user:5 {route}",
        "key": "the-clients-key",
        "fingerprint": b"\x01\x02",
        "fingerprint_scheme": 1,
        "mode": "leased",
        "owner_token": uuid4(),
        "claimed_at": now - age,
        "lease_expires_at": now + timedelta(seconds=90),
    }
    return IdempotencyKey.objects.create(**(values | changes))


def stuck(**changes: Any) -> IdempotencyKey:
    return claim(lease_expires_at=timezone.now() - timedelta(minutes=12), **changes)


def held(**changes: Any) -> IdempotencyKey:
    return stuck(held_reason="nobody knows", held_at=timezone.now(), **changes)


def count(outcome: Counted, n: int, *, route: str = PAY, ago: timedelta = timedelta(minutes=10)) -> None:
    minute = (timezone.now() - ago).replace(second=0, microsecond=0)
    OutcomeCount.objects.create(minute=minute, route=route, outcome=outcome.value, n=n)


def reading(seconds: int, *, route: str = PAY, ago: timedelta = timedelta(minutes=10)) -> None:
    minute = (timezone.now() - ago).replace(second=0, microsecond=0)
    OldestInFlight.objects.create(minute=minute, route=route, seconds=seconds)


SEALED = """
INSERT INTO idempotency_key (
    id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at,
    sealed_at, expires_at, response_status, response_headers, response_body, sweeps
)
SELECT md5(n::text)::uuid, 'sealed', 'auth.user:' || n || ' ' || (%(routes)s::text[])[1 + n %% %(n_routes)s],
    'key-' || n, '\\x00', 1, 'atomic', md5(n::text)::uuid, 1, now(), now(), now() + n %% 7 * interval '1 day', 201,
    '[]', decode(repeat('00', %(body)s), 'hex'), 0
FROM generate_series(%(first)s, %(last)s) AS n
"""


def seal_many(n: int, *, first: int = 1, routes: tuple[str, ...] = (PAY,), body: int = 1) -> None:
    """PostgreSQL: records that expire within a week, evenly."""
    terms: dict[str, Any] = {
        "routes": list(routes),
        "n_routes": len(routes),
        "first": first,
        "last": first + n - 1,
        "body": body,
    }
    with connection.cursor() as cursor:
        cursor.execute(SEALED, terms)
        cursor.execute("ANALYZE idempotency_key")
    if n >= 10_000:
        vacuum_at_the_end()


def scans(sql: str) -> Iterator[dict[str, Any]]:
    """The scans that PostgreSQL makes for a statement, which is run once more."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {sql}")
        (plan,) = cursor.fetchone()

    def of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for child in node.get("Plans", ()):
            yield from of(child)
        if "Relation Name" in node:
            yield node

    return of((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])


def rows_read(sql: str) -> int:
    """How many rows the scans of a statement looked at, whether they kept them or not."""
    dropped = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    return sum(
        (node["Actual Rows"] + sum(node.get(each, 0) for each in dropped)) * node["Actual Loops"] for node in scans(sql)
    )
