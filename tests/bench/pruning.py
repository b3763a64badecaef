"""What it takes to remove a day of records, and what claims feel of it: by dropping its partition, and by DELETE.

python -m tests.bench.pruning                         # a few minutes, 4 GB of disk, quiet machine wanted
python -m tests.bench.pruning --output report.md
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from multiprocessing.connection import Connection
from statistics import median
from typing import TYPE_CHECKING, Any

from .command import run

if TYPE_CHECKING:
    from typing_extensions import Self

CLIENTS = 2
QUIET_SECONDS = 10.0
DAY = timedelta(days=1)

_FILL = """
INSERT INTO {leaf} (
    id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at, sealed_at,
    expires_at, response_status, response_headers, response_body, sweeps
)
SELECT
    gen_random_uuid(), 'sealed', 'user:5 bench.Atomic:POST', gen_random_uuid(), sha256(n::text::bytea), 1, 'atomic',
    gen_random_uuid(), 1, now(), now(), %s + n * interval '1 day' / (%s + 1), 201,
    '[["Content-Type", "application/json"]]', convert_to(repeat('x', 100), 'UTF8'), 0
FROM generate_series(1, %s) AS n
"""


@dataclass(frozen=True)
class Claim:
    begun: float
    """By the clock that all processes of a machine share."""
    seconds: float


@dataclass(frozen=True)
class Row:
    name: str
    seconds: float
    claims: Sequence[Claim]
    left: int
    """Bytes that the day still takes."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pruning", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="records of the day that is removed")
    run(parser, _report)


def _report(options: argparse.Namespace) -> Iterator[str]:
    from . import report

    rows, size = _measure(options.rows)
    yield f"`{' '.join(['python -m tests.bench.pruning', *sys.argv[1:]])}` on:"
    yield ""
    yield from (f"- {fact}" for fact in report.machine())
    yield ""
    yield (
        f"Each day has {options.rows:,} records, {size / 1e6:,.0f} MB with its index. Beside it, {CLIENTS} clients "
        "claim and seal one key after the other, each in a transaction:"
    )
    yield ""
    yield from report.table(
        ("", "s", "claims", "median claim, ms", "slowest claim, ms", "left on disk, MB"),
        [
            (
                row.name,
                f"{row.seconds:.2f}",
                f"{len(row.claims):,}",
                f"{median(claim.seconds for claim in row.claims) * 1000:.2f}",
                f"{max(claim.seconds for claim in row.claims) * 1000:.1f}",
                f"{row.left / 1e6:,.0f}" if row.left >= 0 else "",
            )
            for row in rows
        ],
    )


def _measure(rows: int) -> tuple[list[Row], int]:
    from django.conf import settings
    from django.db import connection
    from django.test import override_settings

    days = [_fill(number, rows) for number in (2, 3, 4)]
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")
    size = _size(days[0])
    with _Clients() as clients:
        time.sleep(QUIET_SECONDS)  # plans and caches
        measured = [clients.during("nothing else", lambda: time.sleep(QUIET_SECONDS))]
        with override_settings(IDEMPOTENCY=settings.IDEMPOTENCY | {"TOMBSTONES": 30 * DAY}):
            measured += _with_tombstones(clients, days[0])
        measured.append(clients.during("partition dropped", lambda: _prune(days[1]), days[1]))
        measured.append(clients.during("DELETE", lambda: _delete(days[2]), days[2]))
    return measured, size


def _fill(days: int, rows: int) -> str:
    """A day of expired records, in a leaf of its own. The newest day is pruned first: the others lack the mark."""
    from django.db import connection

    from django_idempotency.core.intervals import Interval
    from django_idempotency.storage import partitions
    from django_idempotency.storage.transactions import own_connection

    upper = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0) - days * DAY
    interval = Interval(upper - DAY, upper)
    with own_connection("default") as own, partitions.creating(own):
        partitions.create_leaves(own, [interval])
    leaf = f"idempotency_key_sealed_{interval.lower:%Y%m%d}"
    with connection.cursor() as cursor:
        cursor.execute(_FILL.format(leaf=leaf), (interval.lower, rows, rows))
        cursor.execute(f"COMMENT ON TABLE {leaf} IS NULL")
    return leaf


