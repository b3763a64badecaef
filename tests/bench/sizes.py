"""What a sealed record takes on disk, with bodies of several sizes, as they are and compressed.

python -m tests.bench.sizes                         # a minute
python -m tests.bench.sizes --output report.md
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from statistics import mean
from uuid import UUID, uuid4

from .command import run

Pack = Callable[[bytes], bytes]

BODIES = (0, 200, 1_000, 4_000, 16_000)
"""About how long, in bytes."""

PACKS: dict[str, Pack] = {
    "as it is": lambda body: body,
    "gzip": lambda body: gzip.compress(body, compresslevel=6, mtime=0),
}


@dataclass(frozen=True)
class Measured:
    body: float
    """Bytes of a body before it is packed."""
    taken: float
    """Bytes of a record on disk, its share of the index included."""
    packing: float
    """Seconds for each body."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sizes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2000, help="records of each kind")
    run(parser, _report, durable=False)


def _report(options: argparse.Namespace) -> Iterator[str]:
    from . import report

    rows: int = options.rows
    yield "`python -m tests.bench.sizes --output docs/_generated/sizes.md` on:"
    yield ""
    yield from (f"- {each}" for each in report.machine())
    yield ""
    yield f"{rows:,} records of each kind, with UUIDs as keys, sealed as requests seal them. Bytes a record:"
    yield ""
    lines = []
    # A leaf for each, by the day on which they expire.
    days = iter(range(1, 1 + len(BODIES)))
    for size in BODIES:
        day = next(days)
        for name, pack in PACKS.items():
            if size or name == "as it is":
                each = _measure(pack, size, day, rows)
                beyond = f"{each.taken - each.body:+.0f}"
                lines.append(
                    (f"{each.body:.0f}", name, f"{each.taken:.0f}", beyond, f"{each.packing * 1e6:.0f}" if size else "")
                )
    yield from report.table(("body", "kept", "on disk", "beyond the body", "packing, µs"), lines)


def _measure(pack: Pack, size: int, day: int, rows: int) -> Measured:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE idempotency_key")
        bodies = [_body(size) for _ in range(rows)]
        begun = time.process_time()
        packed = [pack(body) for body in bodies]
        packing = (time.process_time() - begun) / rows
        leaves = {_seal(body, day) for body in packed}
        (leaf,) = leaves
        cursor.execute("SELECT pg_total_relation_size(%s::regclass)", (leaf,))
        (taken,) = cursor.fetchone()
    return Measured(mean(map(len, bodies)), taken / rows, packing)


def _seal(body: bytes, day: int) -> str:
    """Own a key and end it. :returns: the leaf that the record is in."""
    from django.db import connection, transaction

    from django_idempotency.core.states import Claim, IdempotencyMode, RecordedResponse
    from django_idempotency.storage import store_for

    store, key = store_for("default"), str(uuid4())
    claim = Claim(
        id=uuid4(), scope="auth.user:1234 payments.views.ChargeViewSet:create:POST", key=key, fingerprint=bytes(32),
        fingerprint_scheme=1, owner_token=uuid4(), mode=IdempotencyMode.ATOMIC, lease=30.0, max_wait=1.5,
    )  # fmt: skip
    headers = (("Content-Type", "application/json"), ("Location", f"https://shop.example/charges/{key}/"))
    with transaction.atomic():
        store.claim(claim, limit_silence=True, savepoint=None)
        store.seal(
            claim.id,
            claim.owner_token,
            RecordedResponse(201, headers, body),
            retention=timedelta(days=day).total_seconds(),
            lease=30.0,
            durable=True,
        )
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM idempotency_key WHERE id = %s", (claim.id,))
        return str(cursor.fetchone()[0])


_dice = random.Random(1)


def _body(size: int) -> bytes:
    """JSON as APIs answer it: names that repeat, values that do not."""
    if not size:
        return b""
    entries: list[dict[str, object]] = []
    while True:
        entries.append(
            {
                "id": str(UUID(int=_dice.getrandbits(128), version=4)),
                "amount": _dice.randrange(10**6),
                "currency": "EUR",
                "status": _dice.choice(["authorised", "captured"]),
            }
        )
        body = json.dumps({"charges": entries}, separators=(",", ":")).encode()
        if len(body) >= size:
            return body


if __name__ == "__main__":
    main()
