"""Rows for tests and for the demo. Money comes into being as it does in production: through the services."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from factory.declarations import LazyAttribute, LazyFunction, Sequence, SubFactory
from factory.django import DjangoModelFactory
from factory.helpers import post_generation
from rest_framework.authtoken.models import Token

from . import cards, services
from .models import Account, CardPayment, Charge, Refund, Subscription


class UserFactory(DjangoModelFactory[User]):
    class Meta:
        model = User

    # Not numbered: the demo may meet what an earlier run of it left in the same database.
    username = LazyFunction(lambda: f"customer-{uuid4().hex[:12]}")
    email = LazyAttribute(lambda user: f"{user.username}@example.com")

    @classmethod
    def _create(cls, model_class: type[User], *args: Any, **kwargs: Any) -> User:
        return model_class.objects.create_user(*args, **kwargs)


class TokenFactory(DjangoModelFactory[Token]):
    class Meta:
        model = Token

    user = SubFactory(UserFactory)


class AccountFactory(DjangoModelFactory[Account]):
    """A customer's account; ``funds`` is what was paid in."""

    class Meta:
        model = Account
        skip_postgeneration_save = True

    owner = SubFactory(UserFactory)
    currency = "EUR"
    name = "Current account"

    @post_generation
    def funds(self: Account, create: bool, extracted: int | None, **kwargs: Any) -> None:
        amount = 100_00 if extracted is None else extracted
        if create and amount:
            services.deposit(self, amount, memo="opening balance")


class ChargeFactory(DjangoModelFactory[Charge]):
    """A captured charge."""

    class Meta:
        model = Charge

    account = SubFactory(AccountFactory)
    amount = 10_00
    reference = Sequence(lambda number: f"order-{number}")

    @classmethod
    def _create(cls, model_class: type[Charge], *args: Any, **kwargs: Any) -> Charge:
        return services.charge(*args, **kwargs)


class AuthorisedChargeFactory(ChargeFactory):
    capture = False


class DeclinedChargeFactory(ChargeFactory):
    account = SubFactory(AccountFactory, funds=0)


class RefundFactory(DjangoModelFactory[Refund]):
    class Meta:
        model = Refund

    charge = SubFactory(ChargeFactory)

    @classmethod
    def _create(cls, model_class: type[Refund], *args: Any, **kwargs: Any) -> Refund:
        return services.refund(*args, **kwargs)


class CardPaymentFactory(DjangoModelFactory[CardPayment]):
    """A payment that the processor has not been asked for yet."""

    class Meta:
        model = CardPayment

    account = SubFactory(AccountFactory)
    amount = 10_00
    reference = Sequence(lambda number: f"order-{number}")

    @classmethod
    def _create(cls, model_class: type[CardPayment], account: Account, amount: int, reference: str) -> CardPayment:
        return cards.reserve(account.pk, amount, reference=reference)


class AuthorisedCardPaymentFactory(CardPaymentFactory):
    @classmethod
    def _create(cls, model_class: type[CardPayment], *args: Any, **kwargs: Any) -> CardPayment:
        payment = super()._create(model_class, *args, **kwargs)
        return cards.record(payment.pk, {"id": f"ch_{uuid4().hex}"})


class DeclinedCardPaymentFactory(CardPaymentFactory):
    @classmethod
    def _create(cls, model_class: type[CardPayment], *args: Any, **kwargs: Any) -> CardPayment:
        payment = super()._create(model_class, *args, **kwargs)
        declined = {"id": f"ch_{uuid4().hex}", "decline_code": "card_declined"}
        return cards.give_back(payment.pk, declined, CardPayment.Status.DECLINED)


class SubscriptionFactory(DjangoModelFactory[Subscription]):
    class Meta:
        model = Subscription

    account = SubFactory(AccountFactory, funds=0)
    amount = 10_00
    card = "good"
