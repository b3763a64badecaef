"""Everything at once: workers that are killed and suspended, sessions that are ended, clients that keep coming back."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from django.db import connection
from django.db.models import Count

from example_project.client import Request
from example_project.payments.models import Charge, Transfer
from tests.support.calls import call
from tests.support.leases import states
from tests.support.modes import TRANSACTIONAL
from tests.support.payer import Payer
from tests.support.servers import served, workers_of
from tests.support.waiting import eventually

SECONDS = float(os.environ.get("SOAK_SECONDS", "20"))
CLIENTS = 6
LATER = {"in-progress", "lease-lost", "store-unavailable", "transaction-conflict", "outcome-unknown"}

pytestmark = pytest.mark.slow


@dataclass
class Intent:
    """Something that a client wants once, and the successes that anybody heard of it."""

    request: Request
    payer: Payer
    heard: list[bytes] = field(default_factory=list)

    def ask(self, api):
        """Whether it is settled. What is no success is an answer that a retry can get past."""
        answer = call(api.address, self.request, token=self.payer.token)
        if answer.status == 201:
            self.heard.append(answer.body)
            return True
        # 500: the view, or what comes before it, lost its session. Nothing of that is kept, the client comes back.
        assert answer.lost or answer.status == 500 or answer.problem in LATER, (answer.status, answer.body)
        return False


class Client:
    """Wants one thing after the other, and asks again for things that others want."""

    def __init__(self, api, seed, intents, until):
        self.api, self.random, self.intents, self.until = api, random.Random(seed), intents, until
        self.payer = Payer(funds=100_000_00)

    def run(self):
        while not self.until.is_set():
            mode = self.random.choice(TRANSACTIONAL)
            want = self.payer.charge if self.random.random() < 0.5 else self.payer.deposit
            intent = Intent(want(mode), self.payer)
            self.intents.append(intent)
            while not intent.ask(self.api) and not self.until.wait(0.05):
                pass
            self.random.choice(self.intents).ask(self.api)


class Trouble:
    """Kills, suspends and cuts off, at random, and counts what it did."""

    def __init__(self, api, seed, until, spared):
        self.api, self.random, self.until, self.spared = api, random.Random(seed), until, spared
        self.done = Counter()

    def run(self):
        deck = [self.suspend, self.kill, self.kill, self.cut_off, self.cut_off]
        while True:
            for make in self.random.sample(deck, len(deck)):
                if self.until.wait(self.random.uniform(0.1, 0.6)):
                    return
                make()
                self.done[make.__name__] += 1

    def kill(self):
        os.kill(self.worker(), signal.SIGKILL)

    def suspend(self):
        """For longer than a lease."""
        worker = self.worker()
        os.kill(worker, signal.SIGSTOP)
        self.until.wait(1.2)
        os.kill(worker, signal.SIGCONT)

    def worker(self):
        return self.random.choice(eventually(lambda: workers_of(self.api), "somebody serves"))

    def cut_off(self):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE pid <> ALL (%s)"
                " AND datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
                " ORDER BY random() LIMIT 2) AS picked",
                (self.spared,),
            )


@pytest.fixture
def api(committed):
    with served({"IDEMPOTENCY_LEASE": "1", "CONN_MAX_AGE": "1"}, workers=3, threads=4) as api:
        yield api


def test_no_double_no_lost_success_no_changed_answer_no_stuck_key(api, crowd):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        spared = [pid for (pid,) in cursor.fetchall()]
    seed, until, intents = random.randrange(10**6), threading.Event(), []
    print(f"seed {seed}")
    trouble = Trouble(api, seed, until, spared)
    running = [crowd.start(Client(api, seed + number, intents, until).run) for number in range(CLIENTS)]
    running.append(crowd.start(trouble.run))
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and not any(each.done() for each in running):
        time.sleep(0.1)
    until.set()
    for each in running:
        each.result(60)
    print(f"{len(intents)} intents, {dict(trouble.done)}")

    no_key_is_stuck(api, intents)
    changed = [intent for intent in intents if len(set(intent.heard)) != 1]
    assert changed == []
    happened = effects_by_reference()
    assert {intent.request.body["reference"]: 1 for intent in intents} == happened
    assert set(states()) == {"sealed"}
    assert trouble.done.keys() == {"kill", "suspend", "cut_off"}


def no_key_is_stuck(api, intents):
    """Each ends within a few leases, now that nobody makes trouble; and what ended has its answer still."""
    deadline = time.monotonic() + 30
    open_ones = [intent for intent in intents if not intent.heard]
    while open_ones:
        assert time.monotonic() < deadline, f"{len(open_ones)} keys do not end"
        open_ones = [intent for intent in open_ones if not intent.ask(api)]
    for intent in random.sample(intents, min(len(intents), 200)):
        # A kept connection whose session was ended last of all is found out by whoever uses it next.
        eventually(lambda intent=intent: intent.ask(api), "a replay")


def effects_by_reference():
    charges = Charge.objects.values_list("reference").annotate(times=Count("transfers"))
    deposits = Transfer.objects.filter(memo__startswith="order-").values_list("memo").annotate(times=Count("pk"))
    return dict([*charges, *deposits])
