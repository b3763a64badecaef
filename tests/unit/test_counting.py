"""Adding up what happens: by minute, within bounds, and written seldom, whatever goes wrong with that."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from django_idempotency.numbers import counting
from django_idempotency.numbers.counting import Tally
from django_idempotency.signals import Counted, tell


class Clock:
    def __init__(self):
        self.now = 600.0

    def __call__(self):
        return self.now


class Paper:
    """What was written, one entry for each time."""

    def __init__(self):
        self.written = []
        self.error = None

    def __call__(self, counts):
        if self.error is not None:
            raise self.error
        self.written.append(dict(counts))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def paper():
    return Paper()


@pytest.fixture
def tally(clock, paper, monkeypatch):
    # Its thread is not what this is about, and is awake once in ten seconds.
    tally = Tally(paper, clock)
    yield tally
    tally._stop.set()


def test_counts_are_added_up_by_minute_route_and_outcome(tally, clock, paper):
    for second, outcome in [(0, "new"), (59.9, "new"), (59.9, "replayed"), (60, "new")]:
        clock.now = 600 + second
        tally.add("shop.Orders:POST", outcome)
    tally.add("shop.Refunds:POST", "new")
    assert tally.flush()
    assert paper.written == [
        {
            (10, "shop.Orders:POST", "new"): 2,
            (10, "shop.Orders:POST", "replayed"): 1,
            (11, "shop.Orders:POST", "new"): 1,
            (11, "shop.Refunds:POST", "new"): 1,
        }
    ]


def test_without_counts_nothing_is_written(tally, paper):
    assert tally.flush()
    tally.add("a", "new")
    assert tally.flush()
    assert tally.flush()
    assert len(paper.written) == 1


def test_a_storm_of_one_second_is_one_write_of_few_lines(tally, paper):
    for number in range(10_000):
        tally.add(f"route {number % 3}", "conflict" if number % 10 else "new")
    tally.flush()
    (lines,) = paper.written
    assert len(lines) <= 6
    assert sum(lines.values()) == 10_000


def test_what_cannot_be_written_is_kept_with_what_comes_meanwhile(tally, clock, paper, caplog):
    tally.add("a", "new")
    paper.error = RuntimeError("host=10.0.0.1")
    assert not tally.flush()
    assert "10.0.0.1" not in caplog.text
    tally.add("a", "new")
    clock.now += 60
    tally.add("a", "new")
    paper.error = None
    assert tally.flush()
    assert paper.written == [{(10, "a", "new"): 2, (11, "a", "new"): 1}]


def test_what_is_kept_has_a_bound_and_the_log_says_what_is_lost(tally, paper, caplog, monkeypatch):
    monkeypatch.setattr(counting, "MOST_LINES", 5)
    paper.error = RuntimeError()
    for number in range(8):
        tally.add(f"route {number}", "new")
    tally.flush()
    tally.add("route 0", "new")
    tally.add("one more", "new")
    assert not tally.flush()
    assert "lost" not in caplog.text
    paper.error = None
    assert tally.flush()
    (lines,) = paper.written
    assert lines == {(10, f"route {number}", "new"): 1 + (number == 0) for number in range(5)}
    assert "4 counts are lost" in caplog.text
    caplog.clear()
    tally.flush()
    assert caplog.text == ""


def test_a_route_is_cut_to_the_length_of_its_column(tally, paper):
    tally.add("r" * 1000, "new")
    tally.flush()
    assert list(paper.written[0]) == [(10, "r" * 255, "new")]


def test_threads_lose_nothing(tally, paper):
    def add():
        for _ in range(2000):
            tally.add("a", "new")

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        tally.flush()
    tally.flush()
    assert sum(n for lines in paper.written for n in lines.values()) == 8000


def test_the_thread_writes_by_itself_and_less_often_while_that_fails(clock, paper, monkeypatch):
    pauses, written = [], threading.Event()
    tally = Tally(paper, clock)

    def wait(pause):
        pauses.append(pause)
        if len(pauses) == 2:
            paper.error = RuntimeError()
            tally.add("a", "new")
        if len(pauses) == 9:
            paper.error = None
        if len(pauses) == 11:
            written.set()
        return len(pauses) == 11

    monkeypatch.setattr(tally._stop, "wait", wait)
    tally.add("a", "new")
    assert written.wait(10)
    tally._thread.join(10)
    assert pauses == [10, 10, 20, 40, 80, 160, 300, 300, 300, 10, 10]
    assert paper.written == [{(10, "a", "new"): 1}, {(10, "a", "new"): 1}]


def test_the_end_writes_what_is_left_and_does_not_wait_for_ever(clock, paper, monkeypatch):
    tally = Tally(paper, clock)
    tally.close()  # nothing was ever counted
    tally = Tally(paper, clock)
    tally.add("a", "new")
    tally.close()
    assert paper.written == [{(10, "a", "new"): 1}]

    monkeypatch.setattr(counting, "SECONDS_AT_EXIT", 0.05)
    go_on = threading.Event()
    hanging = Tally(lambda counts: go_on.wait(30), clock)
    hanging.add("a", "new")
    hanging.close()
    assert hanging._thread.is_alive()
    go_on.set()
    hanging._thread.join(10)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_begins_with_nothing_of_its_parent(monkeypatch):
    # As if another thread of the parent were just adding.
    counting._tally._adding.acquire()
    counting._tally._counts[(1, "a", "new")] = 7
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        counting._tally.add("b", "new")
        os.write(writer, repr(sorted(route for _, route, _ in counting._tally._counts)).encode())
        os._exit(0)
    counting._tally._adding.release()
    counting._tally._counts.clear()
    os.close(writer)
    assert os.read(reader, 100) == b"['b']"
    os.close(reader)
    assert os.waitpid(child, 0)[1] == 0


def test_tests_of_a_project_are_not_counted_in_a_database(caplog):
    caplog.set_level(logging.INFO)
    tell(Counted.NEW, "a")
    assert counting._tally._counts == {}
    assert counting._tally._thread is None


def test_counting_can_be_switched_off(monkeypatch, settings):
    monkeypatch.setattr(counting, "within_test_environment", lambda: False)
    monkeypatch.setattr(counting, "_tally", Tally(lambda counts: None))
    settings.IDEMPOTENCY = {"COUNTS": False}
    tell(Counted.NEW, "a")
    assert counting._tally._counts == {}
    settings.IDEMPOTENCY = {}
    tell(Counted.NEW, "a")
    assert list(counting._tally._counts.values()) == [1]
    counting._tally._stop.set()
