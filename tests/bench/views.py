"""One effect behind five fronts: unprotected, the library's two modes, and the floor's two."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.http.response import HttpResponseBase
from rest_framework import serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.parsers import JSONParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import IdempotencyMode, IdempotencyPolicy
from django_idempotency.drf import IdempotencyMixin

from . import floor
from .models import Entry, Payment


class Caller:
    """A user that costs no query, so that the database sees the effect and what protects it."""

    pk = 5
    is_authenticated = True


class Authentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Any, None]:
        return Caller(), None


class PaymentSerializer(serializers.ModelSerializer[Payment]):
    class Meta:
        model = Payment
        fields = ("id", "amount", "currency", "reference")


def pay(request: Request) -> Response:
    asked = PaymentSerializer(data=request.data)
    asked.is_valid(raise_exception=True)
    payment = asked.save()
    Entry(payment=payment, amount=payment.amount).save()
    return Response(asked.data, status=201)


class View(APIView):
    authentication_classes = (Authentication,)
    permission_classes = (IsAuthenticated,)
    parser_classes = (JSONParser,)
    renderer_classes = (JSONRenderer,)


class Unprotected(View):
    def post(self, request: Request) -> HttpResponseBase:
        # Two rows that belong together want a transaction in any case; protection takes the place of this one.
        with transaction.atomic():
            return pay(request)


class Atomic(IdempotencyMixin, View):
    idempotency_policy = IdempotencyPolicy(mode=IdempotencyMode.ATOMIC)

    def post(self, request: Request) -> HttpResponseBase:
        return pay(request)


class Leased(IdempotencyMixin, View):
    idempotency_policy = IdempotencyPolicy(mode=IdempotencyMode.LEASED)

    def post(self, request: Request) -> HttpResponseBase:
        return pay(request)


class FloorAtomic(View):
    def post(self, request: Request) -> HttpResponseBase:
        return floor.atomic(request, "bench.FloorAtomic:POST", pay)


class FloorLeased(View):
    def post(self, request: Request) -> HttpResponseBase:
        return floor.leased(request, "bench.FloorLeased:POST", pay)
