"""What the API keeps. Money is an integer of minor units (cents), and only the ledger says where it is."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

currency_code = RegexValidator(r"^[A-Z]{3}\Z", "A currency is three capital letters (ISO 4217).")


class AccountQuerySet(models.QuerySet["Account"]):
    def owned_by(self, user: User | AnonymousUser) -> AccountQuerySet:
        return self.filter(owner_id=user.pk, kind=Account.Kind.CUSTOMER)

    def with_balance(self) -> AccountQuerySet:
        """Annotate ``total``: the balance, without a query for each account."""
        return self.annotate(total=Coalesce(Sum("entries__amount"), 0))

    def house(self, kind: str, currency: str) -> Account:
        """The house's account of a kind: one for each currency, opened by whoever needs it first."""
        return self.get_or_create(kind=kind, currency=currency, defaults={"name": f"{kind} {currency}"})[0]


class Account(models.Model):
    """A place that money is in: a customer's, or one of the house's own at the other end."""

    class Kind(models.TextChoices):
        CUSTOMER = "customer"
        HELD = "held"
        """Authorised and not captured yet, or under way from a card."""
        REVENUE = "revenue"
        EXTERNAL = "external"
        """The world outside: what was paid in comes from here, so its balance is negative."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=8, choices=Kind, default=Kind.CUSTOMER)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="accounts"
    )
    currency = models.CharField(max_length=3, validators=[currency_code])
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = AccountQuerySet.as_manager()

    class Meta:
        ordering = ("created_at", "id")
        constraints = (
            models.CheckConstraint(
                name="customer_accounts_have_an_owner",
                condition=Q(kind="customer", owner__isnull=False) | (~Q(kind="customer") & Q(owner__isnull=True)),
            ),
            models.UniqueConstraint(
                name="one_house_account_a_currency",
                fields=("kind", "currency"),
                condition=~Q(kind="customer"),
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.currency})"


class Charge(models.Model):
    """Money asked of a customer's account."""

    class Status(models.TextChoices):
        DECLINED = "declined"
        """The account did not hold the amount. Kept, because a customer asks why."""
        AUTHORISED = "authorised"
        """Taken from the customer and held by the house."""
        CAPTURED = "captured"
        """The house's own."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="charges")
    amount = models.BigIntegerField()
    currency = models.CharField(max_length=3, validators=[currency_code])
    status = models.CharField(max_length=10, choices=Status)
    reference = models.CharField(max_length=100, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    captured_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at", "id")
        constraints = (
            models.CheckConstraint(name="charges_are_positive", condition=Q(amount__gt=0)),
            models.CheckConstraint(
                name="captured_charges_say_when",
                condition=Q(status="captured", captured_at__isnull=False)
                | (~Q(status="captured") & Q(captured_at__isnull=True)),
            ),
        )

    def __str__(self) -> str:
        return f"{self.status} {self.amount} {self.currency}"

    @property
    def refunded(self) -> int:
        return sum(refund.amount for refund in self.refunds.all())


class Refund(models.Model):
    """A captured charge given back, whole or in part."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    charge = models.ForeignKey(Charge, on_delete=models.PROTECT, related_name="refunds")
    amount = models.BigIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "id")
        constraints = (models.CheckConstraint(name="refunds_are_positive", condition=Q(amount__gt=0)),)

    def __str__(self) -> str:
        return f"{self.amount} of {self.charge}"


class CardPayment(models.Model):
    """Money on its way from a card to a customer's account, through a processor that is asked over the network."""

    class Status(models.TextChoices):
        RESERVED = "reserved"
        """The processor is about to be asked, or has not answered yet."""
        AUTHORISED = "authorised"
        """The processor took the money, and the account has it."""
        DECLINED = "declined"
        VOIDED = "voided"
        """The processor gave back what it may have taken."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="card_payments")
    amount = models.BigIntegerField()
    currency = models.CharField(max_length=3, validators=[currency_code])
    reference = models.CharField(max_length=100, blank=True)
    status = models.CharField(max_length=10, choices=Status, default=Status.RESERVED)
    processor_charge = models.CharField(
        max_length=64, null=True, blank=True, unique=True, help_text="What the processor calls it."
    )
    decline_code = models.CharField(max_length=50, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    settled_at = models.DateTimeField(null=True, blank=True, help_text="When its end was known.")

    class Meta:
        ordering = ("-created_at", "id")
        constraints = (
            models.CheckConstraint(name="card_payments_are_positive", condition=Q(amount__gt=0)),
            models.CheckConstraint(
                name="settled_card_payments_say_when",
                condition=Q(status="reserved", settled_at__isnull=True)
                | (~Q(status="reserved") & Q(settled_at__isnull=False)),
            ),
            models.CheckConstraint(
                name="authorised_card_payments_have_a_charge",
                condition=~Q(status="authorised") | Q(processor_charge__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return f"{self.status} {self.amount} {self.currency}"


class Subscription(models.Model):
    """What a customer pays by card each month, without being asked again."""

    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="subscriptions")
    amount = models.BigIntegerField()
    card = models.CharField(
        max_length=100, help_text="The processor's token for the card; nobody here knows its number."
    )
    active = models.BooleanField(default=True)

    class Meta:
        ordering = ("id",)
        constraints = (models.CheckConstraint(name="subscriptions_are_positive", condition=Q(amount__gt=0)),)

    def __str__(self) -> str:
        return f"{self.amount} a month to {self.account}"


class StagedJob(models.Model):
    """Work that belongs to an effect: written in its transaction, handed on after it, and deleted then.

    See ``jobs``, which is the only module that writes it.
    """

    key = models.UUIDField(primary_key=True, editable=False, help_text="Derived, and the same for every attempt.")
    name = models.CharField(max_length=50)
    arguments = models.JSONField()
    staged_at = models.DateTimeField(auto_now_add=True)
    due_at = models.DateTimeField(default=timezone.now)
    attempts = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ("due_at",)
        indexes = (models.Index(name="jobs_by_due_date", fields=("due_at",)),)

    def __str__(self) -> str:
        return f"{self.name} {self.key}"


class Transfer(models.Model):
    """One movement of money: entries that add up to nothing. Only ``ledger.post`` writes it."""

    class Kind(models.TextChoices):
        DEPOSIT = "deposit"
        CHARGE = "charge"
        CAPTURE = "capture"
        REFUND = "refund"
        MOVE = "move"
        RESERVE = "reserve"
        """Asked of a card, and not there yet."""
        CARD = "card"
        """Arrived from a card."""
        RELEASE = "release"
        """Will not arrive."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=8, choices=Kind)
    charge = models.ForeignKey(Charge, null=True, blank=True, on_delete=models.PROTECT, related_name="transfers")
    card_payment = models.ForeignKey(
        CardPayment, null=True, blank=True, on_delete=models.PROTECT, related_name="transfers"
    )
    memo = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-created_at", "id")

    def __str__(self) -> str:
        return f"{self.kind} {self.memo}".strip()


class LedgerEntry(models.Model):
    """One side of a transfer: what an account received, or, negative, what it gave."""

    transfer = models.ForeignKey(Transfer, on_delete=models.PROTECT, related_name="entries")
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="entries")
    amount = models.BigIntegerField()

    class Meta:
        verbose_name_plural = "ledger entries"
        constraints = (
            models.CheckConstraint(name="ledger_entries_move_something", condition=~Q(amount=0)),
            models.UniqueConstraint(name="one_entry_an_account_and_transfer", fields=("transfer", "account")),
        )

    def __str__(self) -> str:
        return f"{self.amount:+d} {self.account}"
