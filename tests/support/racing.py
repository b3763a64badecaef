"""Processes that race for keys, each with a session of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

DAY = 86_400.0


@dataclass(frozen=True)
class Racer:
    """How one of the processes takes part."""

    isolation: str = "read committed"
    retention: float = DAY
    """In seconds. Racers seal into leaves of their own."""


class Race:
    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, entry: dict[str, Any], racers: Sequence[Racer], keys: Sequence[str]) -> list[str]:
        """Race for each key in turn, and return those that were run, once for every run.

        :param entry: the settings of the database.
        """
        runs = [self._pool.submit(_race, entry, racer, list(keys)) for racer in racers]
        return [key for run in runs for key in run.result(100)]


@contextmanager
def processes(count: int) -> Iterator[Race]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, _join, (context.Barrier(count),)) as pool:
        yield Race(pool)


_together: Barrier


def _join(together: Barrier) -> None:
    global _together  # noqa: PLW0603 - a barrier is inherited, it cannot be sent along with each race
    _together = together
    import django

    django.setup()


def _race(entry: dict[str, Any], racer: Racer, keys: list[str]) -> list[str]:
    from django.db import connections

    connections.settings["racer"] = entry
    try:
        return [key for key in keys if _wins(racer, key)]
    except BaseException:
        _together.abort()
        raise
    finally:
        connections["racer"].close()
        del connections["racer"]


def _wins(racer: Racer, key: str) -> bool:
    """Claim, have an effect that takes its time, and seal, in one transaction."""
    from django.db import OperationalError, connections

    from django_idempotency.core.states import Sealing, Verdict
    from django_idempotency.storage.transactions import sqlstate

    from .keys import CREATED, Keys, new_claim

    keys = Keys("racer")
    claim = new_claim(key=key, max_wait=10.0)
    _together.wait(60)
    try:
        with keys.atomic(), connections["racer"].cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {racer.isolation}")
            if keys.store.claim(claim, limit_silence=False, savepoint=None).verdict is not Verdict.CLAIMED:
                return False
            cursor.execute("SELECT pg_sleep(0.002)")
            sealing = keys.store.seal(
                claim.id, claim.owner_token, CREATED, retention=racer.retention, lease=30.0, durable=True
            )
            assert sealing is Sealing.SEALED
    except OperationalError as error:
        if sqlstate(error) != "40001":
            raise
        return False
    return True
