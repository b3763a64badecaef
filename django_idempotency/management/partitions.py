"""Make the partitions that sealed keys need, as far ahead as MAX_RETENTION asks for.

The processes that serve do this by themselves where their role may create tables. Where it may not, run this daily as
the owner of the table. What exists is left as it is, and running it twice does no harm.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from .. import retention
from ..core.intervals import Interval
from ..core.wording import number_of
from ..storage import store_for
from . import databases

_REASONS = {"42501": "this role may not create partitions; run it as the owner of idempotency_key"}


@dataclass
class Report:
    """What became of one database, as ``--json`` prints it. Times are in UTC."""

    database: str
    made: Sequence[Mapping[str, str]] = ()
    reaches: str | None = None
    tombstones: Sequence[Mapping[str, str]] = ()
    """The partitions that pruning made for them."""
    note: str | None = None
    error: str | None = None


def add_arguments(parser: ArgumentParser) -> None:
    databases.add_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be made")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(command: BaseCommand, options: Mapping[str, Any]) -> None:
    """:raises CommandError: it could not be done on one of the databases. The others are done all the same."""
    dry_run: bool = options["dry_run"]
    reports = [_report(alias, dry_run) for alias in databases.chosen(options["databases"])]
    if options["json"]:
        command.stdout.write(json.dumps({"dry_run": dry_run, "databases": [asdict(report) for report in reports]}))
    else:
        for report in reports:
            command.stdout.write("\n".join(_lines(report, dry_run)))
    if failed := [f"{report.database}: {report.error}" for report in reports if report.error]:
        raise CommandError("\n".join(failed))


def _report(alias: str, dry_run: bool) -> Report:
    try:
        if not store_for(alias).partitioned:
            return Report(alias, note=f"nothing to do: {connections[alias].vendor} keeps all keys in one table")
        made = retention.make_ahead(alias, dry_run=dry_run)
        graves = retention.graves(alias)
    except databases.FAILURES as error:
        return Report(alias, error=databases.explain(error, _REASONS))
    retention.forget_reach(alias)
    return Report(alias, _intervals(made.intervals), made.until.isoformat(), _intervals(graves))


def _intervals(intervals: Sequence[Interval]) -> list[Mapping[str, str]]:
    return [{"from": each.lower.isoformat(), "to": each.upper.isoformat()} for each in intervals]


def _lines(report: Report, dry_run: bool) -> list[str]:
    if report.error:
        return [f"{report.database}: failed"]
    if report.note:
        return [f"{report.database}: {report.note}"]
    verb = "would make" if dry_run else "made"
    made = [f"{report.database}: {verb} {_day(each['from'])} to {_day(each['to'])}" for each in report.made]
    end = "would reach" if dry_run and made else "reach"
    graves = [
        f"{report.database}: tombstones lie in {number_of(len(report.tombstones), 'partition')}, "
        f"the last until {_day(last['to'])}"
        for last in report.tombstones[-1:]
    ]
    return [*made, *graves, f"{report.database}: partitions {end} until {_day(report.reaches or '')}"]


def _day(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
