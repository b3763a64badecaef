"""What the demo shows of payments by card: a processor that cannot be rolled back, and may not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING
from uuid import uuid4

from django.core import mail
from django.core.management import call_command
from django.db.models import QuerySet

from django_idempotency.models import IdempotencyKey
from django_idempotency.sweeping import stale

from .client import Request
from .payments import jobs
from .payments.models import CardPayment
from .processor import Fault, ProcessorServer

if TYPE_CHECKING:
    from .scenes import Customer, Stage

PATIENCE = 60.0
"""For what comes by itself, on a slow machine."""


class CardScenes:
    """The stage, and the processor beside it."""

    def __init__(self, stage: Stage, processor: ProcessorServer) -> None:
        self.say, self.claim, self.stage = stage.say, stage.claim, stage
        self.alice, self.bob = stage.alice, stage.bob
        self.processor = processor.control
        self.left: list[tuple[Customer, Request]] = []

    def scenes(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "A payment by card, through a processor of its own", self.paid
        yield "The bank declines the card", self.declined
        yield "A worker is killed when the processor has the money and nobody else knows", self.worker_killed
        yield "The processor does not answer in time", self.timed_out
        yield "A sweeper finds out what became of both", self.swept
        yield "Receipts, which no transaction can hold", self.receipts

    def paid(self) -> None:
        payment = self.payment(self.alice, 80_00)
        first = self.stage.post(self.stage.api, self.alice, payment)
        self.claim("the account has the money", first.status == 201, first)
        self.stage.claim_replay(first, self.stage.post(self.stage.api, self.alice, payment))
        self._claim_paid_once(self.alice, payment)

    def declined(self) -> None:
        payment = self.payment(self.bob, 80_00, card="declined")
        first = self.stage.post(self.stage.api, self.bob, payment)
        self.claim("402, which is an answer", first.status == 402, first)
        self.stage.claim_replay(first, self.stage.post(self.stage.api, self.bob, payment))
        self._claim_status(payment, CardPayment.Status.DECLINED)
        self._claim_processor(payment, charges=0)

    def worker_killed(self) -> None:
        payment = self.payment(self.alice, 25_00)
        with self.stage.deadly_api("after_call/authorise") as (api, marker):
            lost = self.stage.post(api, self.alice, payment)
            self.claim("the worker died and the client heard nothing", lost.lost and marker.exists(), lost)
            early = self.stage.post(api, self.alice, payment)
            self.claim("an early retry hears 409", (early.status, early.problem) == (409, "in-progress"), early)
        self._claim_status(payment, CardPayment.Status.RESERVED)
        self._claim_processor(payment, charges=1)
        self.left.append((self.alice, payment))

    def timed_out(self) -> None:
        payment = self.payment(self.bob, 35_00)
        with self.stage.brief_api() as api:
            self.processor.plan(Fault.SLOW)
            held = self.stage.post(api, self.bob, payment)
        self.claim("503: nobody knows", (held.status, held.problem) == (503, "outcome-unknown"), held)
        self.claim("and to come back with the same key", held.retry_after > 0, held.headers)
        key = IdempotencyKey.objects.filter(key=payment.key).first()
        self.say(f"On record: {key and key.held_reason}")
        self.claim("it is held, for a reason", bool(key and key.held_reason), key)
        self.say("The request is at the processor still. Whoever asks about it now finds nothing.")
        self._claim_processor(payment, charges=0)
        self.left.append((self.bob, payment))

    def swept(self) -> None:
        self.say("A claim is stale when its lease is over, and a while after that.")
        deadline = time.monotonic() + PATIENCE
        keys = {payment.key for _, payment in self.left}
        while keys - {record.key for record in stale("default", limit=1000)} and time.monotonic() < deadline:
            time.sleep(0.2)
        said = StringIO()
        call_command("idempotency", "sweep", stdout=said)
        for line in said.getvalue().splitlines():
            self.say(line)
        self.say("Now the slow request comes to its end, too late to count.")
        self.processor.resume()
        for customer, payment in self.left:
            retry = self.stage.post(self.stage.api, customer, payment)
            self.claim("the retry hears what the sweeper found", retry.status == 201 and retry.replayed, retry)
            self._claim_paid_once(customer, payment)

    def receipts(self) -> None:
        addresses = {customer.account.owner.email for customer in (self.alice, self.bob) if customer.account.owner}
        # Without a broker. With one, this would be `celery beat` and a worker.
        done, failed = jobs.relay(jobs.here)
        self.say(f"manage.py relay_jobs: {done} handed on, {failed} to be tried again")
        sent = [message for message in getattr(mail, "outbox", ()) if addresses & set(message.to)]
        for message in sent:
            self.say(f"to {message.to[0]}: {message.subject}")
        self.claim("one for each payment that came about", len(sent) == 3, len(sent))
        again = jobs.relay(jobs.here)
        self.claim("and no more of them", again == (0, 0), again)

    def claim_nothing_is_under_way(self, customers: Sequence[Customer]) -> None:
        accounts = [customer.account for customer in customers]
        open_ = CardPayment.objects.filter(account__in=accounts, status=CardPayment.Status.RESERVED).count()
        self.claim("no payment by card is under way", open_ == 0, open_)

    def payment(self, customer: Customer, amount: int, *, card: str = "good") -> Request:
        body = {
            "account": str(customer.account.pk),
            "amount": amount,
            "currency": "EUR",
            "card": card,
            "reference": f"order-{uuid4()}",
        }
        return Request("/api/card-payments/", body)

    def _claim_paid_once(self, customer: Customer, payment: Request) -> None:
        self._claim_status(payment, CardPayment.Status.AUTHORISED)
        self._claim_processor(payment, charges=1)
        customer.spent -= payment.body["amount"]
        self.stage.claim_balance(customer)

    def _claim_status(self, payment: Request, status: CardPayment.Status) -> None:
        found = list(self._rows(payment).values_list("status", flat=True))
        self.claim(f"one payment, {status}", found == [status], found)

    def _claim_processor(self, payment: Request, *, charges: int) -> None:
        """What the processor's own log says: it knows a payment by the number that we gave it."""
        numbers = [str(row.pk) for row in self._rows(payment)]
        asked = [request for number in numbers for request in self.processor.requests(number)]
        keys = {request.key for request in asked if request.operation == "charge"}
        made = [effect for number in numbers for effect in self.processor.effects(number)]
        text = f"the processor's log: {len(asked)} request(s), one key, {charges} charge(s)"
        self.claim(text, len(keys) == 1 and len(made) == charges, f"{keys}, {made}")

    @staticmethod
    def _rows(payment: Request) -> QuerySet[CardPayment]:
        return CardPayment.objects.filter(reference=payment.body["reference"])
