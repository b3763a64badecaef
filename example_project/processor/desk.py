"""A request on its way through the processor: noted, perhaps spoilt, done, answered or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from .book import Answer, Book
from .faults import Fault, Gate, Plan

BROKEN: Final = Answer(500, {"error": "internal"})
OUT_OF_SERVICE: Final = Answer(503, {"error": "down"})

# What a fault puts in the place of the work, and what in the place of its answer. None: no answer at all.
INSTEAD: Final[dict[Fault | None, Answer | None]] = {
    Fault.NO_ANSWER_BEFORE_EFFECT: None,
    Fault.ERROR_BEFORE_EFFECT: BROKEN,
    Fault.DOWN: OUT_OF_SERVICE,
}
AFTERWARDS: Final[dict[Fault | None, Answer | None]] = {
    Fault.NO_ANSWER_AFTER_EFFECT: None,
    Fault.ERROR_AFTER_EFFECT: BROKEN,
}


@dataclass(frozen=True)
class Call:
    """What a merchant sent. ``act`` does it, given the number that it has in the log."""

    operation: str
    key: str | None
    reference: str | None
    act: Callable[[int], Answer]


class Clock:
    """The time, and what a test has added to it: a retention of a day has passed at once."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class Desk:
    """Serves calls from many threads."""

    def __init__(self, database: Path, *, key_retention: timedelta) -> None:
        self.clock = Clock()
        self.book = Book(database, key_retention=key_retention, clock=self.clock)
        self.plan = Plan()
        self.gate = Gate()

    def serve(self, call: Call) -> Answer | None:
        """Return the answer, or None where the client shall not get one."""
        planned = self.plan.take(call.operation, call.key, call.reference)
        fault = planned.fault if planned else None
        number = self.book.received(call.operation, call.key, call.reference, fault)
        with ExitStack() as until_answered:
            if planned and fault is Fault.SLOW:
                until_answered.enter_context(self.gate.held(planned.seconds))
            answer = self._act(call, number, fault)
            if planned and fault is Fault.SLOW_ANSWER:
                until_answered.enter_context(self.gate.held(planned.seconds))
            if answer is not None:
                self.book.answered(number, answer.status)
        return answer

    def _act(self, call: Call, number: int, fault: Fault | None) -> Answer | None:
        if fault in INSTEAD:
            return INSTEAD[fault]
        if fault is Fault.FORGET_KEYS:
            self.book.forget_keys()
        answer = call.act(number)
        return AFTERWARDS.get(fault, answer)
