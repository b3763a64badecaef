"""Keeps the leases of running owners alive: one thread a process, one statement for all that is due.

A thread for each request would cost more than the request's own statements (measured: 119 µs against 0.8 µs).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseFailure

from .conf import current
from .storage import postgres
from .storage.transactions import own_connection, sqlstate

logger = logging.getLogger("django_idempotency")


@dataclass(eq=False)
class Renewal:
    """One lease under renewal. ``stop`` it before the seal, or owner and renewer would meet on the row."""

    alias: str
    id: UUID
    owner_token: UUID
    lease: float
    give_up_at: float
    due: float = field(init=False)

    def __post_init__(self) -> None:
        self.schedule()

    def schedule(self) -> None:
        # A third of the lease leaves room for two failures.
        self.due = time.monotonic() + self.lease / 3

    def stop(self) -> None:
        _renewer.remove(self)


def longest_silence(lease: float) -> float:
    """Seconds without a statement after which the transaction of a renewed owner is ended.

    Suspended, or cut off with its host, it would keep rows locked from whoever takes over. As long as its lease may be
    renewed it may also just be computing.
    """
    cap: timedelta = current().RENEWAL_CAP
    return max(lease, cap.total_seconds())


def start(alias: str, id: UUID, owner_token: UUID, lease: float) -> Renewal:
    """Renew a lease of ``lease`` seconds until it is stopped, lost, or RENEWAL_CAP has passed."""
    give_up_at = time.monotonic() + current().RENEWAL_CAP.total_seconds()
    renewal = Renewal(alias, id, owner_token, lease, give_up_at)
    _renewer.add(renewal)
    return renewal


class _Renewer:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._renewals: set[Renewal] = set()
        self._thread: threading.Thread | None = None
        self._sleeping_until = float("inf")

    def add(self, renewal: Renewal) -> None:
        with self._changed:
            self._renewals.add(renewal)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="idempotency-renewal", daemon=True)
                self._thread.start()
            elif renewal.due < self._sleeping_until:
                # Waking the thread for each request would cost more than the renewal that it seldom needs.
                self._changed.notify()

    def remove(self, renewal: Renewal) -> None:
        with self._changed:
            self._renewals.discard(renewal)

    def _run(self) -> None:
        while True:
            due = self._wait_for_due()
            for alias, renewals in due.items():
                try:
                    self._renew(alias, renewals)
                except Exception:
                    # The thread must outlive any one failure; the next round tries again within the lease.
                    logger.exception("Leases on %r could not be renewed.", alias)

    def _wait_for_due(self) -> dict[str, list[Renewal]]:
        with self._changed:
            while True:
                now = time.monotonic()
                due: dict[str, list[Renewal]] = defaultdict(list)
                for renewal in list(self._renewals):
                    if now >= renewal.give_up_at:
                        self._renewals.discard(renewal)
                        logger.warning("Lease of %s is no longer renewed: RENEWAL_CAP has passed.", renewal.id)
                    elif now >= renewal.due:
                        renewal.schedule()
                        due[renewal.alias].append(renewal)
                if due:
                    return due
                self._sleeping_until = min((renewal.due for renewal in self._renewals), default=float("inf"))
                self._changed.wait(self._sleeping_until - now if self._renewals else None)
                self._sleeping_until = float("-inf")

    def _renew(self, alias: str, renewals: list[Renewal]) -> None:
        with own_connection(alias) as connection:
            if postgres.renewable(connection):
                owned = _still_owned(connection, renewals)
            else:
                owned = set()
                logger.warning(
                    "Leases on %r are not renewed: its transactions are not READ COMMITTED. "
                    "A view that is slower than its lease may run twice, and keep one effect.",
                    alias,
                )
        for renewal in renewals:
            if renewal.id not in owned:
                # The owner learns it at its next write, which is fenced.
                self.remove(renewal)


def _still_owned(connection: Any, renewals: list[Renewal]) -> set[UUID]:
    try:
        return postgres.renew(connection, [(each.id, each.owner_token, each.lease) for each in renewals])
    except DatabaseFailure as error:
        if sqlstate(error) != postgres.JUST_MOVING or len(renewals) == 1:
            if sqlstate(error) == postgres.JUST_MOVING:
                return set()
            raise
    return set().union(*(_still_owned(connection, [each]) for each in renewals))


def _start_afresh() -> None:
    # Threads do not survive a fork, and the parent's lock may be held in the child for ever.
    global _renewer  # noqa: PLW0603 - there is one, and a forked process needs its own
    _renewer = _Renewer()


_renewer = _Renewer()
os.register_at_fork(after_in_child=_start_afresh)
