"""Say how the store stands: what is in flight, what is stuck, how far partitions reach, and who uses keys badly.

It ends with status 3 if something has to be done: partitions run out, no sweeper runs, a key is left to a person, a
call without an answer will be forgotten by the other side, vacuum does not keep up, or the database is read-only.
manage.py check --database says the same, with all else that can be wrong. Signs of broken clients are told and change
nothing about that.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from django.core.checks import CheckMessage
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.utils import translation

from ..checks import HEALTH, check_databases
from ..conf import current
from ..core.signatures import Signature
from ..interventions.progress import readable
from ..numbers import signatures
from ..storage.gauges import Gauges, gauges
from ..storage.transactions import drop_if_broken
from . import databases

_SPANS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}

Sums = Mapping[str, Mapping[str, int]]


@dataclass
class Report:
    """What is known of one database."""

    database: str
    gauges: Gauges | None = None
    last_sweep: timedelta | None = None
    faults: Sequence[CheckMessage] = ()
    signatures: Sequence[Signature] = field(default_factory=list)
    error: str | None = None


def add_arguments(parser: ArgumentParser) -> None:
    databases.add_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(command: BaseCommand, options: Mapping[str, Any]) -> None:
    """:raises CommandError: something has to be done, or could not be found out."""
    reports = [_report(alias) for alias in databases.chosen(options["databases"])]
    routes = _routes()
    if options["json"]:
        document = {"databases": [_document(report) for report in reports], "routes": routes}
        command.stdout.write(json.dumps(document))
    else:
        with translation.override(None, deactivate=True):
            lines = [line for report in reports for line in _lines(report)]
        command.stdout.write("\n".join([*lines, *_of_routes(routes)]))
    if failed := [f"{report.database}: {report.error}" for report in reports if report.error]:
        raise CommandError("\n".join(failed))
    if faults := sum(len(report.faults) for report in reports):
        raise CommandError(f"To be looked at: {faults}.", returncode=databases.FOR_A_PERSON)


def _report(alias: str) -> Report:
    report = Report(alias)
    try:
        # What is unhealthy may be why the rest cannot be read: it is told in any case.
        report.faults = [
            fault
            for fault in check_databases(databases=[alias])
            if str(fault.id).rpartition(".")[2] in HEALTH and not fault.is_silenced()
        ]
        report.gauges = gauges(connections[alias], stale_after=current().STALE_AFTER.total_seconds())
        with suppress(signatures.CountsElsewhere):
            report.last_sweep = signatures.last_sweep(alias)
        report.signatures = signatures.signatures(alias)
    except databases.FAILURES as error:
        report.error = databases.explain(error)
        drop_if_broken(connections[alias])
    return report


def _routes() -> dict[str, Sums]:
    """Of the last hour and the last day, for all databases; empty where the first of them does not answer."""
    try:
        return {name: signatures.sums(since=span) for name, span in _SPANS.items()}
    except databases.FAILURES:
        drop_if_broken(connections[current().DATABASES[0]])
        return {name: {} for name in _SPANS}


def _document(report: Report) -> dict[str, Any]:
    return {
        "database": report.database,
        "gauges": asdict(report.gauges) if report.gauges else None,
        "last_sweep": report.last_sweep.total_seconds() if report.last_sweep is not None else None,
        "faults": [{"id": fault.id, "message": fault.msg, "hint": fault.hint} for fault in report.faults],
        "signatures": [
            asdict(each) | {"kind": each.kind.value, "seen": each.seen, "advice": each.advice}
            for each in report.signatures
        ],
        "error": report.error,
    }


def _lines(report: Report) -> Iterator[str]:
    yield f"{report.database}:"
    if report.gauges is not None:
        for name, value in _named(report, report.gauges):
            yield f"  {name:<18}{value}"
    for fault in report.faults:
        yield f"  {str(fault.id).rpartition('.')[2]} {fault.msg}"
        yield f"    {fault.hint}"
    for signature in report.signatures:
        yield f"  {signature.route}: {signature.seen}."
        yield f"    {signature.advice}"
    if report.error is None and not report.faults:
        yield "  nothing has to be done"


def _named(report: Report, gauges: Gauges) -> Iterator[tuple[str, str]]:
    oldest = f", the oldest for {_span(gauges.oldest_in_flight)}" if gauges.oldest_in_flight is not None else ""
    yield "in flight", f"{gauges.in_flight}{oldest}"
    yield "held", str(gauges.held)
    yield "stuck", str(gauges.stuck)
    yield "left to a person", str(gauges.left_to_a_person)
    if gauges.sealed is not None:
        yield "sealed", f"about {gauges.sealed}"
    if gauges.size is not None:
        yield "size", f"{gauges.size / 1024**2:.1f} MiB"
    if gauges.cover is not None:
        yield "partitions", f"for {_span(gauges.cover)}"
    yield "last sweep", f"{readable(report.last_sweep)} ago" if report.last_sweep is not None else "none is known of"


def _span(seconds: float) -> str:
    return readable(timedelta(seconds=seconds))


def _of_routes(routes: Mapping[str, Sums]) -> Iterator[str]:
    for route in sorted({route for sums in routes.values() for route in sums}):
        yield f"{route}:"
        for name, sums in routes.items():
            outcomes = ", ".join(f"{outcome} {n}" for outcome, n in sums.get(route, {}).items())
            yield f"  last {name:<7}{outcomes or 'nothing'}"
