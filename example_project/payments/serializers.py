"""The API's words for the models, and what it accepts."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from .models import Account, CardPayment, Charge, Refund, Transfer, currency_code

LARGEST_AMOUNT = 10**12
"""In minor units. Far above any real payment, and far below where a sum of many would leave 64 bits."""


class AmountField(serializers.IntegerField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(min_value=1, max_value=LARGEST_AMOUNT, **kwargs)


class AccountSerializer(serializers.ModelSerializer[Account]):
    balance = serializers.IntegerField(source="total", read_only=True)

    class Meta:
        model = Account
        fields = ("id", "name", "currency", "balance", "created_at")


class ChargeSerializer(serializers.ModelSerializer[Charge]):
    url = serializers.HyperlinkedIdentityField(view_name="charge-detail")

    class Meta:
        model = Charge
        fields = (
            "url",
            "id",
            "account",
            "amount",
            "currency",
            "status",
            "reference",
            "refunded",
            "created_at",
            "captured_at",
        )


class CardPaymentSerializer(serializers.ModelSerializer[CardPayment]):
    """What an operation seals is JSON, which knows no UUID: hence the field of the key."""

    account = serializers.PrimaryKeyRelatedField[Account](read_only=True, pk_field=serializers.UUIDField())

    class Meta:
        model = CardPayment
        fields = (
            "id",
            "account",
            "amount",
            "currency",
            "status",
            "reference",
            "decline_code",
            "created_at",
            "settled_at",
        )


class RefundSerializer(serializers.ModelSerializer[Refund]):
    class Meta:
        model = Refund
        fields = ("id", "charge", "amount", "created_at")


class TransferSerializer(serializers.ModelSerializer[Transfer]):
    class Meta:
        model = Transfer
        fields = ("id", "kind", "memo", "created_at")


class ChargeRequest(serializers.Serializer[Any]):
    account = serializers.UUIDField()
    amount = AmountField()
    currency = serializers.CharField(validators=[currency_code])
    reference = serializers.CharField(max_length=100, required=False)
    capture = serializers.BooleanField(default=True)


class TopUpRequest(serializers.Serializer[Any]):
    amount = AmountField()
    card = serializers.CharField(max_length=100)
    reference = serializers.CharField(max_length=100, default="")


class CardPaymentRequest(TopUpRequest):
    account = serializers.UUIDField()
    currency = serializers.CharField(validators=[currency_code])


class RefundRequest(serializers.Serializer[Any]):
    amount = AmountField(required=False)


class MoveRequest(serializers.Serializer[Any]):
    from_account = serializers.UUIDField()
    to_account = serializers.UUIDField()
    amount = AmountField()
    memo = serializers.CharField(max_length=100, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["from_account"] == attrs["to_account"]:
            raise serializers.ValidationError({"to_account": "Both are the same account."})
        return attrs
