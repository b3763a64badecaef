"""Claims in flight that somebody should have dealt with by now. The leaf that they lie in is small, and looked at as a
whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from ..conf import current
from ..core.operations import overdue, registry
from ..core.progress import Progress
from ..core.states import State
from ..models import IdempotencyKey
from ..storage import store_for
from ..storage.ages import with_ages
from ..storage.base import first_never, readable

_MOST = 1000
"""How many are looked at, those first that lapsed first. Where there are more, these say enough."""


@dataclass(frozen=True)
class Waiting:
    """Claims that a sweeper should have taken up."""

    number: int
    longest: timedelta


def waiting_for_a_sweeper(alias: str, *, longer_than: timedelta) -> Waiting:
    """Not what is for a person, nor what is to be tried again later. Of the thousand that lapsed first."""
    waits = [wait for wait in map(_wait, _lapsed(alias)) if wait > longer_than]
    return Waiting(len(waits), max(waits, default=timedelta(0)))


def _wait(claim: Any) -> timedelta:
    own = claim.stale_after
    stale_after = current().STALE_AFTER if own is None else timedelta(seconds=own)
    stale: timedelta = -claim.lease_left - stale_after
    return stale if claim.sweep_in is None else min(stale, -claim.sweep_in)


@dataclass(frozen=True)
class Left:
    """Claims that no sweeper takes up again, and the one of them that was claimed first."""

    number: int
    oldest: UUID
    age: timedelta


def left_to_a_person(alias: str) -> Left | None:
    """Whatever they are: also without an operation, or with one that nobody knows here. None where there is none."""
    left = IdempotencyKey.objects.using(alias).filter(state=State.IN_FLIGHT.value, sweep_after__gte=first_never())
    oldest: Any = with_ages(left).order_by("claimed_at").first()
    return None if oldest is None else Left(left.count(), oldest.pk, oldest.age)


@dataclass(frozen=True)
class Unanswered:
    """A call that the other side will forget in ``left``, or has forgotten."""

    id: UUID
    left: timedelta


def nearly_forgotten(alias: str) -> list[Unanswered]:
    """Calls without an answer that are not sent again any more, those that are forgotten first first."""
    now = store_for(alias).now()
    claims = ((claim.pk, partial(_unanswered, claim, now)) for claim in _lapsed(alias, for_a_person=True))
    found = (each for each in readable(alias, claims) if each is not None)
    return sorted(found, key=lambda each: each.left)


def _unanswered(claim: Any, now: float) -> Unanswered | None:
    definition = registry.get(claim.operation) if claim.operation else None
    if definition is None or claim.steps is None:
        return None
    call = Progress.from_documents(claim.operation, {}, claim.steps).open_call
    if call is None or call.started_at is None or not overdue(definition, call, now=now):
        return None
    return Unanswered(claim.pk, definition.downstream_retention - timedelta(seconds=now - call.started_at))


def _lapsed(alias: str, *, for_a_person: bool = False) -> Iterable[Any]:
    claims = with_ages(IdempotencyKey.objects.using(alias))
    if not for_a_person:
        claims = claims.exclude(sweep_after__gte=first_never())
    return claims.filter(state=State.IN_FLIGHT.value, lease_expires_at__lte=Now()).order_by("lease_expires_at")[:_MOST]
