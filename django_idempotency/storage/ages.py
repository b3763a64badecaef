"""How old keys are, and how long they will be what they are, by the clock of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import DurationField, ExpressionWrapper, F, QuerySet
from django.db.models.functions import Now

from ..models import IdempotencyKey

if TYPE_CHECKING:
    Keys = QuerySet[IdempotencyKey]


def with_ages(keys: Keys) -> Keys:
    """With ``age``, ``lease_left``, ``kept_for`` and ``sweep_in``, and without what may be long."""
    return keys.defer("response_body", "response_headers", "parameters").annotate(
        age=_span(Now(), F("claimed_at")),
        lease_left=_span(F("lease_expires_at"), Now()),
        kept_for=_span(F("expires_at"), Now()),
        sweep_in=_span(F("sweep_after"), Now()),
    )


def _span(later: Any, earlier: Any) -> Any:
    return ExpressionWrapper(later - earlier, output_field=DurationField())
