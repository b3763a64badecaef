"""The API for customers. What makes retries safe is the mixin and the decorators, and nothing else here."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from rest_framework import mixins, status, viewsets
from rest_framework.decorators import action, api_view
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from django_idempotency import IdempotencyMode, IdempotencyPolicy
from django_idempotency.drf import IdempotencyMixin, idempotent

from . import ledger, services
from .models import Account, CardPayment, Charge
from .operations import card_payment
from .serializers import (
    AccountSerializer,
    CardPaymentRequest,
    CardPaymentSerializer,
    ChargeRequest,
    ChargeSerializer,
    MoveRequest,
    RefundRequest,
    RefundSerializer,
    TopUpRequest,
    TransferSerializer,
)


class PaymentRequired(APIException):
    status_code = status.HTTP_402_PAYMENT_REQUIRED
    default_code = "insufficient_funds"


class Conflict(APIException):
    status_code = status.HTTP_409_CONFLICT
    default_code = "not_possible"


class AccountViewSet(IdempotencyMixin, viewsets.ReadOnlyModelViewSet[Account]):
    serializer_class = AccountSerializer

    def get_queryset(self) -> QuerySet[Account]:
        return Account.objects.owned_by(self.request.user).with_balance()

    @action(detail=True, methods=["post"], url_path="top-up")
    @idempotent(mode=IdempotencyMode.PHASED)
    def top_up(self, request: Request, pk: str | None = None) -> Response:
        """The payment of ``CardPaymentViewSet`` again, with the account in the URL."""
        asked = _validated(TopUpRequest(data=request.data))
        answer = card_payment(account=str(self.get_object().pk), **asked)
        return Response(answer.data, status=answer.status)


class ChargeViewSet(
    IdempotencyMixin,
    mixins.CreateModelMixin,
    mixins.RetrieveModelMixin,
    mixins.ListModelMixin,
    viewsets.GenericViewSet[Charge],
):
    """Charges of the caller's own accounts. Others' do not exist as far as the caller can tell (404)."""

    serializer_class = ChargeSerializer

    def get_queryset(self) -> QuerySet[Charge]:
        own = Account.objects.owned_by(self.request.user)
        return Charge.objects.filter(account__in=own).prefetch_related("refunds")

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Charge an account. Declined for want of funds: 402, with the declined charge as its body.

        The decline is *returned*. It is a result, sealed together with its row, and every retry hears it.
        Raised, it would be answered and replayed just the same, but its row would be undone: see ``move``.
        """
        asked = _validated(ChargeRequest(data=request.data))
        account = _own_account(request, asked["account"])
        if asked["currency"] != account.currency:
            raise ValidationError({"currency": f"The account is kept in {account.currency}."})
        charge = services.charge(
            account, asked["amount"], reference=asked.get("reference", ""), capture=asked["capture"]
        )
        declined = charge.status == Charge.Status.DECLINED
        data = self.get_serializer(charge).data
        return Response(
            data,
            status=status.HTTP_402_PAYMENT_REQUIRED if declined else status.HTTP_201_CREATED,
            headers=self.get_success_headers(data),
        )

    @action(detail=True, methods=["post"])
    @idempotent(mode=IdempotencyMode.LEASED)
    def capture(self, request: Request, pk: str | None = None) -> Response:
        """Take the money that a charge holds.

        Slow at real processors, hence LEASED: a duplicate is told so at once and does not queue.
        """
        try:
            charge = services.capture(self.get_object())
        except services.NotPossible as error:
            raise Conflict(str(error)) from error
        return Response(self.get_serializer(charge).data)

    @action(detail=True, methods=["post"])
    def refund(self, request: Request, pk: str | None = None) -> Response:
        """Give a charge back, whole or in part. Under the policy of the viewset, as ``create`` is."""
        charge = self.get_object()
        asked = _validated(RefundRequest(data=request.data))
        try:
            refund = services.refund(charge, asked.get("amount"))
        except services.NotPossible as error:
            raise Conflict(str(error)) from error
        return Response(RefundSerializer(refund).data, status=status.HTTP_201_CREATED)


class CardPaymentViewSet(
    IdempotencyMixin,
    mixins.CreateModelMixin,
    mixins.RetrieveModelMixin,
    mixins.ListModelMixin,
    viewsets.GenericViewSet[CardPayment],
):
    """Payments by card into the caller's own accounts.

    PHASED, since the card's processor is a system of its own: it cannot be rolled back, and it may not answer.
    """

    serializer_class = CardPaymentSerializer
    idempotency_policy = IdempotencyPolicy(mode=IdempotencyMode.PHASED)

    def get_queryset(self) -> QuerySet[CardPayment]:
        return CardPayment.objects.filter(account__in=Account.objects.owned_by(self.request.user))

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Take money from a card. Declined: 402, with the payment as its body."""
        asked = _validated(CardPaymentRequest(data=request.data))
        account = _own_account(request, asked.pop("account"))
        if asked.pop("currency") != account.currency:
            raise ValidationError({"currency": f"The account is kept in {account.currency}."})
        answer = card_payment(account=str(account.pk), **asked)
        return Response(answer.data, status=answer.status)


@idempotent
@api_view(["POST"])
def move(request: Request) -> Response:
    """Move money between the caller's own accounts.

    Want of funds is *raised* here: 402 again, and replayed to retries again, but the books know nothing of
    it, since what a view wrote before it raised is rolled back.
    """
    asked = _validated(MoveRequest(data=request.data))
    source, target = (_own_account(request, asked[side]) for side in ("from_account", "to_account"))
    if source.currency != target.currency:
        raise ValidationError({"to_account": f"Kept in {target.currency}, and the other in {source.currency}."})
    try:
        transfer = services.move(source, target, asked["amount"], memo=asked.get("memo", ""))
    except ledger.InsufficientFunds as error:
        raise PaymentRequired(str(error)) from error
    return Response(TransferSerializer(transfer).data, status=status.HTTP_201_CREATED)


def _own_account(request: Request, pk: UUID) -> Account:
    return get_object_or_404(Account.objects.owned_by(request.user), pk=pk)


def _validated(serializer: Any) -> dict[str, Any]:
    serializer.is_valid(raise_exception=True)
    validated: dict[str, Any] = serializer.validated_data
    return validated
