"""Everything at once: workers that are killed and suspended, sessions that are ended, a card processor that fails and
restarts, clients that keep coming back and some that give up, and meanwhile partitions that are made, expire and are
dropped, and sweeps."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from django.db import Error, connection
from django.db.models import Count

from django_idempotency import retention
from django_idempotency.core.pruning import Attachment
from django_idempotency.models import IdempotencyKey
from django_idempotency.storage import pruning
from django_idempotency.storage.partitions import SEALED
from django_idempotency.storage.transactions import own_connection
from example_project.client import Request
from example_project.payments.models import CardPayment, Charge, Transfer
from example_project.processor import Fault, Planned
from tests.support.calls import call
from tests.support.leases import states
from tests.support.leaves import drop_farthest, make_expired, today
from tests.support.modes import TRANSACTIONAL
from tests.support.payer import Payer
from tests.support.servers import served, serving_role, url_of_tests, workers_of
from tests.support.waiting import eventually

SECONDS = float(os.environ.get("SOAK_SECONDS", "20"))
LONG = SECONDS >= 120
"""Long enough that each kind of upkeep certainly found something to do in the middle of it."""

CLIENTS = 6
LATER = {"in-progress", "lease-lost", "store-unavailable", "transaction-conflict", "outcome-unknown"}
HURRY = {"IDEMPOTENCY_LEASE": "1", "IDEMPOTENCY_STALE_AFTER": "1", "PROCESSOR_TIMEOUT": "0.5"}
"""Leases end and claims become stale while the test can wait for it, here and at whoever sweeps."""

# The end comes on top: everybody stops, every intent is asked for, and what was interrupted is ended.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 240)]


@dataclass
class Intent:
    """Something that a client wants once, and the answers that anybody heard of it."""

    request: Request
    payer: Payer
    heard: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def by_card(self):
        return "card" in self.request.body

    @property
    def declined(self):
        return self.request.body.get("card") == "declined"

    def ask(self, api):
        """Whether it is settled. What is not is an answer that a retry can get past."""
        answer = call(api.address, self.request, token=self.payer.token)
        if answer.status == (402 if self.declined else 201):
            self.heard.append((answer.status, answer.body))
            return True
        # 500: the view, or what comes before it, lost its session. Nothing of that is kept, the client comes back.
        assert answer.lost or answer.status == 500 or answer.problem in LATER, (answer.status, answer.body)
        return False


class Client:
    """Wants one thing after the other, and asks again for things that others want.

    At times it asks once and forgets about it: what became of that is for a sweeper to find out.
    """

    def __init__(self, api, seed, intents, until):
        self.api, self.random, self.intents, self.until = api, random.Random(seed), intents, until
        self.payer = Payer(funds=100_000_00)
        self.followed = []

    def run(self):
        while not self.until.is_set():
            intent = Intent(self.want(), self.payer)
            self.intents.append(intent)
            if self.random.random() < 0.3:
                intent.ask(self.api)
                continue
            self.followed.append(intent)
            while not intent.ask(self.api) and not self.until.wait(0.05):
                pass
            self.random.choice(self.followed).ask(self.api)

    def want(self):
        if self.random.random() < 0.3:
            return self.payer.pay_by_card("declined" if self.random.random() < 0.2 else "good")
        want = self.payer.charge if self.random.random() < 0.5 else self.payer.deposit
        return want(self.random.choice(TRANSACTIONAL))


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
        self.send(self.worker(), signal.SIGKILL)

    def suspend(self):
        """For longer than a lease, and at times for so long that a sweeper comes by."""
        worker = self.worker()
        self.send(worker, signal.SIGSTOP)
        self.until.wait(self.random.uniform(1.2, 3.0))
        self.send(worker, signal.SIGCONT)

    def send(self, worker, number):
        # It may have been killed just before, and its master has not said so yet.
        with suppress(ProcessLookupError):
            os.kill(worker, number)

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


class CardTrouble:
    """A processor that loses answers, takes its time and is restarted."""

    # One that forgets a key before its time breaks its word, and nobody can charge once with that.
    FAULTS = tuple(fault for fault in Fault if fault is not Fault.FORGET_KEYS)

    def __init__(self, processor, seed, until):
        self.processor, self.random, self.until = processor, random.Random(seed), until
        self.done = Counter()

    def run(self):
        while not self.until.wait(self.random.uniform(0.1, 0.6)):
            if self.random.random() < 0.1:
                with self.processor.stopped():
                    self.until.wait(0.3)
                self.done["restart"] += 1
            else:
                # Slow for less or for more than a call may take.
                fault = Planned(self.random.choice(self.FAULTS), seconds=self.random.uniform(0.1, 3.0))
                self.processor.control.plan(fault)
                self.done["fault"] += 1
        self.processor.control.clear()


class Upkeep:
    """What is run beside the traffic, each a process of its own, of which some are killed half-way."""

    def __init__(self, seed, until, environment):
        self.random, self.until, self.environment = random.Random(seed), until, environment
        self.done = Counter()
        self.became = Counter()
        """What the commands said that they did: ``made`` partitions, and the fates of others and of claims."""
        self.expired = 0

    def run(self):
        deck = ["partitions", "prune", "prune", "sweep", "sweep"]
        while not self.until.is_set():
            self.make_work()
            for subcommand in self.random.sample(deck, len(deck)):
                if self.until.is_set():
                    return
                self.call(subcommand, killed=self.random.random() < 0.3)

    def make_work(self):
        """A leaf of the past that has to go, and a gap at the far end that has to be filled."""
        # Not this day again, also if it fails: the leaf may be there.
        self.expired += 1
        for make in (lambda: make_expired("default", 1 + self.expired, 2000), lambda: drop_farthest("default")):
            try:
                make()
            except Error:  # its session was ended, or somebody has used the table for too long
                self.done["interrupted"] += 1

    def call(self, subcommand, *, killed=False):
        command = [sys.executable, "-m", "django", "idempotency", subcommand, "--json"]
        process = subprocess.Popen(
            command, env=os.environ | self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if killed:
            self.until.wait(self.random.uniform(0.5, 2.0))
            process.kill()
        said, complaints = process.communicate(timeout=120)
        self.done["killed" if process.returncode < 0 else subcommand] += 1
        # 1: its session was ended, and it says so.
        assert process.returncode in (0, 1, -signal.SIGKILL), said + complaints
        assert process.returncode != 1 or "CommandError: " in complaints, complaints
        # A sweep goes on after a claim that it could not end, and logs why.
        assert subcommand == "sweep" or "Traceback" not in complaints, complaints
        # What a kill cut off in the middle of a line is no document.
        became = fates(json.loads(line) for line in said.splitlines(keepends=True) if line.endswith("\n"))
        if subcommand == "sweep" and became:
            self.done["sweep that took something"] += 1
        self.became += became


def fates(documents):
    counted = Counter()
    for document in documents:
        # A line of its own for each partition and each claim; in the summaries, what was made.
        if document.get("fate") in ("dropped", "released", "finished", "postponed"):
            counted[document["fate"]] += 1
        counted["made"] += sum(len(database.get("made", ())) for database in document.get("databases", ()))
    return +counted


@pytest.fixture
def role(committed):
    with serving_role() as role:
        yield role


@pytest.fixture
def environment(processor):
    return HURRY | {
        "DATABASE_URL": url_of_tests(),
        "DJANGO_SETTINGS_MODULE": "tests.support.served_settings",
        "PROCESSOR_URL": processor.url,
    }


@pytest.fixture
def api(role, environment):
    # A role that could would make partitions by itself, and the command would find none to make.
    serving = {"DATABASE_URL": url_of_tests(role=role), "CONN_MAX_AGE": "1"}
    with served(environment | serving, workers=3, threads=4) as api:
        yield api


def test_no_double_no_lost_success_no_changed_answer_no_stuck_key(api, crowd, processor, environment):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        spared = [pid for (pid,) in cursor.fetchall()]
    seed, until, intents = random.randrange(10**6), threading.Event(), []
    print(f"seed {seed}")
    trouble, card_trouble = Trouble(api, seed, until, spared), CardTrouble(processor, seed, until)
    upkeep = Upkeep(seed, until, environment)
    clients = [Client(api, seed + number, intents, until) for number in range(CLIENTS)]
    running = [crowd.start(each.run) for each in (*clients, trouble, card_trouble, upkeep)]
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and not any(each.done() for each in running):
        time.sleep(0.1)
    until.set()
    for each in running:
        each.result(120)
    tell(intents, trouble, card_trouble, upkeep)
    assert trouble.done.keys() == {"kill", "suspend", "cut_off"}
    assert card_trouble.done.keys() == {"fault", "restart"} or not LONG
    assert upkeep.became.keys() >= {"made", "dropped", "released", "finished"} or not LONG

    intents.append(left_to_a_sweeper(api, processor.control, upkeep))
    no_key_is_stuck(api, intents)
    assert [intent for intent in intents if len(set(intent.heard)) != 1] == []
    assert {intent.request.body["reference"]: 1 for intent in intents} == effects_by_reference()
    assert set(states()) == {"sealed"}
    the_processor_agrees(processor.control, intents)

    # What was killed half-way is ended by whoever comes next.
    upkeep.make_work()
    for subcommand in ("partitions", "sweep", "prune"):
        upkeep.call(subcommand)
    assert past_leaves() == []
    assert retention.make_ahead("default", dry_run=True).intervals == []
    assert upkeep.became.keys() >= {"made", "dropped", "finished"}


def tell(intents, trouble, card_trouble, upkeep):
    by_card = sum(intent.by_card for intent in intents)
    unsettled = sum(not intent.heard for intent in intents)
    print(f"{len(intents)} intents, {by_card} of them by card, {unsettled} open when everybody stopped")
    for each in (trouble.done, card_trouble.done, upkeep.done, upkeep.became):
        print(dict(each))


def left_to_a_sweeper(api, control, upkeep):
    """A payment that has no answer, and a client who does not come back before it has ended."""
    payer = Payer()
    intent = Intent(payer.pay_by_card(), payer)
    control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
    while control.pending():
        assert not intent.ask(api)
    sealed = IdempotencyKey.objects.filter(key=intent.request.key, state="sealed")
    eventually(lambda: upkeep.call("sweep") or sealed.exists(), "a sweeper finds out", within=60)
    return intent


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
    payments = CardPayment.objects.values_list("reference").annotate(times=Count("pk"))
    charges = Charge.objects.values_list("reference").annotate(times=Count("transfers"))
    deposits = Transfer.objects.filter(memo__startswith="order-").values_list("memo").annotate(times=Count("pk"))
    return dict([*charges, *deposits, *payments])


def the_processor_agrees(control, intents):
    """Who paid was charged once, who was declined was not, and nobody was asked for under two keys."""
    charged, keys = control.charges_by_reference(), control.keys_by_reference()
    declined = {intent.request.body["reference"] for intent in intents if intent.declined}
    for payment in CardPayment.objects.all():
        status, charges = ("declined", 0) if payment.reference in declined else ("authorised", 1)
        assert (payment.status, charged[str(payment.pk)]) == (status, charges)
        assert len(keys[str(payment.pk)]) == 1


def past_leaves():
    """What a pruner has left of the past, or half-way."""
    with own_connection("default") as other:
        return [
            leaf.name
            for leaf in pruning.leaves(other, SEALED)
            if leaf.attachment is not Attachment.ATTACHED or leaf.interval.upper < today()
        ]
