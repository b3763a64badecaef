"""Remove what has expired: drop partitions whose time is over, or delete rows where there are no partitions.

Run it hourly, as the owner of the table. It keeps no request waiting, may be ended at any moment, and goes on from
there when it is run again. What it cannot decide is left to a person (status 3).
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from ..core.wording import number_of
from ..pruning import AnotherPruner, Fate, Pruned, prune
from ..storage.transactions import drop_if_broken
from . import databases

_REASONS = {"42501": "this role may not drop partitions; run it as the owner of idempotency_key"}

_WORDS = {
    Fate.DUE: "would go",
    Fate.DROPPED: "dropped",
    Fate.DELETED: "deleted",
    Fate.WAITING: "to be tried again",
    Fate.KEPT: "kept",
    Fate.LEFT: "left to a person",
}

# Whoever watches wants to see that something happens, and not each batch.
_SECONDS_BETWEEN_LINES = 2.0


@dataclass
class Round:
    """What became of one database."""

    database: str
    pruned: list[Pruned] = field(default_factory=list)
    note: str | None = None
    error: str | None = None


def add_arguments(parser: ArgumentParser) -> None:
    databases.add_argument(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would go, what would stay, and why")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document a partition, and one for the summary"
    )


def run(command: BaseCommand, options: Mapping[str, Any]) -> None:
    """:raises CommandError: it could not be done on one of the databases, or something was left to a person."""
    printer = _Printer(command, options["json"], options["dry_run"])
    rounds = [printer.round(alias) for alias in databases.chosen(options["databases"])]
    printer.summarise(rounds)
    if failed := [f"{each.database}: {each.error}" for each in rounds if each.error]:
        raise CommandError("\n".join(failed))
    if left := [pruned.name for each in rounds for pruned in each.pruned if pruned.fate is Fate.LEFT]:
        raise CommandError(f"Left to a person: {', '.join(left)}.", returncode=databases.FOR_A_PERSON)


class _Printer:
    def __init__(self, command: BaseCommand, as_json: bool, dry_run: bool) -> None:
        self._command = command
        self._as_json = as_json
        self._dry_run = dry_run
        self._said = time.monotonic()

    def round(self, alias: str) -> Round:
        each = Round(alias)

        def progress(what: str, done: int, of: int) -> None:
            if time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
                self._said = time.monotonic()
                self._command.stderr.write(f"{alias}: {what}, {done:,} of about {max(done, of):,}")

        try:
            for pruned in prune(alias, dry_run=self._dry_run, progress=progress):
                each.pruned.append(pruned)
                self._say(_line(alias, pruned), _document(alias, pruned))
        except AnotherPruner:
            each.note = "another pruner is at work"
        except databases.FAILURES as error:
            each.error = databases.explain(error, _REASONS)
        finally:
            drop_if_broken(connections[alias])
        return each

    def summarise(self, rounds: Sequence[Round]) -> None:
        document = {"dry_run": self._dry_run, "databases": [_sum(each) for each in rounds]}
        self._say("\n".join(_sentence(each) for each in rounds), document)

    def _say(self, text: str | None, document: Mapping[str, Any]) -> None:
        if self._as_json or text:
            self._command.stdout.write(json.dumps(document) if self._as_json else str(text))
            self._command.stdout.flush()


def _line(alias: str, pruned: Pruned) -> str | None:
    if _is_in_use(pruned):
        return None  # they are counted
    facts = [f"{alias}: {pruned.name}", f" to {_day(pruned.interval.upper)}" if pruned.interval else ""]
    facts.append(f": {_WORDS[pruned.fate]}")
    if pruned.rows:
        facts.append(f", about {number_of(pruned.rows, 'record')}" if pruned.partition else f", {_rows(pruned.rows)}")
    if pruned.size:
        facts.append(f", {_size(pruned.size)}")
    if pruned.buried:
        facts.append(f", {number_of(pruned.buried, 'tombstone')} made")
    if pruned.reason:
        facts.append(f": {pruned.reason}")
    return "".join(facts)


def _document(alias: str, pruned: Pruned) -> dict[str, Any]:
    interval = pruned.interval
    return {
        "database": alias,
        "name": pruned.name,
        "from": interval.lower.isoformat() if interval else None,
        "to": interval.upper.isoformat() if interval else None,
        "fate": pruned.fate.value,
        "reason": pruned.reason,
        "rows": pruned.rows,
        "bytes": pruned.size,
        "buried": pruned.buried,
    }


def _is_in_use(pruned: Pruned) -> bool:
    return (
        pruned.fate is Fate.KEPT and pruned.interval is not None and pruned.interval.upper > datetime.now(timezone.utc)
    )


def _sum(each: Round) -> dict[str, Any]:
    partitions, rows = _counted(each.pruned)
    return {
        "database": each.database,
        **{fate.value: partitions[fate] for fate in Fate},
        # Of tables that stay: partitions are dropped, and rows are deleted.
        "deleted": rows[Fate.DELETED],
        "due_rows": rows[Fate.DUE],
        "note": each.note,
        "error": each.error,
    }


def _counted(pruned: Iterable[Pruned]) -> tuple[Counter[Fate], Counter[Fate]]:
    """By fate, how many partitions, and how many rows of tables that stay."""
    partitions: Counter[Fate] = Counter()
    rows: Counter[Fate] = Counter()
    for each in pruned:
        (partitions if each.partition else rows)[each.fate] += each.number
    return partitions, rows


def _rows(n: int) -> str:
    return number_of(n, "row")


def _sentence(each: Round) -> str:
    partitions, rows = _counted(pruned for pruned in each.pruned if not _is_in_use(pruned))
    facts = [f"{partitions[fate]} {word}" for fate, word in _WORDS.items() if partitions[fate]]
    facts += [f"{_rows(rows[fate])} {word}" for fate, word in _WORDS.items() if rows[fate]]
    if in_use := sum(map(_is_in_use, each.pruned)):
        first = min(pruned.interval.upper for pruned in each.pruned if _is_in_use(pruned) and pruned.interval)
        facts.append(f"{in_use} in use, the first until {_day(first)}")
    facts += [note for note in (each.note, each.error and f"failed: {each.error}") if note]
    return f"{each.database}: {', '.join(facts) or 'nothing has expired'}"


def _day(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 10_000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
