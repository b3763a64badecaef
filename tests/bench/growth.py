"""Whether a claim slows down as the table fills: the same claims beside none and beside many sealed rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median, quantiles
from uuid import uuid4

from django.db import connections, transaction

from django_idempotency.core.states import Claim, IdempotencyMode, Verdict
from django_idempotency.storage import store_for

EMPTY, FILLED = "default", "filled"

# Ids in the order of their hash, as real ones are; expiry over the coming day, as with the default retention.
_FILL = """
INSERT INTO idempotency_key (
    id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at, sealed_at,
    expires_at, response_status, response_headers, response_body, sweeps
)
SELECT
    gen_random_uuid(), 'sealed', 'user:5 bench.Atomic:POST', gen_random_uuid(), sha256(n::text::bytea), 1, 'atomic',
    gen_random_uuid(), 1, now(), now(), now() + n * interval '1 day' / %s, 201,
    '[["Content-Type", "application/json"]]', convert_to(repeat('x', 100), 'UTF8'), 0
FROM generate_series(1, %s) AS n
"""


def fill(rows: int) -> None:
    """A copy of the benchmark's database, as empty as it is now, with ``rows`` sealed ones."""
    names = [connections[alias].settings_dict["NAME"] for alias in (EMPTY, FILLED)]
    connections.close_all()
    with connections[EMPTY]._nodb_cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{names[1]}" TEMPLATE "{names[0]}"')
    with connections[FILLED].cursor() as cursor:
        cursor.execute(_FILL, (rows, rows))
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")


def measure(rounds: int, claims: int = 100) -> tuple[list[float], list[float]]:
    """Medians of the time of a claim, in seconds, one a round, on the empty and on the filled database."""
    blocks: dict[str, list[float]] = {EMPTY: [], FILLED: []}
    for number in range(rounds + 1):
        for alias in (EMPTY, FILLED) if number % 2 else (FILLED, EMPTY):
            latency = median(_claim(alias) for _ in range(claims))
            if number:  # the first round warms up
                blocks[alias].append(latency)
    return blocks[EMPTY], blocks[FILLED]


def _claim(alias: str) -> float:
    claim = Claim(
        id=uuid4(), scope="user:5 bench.Atomic:POST", key=str(uuid4()), fingerprint=bytes(32), fingerprint_scheme=1,
        owner_token=uuid4(), mode=IdempotencyMode.ATOMIC, lease=30.0, max_wait=1.5,
    )  # fmt: skip
    with transaction.atomic(using=alias):
        before = time.perf_counter()
        answer = store_for(alias).claim(claim, limit_silence=True, savepoint=None)
        latency = time.perf_counter() - before
        transaction.set_rollback(True, using=alias)
    if answer.verdict is not Verdict.CLAIMED:
        raise RuntimeError(f"Not the expected answer: {answer}")
    return latency


def sentences(rows: int, empty: list[float], filled: list[float]) -> Iterator[str]:
    ratios = [many / none for many, none in zip(filled, empty, strict=True)]
    lower, middle, upper = quantiles(ratios, n=4)
    yield (
        f"A claim beside {rows:,} sealed rows takes {median(filled) * 1e6:.0f} µs, beside none "
        f"{median(empty) * 1e6:.0f} µs: {middle:.2f} times as long ({lower:.2f} to {upper:.2f})."
    )
