"""The operations that the how-to guides show: each stops at its call, and is swept as the guide says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_idempotency.core.errors import Held, OutcomeUnknown
from django_idempotency.operations import Declined, DidNotHappen, Happened, Unknown, operation
from django_idempotency.sweeping import Fate
from tests.support.workshops import on_both_stores

pytestmark = on_both_stores


class Bank:
    """It takes no keys. It knows payouts by their reference, and refuses one that was cancelled."""

    def __init__(self):
        self.payouts, self.cancelled, self.silent, self.verdict = {}, set(), True, "paid"

    def send(self, reference, amount, *, timeout):
        if reference in self.cancelled:
            raise Declined({"status": "cancelled"})
        assert reference not in self.payouts, "a second payout"
        self.payouts[reference] = {"amount": amount, "status": self.verdict}
        if self.silent:
            raise TimeoutError
        return self.payouts[reference]

    def find(self, reference):
        return self.payouts.get(reference)

    def cancel(self, reference, *, timeout):
        self.cancelled.add(reference)
        self.payouts.pop(reference, None)
        return {"status": "cancelled"}


class Books:
    def __init__(self):
        self.entries = []

    def reserve(self, account, amount):
        self.entries.append(("reserved", amount))
        return "payout-17"

    def settle(self, number, status):
        self.entries.append((status, number))
        return {"payout": number, "status": status}


bank, books = Bank(), Books()


def find_payout(record):
    number = record.progress.step("reserve").result
    found = bank.find(reference=number)
    if found is None:
        return DidNotHappen()
    if found["status"] == "pending":
        return Unknown("the bank has it as pending")
    return Happened(found, declined=found["status"] == "rejected")


@operation("payments.payout", resolver=find_payout, downstream_retention=timedelta(days=2))
def payout(op, *, account, amount):
    number = op.phase("reserve", lambda: books.reserve(account, amount))
    try:
        sent = op.call("send", lambda key: bank.send(number, amount, timeout=op.call_timeout))
    except Declined as declined:
        status = declined.result["status"]
        return op.finish(lambda: books.settle(number, status), status=402)
    return op.finish(lambda: books.settle(number, sent["status"]))


def take_back(op, *, account, amount):
    number = op.phase("reserve", lambda: books.reserve(account, amount))  # answers from the record
    op.call("cancel", lambda key: bank.cancel(number, timeout=op.call_timeout))
    return op.finish(lambda: books.settle(number, "taken back"), status=409)


@operation("payments.instant_payout", void=take_back)
def instant_payout(op, *, account, amount):
    number = op.phase("reserve", lambda: books.reserve(account, amount))
    sent = op.call("send", lambda key: bank.send(number, amount, timeout=op.call_timeout))
    return op.finish(lambda: books.settle(number, sent["status"]))


@pytest.fixture(autouse=True)
def everything_is_new():
    bank.__init__()
    books.__init__()


def stuck(workshop, shown):
    """The operation on the database of this test, after its call had no answer."""
    as_shown = shown.definition
    called = workshop.redeclare(
        shown,
        as_shown.function,
        resolver=as_shown.resolver,
        void=as_shown.void,
        downstream_retention=as_shown.downstream_retention,
    )
    with pytest.raises(OutcomeUnknown):
        workshop.run(called, account="a", amount=5)
    workshop.lapse()
    return called


def test_what_the_bank_knows_by_its_reference_is_the_answer(workshop):
    called = stuck(workshop, payout)
    assert workshop.fates() == [Fate.FINISHED]
    answer = workshop.run(called, account="a", amount=5)
    assert (answer.status, answer.data, answer.replayed) == (201, {"payout": "payout-17", "status": "paid"}, True)
    assert books.entries == [("reserved", 5), ("paid", "payout-17")]


def test_a_rejection_that_is_looked_up_takes_the_way_of_one_that_was_heard(workshop):
    bank.verdict = "rejected"
    called = stuck(workshop, payout)
    assert workshop.fates() == [Fate.FINISHED]
    assert workshop.run(called, account="a", amount=5).status == 402


def test_what_is_pending_is_asked_for_again(workshop):
    bank.verdict = "pending"
    stuck(workshop, payout)
    swept = workshop.swept()
    assert (swept.fate, swept.reason) == (Fate.POSTPONED, "the bank has it as pending")


def test_that_a_bank_without_keys_knows_nothing_is_for_a_person(workshop):
    called = stuck(workshop, payout)
    bank.payouts.clear()
    assert workshop.fates() == [Fate.LEFT]
    workshop.lapse()
    with pytest.raises(Held):
        workshop.run(called, account="a", amount=5)
    assert bank.payouts == {}


def test_a_retry_sends_nothing_to_a_bank_without_keys(workshop):
    called = stuck(workshop, payout)
    with pytest.raises(Held):
        workshop.run(called, account="a", amount=5)
    assert len(bank.payouts) == 1


def test_what_can_be_reversed_is_and_the_client_hears_so(workshop):
    called = stuck(workshop, instant_payout)
    assert workshop.fates() == [Fate.FINISHED]
    answer = workshop.run(called, account="a", amount=5)
    assert (answer.status, answer.data["status"], answer.replayed) == (409, "taken back", True)
    assert bank.payouts == {}
    assert books.entries == [("reserved", 5), ("taken back", "payout-17")]
    with pytest.raises(Declined):
        bank.send("payout-17", 5, timeout=1)  # the first owner, woken up
