"""A payment by card in three phases, against a processor that is a process of its own and may not answer."""

from __future__ import annotations

import json
import logging
import re
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial
from html import unescape
from io import StringIO
from unittest.mock import Mock
from uuid import UUID

import psycopg
import pytest
from django.core import mail
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections
from django.test import TransactionTestCase
from django.urls import reverse

from django_idempotency import failpoints
from django_idempotency.core.errors import InProgress, KeyReused, OutcomeUnknown
from django_idempotency.core.operations import registry
from django_idempotency.models import IdempotencyKey
from django_idempotency.operations import Declined, operation
from django_idempotency.signals import Counted
from example_project.payments import cards, jobs, operations, processor as client
from example_project.payments.factories import SubscriptionFactory
from example_project.payments.models import CardPayment, StagedJob
from example_project.payments.operations import card_payment
from example_project.payments.serializers import CardPaymentSerializer
from example_project.payments.services import NotPossible
from example_project.processor import Fault, Planned
from tests.support.card_payments import CardPayer, assert_consistent, let_time_pass, record, sweep
from tests.support.commits import delete_everything
from tests.support.records import count

PATIENCE = timedelta(seconds=0.3)
"""For an answer that a test holds back."""


# COMMIT commits, but for the class that says otherwise.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quickly_deleted")]


@pytest.fixture
def quickly_deleted(monkeypatch):
    monkeypatch.setattr(TransactionTestCase, "_fixture_teardown", delete_everything)


@pytest.fixture(autouse=True)
def everything_is_consistent(db, control):
    # What goes wrong on purpose is looked at in the answer.
    logging.getLogger("django.request").disabled = True
    yield
    logging.getLogger("django.request").disabled = False
    failpoints.arm("")
    assert_consistent(control)


@pytest.fixture
def payer():
    return CardPayer()


@pytest.fixture
def impatient(monkeypatch):
    """The processor has less time to answer."""
    changed = replace(card_payment.definition, call_timeout=PATIENCE)
    monkeypatch.setattr(card_payment, "definition", changed)
    monkeypatch.setitem(registry._definitions, changed.name, changed)


def charges(control, payer):
    """The money that moved at the processor for this payer."""
    return [effect.kind for effect in control.effects(str(payer.payment.pk))]


def asked(control, payer):
    return [request for request in control.requests(str(payer.payment.pk)) if request.operation == "charge"]


def problem(response):
    return response.json()["type"].rpartition("#")[2]


def retried(payer):
    """The retry is a replay of what was sealed."""
    again = payer.pay()
    assert again.headers["Idempotent-Replayed"] == "true"
    return again


# --- all goes well ----------------------------------------------------------------------------------


def test_money_is_taken_once_and_every_retry_hears_so(payer, control):
    first = payer.pay()
    assert first.status_code == 201
    assert (first.json()["id"], first.json()["status"]) == (str(payer.payment.pk), "authorised")
    assert payer.get(first.headers["Location"]).json() == first.json()
    again = retried(payer)
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Location"] == first.headers["Location"]
    assert charges(control, payer) == ["charge"]
    assert payer.balance == 42_00


def test_the_processor_never_sees_the_key_of_the_client(payer, control):
    payer.pay()
    [request] = asked(control, payer)
    assert request.key != payer.key
    assert UUID(request.key).version == 8


def test_what_it_took_to_get_there_is_not_kept(payer):
    payer.pay()
    sealed = IdempotencyKey.objects.get()
    assert (sealed.state, sealed.parameters, sealed.steps) == ("sealed", None, None)


@pytest.mark.parametrize(
    "way",
    [
        lambda payer: payer.pay().json()["id"],
        lambda payer: payer.top_up().json()["id"],
        lambda payer: card_payment.run(scope="test", key=payer.key, parameters=payer.parameters).data["id"],
    ],
    ids=["the mixin", "the decorator", "a function call"],
)
def test_every_way_in_reaches_the_same_code(payer, control, way):
    assert way(payer) == way(payer) == str(payer.payment.pk)
    assert charges(control, payer) == ["charge"]


def test_the_ways_in_are_operations_of_their_own(payer):
    """A key that a client used for one route says nothing about another."""
    assert payer.pay().json()["id"] != payer.top_up().json()["id"]


