"""A process whose first requests come all at once."""

from __future__ import annotations

from datetime import timedelta
from threading import Lock

import pytest

from django_idempotency import retention
from tests.support.waiting import eventually

DAY = timedelta(days=1)
THREADS = 20


@pytest.fixture
def unaware(crowd, monkeypatch):
    """This process as it was before its first claim. The first look at the leaves lasts until all threads want one."""
    looks, arrived, lock = [], [], Lock()
    make_ahead = retention.make_ahead

    def slow(alias):
        looks.append(alias)
        eventually(lambda: len(arrived) == THREADS, "all have arrived")
        return make_ahead(alias)

    def arrive():
        with lock:
            arrived.append(1)
        retention.ensure_leaf("default", DAY)

    monkeypatch.setattr(retention, "make_ahead", slow)
    retention.forget_reach("default")
    yield looks, arrive
    retention.forget_reach("default")


def test_its_threads_look_at_the_leaves_once(unaware, crowd):
    looks, arrive = unaware
    crowd.at_once(THREADS, arrive)
    assert looks == ["default"]


def test_a_look_that_does_not_come_back_is_not_waited_for(unaware, crowd, monkeypatch):
    looks, arrive = unaware
    monkeypatch.setattr(retention, "TURN_SECONDS", 0.01)
    crowd.at_once(THREADS, arrive)
    assert len(looks) > 1
