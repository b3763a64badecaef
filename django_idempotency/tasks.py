"""Celery tasks: a door. Importing it needs Celery (the extra ``celery``); ``schedules`` says when they are due.

Any number may run at once, and one that is delivered twice or killed half-way does no harm: what a sweep works on is
guarded record by record, not by the message. So a message is acknowledged when its work is done.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from celery import shared_task
from django.db import connections

from . import pruning, retention, sweeping
from .conf import current
from .storage import store_for
from .storage.transactions import drop_if_broken

logger = logging.getLogger("django_idempotency")

_TAKE_NO_MORE_AFTER = 60.0
# No record may take longer: after RENEWAL_CAP (15 min) its lease is no longer renewed. Killed, it is swept again.
_LONGEST = 20 * 60


@shared_task(
    name="django_idempotency.tasks.sweep",
    ignore_result=True,
    acks_late=True,
    reject_on_worker_lost=True,
    time_limit=_LONGEST,
)
def sweep(limit: int = 1000) -> dict[str, dict[str, int]]:
    """Resolve stale claims on all of DATABASES, for about a minute: what is left then is for the next sweep.

    :param limit: of records, on each database.
    :returns: how many came to which end.
    :raises RuntimeError: one of the databases could not be swept. The others were.
    """
    enough = time.monotonic() + _TAKE_NO_MORE_AFTER
    fates: dict[str, dict[str, int]] = {}

    def sweep_one(alias: str) -> None:
        counted: Counter[str] = Counter()
        for swept in sweeping.sweep(alias, limit=limit):
            counted[swept.fate.value] += 1
            if time.monotonic() >= enough:
                break
        fates[alias] = dict(counted)

    _on_each(sweep_one)
    return fates


@shared_task(
    name="django_idempotency.tasks.make_partitions",
    ignore_result=True,
    acks_late=True,
    reject_on_worker_lost=True,
    time_limit=_LONGEST,
)
def make_partitions() -> dict[str, int]:
    """Make partitions ahead on all of DATABASES that have any.

    :returns: how many were made.
    :raises RuntimeError: on one of the databases they could not be made. On the others they were.
    """
    made: dict[str, int] = {}

    def make(alias: str) -> None:
        if store_for(alias).partitioned:
            made[alias] = len(retention.make_ahead(alias).intervals)
            retention.forget_reach(alias)

    _on_each(make)
    return made


@shared_task(
    name="django_idempotency.tasks.prune",
    ignore_result=True,
    acks_late=True,
    reject_on_worker_lost=True,
    time_limit=_LONGEST,
)
def prune() -> dict[str, dict[str, int]]:
    """Remove what has expired on all of DATABASES. Killed in the middle, the next one goes on from there.

    :returns: how many partitions came to which end, and how many rows were deleted from tables that have none; nothing
        where another pruner is at work.
    :raises RuntimeError: on one of the databases it could not be done. On the others it was.
    """
    fates: dict[str, dict[str, int]] = {}

    def prune_one(alias: str) -> None:
        counted: Counter[str] = Counter()
        with suppress(pruning.AnotherPruner):
            for pruned in pruning.prune(alias):
                counted[pruned.fate.value] += pruned.number
        fates[alias] = dict(counted)

    _on_each(prune_one)
    return fates


def _on_each(act: Callable[[str], None]) -> None:
    failed = []
    for alias in current().DATABASES:
        try:
            act(alias)
        except Exception:
            logger.exception("Nothing more can be done on %r.", alias)
            failed.append(alias)
            drop_if_broken(connections[alias])
    if failed:
        raise RuntimeError(f"Not done on {', '.join(failed)}; the log says why.")