def test_another_amount_under_the_same_key_is_refused(payer, control):
    payer.pay()
    refused = payer.pay(amount=43_00)
    assert (refused.status_code, problem(refused)) == (422, "key-reused")
    run = partial(card_payment.run, scope="test", key="one")
    run(parameters=payer.parameters)
    with pytest.raises(KeyReused):
        run(parameters=payer.parameters | {"amount": 43_00})


@pytest.mark.parametrize("wrong", [{"amount": 0}, {"currency": "USD"}, {"card": ""}, {"account": str(UUID(int=0))}])
def test_a_wrong_request_asks_nobody_and_leaves_the_key_free(payer, control, wrong):
    assert payer.pay(**wrong).status_code in (400, 404)
    assert not CardPayment.objects.exists()
    assert payer.pay().status_code == 201


@pytest.mark.parametrize("page", ["cardpayment", "subscription", "stagedjob", "transfer"])
def test_staff_see_it(payer, admin_client, page):
    SubscriptionFactory(account=payer.account)
    payer.pay()
    assert admin_client.get(f"/admin/payments/{page}/").status_code == 200


# --- the processor says no --------------------------------------------------------------------------


@pytest.mark.parametrize("way", [CardPayer.pay, CardPayer.top_up], ids=["the mixin", "the decorator"])
def test_a_decline_is_an_answer_and_gives_the_reservation_back(control, way):
    payer = CardPayer(card="declined")
    first = way(payer)
    assert (first.status_code, first.json()["status"]) == (402, "declined")
    assert first.json()["decline_code"] == "card_declined"
    assert way(payer).content == first.content
    assert [request.status for request in asked(control, payer)] == [402]
    assert (payer.balance, StagedJob.objects.count()) == (0, 0)


def test_a_decline_that_was_answered_and_not_recorded_is_found_out(control):
    payer = CardPayer(card="declined")
    control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
    assert payer.pay().status_code == 503
    let_time_pass()
    assert sweep() == ["finished"]
    assert (retried(payer).status_code, payer.payment.status) == (402, "declined")
    assert len(asked(control, payer)) == 1


def test_a_request_that_the_processor_calls_wrong_is_held(payer, control, monkeypatch):
    """It is a fault of ours, and says nothing about whether the customer can pay."""
    charge = client.charge
    monkeypatch.setattr(client, "charge", lambda **asked: charge(**asked | {"currency": ""}))
    assert payer.pay().status_code == 503
    assert record().held_reason == "the call 'authorise' ended in Refused"


# --- nobody knows -----------------------------------------------------------------------------------

SILENCES = [
    Fault.NO_ANSWER_BEFORE_EFFECT,
    Fault.NO_ANSWER_AFTER_EFFECT,
    Fault.ERROR_BEFORE_EFFECT,
    Fault.ERROR_AFTER_EFFECT,
    Fault.DOWN,
]


def by_retry(payer):
    answer = payer.pay()
    assert "Idempotent-Replayed" not in answer.headers
    return answer


def by_sweep(payer):
    assert sweep() == ["finished"]
    return retried(payer)


def by_both(payer):
    answer = by_sweep(payer)
    assert sweep() == []
    return answer


@pytest.mark.parametrize("end", [by_retry, by_sweep, by_both])
@pytest.mark.parametrize("fault", SILENCES, ids=lambda fault: fault.value)
def test_a_silence_is_held_until_the_truth_is_found(payer, control, fault, end):
    control.plan(fault)
    held = payer.pay()
    assert (held.status_code, problem(held)) == (503, "outcome-unknown")
    assert int(held.headers["Retry-After"]) >= 1
    assert payer.payment.status == "reserved"
    early = payer.pay()
    assert (early.status_code, problem(early)) == (409, "in-progress")
    assert int(early.headers["Retry-After"]) >= 1
    assert sweep() == []

    let_time_pass()
    assert end(payer).status_code == 201
    assert retried(payer).json()["id"] == str(payer.payment.pk)
    assert charges(control, payer) == ["charge"]
    assert (payer.payment.status, payer.balance) == ("authorised", 42_00)


def test_operators_see_which_call_is_open_and_why(payer, control):
    control.plan(Fault.ERROR_AFTER_EFFECT)
    payer.pay()
    held = record()
    assert held.held_reason == "the call 'authorise' ended in ProcessorUnavailable"
    assert (held.operation, held.recovery_point) == ("payments.card_payment", "reserve")
    assert [step["key"] for step in held.steps] == [None, asked(control, payer)[0].key]


