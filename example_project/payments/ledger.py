"""The double-entry ledger: the only module that moves money, and the only source of a balance."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from .models import Account, CardPayment, Charge, LedgerEntry, Transfer


class UnbalancedTransfer(ValueError):
    """The entries would create or destroy money: a fault of the caller, never of a customer."""


class InsufficientFunds(Exception):
    """A customer's account would fall below zero. Raised before anything is written."""

    def __init__(self, account: Account, missing: int) -> None:
        super().__init__(account, missing)
        self.account = account
        self.missing = missing

    def __str__(self) -> str:
        return f"The account lacks {self.missing} {self.account.currency} in minor units."


@transaction.atomic
def post(
    kind: Transfer.Kind,
    entries: Mapping[Account, int],
    *,
    charge: Charge | None = None,
    card_payment: CardPayment | None = None,
    memo: str = "",
) -> Transfer:
    """Write one transfer.

    :param entries: what each account receives, or gives where negative. They add up to zero, in one currency.
    :raises InsufficientFunds: a customer's account does not hold what it should give.
    :raises UnbalancedTransfer: the entries are not a transfer.
    """
    if len(entries) < 2 or sum(entries.values()) != 0 or 0 in entries.values():
        raise UnbalancedTransfer(f"A transfer takes from some accounts what it gives to others, not {entries!r}.")
    if len({account.currency for account in entries}) != 1:
        raise UnbalancedTransfer("A transfer has one currency; an exchange is two transfers.")
    _require_funds({account: -amount for account, amount in entries.items() if amount < 0})
    transfer = Transfer.objects.create(kind=kind, charge=charge, card_payment=card_payment, memo=memo)
    LedgerEntry.objects.bulk_create(
        LedgerEntry(transfer=transfer, account=account, amount=amount) for account, amount in entries.items()
    )
    return transfer


def balance(account: Account) -> int:
    """What an account holds, added up from its entries."""
    total: int = account.entries.aggregate(total=Coalesce(Sum("amount"), 0))["total"]
    return total


def unbalanced_transfers() -> QuerySet[Transfer]:
    """Transfers that are not transfers. Empty, or the ledger cannot be trusted."""
    sums = Transfer.objects.annotate(
        total=Coalesce(Sum("entries__amount"), 0),
        sides=Count("entries"),
        currencies=Count("entries__account__currency", distinct=True),
    )
    return sums.exclude(Q(total=0) & Q(sides__gte=2) & Q(currencies=1))


def is_balanced() -> bool:
    return not unbalanced_transfers().exists()


def _require_funds(amounts: Mapping[Account, int]) -> None:
    """Lock the customers among the givers until the transaction ends, and look at what they hold."""
    customers = {account.pk: amount for account, amount in amounts.items() if account.kind == Account.Kind.CUSTOMER}
    # Locks are taken in one order everywhere, so that two transfers in opposite directions cannot deadlock.
    # "No key" leaves the row open to foreign keys of new rows; a plain FOR UPDATE would wait for those.
    locked = Account.objects.select_for_update(no_key=True).filter(pk__in=customers).order_by("pk")
    for account in locked:
        missing = customers[account.pk] - balance(account)
        if missing > 0:
            raise InsufficientFunds(account, missing)
