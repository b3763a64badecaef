"""How often each outcome occurs on each route, kept by minute in the database.

It is added up in the process and written at most once in ten seconds, by a thread and on a connection of its own: a
storm of retries must not become a storm of writes, and a request must neither wait for its counting nor fail by it. A
process that is killed takes up to ten seconds of counts with it. Where the answer of a COMMIT is lost, a line is added
twice.

All of it goes to the first of the setting DATABASES, also where keys are spread: a request without a key belongs to
none of them, and a route is read in one place.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from django.db import connections

from ..conf import current
from ..core.counted import ROUTE_LENGTH, Counted
from ..signals import counted
from ..storage import counts
from ..storage.counts import Line
from ..storage.transactions import own_connection, within_test_environment

logger = logging.getLogger("django_idempotency")

SECONDS_BETWEEN_WRITES = 10.0

LONGEST_PAUSE = 300.0
"""Between attempts at a database that takes no counts, in seconds."""

MOST_LINES = 10_000
"""What a process keeps while it cannot write. Further lines are lost, and the log says how many counts."""

SECONDS_AT_EXIT = 5.0
"""How long the end of a process waits for the last write."""


class Tally:
    """Adds up, and hands over what came together.

    :param write: called with the counts, never by two threads at once. What it raises keeps them for the next time.
    :param clock: seconds since the epoch.
    """

    def __init__(self, write: Callable[[Mapping[Line, int]], None], clock: Callable[[], float] = time.time) -> None:
        self._write = write
        self._clock = clock
        self._adding = threading.Lock()
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._counts: dict[Line, int] = {}
        self._lost = 0
        self._thread: threading.Thread | None = None

    def add(self, route: str, outcome: str) -> None:
        line = (int(self._clock() // 60), route[:ROUTE_LENGTH], outcome)
        with self._adding:
            self._add(line, 1)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="idempotency-counting", daemon=True)
                thread.start()
                self._thread = thread

    def _add(self, line: Line, n: int) -> None:
        if line in self._counts or len(self._counts) < MOST_LINES:
            self._counts[line] = self._counts.get(line, 0) + n
        else:
            self._lost += n

    def flush(self) -> bool:
        """Write what there is. False where that failed, and it is kept."""
        with self._writing:
            with self._adding:
                taken, self._counts = self._counts, {}
                lost, self._lost = self._lost, 0
            try:
                if taken:
                    self._write(taken)
            except Exception as error:  # noqa: BLE001 - nothing that goes wrong here may be anybody's affair
                with self._adding:
                    for line, n in taken.items():
                        self._add(line, n)
                    self._lost += lost
                logger.warning("Counts could not be written, and are kept: %s", type(error.__cause__ or error).__name__)
                return False
        if lost:
            logger.warning("%d counts are lost: they could not be written for too long.", lost)
        return True

    def close(self) -> None:
        """Write for the last time. It is left to the thread, so that a database that hangs holds nobody up for long."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(SECONDS_AT_EXIT)

    def _run(self) -> None:
        pause = SECONDS_BETWEEN_WRITES
        while not self._stop.wait(pause):
            pause = SECONDS_BETWEEN_WRITES if self.flush() else min(2 * pause, LONGEST_PAUSE)
        self.flush()


def forget_old(alias: str, *, batch: int = 10_000) -> int:
    """Delete what is older than COUNTS_RETENTION, ``batch`` lines a transaction, and say how many lines."""
    before, forgotten = _first_kept(), 0
    while deleted := counts.forget(connections[alias], before, batch):
        forgotten += deleted
    return forgotten


def count_old(alias: str) -> int:
    """How many lines :func:`forget_old` would delete."""
    return counts.older(connections[alias], _first_kept())


def _first_kept() -> int:
    kept: timedelta = current().COUNTS_RETENTION
    return int((time.time() - kept.total_seconds()) // 60)


def count(sender: object, *, outcome: Counted, route: str, **_: Any) -> None:  # noqa: ARG001 - the signal's
    # Where tests run, tables come and go, and another connection would be in the way of that.
    if current().COUNTS and not within_test_environment():
        _tally.add(route, outcome.value)


def _write(lines: Mapping[Line, int]) -> None:
    alias = current().DATABASES[0]
    with own_connection(alias) as connection:
        counts.add(connection, lines)


def _start_afresh() -> None:
    # What the parent has counted it writes itself; its thread and its locks mean nothing here.
    global _tally  # noqa: PLW0603 - there is one, and a forked process needs its own
    _tally = Tally(_write)


def _close() -> None:
    _tally.close()


_tally = Tally(_write)
os.register_at_fork(after_in_child=_start_afresh)
atexit.register(_close)
counted.connect(count, dispatch_uid="django_idempotency.numbers.counting")