def _with_tombstones(clients: _Clients, leaf: str) -> Iterator[Row]:
    """First the tombstones, and then the drop."""
    from django_idempotency.storage import pruning as steps

    usual, buried = steps.mark_as_leaving, []

    def marked(*arguments: Any, **named: Any) -> None:
        usual(*arguments, **named)
        buried.append(time.monotonic())

    steps.mark_as_leaving = marked
    try:
        whole = clients.during("", lambda: _prune(leaf), leaf)
    finally:
        steps.mark_as_leaving = usual
    begun = whole.claims[0].begun
    before = [claim for claim in whole.claims if claim.begun < buried[0]]
    after = [claim for claim in whole.claims if claim.begun + claim.seconds >= buried[0]]
    seconds = min(buried[0] - begun, whole.seconds)
    yield Row("tombstones made", seconds, before, -1)
    yield Row("partition dropped after that", whole.seconds - seconds, after, whole.left)


def _prune(leaf: str) -> None:
    from django.db import connection

    from django_idempotency.pruning import Fate, prune
    from django_idempotency.storage.partitions import MARK

    with connection.cursor() as cursor:
        cursor.execute(f"COMMENT ON TABLE {leaf} IS '{MARK}'")
    dropped = [pruned.name for pruned in prune("default") if pruned.fate is Fate.DROPPED]
    if dropped != [f"public.{leaf}"]:
        raise RuntimeError(f"Not the expected leaf: {dropped}")


def _delete(leaf: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {leaf} WHERE expires_at <= clock_timestamp()")


def _size(leaf: str) -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(pg_total_relation_size(to_regclass(%s)), 0)", (leaf,))
        return int(cursor.fetchone()[0])


# --- the clients, processes of their own ---


class _Clients:
    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._clients = []
        for _ in range(CLIENTS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_claim_and_seal, args=(theirs,), daemon=True)
            process.start()
            ours.recv()
            self._clients.append((process, ours))
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in self._clients:
            pipe.send(None)
            process.join()

    def during(self, name: str, act: Callable[[], None], leaf: str = "") -> Row:
        """Every claim that was under way during an act."""
        begun = time.monotonic()
        act()
        ended = time.monotonic()
        claims: list[Claim] = []
        for _, pipe in self._clients:
            pipe.send((begun, ended))
            claims += pipe.recv()
        claims.sort(key=lambda claim: claim.begun)
        return Row(name, ended - begun, claims, _size(leaf))


def _claim_and_seal(pipe: Connection) -> None:
    import django

    django.setup()
    from uuid import uuid4

    from django.db import transaction

    from django_idempotency.core import states
    from django_idempotency.storage import store_for

    store, claims = store_for("default"), []
    response = states.RecordedResponse(201, (("Content-Type", "application/json"),), b"x" * 100)
    pipe.send("ready")
    while True:
        claim = states.Claim(
            id=uuid4(), scope="user:5 bench.Atomic:POST", key=str(uuid4()), fingerprint=bytes(32), fingerprint_scheme=1,
            owner_token=uuid4(), mode=states.IdempotencyMode.ATOMIC, lease=30.0, max_wait=1.5,
        )  # fmt: skip
        with transaction.atomic():
            begun = time.monotonic()
            answer = store.claim(claim, limit_silence=True, savepoint=None)
            claims.append(Claim(begun, time.monotonic() - begun))
            sealing = store.seal(claim.id, claim.owner_token, response, retention=86_400.0, lease=30.0, durable=True)
        if (answer.verdict, sealing) != (states.Verdict.CLAIMED, states.Sealing.SEALED):
            raise RuntimeError(f"Not the expected answers: {answer}, {sealing}")
        if pipe.poll():
            asked = pipe.recv()
            if asked is None:
                return
            begun, ended = asked
            pipe.send([each for each in claims if each.begun + each.seconds >= begun and each.begun <= ended])
            claims.clear()


if __name__ == "__main__":
    main()
