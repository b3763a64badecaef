"""Pruning beside everything else: pruners that are killed, several at once, and claims that must not notice."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import Error, OperationalError

from django_idempotency.core.states import Sealing, Verdict
from django_idempotency.pruning import AnotherPruner, Fate, prune
from tests.support import pruners
from tests.support.crowds import Crowd
from tests.support.keys import CREATED, Keys, new_claim, rival_of
from tests.support.leaves import expire_in, fill_past, is_attached, is_pending, is_there, make_past, older_transaction
from tests.support.waiting import eventually

PATIENT = 30.0


@pytest.fixture
def pruner(lab):
    """Starts them; none outlives the test."""
    started = []

    def start(**how):
        started.append(pruners.start(lab.session(), **how))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.join()


def fates(lab):
    found = {each.name: each.fate for each in prune(lab.aliases[0])}
    return {name: fate for name, fate in found.items() if fate is not Fate.KEPT}


# --- killed ---


@pytest.mark.parametrize("point", ["before_detach", "before_drop", "after_batch"])
@pytest.mark.parametrize("when", ["first", "second"])
def test_a_pruner_that_is_killed_between_two_steps_leaves_what_the_next_one_ends(lab, pruner, settings, point, when):
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"TOMBSTONES": timedelta(days=30)}
    names = make_past(lab, 5, 2)
    expired = expire_in(lab, 5, 2) + expire_in(lab, 2, 2)
    for _ in range(1 if when == "first" else 2):
        killed = pruner(failpoints=f"{point}:kill")
        killed.join(PATIENT)
        assert killed.exitcode == -signal.SIGKILL
    assert any(is_there(lab, name) for name in names)
    last = pruner()
    last.join(PATIENT)
    assert last.exitcode == 0
    assert not any(is_there(lab, name) for name in names)
    assert lab.ask("SELECT count(*) FROM idempotency_tombstone") == len(expired)


def test_a_pruner_that_is_killed_while_it_waits_leaves_a_detachment_that_is_ended(lab, pruner):
    """The server goes on for it, and does not notice before it has something to say."""
    (name,) = make_past(lab, 2)
    expire_in(lab, 2, 2)
    with older_transaction(lab):
        killed = pruner()
        eventually(lambda: is_pending(lab, name), "it is being detached")
        lab.until_waiting()
        killed.kill()
        killed.join()
        with pytest.raises(AnotherPruner):
            fates(lab)
    eventually(lambda: not is_attached(lab, name), "its session has ended the detachment")

    def ended():
        try:
            return fates(lab)
        except AnotherPruner:
            return None

    assert eventually(ended, "its session is gone") == {name: Fate.DROPPED}


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_detachment_that_somebody_ends_is_gone_on_with(lab, how):
    (name,) = make_past(lab, 2)
    expire_in(lab, 2, 2)
    with Crowd(1) as crowd:
        with older_transaction(lab):
            pruning = crowd.start(fates, lab)
            eventually(lambda: is_pending(lab, name), "it is being detached")
            lab.until_waiting()
            lab.do(f"SELECT {how}(pid) FROM pg_stat_activity WHERE query LIKE '%{name} CONCURRENTLY'")
            if how == "pg_terminate_backend":
                with pytest.raises(OperationalError):
                    pruning.result(PATIENT)
            else:
                lab.until_waiting()
                assert is_pending(lab, name)
        if how == "pg_cancel_backend":
            assert pruning.result(PATIENT) == {name: Fate.DROPPED}
    assert fates(lab) == ({} if how == "pg_cancel_backend" else {name: Fate.DROPPED})


# --- claims meanwhile ---


def claim_and_seal(keys):
    """In one transaction, and no wait for a lock of anybody's is excused."""
    with keys.atomic():
        claim = new_claim(max_wait=0.1)
        assert keys.store.claim(claim, limit_silence=True, savepoint=None).verdict is Verdict.CLAIMED
        assert keys.seal(claim, durable=True) is Sealing.SEALED


@contextmanager
def traffic(lab, count=3, also=lambda keys: None):
    """Claims, one after the other, of several clients; at the end there were some, and none failed."""
    stop, served = threading.Event(), []

    def client():
        # Any wait for a lock is an error.
        keys = Keys(lab.session(server={"lock_timeout": "100ms", "statement_timeout": "2s"}))
        while not stop.is_set():
            claim_and_seal(keys)
            also(keys)
            served.append(1)

    with Crowd(count) as crowd:
        clients = [crowd.start(client) for _ in range(count)]
        try:
            yield served
        finally:
            stop.set()
        for each in clients:
            each.result(PATIENT)
    assert served


@pytest.mark.parametrize("state", ["detaching", "finalizing"])
def test_claims_go_on_while_a_pruner_waits_for_an_older_transaction(lab, pruner, state):
    (name,) = make_past(lab, 2)
    expire_in(lab, 2, 2)
    with traffic(lab) as served:
        with older_transaction(lab):
            waiting = pruner()
            eventually(lambda: is_pending(lab, name), "it is being detached")
            if state == "finalizing":
                lab.do(f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%{name} CONCURRENTLY'")
                eventually(
                    lambda: lab.ask("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%FINALIZE'"
                                    " AND pid <> pg_backend_pid()"), "it goes on"
                )  # fmt: skip
            before = len(served)
            eventually(lambda: len(served) >= before + 100, "a hundred claims")
            assert waiting.is_alive()
        waiting.join(PATIENT)
        assert waiting.exitcode == 0
    assert not is_there(lab, name)


def test_a_plain_detach_would_queue_them_behind_itself(lab):
    """The test above can fail."""
    (name,) = make_past(lab, 2)
    with Crowd(1) as crowd:
        with older_transaction(lab):
            impatient = lab.session()
            plain = crowd.start(lab.do, f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {name}", alias=impatient)
            lab.until_waiting()
            with pytest.raises((Error, AssertionError)):
                claim_and_seal(Keys(lab.session(server={"lock_timeout": "100ms"})))
        plain.result(PATIENT)


def test_two_pruners_beside_live_claims_with_a_short_statement_timeout(lab, pruner):
    """Everything goes that has expired, nobody is blocked, and what is claimed again survives."""
    days = (2, 3, 4, 5, 6, 7)
    names = make_past(lab, *days)
    for each in days:
        fill_past(lab, each, 20_000)
    again = [claim for each in days for claim in expire_in(lab, each, 5)]
    waiting, reused = list(again), []

    def reuse(keys):
        if waiting:
            claim = rival_of(waiting.pop())
            keys.sealed(claim)
            reused.append(claim)

    with traffic(lab, also=reuse) as served:
        eventually(lambda: len(served) > 20, "there is traffic")
        beside = [pruner(), pruner()]
        for each in beside:
            each.join(PATIENT)
        assert {each.exitcode for each in beside} <= {0, 3}
        eventually(lambda: not waiting, "all are used again")
    assert fates(lab) == {}
    assert not any(is_there(lab, name) for name in names)
    keys = Keys(lab.aliases[0])
    assert len(reused) == len(again)
    for claim in reused:
        answer = keys.claim(rival_of(claim))
        assert (answer.verdict, answer.record.owner_token) == (Verdict.FOUND, claim.owner_token)
        assert answer.record.response == CREATED
