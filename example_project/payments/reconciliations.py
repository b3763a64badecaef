"""What is probably one intent under two keys. ``manage.py idempotency reconcile`` lists it, for a person to look at."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Q

from django_idempotency.support.reconciling import Reconciliation

from .models import CardPayment, Charge

# A client that has lost its key asks again at once, or when its user does. The same order next month is another one.
_WITHIN = timedelta(hours=1)

RECONCILIATIONS = [
    Reconciliation(
        CardPayment,
        fields=["account", "amount", "currency", "reference"],
        window=_WITHIN,
        where=Q(status=CardPayment.Status.AUTHORISED) & ~Q(reference=""),
    ),
    Reconciliation(
        Charge,
        fields=["account", "amount", "currency", "reference"],
        window=_WITHIN,
        where=~Q(status=Charge.Status.DECLINED) & ~Q(reference=""),
    ),
]
