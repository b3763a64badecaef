"""The owner of a card payment is suspended past its lease, in every phase; a sweeper takes over and ends it; then the
owner wakes up. What it was about to do must not happen any more, and its client must hear nothing that differs."""

from __future__ import annotations

import os
import signal

import pytest

from django_idempotency.models import IdempotencyKey
from example_project.payments.models import CardPayment, LedgerEntry, StagedJob
from example_project.processor import Fault
from tests.support.card_payments import CardPayer, let_time_pass
from tests.support.servers import workers_of
from tests.support.shops import PLACES, assert_told_the_truth, in_flight, shop
from tests.support.waiting import eventually

LEASE = 1.0
"""In seconds, and as long as it is renewed: the database ends a transaction that is silent for so long, and rows that
whoever takes over needs are free."""

SENDING = tuple(place for place in PLACES if place.endswith("/authorise") and "call" in place)
RELEASING = ("before_release", "after_release")
UNCLAIMED = ("before_claim",)
SEALED = ("after_commit", "after_effect")
"""Places at which the owner's work is there to stay."""

BY_SWEEPERS = ("after_taken", "after_looked_up/authorise", *SENDING, "before_seal", "after_seal", "after_commit")
BEFORE_THE_END = tuple(
    place for place in PLACES if place not in (*UNCLAIMED, *SEALED, "after_taken", "after_looked_up/authorise")
)
BY_WORKERS = tuple(place for place in PLACES if place not in BY_SWEEPERS[:2])


@pytest.fixture(scope="module")
def site(django_db_setup, shared_processor, tmp_path_factory):
    with shop(
        shared_processor, tmp_path_factory.mktemp("stops"), "stop", lease=LEASE, renewal_cap=LEASE, workers=3
    ) as site:
        yield site


@pytest.fixture
def wake(site):
    """Let the workers that are suspended go on."""

    def wake():
        for pid in workers_of(site.api):
            os.kill(pid, signal.SIGCONT)

    yield wake
    wake()


@pytest.fixture
def held(site, committed, control):
    """Somebody whose payment had no answer, so that a sweeper has to find out."""

    def pay(sent):
        payer = CardPayer()
        control.plan(Fault.NO_ANSWER_AFTER_EFFECT if sent else Fault.NO_ANSWER_BEFORE_EFFECT)
        assert site.pay(payer).status == 503
        let_time_pass()
        return payer

    return pay


def swept(site):
    """Sweep until nothing is in flight."""

    def sweep():
        let_time_pass()
        assert site.sweep().wait() == 0, site.sweepers.log()
        return not in_flight()

    eventually(sweep, "the sweeper has ended it", within=30)


def everything():
    """What a late owner could change."""
    rows = [sorted(model.objects.values_list(), key=repr) for model in (CardPayment, LedgerEntry, IdempotencyKey)]
    return [*rows, set(StagedJob.objects.values_list("key", "attempts"))]


@pytest.mark.parametrize("card", ["good", pytest.param("declined", marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", BY_WORKERS)
def test_a_worker_that_lost_its_key_commits_nothing(site, wake, crowd, committed, control, place, card):
    declined = card == "declined"
    if place in RELEASING:
        # On the way of a request that had no answer.
        control.plan(Fault.NO_ANSWER_BEFORE_EFFECT)
    payer = CardPayer(card=card)
    with site.failpoints.armed(place) as stop:
        stopped = crowd.start(site.pay, payer)
        stop.wait()
        swept(site)
        truth = assert_told_the_truth(site, payer, declined=declined)
        before = everything()
        wake()
        late = stopped.result(30)
    if place in (*SEALED, *UNCLAIMED):
        assert (late.status, late.body) == (truth.status, truth.body)
    else:
        assert late.status in (409, 503)
        assert late.problem
        assert late.retry_after >= 1
    assert everything() == before
    assert assert_told_the_truth(site, payer, declined=declined).body == truth.body


@pytest.mark.parametrize(
    ("place", "sent"),
    # A sweeper that finds the charge does not ask for it again.
    [(place, sent) for place in BY_SWEEPERS for sent in (False, True) if not (sent and place in SENDING)],
)
def test_a_sweeper_that_lost_its_key_commits_nothing(site, held, place, sent):
    payer = held(sent)
    with site.failpoints.armed(place) as stop:
        stopped = site.sweepers.start()
        stop.wait()
        swept(site)
        truth = assert_told_the_truth(site, payer)
        before = everything()
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.wait() == 0, site.sweepers.log()
    assert list(stopped.fates.values()) == ["finished" if place in SEALED else "postponed"]
    assert everything() == before
    assert assert_told_the_truth(site, payer).body == truth.body


@pytest.mark.parametrize("place", BEFORE_THE_END)
def test_a_worker_that_wakes_while_the_sweeper_is_at_it_commits_nothing(site, wake, crowd, committed, control, place):
    """The record is in flight still, and somebody else's: only the owner token keeps them apart."""
    if place in RELEASING:
        control.plan(Fault.NO_ANSWER_BEFORE_EFFECT)
    payer = CardPayer()
    with site.failpoints.armed(place) as stop, site.failpoints.armed("after_taken") as taken:
        stopped = crowd.start(site.pay, payer)
        stop.wait()
        sweeping = eventually(lambda: taking(site, taken), "the sweeper has taken over", within=30)
        before = everything()
        wake()
        late = stopped.result(30)
        assert late.status in (409, 503)
        assert late.retry_after >= 1
        assert everything() == before
        os.kill(sweeping.pid, signal.SIGCONT)
        assert sweeping.wait() == 0, site.sweepers.log()
    assert set(sweeping.fates.values()) <= {"finished", "released"}
    assert_told_the_truth(site, payer)


def taking(site, taken):
    """A sweeper that has taken over and is suspended, or None where there is nothing to take yet."""
    let_time_pass()
    sweep = site.sweepers.start()
    eventually(lambda: taken.reached or sweep.ended, "it takes over or ends")
    return sweep if taken.reached else None