def test_a_processor_that_is_not_there_at_all(payer, processor):
    with processor.stopped():
        assert payer.pay().status_code == 503
        let_time_pass()
        assert sweep() == ["postponed"]
        assert sweep() == []
    let_time_pass()
    assert sweep() == ["finished"]
    assert retried(payer).status_code == 201
    assert charges(processor.control, payer) == ["charge"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("end", [by_retry, by_sweep])
def test_an_answer_that_comes_too_late_counts_once(payer, control, end):
    control.plan(Fault.SLOW_ANSWER)
    assert payer.pay().status_code == 503
    let_time_pass()
    assert end(payer).status_code == 201
    control.resume()
    assert charges(control, payer) == ["charge"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("end", [by_retry, by_sweep])
def test_that_the_processor_knows_nothing_is_no_proof(payer, control, end):
    """The first request is on its way still, and takes effect after everybody has asked about it."""
    control.plan(Fault.SLOW)
    assert payer.pay().status_code == 503
    control.until_held()
    let_time_pass()
    assert end(payer).status_code == 201
    control.resume()
    assert [request.status for request in asked(control, payer)] == [201, 201]
    assert len({request.key for request in asked(control, payer)}) == 1
    assert charges(control, payer) == ["charge"]


def test_a_processor_that_forgot_the_key_is_asked_by_the_reference(payer, control):
    control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
    assert payer.pay().status_code == 503
    control.forget_keys()
    let_time_pass()
    assert sweep() == ["finished"]
    assert retried(payer).status_code == 201
    assert charges(control, payer) == ["charge"]


def test_a_look_up_without_an_answer_is_repeated_later(payer, control):
    control.plan(Fault.ERROR_AFTER_EFFECT, Planned(Fault.DOWN, operation="look_up"))
    assert payer.pay().status_code == 503
    let_time_pass()
    assert sweep() == ["postponed"]
    assert payer.payment.status == "reserved"
    let_time_pass()
    assert sweep() == ["finished"]
    assert len(asked(control, payer)) == 1


class TestPastWhatTheProcessorRemembers:
    """A key that may be forgotten is not sent again: it could be a second charge."""

    @pytest.fixture
    def old(self, payer, control):
        def old(fault):
            control.plan(fault)
            assert payer.pay().status_code == 503
            steps = record().steps
            steps[-1]["started_at"] -= timedelta(hours=19).total_seconds()
            IdempotencyKey.objects.filter(state="in_flight").update(steps=steps)
            let_time_pass(timedelta(hours=19))

        return old

    def test_nothing_is_found_and_a_person_is_asked(self, payer, control, old):
        old(Fault.NO_ANSWER_BEFORE_EFFECT)
        assert sweep() == ["left"]
        let_time_pass(timedelta(hours=19))
        assert sweep() == []
        assert "downstream_retention" in record().held_reason
        later = payer.pay()
        assert (later.status_code, problem(later)) == (409, "held")
        assert len(asked(control, payer)) == 1

    def test_what_is_found_is_recorded_all_the_same(self, payer, control, old):
        old(Fault.NO_ANSWER_AFTER_EFFECT)
        assert payer.pay().status_code == 409
        assert sweep() == ["finished"]
        assert retried(payer).status_code == 201
        assert charges(control, payer) == ["charge"]


class TestWithTheRunbookAlone:
    """Nobody will find out by machine. What is known here is what docs/how-to/alerts.md leads to."""

    @staticmethod
    def command(*arguments):
        out, ended_with = StringIO(), 0
        try:
            call_command("idempotency", *arguments, stdout=out)
        except CommandError as error:
            ended_with = error.returncode
        return out.getvalue(), ended_with

    @pytest.fixture
    def left(self, payer, control):
        """The request went out with ``fault``, and a day later a sweeper gave up."""

        def left(fault):
            count(Counted.SWEEP, 1, route="default")
            control.plan(fault)
            assert payer.pay().status_code == 503
            steps = record().steps
            steps[-1]["started_at"] -= timedelta(hours=19).total_seconds()
            IdempotencyKey.objects.filter(state="in_flight").update(steps=steps)
            let_time_pass()
            assert sweep() == ["left"]
            let_time_pass()

        return left

    def what_is_said(self):
        """The id of the key, and under which one the call without an answer was sent."""
        out, ended_with = self.command("status")
        assert (ended_with, "W053 Left to a person on 'default': 1 key." in out) == (3, True), out
        [number] = set(re.findall(r"manage\.py idempotency show (\S+)", out))
        out, _ = self.command("show", number)
        [key] = re.findall(r"authorise: no answer, .* under the key (\S+)", out)
        return number, key

    @staticmethod
    def mark_resolved(person, number, *, status, body):
        page = reverse("admin:django_idempotency_idempotencykey_resolve", args=[number])
        hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', person.get(page).content.decode())
        shown = {name: unescape(value) for name, value in hidden}
        sent = {"status": status, "body": json.dumps(body, default=str), "reason": "Asked the processor."}
        assert person.post(page, shown | sent).status_code == 302

    @pytest.mark.usefixtures("impatient")
    def test_what_happened_is_booked_and_then_marked_as_resolved(self, payer, control, left, admin_client):
        left(Fault.SLOW)
        control.until_held()
        control.resume()  # it takes effect, after everybody has asked about it
        number, key = self.what_is_said()

        [charge] = client.look_up(key=key)
        assert (charge["status"], payer.payment.status, payer.balance) == ("succeeded", "reserved", 0)
        booked = cards.record(charge["reference"], charge)
        self.mark_resolved(admin_client, number, status=201, body=CardPaymentSerializer(booked).data)

        again = retried(payer)
        assert (again.status_code, again.json()) == (201, payer.get(f"/api/card-payments/{booked.pk}/").json())
        assert charges(control, payer) == ["charge"]
        assert payer.balance == 42_00
        assert self.command("status")[1] == 0

    def test_what_did_not_happen_is_undone_and_then_marked_as_resolved(self, payer, control, left, admin_client):
        left(Fault.NO_ANSWER_BEFORE_EFFECT)
        number, key = self.what_is_said()

        assert client.look_up(key=key) == client.look_up(reference=str(payer.payment.pk)) == []
        undone = cards.give_back(payer.payment.pk, {}, CardPayment.Status.VOIDED)
        self.mark_resolved(admin_client, number, status=402, body=CardPaymentSerializer(undone).data)

        again = retried(payer)
        assert (again.status_code, again.json()["status"]) == (402, "voided")
        assert charges(control, payer) == []
        assert payer.balance == 0
        assert self.command("status")[1] == 0

    def test_a_sweep_that_comes_in_between_does_not_book_it_twice(self, payer, control):
        """Of a key that is only held: the booking is conditional on the reservation, as the runbook wants it."""
        control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
        assert payer.pay().status_code == 503
        let_time_pass()
        [charge] = client.look_up(reference=str(payer.payment.pk))
        assert sweep() == ["finished"]
        with pytest.raises(NotPossible):
            cards.record(charge["reference"], charge)
        assert payer.balance == 42_00


def test_a_view_that_fails_between_two_phases_goes_on_where_it_stopped(payer, control):
    failpoints.arm("after_call_stored/authorise:raise")
    assert payer.pay().status_code == 503
    failpoints.arm("")
    let_time_pass()
    assert payer.pay().status_code == 201
    assert len(asked(control, payer)) == 1


def test_before_the_first_phase_nothing_has_happened_and_the_key_is_free(payer, control):
    failpoints.arm("before_phase_commit/reserve:raise")
    assert payer.pay().status_code == 500
    failpoints.arm("")
    assert not IdempotencyKey.objects.exists()
    assert payer.pay().status_code == 201


# --- reversed instead -------------------------------------------------------------------------------


def _reverse(op, *, account, amount, reference, card):
    """Whether it was charged or not, nobody knows; so it is charged, under the same key, and voided."""
    payment = op.phase("reserve", lambda: pytest.fail("it was reserved before"))
    voided = CardPayment.Status.VOIDED
    try:
        charge = op.call("authorise", partial(operations.authorise, payment, card, op.call_timeout))
        op.call("void", lambda key: client.void(charge["id"]))
    except Declined as declined:
        charge, voided = declined.result, CardPayment.Status.DECLINED
    return op.finish(lambda: CardPaymentSerializer(cards.give_back(payment, charge, voided)).data, status=409)


kiosk_payment = operation(
    "tests.kiosk_payment", downstream_takes_keys=True, void=_reverse, call_timeout=timedelta(seconds=10)
)(card_payment.definition.function)


def kiosk(payer):
    """The customer is gone when the answer comes, so what is unknown is reversed."""
    return kiosk_payment.run(scope="kiosk", key=payer.key, parameters=payer.parameters)


class TestVoiding:
    @pytest.mark.parametrize("fault", SILENCES, ids=lambda fault: fault.value)
    def test_an_effect_whose_outcome_is_unknown_is_reversed(self, payer, control, fault):
        control.plan(fault)
        with pytest.raises(OutcomeUnknown):
            kiosk(payer)
        let_time_pass()
        assert sweep() == ["finished"]
        assert charges(control, payer) == ["charge", "void"]
        answer = kiosk(payer)
        assert (answer.status, answer.data["status"], answer.replayed) == (409, "voided", True)
        assert (payer.payment.status, payer.balance) == ("voided", 0)

    def test_a_decline_has_nothing_to_reverse(self, control):
        payer = CardPayer(card="declined")
        control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
        with pytest.raises(OutcomeUnknown):
            kiosk(payer)
        let_time_pass()
        assert sweep() == ["finished"]
        assert (payer.payment.status, charges(control, payer)) == ("declined", [])

    @pytest.mark.parametrize("point", ["before_call/void", "after_call/void", "after_call_stored/void", "before_seal"])
    @pytest.mark.parametrize("resume", [sweep, kiosk], ids=["sweep", "retry"])
    def test_a_reversal_that_was_begun_goes_on(self, payer, control, point, resume):
        control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
        with pytest.raises(OutcomeUnknown):
            kiosk(payer)
        failpoints.arm(f"{point}:raise")
        let_time_pass()
        assert sweep() == ["postponed"]
        failpoints.arm("")
        let_time_pass()
        resume() if resume is sweep else resume(payer)
        assert kiosk(payer).data["status"] == "voided"
        assert charges(control, payer) == ["charge", "void"]

    def test_it_sends_nothing_again_that_may_be_forgotten(self, payer, control):
        control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
        with pytest.raises(OutcomeUnknown):
            kiosk(payer)
        steps = record().steps
        steps[-1]["started_at"] -= timedelta(hours=19).total_seconds()
        IdempotencyKey.objects.filter(state="in_flight").update(steps=steps)
        control.forget_keys()
        let_time_pass()
        assert sweep() == ["left"]
        assert charges(control, payer) == ["charge"]


# --- without a request ------------------------------------------------------------------------------


class TestBilling:
    @staticmethod
    def bill(month="2026-12"):
        said = StringIO()
        call_command("bill", month, stdout=said, stderr=StringIO())
        return said.getvalue()

    def test_a_second_run_for_the_same_month_takes_nothing_more(self, control):
        subscription = SubscriptionFactory()
        SubscriptionFactory(active=False)
        assert "authorised\n" in self.bill()
        assert "authorised already\n" in self.bill()
        [payment] = CardPayment.objects.all()
        assert (payment.account, payment.reference) == (subscription.account, "2026-12")
        assert control.charges_by_reference()[str(payment.pk)] == 1

    def test_the_next_month_is_another_intent(self):
        SubscriptionFactory()
        self.bill("2026-12")
        self.bill("2027-01")
        assert CardPayment.objects.count() == 2

    def test_one_that_is_unknown_does_not_stop_the_others(self, control):
        SubscriptionFactory.create_batch(2)
        SubscriptionFactory(card="declined")
        control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
        for _ in range(2):
            with pytest.raises(CommandError, match=r"1 payment\(s\) is not known"):
                self.bill()
        assert sorted(CardPayment.objects.values_list("status", flat=True)) == ["authorised", "declined", "reserved"]
        let_time_pass()
        assert self.bill().count("authorised") == 2
        assert set(control.charges_by_reference().values()) == {1}

    def test_nor_does_one_that_cannot_be_paid(self, monkeypatch):
        """However often it is run, those behind it would never be billed."""
        first = SubscriptionFactory.create_batch(3)[0]
        reserve = cards.reserve

        def refuse(account, *arguments, **how):
            if account == str(first.account_id):
                raise ZeroDivisionError
            return reserve(account, *arguments, **how)

        monkeypatch.setattr(cards, "reserve", refuse)
        with pytest.raises(CommandError, match=r"1 payment\(s\) is not known"):
            self.bill()
        assert first.account_id not in CardPayment.objects.values_list("account", flat=True)
        assert CardPayment.objects.filter(status="authorised").count() == 2

    @pytest.mark.parametrize("month", ["2026-13", "12", "december"])
    def test_what_is_no_month_is_refused(self, month):
        with pytest.raises(CommandError, match="a month is"):
            self.bill(month)


# --- what belongs to the effect ---------------------------------------------------------------------


def relay(hand_on=jobs.here):
    return jobs.relay(hand_on)


class TestReceipts:
    def test_one_mail_for_the_payment_and_all_its_retries(self, payer):
        payer.pay()
        assert mail.outbox == []
        for _ in range(3):
            retried(payer)
        assert [relay(), relay()] == [(1, 0), (0, 0)]
        [sent] = mail.outbox
        assert sent.to == [payer.account.owner.email]
        assert "42.00 EUR" in sent.subject

    def test_none_for_what_was_rolled_back(self, payer):
        failpoints.arm("before_seal:raise")
        assert payer.pay().status_code == 503
        assert not StagedJob.objects.exists()
        failpoints.arm("")
        let_time_pass()
        assert sweep() == ["finished"]
        assert StagedJob.objects.count() == 1

    def test_handed_on_twice_it_is_done_once(self, payer):
        """The relay was killed after it had handed the job on and before it had noted that."""
        payer.pay()

        def killed(job):
            jobs.here(job)
            raise ConnectionError

        assert relay(killed) == (0, 1)
        assert relay() == (0, 0)
        let_time_pass()
        assert relay() == (1, 0)
        assert len(mail.outbox) == 1

    def test_the_number_of_the_message_is_the_same_for_every_attempt(self, payer, monkeypatch):
        """The mail server took it, and its answer was lost: the customer's mail program has to know it again."""
        payer.pay()
        send = mail.EmailMessage.send

        def unanswered(message, *args, **kwargs):
            send(message, *args, **kwargs)
            raise ConnectionError

        with monkeypatch.context() as patched:
            patched.setattr(mail.EmailMessage, "send", unanswered)
            assert relay() == (0, 1)
        let_time_pass()
        assert sweep() == ["finished"]
        let_time_pass()
        assert relay() == (1, 0)
        first, second = mail.outbox
        assert first.extra_headers["Message-ID"] == second.extra_headers["Message-ID"]

    def test_what_one_relay_is_at_the_others_leave(self, payer):
        payer.pay()
        others = []
        assert relay(lambda job: others.append(relay())) == (1, 0)
        assert others == [(0, 0)]

    @pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has no locks of rows")
    def test_a_relay_does_not_wait_for_one_that_is_just_taking(self, payer):
        payer.pay()
        CardPayer().pay()
        first = StagedJob.objects.first()
        parameters = connection.get_connection_params() | {"cursor_factory": None}
        with psycopg.connect(**parameters) as other:
            other.execute("SELECT FROM payments_stagedjob WHERE key = %s FOR UPDATE", [first.key])
            assert relay() == (1, 0)
        assert list(StagedJob.objects.all()) == [first]

    def test_one_that_fails_does_not_stop_the_others(self, payer):
        payer.pay()
        CardPayer().pay()
        first = StagedJob.objects.first()
        StagedJob.objects.filter(pk=first.pk).update(name="unheard-of")
        assert relay() == (1, 1)
        assert StagedJob.objects.get().attempts == 1

    def test_a_customer_without_an_address_gets_none(self, payer):
        payer.account.owner.email = ""
        payer.account.owner.save()
        payer.pay()
        assert (relay(), mail.outbox) == ((1, 0), [])

    def test_a_job_cannot_outlive_its_effect(self):
        with pytest.raises(RuntimeError, match="outside the transaction"):
            jobs.stage("receipt", key=str(UUID(int=1)), payment="any")

    def test_the_command_does_them_where_there_is_no_broker(self, payer, settings):
        settings.CELERY_BROKER_URL = ""
        payer.pay()
        said = StringIO()
        call_command("relay_jobs", stdout=said)
        assert (said.getvalue(), len(mail.outbox)) == ("1 handed on, 0 to be tried again\n", 1)

    def test_the_command_says_what_it_could_not_hand_on(self, payer, settings):
        settings.CELERY_BROKER_URL = ""
        payer.pay()
        StagedJob.objects.update(name="unheard-of")
        with pytest.raises(CommandError):
            call_command("relay_jobs", stdout=StringIO())


class TestCelery:
    """The broker is in memory: what is looked at is what comes out of it."""

    @pytest.fixture(autouse=True)
    def app(self):
        from example_project.celery import app

        changed = {"broker_url": "memory://", "task_always_eager": False}
        before = {name: app.conf[name] for name in changed}
        for settings in (changed, before):
            app.conf.update(settings)
            # The app keeps its connections, and with them the broker that another test had.
            app.amqp._producer_pool = app._pool = None
            if settings is changed:
                yield app

    @pytest.fixture
    def message(self, app, payer):
        payer.pay()
        assert relay(jobs.to_celery) == (1, 0)
        with app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
            message = queue.get(block=False)
            message.ack()
            return message

    @staticmethod
    def perform(message):
        from example_project.payments.tasks import perform

        args, kwargs, _ = message.payload
        return perform.apply(args, kwargs, task_id=message.headers["id"], throw=True)

    def test_the_key_of_a_job_is_the_number_of_its_task(self, message):
        assert message.headers["task"] == "payments.perform"
        assert UUID(message.headers["id"]).version == 8
        assert not StagedJob.objects.exists()

    def test_delivered_twice_it_is_done_once(self, message):
        for _ in range(2):
            self.perform(message)
        assert len(mail.outbox) == 1

    def test_a_second_delivery_is_not_done_before_the_first_is(self, message, monkeypatch):
        from celery.exceptions import Retry

        from example_project.payments import tasks

        inside, go_on = threading.Event(), threading.Event()
        send = mail.EmailMessage.send

        def slowly(email, *args, **kwargs):
            inside.set()
            go_on.wait(20)
            return send(email, *args, **kwargs)

        monkeypatch.setattr(mail.EmailMessage, "send", slowly)
        told = []
        monkeypatch.setattr(tasks.perform, "retry", lambda exc, countdown: told.append(exc) or Retry(exc=exc))
        first = threading.Thread(target=in_a_thread, args=(self.perform, message))
        first.start()
        try:
            assert inside.wait(20)
            with pytest.raises(Retry):
                self.perform(message)
        finally:
            go_on.set()
            first.join()
        assert [type(error) for error in told] == [InProgress]
        self.perform(message)
        assert len(mail.outbox) == 1

    @pytest.mark.parametrize("failure", [OperationalError, KeyError])
    def test_a_job_that_fails_in_whatever_way_is_tried_again(self, message, monkeypatch, failure):
        """A database that restarts, a worker that does not know the job yet: the message is all that is left of it."""
        from celery.exceptions import Retry

        monkeypatch.setattr(jobs, "perform", Mock(side_effect=failure))
        with pytest.raises(Retry):
            self.perform(message)

    def test_without_a_broker_nothing_is_lost(self, app, payer, monkeypatch):
        def unreachable(*args, **kwargs):
            raise ConnectionError

        payer.pay()
        monkeypatch.setattr(app, "send_task", unreachable)
        assert relay(jobs.to_celery) == (0, 1)
        assert StagedJob.objects.count() == 1


def in_a_thread(act, *args):
    try:
        act(*args)
    finally:
        connections.close_all()


# --- inside a test case of a project ----------------------------------------------------------------


@pytest.mark.django_db(transaction=False)
class TestInsideATestCase:
    """Everything is inside the one transaction of a ``TestCase``, and works as it does outside of it."""

    def test_payment_and_replay(self, payer, control):
        assert payer.pay().status_code == 201
        assert retried(payer).status_code == 201
        assert charges(control, payer) == ["charge"]
        assert relay() == (1, 0)

    def test_hold_and_resume(self, payer, control):
        control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
        assert payer.pay().status_code == 503
        let_time_pass()
        assert payer.pay().status_code == 201
        assert charges(control, payer) == ["charge"]

    def test_hold_and_sweep(self, payer, control):
        control.plan(Fault.ERROR_BEFORE_EFFECT)
        assert payer.pay().status_code == 503
        let_time_pass()
        assert sweep() == ["finished"]
        assert retried(payer).status_code == 201

    def test_a_phase_that_fails_leaves_nothing(self, payer):
        failpoints.arm("before_phase_commit/reserve:raise")
        assert payer.pay().status_code == 500
        assert not CardPayment.objects.exists()
        assert not IdempotencyKey.objects.exists()
