"""What can only be read while it lasts: how long the oldest claim of each route has been in flight.

A sweeper notes it as it comes by. That is about once a minute, off the path of every request, and goes on when all
requests hang. Where no sweeper came, there is no reading. It also makes coarser what was noted and counted hours
and days ago.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from django.db import connections
from django.db.models import DurationField, Expression, ExpressionWrapper, F, Min, Value
from django.db.models.functions import Left, Now, StrIndex, Substr

from ..conf import current
from ..core.counted import ROUTE_LENGTH
from ..core.states import State
from ..models import IdempotencyKey, OldestInFlight
from ..storage import coarsening
from ..storage.base import as_kept

# After how long, and by how many minutes: each is a part of the pieces that the dashboard shows by then.
_PIECES = ((timedelta(hours=2), 10), (timedelta(days=1), 60))


def route_of_scope() -> Expression:
    """What follows the principal in a scope: the operation, as counts name it."""
    return Left(Substr(F("scope"), StrIndex(F("scope"), Value(" ")) + 1), ROUTE_LENGTH)


def age_of_oldest() -> Expression:
    """Of the claims of a group, by the clock of the database."""
    return ExpressionWrapper(Now() - Min("claimed_at"), output_field=DurationField())


def note_oldest(alias: str) -> None:
    """Keep the age of the oldest claim of each route for this minute, unless another sweeper has done so.

    It is kept as long as the counts are.

    :raises django.db.Error: it could not be read or kept.
    """
    minute = datetime.now(timezone.utc).replace(second=0, microsecond=0)
    in_flight = IdempotencyKey.objects.using(alias).filter(state=State.IN_FLIGHT.value)
    ages = in_flight.order_by().values_list(route_of_scope()).annotate(age=age_of_oldest())
    readings = OldestInFlight.objects.using(alias)
    readings.bulk_create(
        (
            OldestInFlight(minute=as_stored(minute, alias), route=route, seconds=max(0, int(age.total_seconds())))
            for route, age in ages
        ),
        ignore_conflicts=True,
    )
    readings.filter(minute__lt=as_stored(minute - current().COUNTS_RETENTION, alias)).delete()


def coarsen(alias: str) -> None:
    """Keep the counts and readings of what is long over by longer pieces of time.

    :raises django.db.Error: it could not be done, and they stay as they are.
    """
    hour = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    for after, minutes in _PIECES:
        coarsening.coarsen(connections[alias], as_stored(hour - after, alias), minutes)


def as_stored(moment: datetime, alias: str) -> datetime:
    """As the tables of counts and readings have it. PostgreSQL knows time zones, whatever USE_TZ says."""
    return moment if connections[alias].vendor == "postgresql" else as_kept(moment)
