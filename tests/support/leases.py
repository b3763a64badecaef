"""The clock of a lease, moved by the test where waiting would only take time."""

from __future__ import annotations

from django.db import connection

from django_idempotency.models import IdempotencyKey


def let_leases_lapse() -> int:
    """As if every lease that runs now had come to its end. Returns how many there were."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE idempotency_key_in_flight SET lease_expires_at = clock_timestamp()")
        return int(cursor.rowcount)


def states() -> list[str]:
    """The states of all keys."""
    return sorted(IdempotencyKey.objects.values_list("state", flat=True))
