"""What payment providers send, to plain Django views: no DRF, no user, a signature in place of a token.

Providers deliver at least once, and number their events. That number arrives as the idempotency key, so an
event that is delivered again, even at the same moment, credits an account once.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_idempotency.http import idempotent_view

from . import services
from .models import Account, currency_code
from .serializers import LARGEST_AMOUNT

TOLERANCE_SECONDS = 300
"""A signed request older than this is refused. Shorter than the retention of keys by far: whoever records a
request cannot send it again once its key is forgotten."""

View = Callable[..., HttpResponse]


def signature(secret: str, event: str, timestamp: str, body: bytes) -> str:
    """Covers the event's number and not only the body, which must not count again under another number."""
    signed = b".".join((event.encode("latin-1"), timestamp.encode("latin-1"), body))
    return hmac.new(secret.encode(), signed, "sha256").hexdigest()


def signed_headers(provider: str, event: str, body: bytes) -> dict[str, str]:
    """What a provider sends along with a body. For whoever plays the provider: the demo, the tests."""
    timestamp = str(int(time.time()))
    secret = settings.WEBHOOK_SECRETS[provider]
    return {
        "Idempotency-Key": event,
        "Webhook-Timestamp": timestamp,
        "Webhook-Signature": signature(secret, event, timestamp, body),
    }


def signed_by_provider(view: View) -> View:
    """Refuse what the provider in the URL did not sign. Goes above ``idempotent_view``, so that no stranger
    reaches a key."""

    @wraps(view)
    def check(request: HttpRequest, provider: str) -> HttpResponse:
        secret = settings.WEBHOOK_SECRETS.get(provider)
        timestamp = request.headers.get("Webhook-Timestamp", "")
        if secret is None or not _is_recent(timestamp):
            return _refusal("The signature is missing or too old.", 401)
        expected = signature(secret, request.headers.get("Idempotency-Key", ""), timestamp, request.body)
        if not hmac.compare_digest(expected.encode(), request.headers.get("Webhook-Signature", "").encode()):
            return _refusal("The signature does not fit.", 401)
        return view(request, provider)

    return check


def by_provider(request: HttpRequest) -> str | None:
    """Two providers may number their events alike. The signature has proved the name by now."""
    match = request.resolver_match
    return match.kwargs["provider"] if match else None


class DepositForm(forms.Form):
    account = forms.UUIDField()
    amount = forms.IntegerField(min_value=1, max_value=LARGEST_AMOUNT)
    currency = forms.CharField(validators=[currency_code])


@csrf_exempt
@require_POST
@signed_by_provider
@idempotent_view(scope=by_provider)
def deposit(request: HttpRequest, provider: str) -> HttpResponse:
    """A provider received money for an account."""
    form = DepositForm(_json_object(request.body))
    if not form.is_valid():
        return JsonResponse({"errors": form.errors}, status=400)
    account = Account.objects.filter(
        kind=Account.Kind.CUSTOMER, pk=form.cleaned_data["account"], currency=form.cleaned_data["currency"]
    ).first()
    if account is None:
        return _refusal("There is no such account in that currency.", 404)
    memo = f"{provider} {request.headers['Idempotency-Key']}"
    transfer = services.deposit(account, form.cleaned_data["amount"], memo=memo)
    return JsonResponse({"transfer": transfer.pk}, status=201)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        event = json.loads(body)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _is_recent(timestamp: str) -> bool:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 20):
        return False
    return abs(time.time() - int(timestamp)) <= TOLERANCE_SECONDS


def _refusal(detail: str, status: int) -> HttpResponse:
    return JsonResponse({"detail": detail}, status=status)
