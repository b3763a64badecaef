"""Find what was done twice under two keys, which no key could have prevented.

It compares the rows that the project's Reconciliations name: equal in their natural key, and close in time. Nothing is
changed. It ends with status 3 if there are any.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, router
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from ..core.wording import number_of
from ..storage.transactions import drop_if_broken
from ..support import reconciling
from ..support.reconciling import Duplicate, Duplicates, Reconciliation
from . import databases

_SPAN = re.compile(r"(\d{1,5})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


@dataclass
class Compared:
    """What one database has."""

    database: str
    found: list[tuple[Reconciliation, Duplicates]] = field(default_factory=list)
    error: str | None = None


def add_arguments(parser: ArgumentParser) -> None:
    databases.add_argument(parser)
    parser.add_argument(
        "--since",
        type=_moment,
        default="1d",
        metavar="WHEN",
        help="rows from then on: 90m, 12h or 7d ago, or a date or time as in 2026-11-30T08:00 (default: 1d)",
    )
    parser.add_argument(
        "--limit", type=int, default=20, metavar="N", help="how many of each kind are listed (default: 20)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _moment(text: str) -> datetime:
    if span := _SPAN.fullmatch(text):
        return timezone.now() - timedelta(**{_UNITS[span[2]]: int(span[1])})
    try:
        day = parse_date(text)
        moment = datetime.combine(day, datetime.min.time()) if day else parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        raise ArgumentTypeError(f"{text!r} is neither a span such as 12h nor a date or time")
    if settings.USE_TZ and timezone.is_naive(moment):
        return timezone.make_aware(moment)
    # As rows have it: an offset that was written down means the same moment.
    return timezone.make_naive(moment) if not settings.USE_TZ and timezone.is_aware(moment) else moment


def run(command: BaseCommand, options: Mapping[str, Any]) -> None:
    """:raises CommandError: nothing is declared, a database could not be asked, or there are duplicates."""
    try:
        declared = reconciling.declared()
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    if not declared:
        raise CommandError(
            "Nothing is declared to be compared: list Reconciliations in a module named 'reconciliations' of an app."
        )
    since, limit = options["since"], max(options["limit"], 0)
    compared = [_compare(alias, declared, since, limit) for alias in databases.chosen(options["databases"])]
    if options["json"]:
        document = {"since": since.isoformat(), "databases": [_document(each) for each in compared]}
        command.stdout.write(json.dumps(document, cls=DjangoJSONEncoder))
    else:
        command.stdout.write("\n".join(line for each in compared for line in _lines(each, since)))
    if failed := [f"{each.database}: {each.error}" for each in compared if each.error]:
        raise CommandError("\n".join(failed))
    if total := sum(duplicates.count for each in compared for _, duplicates in each.found):
        raise CommandError(f"Done twice: {total}.", returncode=databases.FOR_A_PERSON)


def _compare(alias: str, declared: Sequence[Reconciliation], since: datetime, limit: int) -> Compared:
    compared = Compared(alias)
    try:
        for each in declared:
            if router.allow_migrate_model(alias, each.model):
                compared.found.append((each, reconciling.find(alias, each, since=since, limit=limit)))
    except databases.FAILURES as error:
        compared.error = databases.explain(error)
        drop_if_broken(connections[alias])
    return compared


def _document(compared: Compared) -> dict[str, Any]:
    return {
        "database": compared.database,
        "reconciliations": [
            {
                "model": of.options.label,
                "fields": of.fields,
                "window": of.window.total_seconds(),
                "duplicates": duplicates.count,
                "first": [_facts(each) for each in duplicates.first],
            }
            for of, duplicates in compared.found
        ],
        "error": compared.error,
    }


def _facts(each: Duplicate) -> dict[str, Any]:
    apart = each.apart.total_seconds()
    return {"pk": each.pk, "earlier": each.earlier, "at": each.at.isoformat(), "apart": apart, "values": each.values}


def _lines(compared: Compared, since: datetime) -> Iterator[str]:
    for of, duplicates in compared.found:
        yield (
            f"{compared.database}: {of.label} within {_seconds(of.window)}: {_how_many(duplicates.count)} "
            f"since {since:%Y-%m-%d %H:%M}"
        )
        for each in duplicates.first:
            values = ", ".join(f"{name}={value}" for name, value in each.values.items())
            yield f"  {each.pk} repeats {each.earlier} after {_seconds(each.apart)}: {values}"
        if more := duplicates.count - len(duplicates.first):
            yield f"  and {more} more"
    if compared.error:
        yield f"{compared.database}: failed"


def _how_many(duplicates: int) -> str:
    return number_of(duplicates, "duplicate") if duplicates else "no duplicates"


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"
