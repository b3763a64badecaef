"""Everything at once: workers that are killed and suspended, sessions that are ended, clients that keep coming back,
and meanwhile partitions that are made, expire and are dropped, and sweeps."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from django.db import Error, connection
from django.db.models import Count

from django_idempotency.core.pruning import Attachment
from django_idempotency.storage import pruning
from django_idempotency.storage.partitions import SEALED
from django_idempotency.storage.transactions import own_connection
from example_project.client import Request
from example_project.payments.models import Charge, Transfer
from tests.support.calls import call
from tests.support.leases import states
from tests.support.leaves import make_expired, today
from tests.support.modes import TRANSACTIONAL
from tests.support.payer import Payer
from tests.support.servers import served, url_of_tests, workers_of
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


class Upkeep:
    """What is run beside the traffic, each a process of its own, of which some are killed half-way."""

    def __init__(self, seed, until):
        self.random, self.until = random.Random(seed), until
        self.done = Counter()
        self.expired = 0

    def run(self):
        deck = ["partitions", "prune", "prune", "sweep"]
        while not self.until.is_set():
            self.let_expire()
            for subcommand in self.random.sample(deck, len(deck)):
                self.call(subcommand, killed=self.random.random() < 0.3)

    def let_expire(self):
        try:
            make_expired("default", 2 + self.expired, 2000)
        except Error:  # its session was ended
            self.done["interrupted"] += 1
        # Not this day again: the leaf may be there.
        self.expired += 1

    def call(self, subcommand, *, killed=False):
        command = [sys.executable, "-m", "django", "idempotency", subcommand]
        environment = {"DATABASE_URL": url_of_tests(), "DJANGO_SETTINGS_MODULE": "tests.support.served_settings"}
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if killed:
            self.until.wait(self.random.uniform(0.5, 2.0))
            process.kill()
        said = process.communicate(timeout=120)[0].decode()
        self.done["killed" if process.returncode < 0 else subcommand] += 1
        # 1: its session was ended, and it says so.
        assert process.returncode in (0, 1, -signal.SIGKILL), said
        assert "Traceback" not in said, said


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
    upkeep = Upkeep(seed, until)
    running += [crowd.start(trouble.run), crowd.start(upkeep.run)]
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and not any(each.done() for each in running):
        time.sleep(0.1)
    until.set()
    for each in running:
        each.result(120)
    print(f"{len(intents)} intents, {dict(trouble.done)}, {upkeep.expired} days expired, {dict(upkeep.done)}")

    no_key_is_stuck(api, intents)
    changed = [intent for intent in intents if len(set(intent.heard)) != 1]
    assert changed == []
    happened = effects_by_reference()
    assert {intent.request.body["reference"]: 1 for intent in intents} == happened
    assert set(states()) == {"sealed"}
    assert trouble.done.keys() == {"kill", "suspend", "cut_off"}

    # What was killed half-way is ended by whoever comes next.
    for subcommand in ("partitions", "sweep", "prune"):
        upkeep.call(subcommand)
    assert past_leaves() == []
    assert upkeep.expired > 0


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


def past_leaves():
    """What a pruner has left of the past, or half-way."""
    with own_connection("default") as other:
        return [
            leaf.name
            for leaf in pruning.leaves(other, SEALED)
            if leaf.attachment is not Attachment.ATTACHED or leaf.interval.upper < today()
        ]
