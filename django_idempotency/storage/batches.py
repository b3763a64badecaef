"""How rows leave the one plain table of the portable layout: in batches, each a short transaction of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction

from ..core.states import State
from ..models import IdempotencyKey, Tombstone

SIZE = 500
"""Rows of one batch. While it is deleted, nobody else can write."""

# Found in one reading, which keeps no writer waiting: without an index, it goes over the whole table.
_AT_A_TIME = 50_000


def expired(alias: str, before: datetime) -> list[UUID]:
    """Sealed records that expired before a moment, the longest expired first: as many as are found at a time."""
    sealed = IdempotencyKey.objects.using(alias).filter(state=State.SEALED.value, expires_at__lte=before)
    return list(sealed.order_by("expires_at", "id").values_list("id", flat=True)[:_AT_A_TIME])


def count_expired(alias: str, before: datetime) -> int:
    return IdempotencyKey.objects.using(alias).filter(state=State.SEALED.value, expires_at__lte=before).count()


def remove(alias: str, ids: Sequence[UUID], before: datetime, *, buried_for: timedelta | None) -> tuple[int, int]:
    """Delete those of a batch that are still expired: a key that was claimed again meanwhile stays.

    :returns: how many were deleted, and how many tombstones stand in their place.
    """
    with transaction.atomic(using=alias):
        still = IdempotencyKey.objects.using(alias).filter(id__in=ids, state=State.SEALED.value, expires_at__lte=before)
        tombstones = []
        if buried_for is not None:
            rows = still.values_list("id", "fingerprint", "fingerprint_scheme", "expires_at")
            tombstones = [
                Tombstone(id=number, fingerprint=content, fingerprint_scheme=scheme, forget_at=expires_at + buried_for)
                for number, content, scheme, expires_at in rows
                # One whose time is over as well would be deleted by the same run.
                if expires_at is not None and expires_at + buried_for > before
            ]
            fields = ["fingerprint", "fingerprint_scheme", "forget_at"]
            Tombstone.objects.using(alias).bulk_create(
                tombstones, update_conflicts=True, unique_fields=["id"], update_fields=fields
            )
        deleted, _ = still.delete()
    return deleted, len(tombstones)


def over(alias: str, before: datetime) -> int:
    """How many tombstones :func:`forget` would delete, batch by batch."""
    return Tombstone.objects.using(alias).filter(forget_at__lte=before).count()


def forget(alias: str, before: datetime) -> int:
    """Delete one batch of tombstones whose time is over.

    :returns: how many there were.
    """
    tombstones = Tombstone.objects.using(alias)
    ids = list(tombstones.filter(forget_at__lte=before).order_by("forget_at", "id").values_list("id", flat=True)[:SIZE])
    if not ids:
        return 0
    deleted, _ = tombstones.filter(id__in=ids, forget_at__lte=before).delete()
    return deleted
