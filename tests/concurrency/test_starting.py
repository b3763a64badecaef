"""A process whose first requests come all at once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_idempotency import retention
from tests.support.waiting import eventually

THREADS = 20


class Start:
    """A process before its first claim, whose threads all want to know how far the leaves reach."""

    def __init__(self, make_ahead):
        self.arrived, self.looks, self._make_ahead = [], [], make_ahead
        self.may_answer = lambda: len(self.arrived) == THREADS

    def arrive(self):
        self.arrived.append(self)
        retention.ensure_leaf("default", timedelta(days=1))

    def look(self, alias):
        self.looks.append(alias)
        eventually(self.may_answer, "the look may end")
        return self._make_ahead(alias)


@pytest.fixture
def start(committed, monkeypatch):
    start = Start(retention.make_ahead)
    monkeypatch.setattr(retention, "make_ahead", start.look)
    retention.forget_reach("default")
    yield start
    retention.forget_reach("default")


def test_its_threads_look_at_the_leaves_once(start, crowd, monkeypatch):
    monkeypatch.setattr(retention, "TURN_SECONDS", 60)
    crowd.at_once(THREADS, start.arrive)
    assert start.looks == ["default"]


def test_a_look_that_does_not_come_back_is_not_waited_for(start, crowd, monkeypatch):
    monkeypatch.setattr(retention, "TURN_SECONDS", 0.01)
    start.may_answer = lambda: len(start.looks) > 1
    crowd.at_once(THREADS, start.arrive)
    assert len(start.looks) > 1
