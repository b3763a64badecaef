"""Signs of broken clients, as they are today: for ``status``, and for whoever draws them."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta, timezone

from django.db import Error as DatabaseFailure, connections
from django.db.models import DurationField, ExpressionWrapper, Max, QuerySet, Sum
from django.db.models.functions import Now

from ..conf import current
from ..core.counted import Counted
from ..core.signatures import TWIN_SECONDS, Signature, in_counts, in_twins
from ..models import OutcomeCount
from ..storage.twins import twins
from .readings import as_stored

__all__ = ["CountsElsewhere", "Signature", "last_sweep", "signatures", "sums"]

_DAY = timedelta(days=1)


class CountsElsewhere(Exception):
    """They are on another database, which does not answer. That is to be told of that one, and of no other."""


def signatures(alias: str) -> list[Signature]:
    """Of the routes whose records are on ``alias``, and, on the first of DATABASES, what the counts of a day say."""
    found = [signature for each in twins(connections[alias], within=TWIN_SECONDS) for signature in in_twins(each)]
    if alias == current().DATABASES[0]:
        found += in_counts(sums(since=_DAY))
    return found


def sums(*, since: timedelta) -> dict[str, dict[str, int]]:
    """Of each route, how often each outcome was counted ``since`` then. Empty without the setting COUNTS."""
    if not current().COUNTS:
        return {}  # nor does the role need a right to look
    summed: defaultdict[str, dict[str, int]] = defaultdict(dict)
    first = as_stored(datetime.now(timezone.utc) - since, current().DATABASES[0])
    lines = _counts().filter(minute__gt=first).exclude(outcome=Counted.SWEEP.value)
    for route, outcome, n in lines.values_list("route", "outcome").annotate(Sum("n")).order_by("route", "outcome"):
        summed[route][outcome] = n
    return dict(summed)


def last_sweep(alias: str) -> timedelta | None:
    """How long ago a sweep of ``alias`` began, to the minute. None where none is known of, or nothing is counted.

    :raises CountsElsewhere: nobody can know. :raises django.db.Error: the database does not answer.
    """
    if not current().COUNTS:
        return None
    swept = _counts().filter(outcome=Counted.SWEEP.value, route=alias)
    since = ExpressionWrapper(Now() - Max("minute"), output_field=DurationField())
    try:
        ago: timedelta | None = swept.aggregate(ago=since)["ago"]
    except DatabaseFailure as error:
        if alias == current().DATABASES[0]:
            raise
        raise CountsElsewhere from error
    return None if ago is None else max(ago, timedelta(0))


def _counts() -> QuerySet[OutcomeCount]:
    return QuerySet(OutcomeCount, using=current().DATABASES[0])
