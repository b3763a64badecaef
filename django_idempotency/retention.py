"""How long records are kept: partitions, made ahead by the processes that need them (what to make: ``core.intervals``).

Each process remembers how far the leaves of a database reach, so that a claim asks nobody.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from django.db import Error as DatabaseFailure

from .conf import current
from .core.errors import StoreUnavailable
from .core.intervals import Interval, comfortable_reach, needed_reach, plan, reach_of
from .storage import partitions
from .storage.transactions import own_connection

logger = logging.getLogger("django_idempotency")

RETRY_SECONDS = 60.0
"""How long a process waits before it looks again at leaves that it could not make ahead."""

PAUSE_SECONDS = 1.0
"""How long claims that lack a leaf are refused without another look, after one that did not bring it. Each look takes a
connection or two of their own, which a crowd of clients that come again must not ask for; and no longer than a second,
so that requests pass as soon as somebody has made the partitions."""

TURN_SECONDS = 3.0
"""How long a thread waits for another one that looks at the leaves of the same database."""


@dataclass
class _Reach:
    until: datetime | None
    """None where the database could not be asked."""
    looked_at: float


_reaches: dict[str, _Reach] = {}
_looking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
# A lock that another thread of the parent holds would stay locked in the child for ever.
os.register_at_fork(after_in_child=_looking.clear)


def ensure_leaf(alias: str, retention: timedelta) -> None:
    """See to it, before the effect, that a seal at the end of it will find its partition.

    Costs nothing while this process knows that the leaves reach far enough.

    :raises StoreUnavailable: there is no leaf, and this role may not make one.
    :raises django.db.Error: the database cannot be asked.
    """
    if _reaches_far_enough(alias, retention):
        return
    # A process that starts under load looks once, and not with a connection more for each of its threads. They wait for
    # each other no longer than that can take, or a database out of reach would be asked by one after the other.
    first = _looking[alias].acquire(timeout=TURN_SECONDS)
    try:
        if not _reaches_far_enough(alias, retention):
            _reach_further(alias, retention)
    finally:
        if first:
            _looking[alias].release()


def _reaches_far_enough(alias: str, retention: timedelta) -> bool:
    now, known = datetime.now(timezone.utc), _reaches.get(alias)
    if known is None or known.until is None:
        return False
    if known.until - now >= comfortable_reach(current().MAX_RETENTION):
        return True
    return known.until >= now + needed_reach(retention) and time.monotonic() - known.looked_at < RETRY_SECONDS


def _reach_further(alias: str, retention: timedelta) -> None:
    needed, known = datetime.now(timezone.utc) + needed_reach(retention), _reaches.get(alias)
    if known is None or time.monotonic() - known.looked_at >= PAUSE_SECONDS:
        until = known.until if known else None
        try:
            until = _extended(alias)
        finally:  # remembered of a look that failed, too
            _reaches[alias] = known = _Reach(until, time.monotonic())
    if known.until is None:
        raise StoreUnavailable(f"{alias!r} could not be asked for its partitions a moment ago")
    if known.until < needed:
        raise StoreUnavailable(f"no partition of {alias!r} covers {needed.isoformat()}", retry_after=RETRY_SECONDS)


def _extended(alias: str) -> datetime:
    """How far the leaves reach, once they were extended if that can be."""
    try:
        return make_ahead(alias).until
    except DatabaseFailure as error:
        until = _look(alias)
        if until - datetime.now(timezone.utc) >= comfortable_reach(current().MAX_RETENTION):
            return until  # whoever makes them comes once a day, and processes start in between
        logger.warning(
            "Partitions of %r reach until %s and could not be extended (%s). "
            "Run manage.py idempotency partitions --database %s as the owner of the table.",
            alias, until, type(error.__cause__ or error).__name__, alias,
        )  # fmt: skip
        return until


def forget_reach(alias: str) -> None:
    """Look again at the next claim: the leaves are not what this process thought."""
    _reaches.pop(alias, None)


@dataclass(frozen=True)
class Made:
    """What :func:`make_ahead` did: the leaves it made (or would make) and how far the cover now reaches."""

    intervals: list[Interval]
    until: datetime


def make_ahead(alias: str, *, dry_run: bool = False) -> Made:
    """Fill every gap up to the horizon, on a connection of its own, in one short transaction.

    :raises django.db.Error: this role may not, or the table is locked.
    """
    max_retention = current().MAX_RETENTION
    with own_connection(alias) as connection:
        now, existing = partitions.covered(connection)
        missing = plan(partitions.taken(connection, partitions.SEALED), now, max_retention)
        if missing and not dry_run:
            with partitions.creating(connection):
                now, existing = partitions.covered(connection)
                missing = plan(partitions.taken(connection, partitions.SEALED), now, max_retention)
                partitions.create_leaves(connection, missing)
        return Made(missing, reach_of([*existing, *missing], now))


def graves(alias: str) -> list[Interval]:
    """The intervals of tombstones that have a leaf. Pruning makes those that it needs, so none is made ahead."""
    with own_connection(alias) as connection:
        return partitions.taken(connection, partitions.TOMBSTONES)


def _look(alias: str) -> datetime:
    with own_connection(alias) as connection:
        now, existing = partitions.covered(connection)
    return reach_of(existing, now)
