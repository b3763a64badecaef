"""What the business does about a card payment before and after the processor is asked, and never while it is.

One transaction a function. Money under way is in the books from the first of them on: the house holds it, and owes it
to the world outside until the processor has taken it from the card. What the house holds is what is still open.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from . import ledger
from .models import Account, CardPayment, Transfer
from .services import NotPossible


@transaction.atomic
def reserve(account: UUID | str, amount: int, *, reference: str = "") -> CardPayment:
    """Note that the processor is about to be asked."""
    receiver = Account.objects.get(pk=account, kind=Account.Kind.CUSTOMER)
    payment = CardPayment.objects.create(
        account=receiver, amount=amount, currency=receiver.currency, reference=reference
    )
    external, held = _ends(payment)
    ledger.post(Transfer.Kind.RESERVE, {external: -amount, held: amount}, card_payment=payment)
    return payment


@transaction.atomic
def record(payment: UUID | str, charge: dict[str, Any]) -> CardPayment:
    """The processor took the money: the account has it now.

    :param charge: the processor's own words.
    :raises NotPossible: the payment has ended already.
    """
    reserved = _reserved(payment)
    _, held = _ends(reserved)
    entries = {held: -reserved.amount, reserved.account: reserved.amount}
    ledger.post(Transfer.Kind.CARD, entries, card_payment=reserved)
    return _settled(reserved, CardPayment.Status.AUTHORISED, charge)


@transaction.atomic
def give_back(payment: UUID | str, charge: dict[str, Any], status: CardPayment.Status) -> CardPayment:
    """The money will not come: declined, or voided.

    :raises NotPossible: the payment has ended already.
    """
    reserved = _reserved(payment)
    external, held = _ends(reserved)
    ledger.post(Transfer.Kind.RELEASE, {held: -reserved.amount, external: reserved.amount}, card_payment=reserved)
    return _settled(reserved, status, charge)


def _ends(payment: CardPayment) -> tuple[Account, Account]:
    external, held = (
        Account.objects.house(kind, payment.currency) for kind in (Account.Kind.EXTERNAL, Account.Kind.HELD)
    )
    return external, held


def _reserved(payment: UUID | str) -> CardPayment:
    """The payment as nobody else can change it before the transaction ends."""
    locked = CardPayment.objects.select_for_update(no_key=True, of=("self",)).select_related("account").get(pk=payment)
    if locked.status != CardPayment.Status.RESERVED:
        raise NotPossible(f"This card payment is {locked.status} already.")
    return locked


def _settled(payment: CardPayment, status: CardPayment.Status, charge: dict[str, Any]) -> CardPayment:
    payment.status, payment.settled_at = status, timezone.now()
    payment.processor_charge = charge.get("id")
    payment.decline_code = charge.get("decline_code") or ""
    payment.save(update_fields=("status", "settled_at", "processor_charge", "decline_code"))
    return payment
