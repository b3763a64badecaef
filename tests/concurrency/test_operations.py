"""Owners, renewers and sweepers of operations beside each other, each on a connection of its own."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from django_idempotency import sweeping
from django_idempotency.core.errors import InProgress, LeaseLost, OutcomeUnknown
from django_idempotency.core.operations import registry
from django_idempotency.models import IdempotencyKey
from django_idempotency.operations import Misused, operation
from django_idempotency.phasing import current_key
from django_idempotency.renewal import _renewer
from django_idempotency.sweeping import Fate
from example_project.payments import ledger
from example_project.payments.models import Account, Transfer
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("committed")


@pytest.fixture(autouse=True)
def accounts(committed):
    """Opened before anybody waits for anybody."""
    effect("nothing")
    Transfer.objects.update(memo="")


@pytest.fixture(autouse=True)
def own_registry():
    known = dict(registry._definitions)
    yield
    registry._definitions.clear()
    registry._definitions.update(known)


def effect(memo):
    taken, given = (Account.objects.house(kind, "EUR") for kind in (Account.Kind.EXTERNAL, Account.Kind.REVENUE))
    ledger.post(Transfer.Kind.DEPOSIT, {taken: -1, given: 1}, memo=memo)


def effects():
    return Counter(Transfer.objects.exclude(memo="").values_list("memo", flat=True))


class Outside:
    """Another system that acts once for each key, as often as it is asked."""

    def __init__(self):
        self.silent = False
        self.acted = Counter()
        self._lock = threading.Lock()

    def send(self, key):
        with self._lock:
            self.acted[key] += 1
        if self.silent:
            raise TimeoutError
        return key


@pytest.fixture
def outside():
    return Outside()


def lease_ends():
    return IdempotencyKey.objects.values_list("lease_expires_at", flat=True).get()


def lapse(**which):
    keys = IdempotencyKey.objects.filter(state="in_flight", **which)
    return keys.update(lease_expires_at=timezone.now() - timedelta(hours=1))


def test_a_retry_and_a_sweeper_that_come_at_once_end_it_once(crowd, outside):
    """Whichever takes over first goes on; the other one hears of it."""

    def pay(op):
        op.phase("reserve", lambda: effect("reserved"))
        op.call("authorise", outside.send)
        return op.finish(lambda: effect("recorded"))

    called = operation("concurrency.both", downstream_takes_keys=True)(pay)

    def retry(key):
        try:
            return called.run(scope="crowd", key=key, parameters={}).status
        except (InProgress, LeaseLost) as error:
            return type(error)

    for _ in range(15):
        key = str(uuid4())
        outside.silent = True
        with pytest.raises(OutcomeUnknown):
            called.run(scope="crowd", key=key, parameters={})
        outside.silent = False
        lapse()
        status, swept = crowd.all_at_once(
            [lambda key=key: retry(key), lambda: list(sweeping.sweep("default", limit=1))]
        )
        assert status in (201, InProgress)
        assert [each.fate for each in swept] in ([], [Fate.FINISHED])
        assert (status == 201) or swept, "one of them has ended it"
        assert called.run(scope="crowd", key=key, parameters={}).replayed
    assert effects() == {"reserved": 15, "recorded": 15}
    assert set(outside.acted.values()) == {2}


def test_the_lease_of_a_call_is_renewed_for_as_long_as_it_lasts(crowd):
    sent, answer = threading.Event(), threading.Event()

    def slow(op):
        def send(key):
            sent.set()
            assert answer.wait(60)

        op.call("send", send)
        return op.finish(lambda: None)

    called = operation("concurrency.slow", lease=timedelta(seconds=1))(slow)
    running = crowd.start(called.run, scope="crowd", key="k", parameters={})
    assert sent.wait(20)
    announced = lease_ends()
    eventually(lambda: lease_ends() > announced + timedelta(seconds=3), "three leases and more have been renewed")
    assert IdempotencyKey.objects.get().attempts == 1
    with pytest.raises(InProgress):
        called.run(scope="crowd", key="k", parameters={})
    answer.set()
    assert running.result(20).status == 201
    assert not _renewer._renewals, "nothing is renewed any more"


def test_after_the_cap_a_call_that_hangs_loses_its_lease_and_writes_nothing(crowd, settings, outside, caplog):
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "RENEWAL_CAP": timedelta(seconds=1)}
    sent, answer = threading.Event(), threading.Event()
    hangs = [True]

    def hanging(op):
        def send(key):
            if hangs:
                hangs.clear()
                sent.set()
                assert answer.wait(60)
            return outside.send(key)

        op.phase("first", lambda: effect("first"))
        op.call("send", send)
        return op.finish(lambda: effect("recorded"))

    called = operation(
        "concurrency.hanging",
        lease=timedelta(seconds=1),
        stale_after=timedelta(milliseconds=1),
        downstream_takes_keys=True,
    )(hanging)
    with caplog.at_level(logging.WARNING, "django_idempotency"):
        running = crowd.start(called.run, scope="crowd", key="k", parameters={})
        assert sent.wait(20)
        eventually(lambda: sweeping.stale("default", limit=1), "its lease is over, and it is stale")
    assert "no longer renewed: RENEWAL_CAP has passed" in caplog.text
    assert [swept.fate for swept in sweeping.sweep("default", limit=1)] == [Fate.FINISHED]
    answer.set()
    with pytest.raises(LeaseLost):
        running.result(20)
    assert effects() == {"first": 1, "recorded": 1}
    assert list(outside.acted.values()) == [2]


def test_the_lease_of_a_sweeper_is_renewed_while_it_asks_and_no_longer(crowd, settings):
    settings.IDEMPOTENCY = {**settings.IDEMPOTENCY, "LEASE": timedelta(seconds=1)}
    asked, answer = threading.Event(), threading.Event()

    def resolver(record):
        asked.set()
        assert answer.wait(60)
        raise ConnectionError

    def ask(op):
        op.call("send", Outside.send)

    called = operation("concurrency.asked", resolver=resolver, stale_after=timedelta(milliseconds=1))(ask)
    with pytest.raises(OutcomeUnknown):
        called.run(scope="crowd", key="k", parameters={})
    lapse()
    sweeper = crowd.start(lambda: list(sweeping.sweep("default", limit=1)))
    assert asked.wait(20)
    taken = lease_ends()
    eventually(lambda: lease_ends() > taken + timedelta(seconds=2), "its lease has been renewed")
    assert list(sweeping.sweep("default", limit=1)) == []
    answer.set()
    (swept,) = sweeper.result(20)
    assert (swept.fate, swept.reason) == (Fate.POSTPONED, "ConnectionError")
    assert not _renewer._renewals


def test_no_renewal_is_left_behind_by_any_end(crowd, outside):
    def failing(op, *, how):
        if how == "before":
            raise ZeroDivisionError
        op.phase("first", lambda: None)
        if how == "between":
            raise ZeroDivisionError
        if how == "silent":
            outside.silent = True
        op.call("send", outside.send)
        if how == "unfinished":
            return None
        return op.finish(lambda: 1 / (how != "end"))

    called = operation("concurrency.ends")(failing)
    for how in ("before", "between", "unfinished", "end", "fine", "silent"):
        try:
            called.run(scope="crowd", key=how, parameters={"how": how})
        except (ZeroDivisionError, OutcomeUnknown):
            assert how != "fine"
        assert not _renewer._renewals, how


def test_a_phase_that_waits_for_its_lease_to_be_taken_commits_nothing(crowd):
    """The owner is in its transaction when another one takes over; the fence is the UPDATE before its COMMIT."""
    inside, overtaken = threading.Event(), threading.Event()
    waits = [True]

    def pay(op):
        def act():
            effect("reserved")
            if waits:
                waits.clear()
                inside.set()
                assert overtaken.wait(60)

        op.phase("reserve", act)
        return op.finish(lambda: effect("recorded"))

    called = operation("concurrency.fenced")(pay)
    running = crowd.start(called.run, scope="crowd", key="k", parameters={})
    assert inside.wait(20)
    lapse()
    assert called.run(scope="crowd", key="k", parameters={}).status == 201
    overtaken.set()
    with pytest.raises(LeaseLost):
        running.result(20)
    assert effects() == {"reserved": 1, "recorded": 1}


def test_the_key_of_a_view_is_not_that_of_its_threads(crowd):
    """A context is copied into a thread by nobody, and a key that was would have two writers."""
    called = operation("concurrency.inner")(lambda op: op.finish(lambda: None))

    def outer(op):
        assert current_key.get() is not None
        with pytest.raises(Misused, match="called outside a view"):
            crowd.start(called).result(20)
        return op.finish(lambda: None)

    operation("concurrency.outer")(outer).run(scope="crowd", key="k", parameters={})


def test_operations_of_many_threads_keep_their_keys_apart(crowd, outside):
    def pay(op, *, number):
        op.phase("reserve", lambda: effect(f"reserved {number}"))
        key = op.call("authorise", outside.send)
        return op.finish(lambda: [number, key])

    called = operation("concurrency.apart")(pay)
    numbers = iter(range(24))

    def one():
        number = next(numbers)
        answer = called.run(scope="crowd", key=str(number), parameters={"number": number})
        return answer.data[0] == number and answer.data[1]

    keys = crowd.at_once(24, one)
    assert len(set(keys)) == 24
    assert set(outside.acted) == set(keys)
    assert not connection.in_atomic_block
