"""A customer whose charges and deposits a test can count afterwards."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.db.models import Q

from django_idempotency import IdempotencyMode
from example_project.client import Request
from example_project.payments.factories import AccountFactory, TokenFactory
from example_project.payments.models import Charge, Transfer


class Payer:
    def __init__(self, funds: int = 10_000_00) -> None:
        self.account = AccountFactory.create(funds=funds)
        self.token = TokenFactory.create(user=self.account.owner).key

    def charge(self, mode: IdempotencyMode, **fields: Any) -> Request:
        """A request to charge this account. It locks the account."""
        return self._request(f"/{mode.value}/charges/", fields)

    def deposit(self, mode: IdempotencyMode, **fields: Any) -> Request:
        """A request to credit this account. It locks nothing."""
        return self._request(f"/{mode.value}/deposits/", fields)

    def pay_by_card(self, card: str = "good", **fields: Any) -> Request:
        """A request to credit this account from a card. The processor is asked, in PHASED mode."""
        return self._request("/api/card-payments/", {"card": card, **fields})

    def _request(self, path: str, fields: dict[str, Any]) -> Request:
        # A reference of its own, to count its effects by.
        defaults = {
            "account": str(self.account.pk),
            "amount": 1_00,
            "currency": "EUR",
            "reference": f"order-{uuid4()}",
        }
        return Request(path, defaults | fields)


def effects(request: Request) -> int:
    """How often a request had its effect, or the test fails where half of one is to be seen."""
    reference = request.body["reference"]
    made = Transfer.objects.filter(Q(charge__reference=reference) | Q(memo=reference)).count()
    if "charges" in request.path:
        assert Charge.objects.filter(reference=reference).count() == made
    return made
