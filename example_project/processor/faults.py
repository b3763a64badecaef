"""What goes wrong on request: which fault, for which requests, how often. Nothing here is left to chance."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum


class Fault(str, Enum):
    """What becomes of a request. The client cannot tell one that comes before the effect from one after it."""

    SLOW = "slow"
    """The request waits before anything is done. Its client may give up meanwhile and ask around, and find nothing:
    the effect comes later."""
    SLOW_ANSWER = "slow_answer"
    """What was asked for is done at once, and the answer waits."""
    NO_ANSWER_BEFORE_EFFECT = "no_answer_before_effect"
    """The connection is closed, and nothing was done."""
    NO_ANSWER_AFTER_EFFECT = "no_answer_after_effect"
    """The connection is closed after everything was done."""
    ERROR_BEFORE_EFFECT = "error_before_effect"
    """500, and nothing was done."""
    ERROR_AFTER_EFFECT = "error_after_effect"
    """500, after everything was done. A re-send with the key gets the true answer."""
    FORGET_KEYS = "forget_keys"
    """All keys are forgotten before the request is looked at."""
    DOWN = "down"
    """503, and nothing was done. For a refused connection, stop the server."""


@dataclass
class Planned:
    """A fault for the next ``times`` requests that match; without a number, for all until the plan is cleared.

    :param operation: ``charge``, ``void`` or ``look_up``.
    :param seconds: how long a slow request waits at most; without it, until it is told to go on.
    """

    fault: Fault
    operation: str = "charge"
    reference: str | None = None
    key: str | None = None
    times: int | None = 1
    seconds: float | None = None

    def __post_init__(self) -> None:
        self.fault = Fault(self.fault)

    def matches(self, operation: str, key: str | None, reference: str | None) -> bool:
        return operation == self.operation and self.reference in (None, reference) and self.key in (None, key)


class Plan:
    """Planned faults in their order. A request takes the first one that matches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[Planned] = []

    def add(self, planned: list[Planned]) -> None:
        with self._lock:
            self._pending += planned

    def clear(self) -> None:
        with self._lock:
            self._pending = []

    def pending(self) -> list[Planned]:
        with self._lock:
            return list(self._pending)

    def take(self, operation: str, key: str | None, reference: str | None) -> Planned | None:
        with self._lock:
            for planned in self._pending:
                if planned.matches(operation, key, reference):
                    break
            else:
                return None
            if planned.times is not None:
                planned.times -= 1
                if planned.times <= 0:
                    self._pending.remove(planned)
            return planned


class Gate:
    """Where slow requests wait. They hold nothing meanwhile: others overtake them, with the same key too."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opened = 0
        self._inside: set[object] = set()
        self._waiting: set[object] = set()

    @contextmanager
    def held(self, seconds: float | None) -> Iterator[None]:
        """Wait for :meth:`open`, at most ``seconds``. The block is what comes after, and ``open`` waits for its end."""
        request = object()
        with self._changed:
            opened = self._opened
            self._inside.add(request)
            self._waiting.add(request)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._opened != opened, seconds)
            self._waiting.discard(request)
        try:
            yield
        finally:
            with self._changed:
                self._inside.discard(request)
                self._changed.notify_all()

    def wait_for(self, count: int, seconds: float) -> int:
        """Wait until so many requests are held, and return how many are when that or the time has come."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) >= count, seconds)
            return len(self._waiting)

    def open(self) -> None:
        """Let all go on that are held now, and return when each of them has done its work."""
        with self._changed:
            let_go = set(self._inside)
            self._opened += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._inside & let_go)
