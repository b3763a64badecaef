"""The sweeper as projects run it: beat, broker and workers, any of which may be killed at any time."""

from __future__ import annotations

import pytest

from django_idempotency.models import IdempotencyKey
from example_project.payments.models import StagedJob
from example_project.processor import Fault
from tests.support.card_payments import CardPayer, assert_consistent, let_time_pass
from tests.support.waiting import eventually

SWEEP = "django_idempotency.tasks.sweep"

# Two Python processes that load Django, on a machine that does other things too.
WITHIN = 60.0

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def stale(committed, control):
    """Customers whose payment had no answer, an hour ago. Nothing was charged for any of them yet."""

    def make(count=1):
        payers = [CardPayer() for _ in range(count)]
        control.plan(*[Fault.NO_ANSWER_BEFORE_EFFECT] * count)
        assert {payer.pay().status_code for payer in payers} == {503}
        let_time_pass()
        return payers

    return make


def resolved():
    return not IdempotencyKey.objects.filter(state="in_flight").exists()


def assert_charged_once(control, payers):
    assert_consistent(control)
    charged = control.charges_by_reference()
    for payer in payers:
        assert charged[str(payer.payment.pk)] == 1
        assert payer.pay().status_code == 201


def test_beat_has_what_is_stale_resolved_and_its_receipt_sent(start, stale, control):
    payers = stale(3)
    start("beat")
    start("worker")
    eventually(resolved, "all is resolved", within=WITHIN)
    assert_charged_once(control, payers)
    eventually(lambda: not StagedJob.objects.exists(), "the receipts are handed on", within=WITHIN)


def test_many_sweeps_at_once_resolve_each_claim_once(start, stale, broker, control):
    payers = stale(12)
    broker.send(SWEEP, times=8)
    start("worker"), start("worker")
    eventually(resolved, "all is resolved", within=WITHIN)
    assert_charged_once(control, payers)
    assert IdempotencyKey.objects.filter(sweeps=1).count() == 12


def test_a_worker_process_is_killed_in_the_middle_of_a_sweep(start, stale, control, tmp_path):
    """The money is taken and nobody has noted it. A later sweep finds that out, and does not take it again."""
    payers = stale(3)
    start("beat")
    start("worker", IDEMPOTENCY_FAILPOINTS=f"after_call/authorise:kill@{tmp_path / 'killed'}")
    eventually((tmp_path / "killed").exists, "a process is killed", within=WITHIN)
    eventually(resolved, "all is resolved", within=WITHIN)
    assert_charged_once(control, payers)


def test_a_whole_worker_is_killed_and_its_message_delivered_again(start, stale, broker, control, tmp_path):
    """Without a beat: the one message that there is was not acknowledged before its work was done."""
    payers = stale()
    broker.send(SWEEP)
    first = start("worker", IDEMPOTENCY_FAILPOINTS=f"after_call/authorise:wait@{tmp_path / 'call'}")
    eventually((tmp_path / "call.reached").exists, "the money is taken", within=WITHIN)
    first.kill()
    broker.until_given_up()
    let_time_pass()
    start("worker")
    eventually(resolved, "all is resolved", within=WITHIN)
    assert_charged_once(control, payers)
