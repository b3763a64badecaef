"""What the counts of real processes come to when these end, in order or not, and what they cost when they cannot be
written."""

from __future__ import annotations

import os
import signal
import time
from uuid import uuid4

import psycopg
import pytest
from django.db import connection
from django.db.models import Sum

from django_idempotency.models import OutcomeCount
from django_idempotency.numbers.counting import SECONDS_BETWEEN_WRITES
from tests.support.calls import call
from tests.support.modes import ATOMIC, LEASED
from tests.support.payer import effects
from tests.support.servers import served, workers_of
from tests.support.waiting import eventually

ROUTE = "atomic deposit:POST"


@pytest.fixture(autouse=True)
def none_yet(payer):
    """A server of the tests before wrote what it had counted when it ended."""
    OutcomeCount.objects.all().delete()


def total(outcome):
    """How often, over all minutes, routes of ours alone."""
    return OutcomeCount.objects.filter(outcome=outcome, route=ROUTE).aggregate(n=Sum("n"))["n"] or 0


def send(api, payer, count):
    """Requests, each of which is new, and one after the other."""
    requests = [payer.deposit(ATOMIC) for _ in range(count)]
    for request in requests:
        assert call(api.address, request, token=payer.token).status == 201
    return requests


def test_an_orderly_stop_of_several_processes_loses_nothing(payer):
    with served(workers=2, threads=4) as api:
        requests = send(api, payer, 30)
        for request in requests[:10]:
            assert call(api.address, request, token=payer.token).replayed
        failing = payer.deposit(ATOMIC, account=str(uuid4()))
        for _ in range(3):
            assert call(api.address, failing, token=payer.token).status == 500
        other = payer.deposit(LEASED)
        assert call(api.address, other, token=payer.token).status == 201
    assert (total("new"), total("replayed"), total("released")) == (33, 10, 3)
    assert OutcomeCount.objects.get(route="leased deposit:POST").n == 1
    assert OutcomeCount.objects.filter(route=ROUTE, outcome="new").count() <= 2, "a line for each minute"


def test_a_kill_loses_what_was_not_written_and_no_effect(payer):
    with served(workers=1, threads=4) as api:
        send(api, payer, 5)
        eventually(lambda: total("new") == 5, "the first ones are written", within=SECONDS_BETWEEN_WRITES + 15)
        written = time.monotonic()
        requests = send(api, payer, 5)
        (worker,) = workers_of(api)
        os.kill(worker, signal.SIGKILL)
        assert time.monotonic() - written < SECONDS_BETWEEN_WRITES, "the machine is too slow for this"
        for request in requests:
            answer = call(api.address, request, token=payer.token)
            assert (answer.status, answer.replayed, effects(request)) == (201, True, 1)
    assert total("new") == 5
    assert total("replayed") == 5, "the successor counts for itself"


@pytest.mark.parametrize("how", ["locked", "gone"])
def test_requests_neither_wait_for_the_table_of_counts_nor_fail_by_it(payer, how):
    table = OutcomeCount._meta.db_table
    parameters = connection.get_connection_params() | {"cursor_factory": None}
    with served(workers=1, threads=4) as api, psycopg.connect(**parameters) as session:
        if how == "locked":
            session.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            send(api, payer, 3)
            waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
            eventually(
                lambda: session.execute(waits, (table,)).fetchall(),
                "the thread waits for the table",
                within=SECONDS_BETWEEN_WRITES + 15,
            )
        else:
            session.execute(f"ALTER TABLE {table} RENAME TO elsewhere")
            session.commit()
            send(api, payer, 3)
            eventually(lambda: "could not be written" in api.log(), "it has tried", within=SECONDS_BETWEEN_WRITES + 15)
        began = time.monotonic()
        send(api, payer, 20)
        assert time.monotonic() - began < SECONDS_BETWEEN_WRITES
        if how == "gone":
            session.execute(f"ALTER TABLE elsewhere RENAME TO {table}")
        session.commit()
    assert total("new") == 23
