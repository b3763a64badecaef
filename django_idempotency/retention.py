"""How long records are kept: partitions, made ahead by the processes that need them (what to make: ``core.intervals``).

Each process remembers how far the leaves of a database reach, so that a claim asks nobody.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from django.db import Error as DatabaseFailure

from .conf import current
from .core.errors import StoreUnavailable
from .core.intervals import Interval, comfortable_reach, plan, reach_of
from .storage import partitions
from .storage.transactions import own_connection

logger = logging.getLogger("django_idempotency")

RETRY_SECONDS = 60.0
"""How long a process waits before it looks again at leaves that it could not make ahead."""

# Between this clock and the database's, and between the claim and the seal of a view that takes its time.
_SLACK = timedelta(hours=1)


@dataclass
class _Reach:
    until: datetime
    looked_at: float


_reaches: dict[str, _Reach] = {}


def ensure_leaf(alias: str, retention: timedelta) -> None:
    """See to it, before the effect, that a seal at the end of it will find its partition.

    Costs nothing while this process knows that the leaves reach far enough.

    :raises StoreUnavailable: there is no leaf, and this role may not make one.
    """
    now, known = datetime.now(timezone.utc), _reaches.get(alias)
    if known is not None and known.until - now >= comfortable_reach(current().MAX_RETENTION):
        return
    needed = now + retention + _SLACK
    if known is not None and known.until >= needed and time.monotonic() - known.looked_at < RETRY_SECONDS:
        return
    try:
        until = make_ahead(alias).until
    except DatabaseFailure as error:
        until = _look(alias)
        logger.warning(
            "Partitions of %r reach until %s and could not be extended (%s). "
            "Run manage.py idempotency partitions --database %s as the owner of the table.",
            alias, until, type(error.__cause__ or error).__name__, alias,
        )  # fmt: skip
    _reaches[alias] = _Reach(until, time.monotonic())
    if until < needed:
        raise StoreUnavailable(f"no partition of {alias!r} covers {needed.isoformat()}", retry_after=RETRY_SECONDS)


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
        missing = plan(existing, now, max_retention)
        if missing and not dry_run:
            with partitions.creating(connection):
                now, existing = partitions.covered(connection)
                missing = plan(existing, now, max_retention)
                partitions.create_leaves(connection, missing)
        return Made(missing, reach_of([*existing, *missing], now))


def _look(alias: str) -> datetime:
    with own_connection(alias) as connection:
        now, existing = partitions.covered(connection)
    return reach_of(existing, now)
