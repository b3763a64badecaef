"""The counts in the database: added up by many processes, read by minute, forgotten in batches."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from django.db import OperationalError, connections
from django.test.utils import CaptureQueriesContext

from django_idempotency.models import OutcomeCount
from django_idempotency.numbers import counting
from django_idempotency.numbers.counting import Tally
from django_idempotency.signals import Counted, tell
from django_idempotency.storage import counts
from django_idempotency.storage.transactions import own_connection

MINUTE = 29_000_000


@pytest.fixture
def alias(keys, settings):
    settings.IDEMPOTENCY = {"DATABASES": (keys.alias,)}
    OutcomeCount.objects.using(keys.alias).all().delete()
    return keys.alias


def lines(alias):
    rows = OutcomeCount.objects.using(alias).order_by("minute", "route", "outcome")
    return [(row.minute, row.route, row.outcome, row.n) for row in rows]


def at(minute):
    return datetime.fromtimestamp(minute * 60, timezone.utc)


def test_counts_are_added_to_what_is_there(alias):
    counts.add(connections[alias], {(MINUTE, "b", "new"): 2, (MINUTE, "a", "new"): 1})
    counts.add(connections[alias], {(MINUTE, "b", "new"): 5, (MINUTE + 1, "b", "new"): 1, (MINUTE, "b", "late"): 1})
    assert lines(alias) == [
        (at(MINUTE), "a", "new", 1),
        (at(MINUTE), "b", "late", 1),
        (at(MINUTE), "b", "new", 7),
        (at(MINUTE + 1), "b", "new", 1),
    ]


def test_a_storm_is_one_statement(alias):
    """Ten thousand events of a second, on as many routes and outcomes as there may be."""
    tally = Tally(lambda taken: counts.add(connections[alias], taken), clock=lambda: MINUTE * 60.0)
    outcomes = [outcome.value for outcome in Counted]
    for number in range(10_000):
        tally.add(f"shop.views.View{number % 500}:create:POST", outcomes[number % len(outcomes)])
    with CaptureQueriesContext(connections[alias]) as asked:
        assert tally.flush()
        assert tally.flush()
    assert len(asked) == 1
    assert sum(n for *_, n in lines(alias)) == 10_000
    tally._stop.set()


def test_the_most_lines_that_a_process_keeps_fit_into_a_statement(alias):
    counts.add(connections[alias], {(MINUTE, f"route {n}", "new"): 1 for n in range(counting.MOST_LINES)})
    assert OutcomeCount.objects.using(alias).count() == counting.MOST_LINES


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
def test_processes_that_add_to_the_same_lines_do_not_stop_each_other(backend, alias):
    """In an order of its own each, they would be in a deadlock within a few rounds."""
    rounds, routes = 150, [f"route {number}" for number in range(60)]
    ready = threading.Barrier(2)

    def add(order):
        with own_connection(alias) as connection:
            for _ in range(rounds):
                ready.wait(30)
                counts.add(connection, {(MINUTE, route, "new"): 1 for route in order})

    with ThreadPoolExecutor(2) as pool:
        for added in [pool.submit(add, order) for order in (routes, routes[::-1])]:
            added.result(60)
    assert {n for *_, n in lines(alias)} == {2 * rounds}


def test_what_is_old_is_forgotten_in_batches_and_nothing_else(alias, settings, monkeypatch):
    settings.IDEMPOTENCY |= {"COUNTS_RETENTION": timedelta(hours=1)}
    monkeypatch.setattr(counting.time, "time", lambda: MINUTE * 60.0)
    counts.add(connections[alias], {(MINUTE - age, route, "new"): 1 for age in range(120) for route in "ab"})
    with CaptureQueriesContext(connections[alias]) as asked:
        assert counting.forget_old(alias, batch=50) == 2 * 59
    assert len(asked) == 4
    assert [minute for minute, *_ in lines(alias)] == sorted(2 * [at(MINUTE - age) for age in range(61)])
    assert counting.forget_old(alias, batch=50) == 0


def test_a_database_that_is_down_takes_no_count_away_and_harms_nobody(alias, monkeypatch, caplog):
    monkeypatch.setattr(counting, "within_test_environment", lambda: False)
    tally = Tally(counting._write)
    monkeypatch.setattr(counting, "_tally", tally)
    with monkeypatch.context() as broken:
        broken.setattr(counts, "add", lambda *_: (_ for _ in ()).throw(OperationalError("host=secret")))
        tell(Counted.NEW, "a")
        assert not tally.flush()
        tell(Counted.NEW, "a")
    assert "secret" not in caplog.text
    assert tally.flush()
    ((_, route, outcome, n),) = lines(alias)
    assert (route, outcome, n) == ("a", "new", 2)
    tally._stop.set()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_on_sqlite_a_writer_in_the_way_is_waited_for_no_longer_than_the_connection_says(backend, alias, rival):
    tally = Tally(counting._write)
    tally.add("a", "new")
    with connections[rival.alias].cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        assert not tally.flush()
        cursor.execute("ROLLBACK")
    assert tally.flush()
    assert [n for *_, n in lines(alias)] == [1]
    tally._stop.set()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_without_time_zones_a_minute_is_stored_as_django_reads_it(backend, alias, settings):
    settings.USE_TZ = False
    counts.add(connections[alias], {(MINUTE, "a", "new"): 1})
    ((minute, *_),) = lines(alias)
    assert minute == at(MINUTE).astimezone().replace(tzinfo=None)
