"""A system that operations call, in this process: it answers as a test wants, and remembers what it was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from django_idempotency.core.errors import OutcomeUnknown
from django_idempotency.models import IdempotencyKey
from django_idempotency.operations import Answer, Op, Operation, operation


class Outside:
    sent: list[str]
    """The derived key of each request."""

    answer: Callable[[str], Any]

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.sent = []
        self.works()

    def send(self, key: str) -> Any:
        self.sent.append(key)
        return self.answer(key)

    def is_silent(self) -> None:
        self.answer = _time_out

    def works(self) -> None:
        self.answer = lambda key: "done"


def _time_out(key: str) -> Any:
    raise TimeoutError("4111-1111 did not answer")


_outside = Outside()


@operation("tests.takes_keys", downstream_takes_keys=True)
def takes_keys(op: Op, *, number: int = 1) -> Answer:
    """A call that may be sent again."""
    answer = op.call("send", _outside.send)
    return op.finish(lambda: {"number": number, "answer": answer})


@operation("tests.takes_no_keys")
def takes_no_keys(op: Op, *, number: int = 1) -> Answer:
    """A call that only a person can find out about."""
    answer = op.call("send", _outside.send)
    return op.finish(lambda: {"number": number, "answer": answer})


@pytest.fixture
def outside() -> Iterator[Outside]:
    _outside.forget()
    yield _outside
    _outside.forget()


def held(called: Operation = takes_keys, *, scope: str = "tests", **parameters: Any) -> IdempotencyKey:
    """An operation whose call had no answer, and whose lease lapsed an hour ago."""
    key = str(uuid4())
    _outside.is_silent()
    with pytest.raises(OutcomeUnknown):
        called.run(scope=scope, key=key, parameters=parameters)
    _outside.works()
    return lapse(IdempotencyKey.objects.get(key=key))


def lapse(key: IdempotencyKey) -> IdempotencyKey:
    IdempotencyKey.objects.filter(pk=key.pk).update(lease_expires_at=timezone.now() - timedelta(hours=1))
    key.refresh_from_db()
    return key
