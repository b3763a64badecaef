"""What the business does: one transaction a function, and no word of HTTP or of idempotency keys."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from . import ledger
from .models import Account, Charge, Refund, Transfer


class NotPossible(Exception):
    """The request is well formed, but what it names is not in a state that allows it."""


@transaction.atomic
def charge(account: Account, amount: int, *, reference: str = "", capture: bool = True) -> Charge:
    """Take money from a customer's account, for good or (``capture=False``) on hold.

    A decline is an answer and not an error: it comes back as a charge, so that it stays on record.
    """
    made = Charge.objects.create(
        account=account,
        amount=amount,
        currency=account.currency,
        reference=reference,
        status=Charge.Status.CAPTURED if capture else Charge.Status.AUTHORISED,
        captured_at=timezone.now() if capture else None,
    )
    taker = Account.objects.house(Account.Kind.REVENUE if capture else Account.Kind.HELD, account.currency)
    try:
        ledger.post(Transfer.Kind.CHARGE, {account: -amount, taker: amount}, charge=made)
    except ledger.InsufficientFunds:
        made.status, made.captured_at = Charge.Status.DECLINED, None
        made.save(update_fields=("status", "captured_at"))
    return made


@transaction.atomic
def capture(charge: Charge) -> Charge:
    """Make held money the house's own.

    :raises NotPossible: nothing is held for this charge.
    """
    charge = _locked(charge)
    if charge.status != Charge.Status.AUTHORISED:
        raise NotPossible(f"Only an authorised charge can be captured; this one is {charge.status}.")
    held, revenue = (Account.objects.house(kind, charge.currency) for kind in (Account.Kind.HELD, Account.Kind.REVENUE))
    ledger.post(Transfer.Kind.CAPTURE, {held: -charge.amount, revenue: charge.amount}, charge=charge)
    charge.status, charge.captured_at = Charge.Status.CAPTURED, timezone.now()
    charge.save(update_fields=("status", "captured_at"))
    return charge


@transaction.atomic
def refund(charge: Charge, amount: int | None = None) -> Refund:
    """Give a captured charge back: ``amount``, or all that is left of it.

    :raises NotPossible: the charge was never captured, or less than that is left.
    """
    charge = _locked(charge)
    if charge.status != Charge.Status.CAPTURED:
        raise NotPossible(f"Only a captured charge can be refunded; this one is {charge.status}.")
    left = charge.amount - charge.refunded
    amount = left if amount is None else amount
    if not 0 < amount <= left:
        raise NotPossible(f"{left} of the charge is left to refund.")
    revenue = Account.objects.house(Account.Kind.REVENUE, charge.currency)
    ledger.post(Transfer.Kind.REFUND, {revenue: -amount, charge.account: amount}, charge=charge)
    return Refund.objects.create(charge=charge, amount=amount)


@transaction.atomic
def deposit(account: Account, amount: int, *, memo: str = "") -> Transfer:
    """Money arrives from outside."""
    external = Account.objects.house(Account.Kind.EXTERNAL, account.currency)
    return ledger.post(Transfer.Kind.DEPOSIT, {external: -amount, account: amount}, memo=memo)


def move(source: Account, target: Account, amount: int, *, memo: str = "") -> Transfer:
    """Money changes places between two accounts of one currency.

    :raises ledger.InsufficientFunds: the source does not hold it.
    """
    return ledger.post(Transfer.Kind.MOVE, {source: -amount, target: amount}, memo=memo)


def _locked(charge: Charge) -> Charge:
    """The charge as it is now, and as nobody else can change it before the transaction ends."""
    return Charge.objects.select_for_update(no_key=True, of=("self",)).select_related("account").get(pk=charge.pk)
