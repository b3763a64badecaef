"""Somebody who pays by card, and what the books and the processor know of it afterwards."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone
from rest_framework.test import APIClient

from django_idempotency import sweeping
from django_idempotency.models import IdempotencyKey
from example_project.client import Request
from example_project.payments import ledger
from example_project.payments.factories import AccountFactory, TokenFactory
from example_project.payments.models import Account, CardPayment, StagedJob
from example_project.processor import ProcessorControl


class CardPayer:
    """A customer with a card, one intent, and the key of it."""

    def __init__(self, *, card: str = "good", amount: int = 42_00) -> None:
        self.account = AccountFactory.create(funds=0)
        self.key = str(uuid4())
        self.body = {"amount": amount, "card": card, "reference": f"order {uuid4()}"}
        self._client = APIClient(raise_request_exception=False)
        self.token = TokenFactory.create(user=self.account.owner).key
        self._client.credentials(HTTP_AUTHORIZATION=f"Token {self.token}")

    def pay(self, **changes: Any) -> Any:
        return self._post(self.request.path, {**self.request.body, **changes})

    @property
    def request(self) -> Request:
        """The payment, as it goes over the wire."""
        body = {"account": str(self.account.pk), "currency": self.account.currency, **self.body}
        return Request("/api/card-payments/", body, self.key)

    def top_up(self, **changes: Any) -> Any:
        return self._post(f"/api/accounts/{self.account.pk}/top-up/", {**self.body, **changes})

    def get(self, path: str) -> Any:
        return self._client.get(path)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._client.post(path, body, format="json", headers={"Idempotency-Key": self.key})

    @property
    def parameters(self) -> dict[str, Any]:
        """What the operation is called with, where nobody asks over HTTP."""
        return {"account": str(self.account.pk), **self.body}

    @property
    def payment(self) -> CardPayment:
        """The one and only payment."""
        return CardPayment.objects.get(account=self.account)

    @property
    def balance(self) -> int:
        return ledger.balance(self.account)


def record() -> IdempotencyKey:
    """The one key of a card payment that is in flight."""
    return IdempotencyKey.objects.get(state="in_flight")


def let_time_pass(amount: timedelta = timedelta(hours=1)) -> None:
    """Leases lapse, claims become stale, and what was put off comes due."""
    later = timezone.now() + amount
    keys = IdempotencyKey.objects.filter(state="in_flight")
    keys.update(lease_expires_at=timezone.now() - amount)
    keys.filter(sweep_after__lte=later).update(sweep_after=timezone.now())
    StagedJob.objects.filter(due_at__lte=later).update(due_at=timezone.now())


def sweep() -> list[str]:
    """What became of everything that is stale."""
    return [swept.fate.value for swept in sweeping.sweep("default", limit=100)]


def assert_consistent(control: ProcessorControl) -> None:
    """Whatever happened: the books add up, nobody was charged twice, and no intent had two keys."""
    assert ledger.is_balanced()
    for currency in {account.currency for account in Account.objects.all()}:
        open_ = CardPayment.objects.filter(currency=currency, status=CardPayment.Status.RESERVED)
        held = Account.objects.house(Account.Kind.HELD, currency)
        assert ledger.balance(held) == sum(open_.values_list("amount", flat=True))
    charged, keys = control.charges_by_reference(), control.keys_by_reference()
    for payment in CardPayment.objects.all():
        assert payment.transfers.count() == (1 if payment.status == CardPayment.Status.RESERVED else 2)
        assert charged[str(payment.pk)] <= 1
        assert len(keys.get(str(payment.pk), ())) <= 1
        if payment.status == CardPayment.Status.AUTHORISED:
            assert charged[str(payment.pk)] == 1
