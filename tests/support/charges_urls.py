"""The example's routes, and two of its effects once more under each mode."""

from __future__ import annotations

from django.urls import include, path
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from django_idempotency import IdempotencyMode, IdempotencyPolicy
from django_idempotency.drf import idempotent
from example_project.payments import services
from example_project.payments.models import Account
from example_project.payments.views import ChargeViewSet
from example_project.urls import urlpatterns as example

from .modes import TRANSACTIONAL


class AtomicCharges(ChargeViewSet):
    """Locks the account that is charged."""

    idempotency_policy = IdempotencyPolicy(mode=IdempotencyMode.ATOMIC)


class LeasedCharges(ChargeViewSet):
    idempotency_policy = IdempotencyPolicy(mode=IdempotencyMode.LEASED)


def deposit(request):
    """Locks nothing: only the key can keep two of them apart."""
    account = Account.objects.get(pk=request.data["account"])
    transfer = services.deposit(account, request.data["amount"], memo=request.data["reference"])
    return Response({"transfer": transfer.pk}, status=201)


def deposits(mode):
    return idempotent(mode=mode, operation=f"{mode.value} deposit")(api_view(["POST"])(deposit))


router = SimpleRouter()
router.register("atomic/charges", AtomicCharges, basename="atomic")
router.register("leased/charges", LeasedCharges, basename="leased")

urlpatterns = [
    path("", include(router.urls)),
    *(path(f"{mode.value}/deposits/", deposits(mode)) for mode in TRANSACTIONAL),
    *example,
]
