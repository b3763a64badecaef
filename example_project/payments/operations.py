"""A payment by card: what survives a kill at any line, an answer that never comes, and being asked for twice."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.urls import reverse

from django_idempotency.operations import Answer, Declined, DidNotHappen, Happened, Op, Record, Unknown, operation

from . import cards, jobs, processor
from .models import CardPayment
from .serializers import CardPaymentSerializer


def look_up(record: Record) -> Happened | DidNotHappen | Unknown:
    """Ask the processor what became of a request that it did not answer.

    First by the key that it was sent under. Keys are forgotten after a day, and the reference is not: it is the number
    of our payment, so it stands for this request and no other one.
    """
    assert record.progress is not None
    assert record.progress.open_call is not None
    key, reserved = record.progress.open_call.key, record.progress.step("reserve")
    assert reserved is not None
    charges = processor.look_up(key=key) or processor.look_up(reference=reserved.result)
    if not charges:
        return DidNotHappen()
    charge = next((each for each in charges if each["status"] == "succeeded"), charges[-1])
    if charge["status"] not in ("succeeded", "declined"):
        return Unknown(f"the processor has the charge as {charge['status']}")
    return Happened(charge, declined=charge["status"] == "declined")


@operation(
    "payments.card_payment",
    downstream_takes_keys=True,
    downstream_retention=timedelta(days=1),
    resolver=look_up,
    call_timeout=timedelta(seconds=settings.PROCESSOR_TIMEOUT),
)
def card_payment(op: Op, *, account: str, amount: int, reference: str, card: str) -> Answer:
    """Reserve, authorise, record. Each line is done once, whoever runs this and however often."""
    payment = op.phase("reserve", lambda: str(cards.reserve(account, amount, reference=reference).pk))
    try:
        charge = op.call("authorise", partial(authorise, payment, card, op.call_timeout))
    except Declined as declined:
        return op.finish(partial(_give_back, payment, declined.result), status=402)
    return op.finish(partial(_record, op, payment, charge), headers=[("Location", _path(payment))])


def authorise(payment: str, card: str, timeout: float, key: str) -> dict[str, Any]:
    """Ask the processor for the money of a payment.

    Only its own no is a decline. That it calls the request wrong is a fault of ours, which no customer can bring about:
    like a silence it is held, until somebody has looked.
    """
    asked = CardPayment.objects.get(pk=payment)
    try:
        return processor.charge(
            amount=asked.amount, currency=asked.currency, reference=payment, card=card, key=key, timeout=timeout
        )
    except processor.Declined as declined:
        raise Declined(declined.result) from declined


def _record(op: Op, payment: str, charge: dict[str, Any]) -> dict[str, Any]:
    recorded = cards.record(payment, charge)
    # A mail cannot be rolled back, so it is not sent here: it is written down, in the transaction of what it tells.
    jobs.stage("receipt", key=op.derived_key("receipt"), payment=payment)
    return CardPaymentSerializer(recorded).data


def _give_back(payment: str, charge: dict[str, Any]) -> dict[str, Any]:
    return CardPaymentSerializer(cards.give_back(payment, charge, CardPayment.Status.DECLINED)).data


def _path(payment: str) -> str:
    # Without a host: nobody's request is at hand where a sweeper finishes what a killed worker began.
    return reverse("card-payment-detail", args=[payment])
