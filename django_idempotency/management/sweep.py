"""Find out what became of stale claims: their owner was killed, or a call to another system had no answer.

Where nothing can have happened the key is released, what can go on is finished, and the rest is tried again later or
left to a person (status 3). Each claim is taken up under an owner token of its own, so any number of sweeps may run at
once.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from .. import sweeping
from ..core.states import Record
from ..storage.transactions import drop_if_broken
from ..sweeping import Fate, Swept
from . import databases

Number = TypeVar("Number", int, float)

_WORDS = {
    Fate.FINISHED: "finished",
    Fate.RELEASED: "released",
    Fate.POSTPONED: "to be tried again",
    Fate.LEFT: "left to a person",
}


@dataclass
class Round:
    """One sweep of one database."""

    database: str
    seen: int = 0
    fates: Counter[Fate] = field(default_factory=Counter)
    error: str | None = None


@dataclass
class _Printer:
    command: BaseCommand
    as_json: bool

    def say(self, text: str, document: Mapping[str, Any]) -> None:
        self.command.stdout.write(json.dumps(document) if self.as_json else text)
        # Whoever watches a sweep that takes long wants to see how far it has come.
        self.command.stdout.flush()


class _Stop:
    """Whether a signal has asked for the end. A plain flag: an Event can lock itself out in a signal handler."""

    asked = False

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.25))


def add_arguments(parser: ArgumentParser) -> None:
    databases.add_argument(parser)
    parser.add_argument(
        "--limit", type=_positive(int), default=1000, metavar="N", help="claims on each database (default: 1000)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be taken up")
    parser.add_argument("--forever", action="store_true", help="sweep again and again, until SIGTERM or SIGINT")
    parser.add_argument(
        "--interval",
        type=_positive(float),
        default=30.0,
        metavar="SECONDS",
        help="with --forever, the pause when nothing is left to do (default: 30)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document a claim, and one for the summary")


def run(command: BaseCommand, options: Mapping[str, Any]) -> None:
    """:raises CommandError: a database could not be swept, or something was left to a person."""
    aliases, limit = databases.chosen(options["databases"]), options["limit"]
    printer = _Printer(command, options["json"])
    if options["dry_run"]:
        if options["forever"]:
            raise CommandError("--dry-run with --forever would say the same for ever.")
        _conclude(printer, [_look(alias, limit, printer) for alias in aliases], dry_run=True)
        return
    with _stopping() as stop:
        rounds = [_sweep(alias, limit, printer, stop) for alias in aliases]
        while options["forever"]:
            if any(each.seen or each.error for each in rounds):
                _summarise(printer, rounds)
            if not any(each.seen == limit for each in rounds):
                stop.wait(options["interval"])
            if stop.asked:
                return
            rounds = [_sweep(alias, limit, printer, stop) for alias in aliases]
    _conclude(printer, rounds)


def _look(alias: str, limit: int, printer: _Printer) -> Round:
    looked = Round(alias)
    with _failing_alone(looked):
        for record in sweeping.stale(alias, limit=limit):
            looked.seen += 1
            printer.say(*_outlook(alias, record))
    return looked


def _sweep(alias: str, limit: int, printer: _Printer, stop: _Stop) -> Round:
    swept = Round(alias)
    if stop.asked:
        return swept
    with _failing_alone(swept):
        for each in sweeping.sweep(alias, limit=limit):
            swept.seen += 1
            swept.fates[each.fate] += 1
            printer.say(*_result(alias, each))
            if stop.asked:
                break
    return swept


@contextmanager
def _failing_alone(each: Round) -> Iterator[None]:
    try:
        yield
    except databases.FAILURES as error:
        each.error = databases.explain(error)
    finally:
        drop_if_broken(connections[each.database])


@contextmanager
def _stopping() -> Iterator[_Stop]:
    """From the first signal on, only the claim at hand is finished. A second one ends that as well."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def ask(_number: int, _frame: object) -> None:
        stop.asked = True
        restore()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        restore()


def _outlook(alias: str, record: Record) -> tuple[str, dict[str, Any]]:
    progress = record.progress
    open_call = progress.open_call if progress else None
    lapsed = -(record.lease_left or 0.0)
    name = progress.operation if progress else None
    facts = [f"lapsed {lapsed:.0f} s ago"]
    if open_call is not None:
        facts.insert(0, f"the call {open_call.name!r} has no answer")
    if record.sweeps:
        facts.append(f"tried {record.sweeps} times")
    document = {
        "database": alias,
        "id": str(record.id),
        "operation": name,
        "open_call": open_call.name if open_call else None,
        "lapsed": round(lapsed, 3),
        "sweeps": record.sweeps,
        "held": record.held_reason,
    }
    return f"{_name(alias, record.id, name)}: {', '.join(facts)}", document


def _result(alias: str, swept: Swept) -> tuple[str, dict[str, Any]]:
    reason = f": {swept.reason}" if swept.reason else ""
    document = {
        "database": alias,
        "id": str(swept.id),
        "operation": swept.operation,
        "fate": swept.fate.value,
        "reason": swept.reason,
    }
    return f"{_name(alias, swept.id, swept.operation)}: {_WORDS[swept.fate]}{reason}", document


def _name(alias: str, id: object, operation: str | None) -> str:
    return " ".join(filter(None, (f"{alias}:", str(id), operation)))


def _conclude(printer: _Printer, rounds: Sequence[Round], *, dry_run: bool = False) -> None:
    _summarise(printer, rounds, dry_run=dry_run)
    if failed := [f"{each.database}: {each.error}" for each in rounds if each.error]:
        raise CommandError("\n".join(failed))
    if left := sum(each.fates[Fate.LEFT] for each in rounds):
        raise CommandError(f"Left to a person: {left}. The admin shows why.", returncode=databases.FOR_A_PERSON)


def _summarise(printer: _Printer, rounds: Sequence[Round], *, dry_run: bool = False) -> None:
    sums = [
        {"database": each.database, "stale": each.seen, "error": each.error}
        if dry_run
        else {"database": each.database, **{fate.value: each.fates[fate] for fate in Fate}, "error": each.error}
        for each in rounds
    ]
    printer.say("\n".join(_sum(each, dry_run) for each in rounds), {"dry_run": dry_run, "databases": sums})


def _sum(each: Round, dry_run: bool) -> str:
    if dry_run and not each.error:
        return f"{each.database}: {each.seen} would be taken up"
    counts = [f"{each.fates[fate]} {word}" for fate, word in _WORDS.items() if each.fates[fate]]
    if each.error:
        counts.append(f"failed: {each.error}")
    return f"{each.database}: {', '.join(counts) or 'nothing is stale'}"


def _positive(kind: Callable[[str], Number]) -> Callable[[str], Number]:
    def convert(text: str) -> Number:
        number = kind(text)
        if not 0 < number < float("inf"):
            raise ArgumentTypeError(f"{text} is not a positive number")
        return number

    convert.__name__ = "number"  # in argparse's "invalid number value"
    return convert
