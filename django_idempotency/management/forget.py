"""Drop the answers that are kept for one person, and keep that the keys were used.

A retry under one of those keys is told that its answer is not kept, as if the body had been too large, and nothing runs
again. What is in flight is not touched. It can be interrupted and begun again.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from ..core.wording import number_of
from ..storage.transactions import drop_if_broken
from ..support import forgetting
from . import databases
from .watching import Progress

_REASONS = {"42501": "this role may not write to the sealed records; run it as one that serves"}


@dataclass
class Report:
    """What became of one database, as ``--json`` prints it."""

    database: str
    forgotten: int = 0
    in_flight: Sequence[str] = ()
    error: str | None = None


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--scope",
        required=True,
        help="a principal, such as 'auth.user:5', for all of its operations; or a whole scope, as show prints it",
    )
    databases.add_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say how many would be forgotten")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(command: BaseCommand, options: Mapping[str, Any]) -> None:
    """:raises CommandError: a database could not be gone through. The others were."""
    scope, dry_run = options["scope"], options["dry_run"]
    if not scope.strip():
        raise CommandError("--scope is empty, and nobody is everybody.")
    reports = [
        _forget(alias, scope, Progress(command), dry_run=dry_run) for alias in databases.chosen(options["databases"])
    ]
    if options["json"]:
        command.stdout.write(json.dumps({"dry_run": dry_run, "databases": [asdict(report) for report in reports]}))
    else:
        command.stdout.write("\n".join(line for report in reports for line in _lines(report, dry_run)))
    if failed := [f"{report.database}: {report.error}" for report in reports if report.error]:
        raise CommandError("\n".join(failed))


def _forget(alias: str, scope: str, progress: Progress, *, dry_run: bool) -> Report:
    report = Report(alias)
    try:
        # One that ends meanwhile may be missed by both: it lies in a part that was gone through, or in none.
        in_flight = forgetting.still_in_flight(alias, scope)
        for section in forgetting.forget(alias, scope, dry_run=dry_run):
            report.forgotten += section.records
            progress.tell(f"{alias}: {report.forgotten} in {section.number} of {section.of} parts")
        in_flight += forgetting.still_in_flight(alias, scope)
        report.in_flight = [str(each) for each in dict.fromkeys(in_flight)]
    except databases.FAILURES as error:
        report.error = databases.explain(error, _REASONS)
        drop_if_broken(connections[alias])
    return report


def _lines(report: Report, dry_run: bool) -> Iterator[str]:
    of = "would be" if dry_run else "are"
    stopped = " before it failed" if report.error else ""
    yield f"{report.database}: the answers of {number_of(report.forgotten, 'record')} {of} forgotten{stopped}"
    if report.in_flight:
        yield (
            f"{report.database}: {len(report.in_flight)} in flight, of which the answers are kept when they end; "
            f"run this again then: {', '.join(report.in_flight)}"
        )
