"""What the dashboard asks the database. Nothing here reads sealed records beyond a sample of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from django.db import Error as DatabaseFailure, connections, transaction
from django.db.models import BinaryField, Count, F, Func, IntegerField, Max, Q, Sum
from django.db.models.functions import Cast, Coalesce, Now

from ..conf import current
from ..core import pruning
from ..core.pruning import Decision
from ..core.signatures import Signature, in_counts
from ..core.states import State
from ..models import IdempotencyKey, OldestInFlight, OutcomeCount
from ..numbers.readings import age_of_oldest, as_stored, route_of_scope
from ..numbers.signatures import signatures, sums
from ..storage import store_for
from ..storage.base import first_never
from ..storage.partitions import SEALED, TOMBSTONES, Tree
from ..storage.pruning import leaves, trusted_now
from .ranges import Range
from .series import ANSWERED, Series, series_of

SAMPLE = 1000
"""How many sealed records stand for all of them. One route in a hundred thousand with a hundredth of the records is not
among them."""

PATIENCE = 0.2
"""Seconds that the sample may take. It is read from all over the table, so a cold disk could make it long."""


@dataclass(frozen=True)
class InFlight:
    """The claims of one route, or of all."""

    route: str
    n: int
    stuck: int
    held: int
    for_a_person: int
    oldest: timedelta


@dataclass(frozen=True)
class Share:
    """What one route takes of the sealed records, by a sample."""

    route: str
    sampled: int
    of_records: float
    of_bytes: float
    per_record: float
    """Bytes of its columns, without what the database adds to a row."""


def in_flight(alias: str) -> list[InFlight]:
    """By route, the one with the oldest claim first."""
    claims = IdempotencyKey.objects.using(alias).filter(state=State.IN_FLIGHT.value).order_by()
    routes = claims.values_list(route_of_scope()).annotate(
        n=Count("pk"),
        stuck=Count("pk", filter=Q(lease_expires_at__lte=Now())),
        held=Count("pk", filter=Q(held_reason__isnull=False)),
        for_a_person=Count("pk", filter=Q(sweep_after__gte=first_never())),
        oldest=age_of_oldest(),
    )
    return sorted((InFlight(*row) for row in routes), key=lambda each: each.oldest, reverse=True)


def history(alias: str, shown: Range, now: datetime) -> list[Series]:
    """What became of requests within a range that ends now, by the clock of this process, as the counts are.

    Those are of all databases together, and in the first of them. Nothing is known without the setting COUNTS.
    """
    if not current().COUNTS:
        return []
    first = shown.first(now.timestamp())
    since = as_stored(datetime.fromtimestamp(first * shown.step, timezone.utc), alias)
    piece = _Piece(F("minute"), step=shown.step) - first
    counts = (
        OutcomeCount.objects.using(current().DATABASES[0]).filter(minute__gte=since, outcome__in=ANSWERED).order_by()
    )
    readings = OldestInFlight.objects.using(alias).filter(minute__gte=since).order_by()
    return series_of(
        shown.pieces,
        counts.values_list(piece, "route", "outcome").annotate(Sum("n")),
        readings.values_list(piece, "route").annotate(Max("seconds")),
    )


def shares(alias: str) -> list[Share] | None:
    """By route, the largest first. None where the sample took too long.

    Ids are hashes, so the first records in their order are a fair sample, which the primary key finds.
    """
    sealed = IdempotencyKey.objects.using(alias).filter(state=State.SEALED.value).order_by("pk")
    sample = sealed.values_list(route_of_scope(), _stored_bytes())[:SAMPLE]
    try:
        with _within(alias, PATIENCE):
            return _shares_of(sample)
    except DatabaseFailure as error:
        if getattr(error.__cause__, "sqlstate", None) != "57014":
            raise
        return None


def _shares_of(sample: Iterable[tuple[str, int]]) -> list[Share]:
    records: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for route, size in sample:
        records[route] += 1
        sizes[route] += size
    every = [
        Share(route, n, n / records.total(), size / (sizes.total() or 1), size / n)
        for route, size in sizes.most_common()
        for n in (records[route],)
    ]
    return sorted(every, key=lambda each: (-each.of_bytes, each.route))


_WIDE = ("scope", "key", "response_headers", "response_body", "parameters", "steps")


def _stored_bytes() -> Any:
    """What the columns of varying length take. The others are the same for every record."""
    first, *others = (Coalesce(_Size(F(name)), 0) for name in _WIDE)
    total: Any = first
    for each in others:
        total = total + each
    return total


class _Size(Func):
    """Bytes as stored, so that no body is read; on SQLite as they are."""

    output_field = IntegerField()
    function = "pg_column_size"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return Func(Cast(self.source_expressions[0], BinaryField()), function="LENGTH").as_sql(
            compiler, connection, **context
        )


class _Piece(Func):
    """The number of the piece of time that a moment lies in, counted from the epoch."""

    output_field = IntegerField()
    # Not extract(), which would make a numeric of each row's: three times as long.
    template = "(date_part('epoch', %(expressions)s)::bigint / %(step)s)"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "(CAST(strftime('%%%%s', %(expressions)s) AS integer) / %(step)s)"
        return self.as_sql(compiler, connection, template=template, **context)


@contextmanager
def _within(alias: str, seconds: float) -> Iterator[None]:
    """Cancel what takes longer, where the database can."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        yield
        return
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        # Put back by hand: what is set within a savepoint would outlive it, in a project with ATOMIC_REQUESTS.
        cursor.execute(
            "SELECT current_setting('statement_timeout'), set_config('statement_timeout', %s, true)",
            (f"{seconds * 1000:.0f}",),
        )
        (before, _) = cursor.fetchone()
        yield
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", (before,))


def signs(alias: str, *, of_records: bool) -> list[Signature]:
    """Of broken clients, by the counts of a day.

    :param of_records: also by the latest records, which takes longer than a page should.
    """
    if of_records:
        return signatures(alias)
    return list(in_counts(sums(since=timedelta(days=1)))) if alias == current().DATABASES[0] else []


def partitions(alias: str) -> dict[Tree, list[Decision]] | None:
    """What a pruner would do with each now, in order of time. None where the tables have none.

    Those of tombstones are made when the first are buried, and there are none where nobody wanted any.
    """
    if not store_for(alias).partitioned:
        return None
    connection = connections[alias]
    now = trusted_now(connection)
    return {tree: _in_order(pruning.decide(leaves(connection, tree), now)) for tree in (SEALED, TOMBSTONES)}


def _in_order(decisions: Iterable[Decision]) -> list[Decision]:
    return sorted(decisions, key=lambda each: (each.leaf.interval is None, each.leaf.interval, each.leaf.name))
