"""Show what is recorded under a key, whosever it is, or under an id that the log or the admin has shown.

Claims in flight are found at once. No index holds the keys of sealed records, so those are looked through, those that
expire last first: about a second for two million that are in the server's memory. With --scope, or by an id, it is a
single look-up, which also finds the tombstone of a record that has gone. It ends with status 3 if there is neither.
"""

from __future__ import annotations

import base64
import json
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.utils import translation

from ..core.errors import MalformedKey
from ..core.states import State
from ..interventions.progress import lease_of, moment, next_sweep, readable, state_of, steps_of
from ..models import IdempotencyKey, Tombstone
from ..storage.transactions import drop_if_broken
from ..support import finding
from ..support.finding import Wanted
from . import databases
from .watching import Progress

_STEP = ("name", "kind", "done", "declined", "key", "started_at", "sends", "compensating")
"""What may be told of a step: all but its result, which may be anybody's data."""


@dataclass
class Looked:
    """What one database has."""

    database: str
    records: list[Any] = field(default_factory=list)
    buried: Tombstone | None = None
    error: str | None = None


def add_arguments(parser: ArgumentParser) -> None:
    add_key_arguments(parser)
    parser.add_argument("--body", action="store_true", help="print the stored body too, which may be anybody's data")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_key_arguments(parser: ArgumentParser) -> None:
    """What names a record, also to other subcommands."""
    parser.add_argument("key", metavar="KEY", help="as the client sent it, with or without its quotes; or an id")
    parser.add_argument("--scope", help="the whole scope of the key, as the admin shows it")
    databases.add_argument(parser)


def key_of(options: Mapping[str, Any]) -> Wanted:
    """:raises CommandError: it is neither a key nor an id."""
    try:
        return finding.wanted(options["key"])
    except MalformedKey as error:
        raise CommandError(f"{options['key']!r} is neither a key nor an id: {error.detail}") from error


def run(command: BaseCommand, options: Mapping[str, Any]) -> None:
    """:raises CommandError: a database could not be asked, or none has such a record."""
    wanted = key_of(options)
    looked = [
        _look(alias, wanted, options["scope"], Progress(command)) for alias in databases.chosen(options["databases"])
    ]
    bodies = {record.pk: _body(each.database, record) for each in looked for record in each.records if options["body"]}
    # What the admin says in the words of its reader, a command says in English, as all of them do.
    with translation.override(None, deactivate=True):
        if options["json"]:
            command.stdout.write(json.dumps({"databases": [_document(each, bodies) for each in looked]}))
        else:
            for each in looked:
                for record in each.records:
                    command.stdout.write("\n".join(_lines(each.database, record, bodies.get(record.pk))))
                if each.buried:
                    command.stdout.write(
                        f"{each.database}: {each.buried.pk} has expired, and its record is gone.\n"
                        f"  refused until {moment(each.buried.forget_at)}, as key-expired"
                    )
    if failed := [f"{each.database}: {each.error}" for each in looked if each.error]:
        raise CommandError("\n".join(failed))
    if not any(each.records or each.buried for each in looked):
        raise CommandError(
            "There is no such record. Where TOMBSTONES are kept, one that has gone is found by its id or with --scope.",
            returncode=databases.FOR_A_PERSON,
        )


def _look(alias: str, wanted: Wanted, scope: str | None, progress: Progress) -> Looked:
    looked = Looked(alias)
    try:
        looked.records = finding.at_hand(alias, wanted, scope=scope)
        alone = scope is not None or any(record.pk == wanted.id for record in looked.records)
        if wanted.key is not None and not alone:
            for section in finding.among_sealed(alias, wanted.key):
                looked.records += section.found
                progress.tell(f"{alias}: looked through {section.number} of {section.of} parts")
        if not looked.records:
            looked.buried = finding.buried(alias, wanted, scope=scope)
    except databases.FAILURES as error:
        looked.error = databases.explain(error)
        drop_if_broken(connections[alias])
    return looked


def _body(alias: str, record: Any) -> bytes | None:
    kept = IdempotencyKey.objects.using(alias).filter(pk=record.pk).values_list("response_body", flat=True).first()
    return None if kept is None else bytes(kept)


def _document(looked: Looked, bodies: Mapping[Any, bytes | None]) -> dict[str, Any]:
    return {
        "database": looked.database,
        "records": [
            _facts(record) | (_body_document(bodies[record.pk]) if record.pk in bodies else {})
            for record in looked.records
        ],
        "buried": {"id": str(looked.buried.pk), "forget_at": looked.buried.forget_at.isoformat()}
        if looked.buried
        else None,
        "error": looked.error,
    }


def _facts(record: Any) -> dict[str, Any]:
    return {
        "id": str(record.pk),
        "state": record.state,
        "now": state_of(record),
        **{name: getattr(record, name) for name in ("scope", "key", "mode", "attempts")},
        "age": record.age.total_seconds(),
        "lease_left": _seconds(record.lease_left),
        "kept_for": _seconds(record.kept_for),
        **{name: getattr(record, name) for name in ("operation", "recovery_point", "held_reason", "sweeps")},
        "steps": [{name: step.get(name) for name in _STEP} for step in record.steps or ()],
        "response_status": record.response_status,
        "response_size": record.response_size,
    }


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def _body_document(body: bytes | None) -> dict[str, str | None]:
    if body is None:
        return {"body": None}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _lines(alias: str, record: Any, body: bytes | None) -> Iterator[str]:
    yield f"{alias}: {record.pk} {state_of(record)}"
    for name, value in _named(record):
        yield f"  {name:<13}{value}"
    if body is not None:
        ((_, text),) = _body_document(body).items()
        yield f"\n{text}"


def _named(record: Any) -> Iterator[tuple[str, object]]:
    yield "scope", record.scope
    yield "key", record.key
    yield "mode", record.mode
    yield "attempts", record.attempts
    yield "age", readable(record.age)
    if record.operation is not None:
        yield "operation", record.operation
    if record.state == State.SEALED.value:
        size = "no body is kept" if record.response_size is None else f"{record.response_size} bytes as stored"
        yield "response", f"{record.response_status}, {size}"
        gone = record.kept_for <= timedelta(0)
        yield "kept", f"expired {readable(-record.kept_for)} ago" if gone else f"for {readable(record.kept_for)}"
        return
    yield "lease", lease_of(record)
    for step in steps_of(record):
        yield "step", step
    if record.held_reason is not None:
        yield "held because", record.held_reason
        yield "held since", moment(record.held_at)
    yield "sweeps", record.sweeps
    yield "next sweep", next_sweep(record)
