"""Free a key whose owner is gone, so that the next request under it runs from the beginning.

Only where the lease has lapsed and nothing has begun; otherwise it takes --whatever-happened and a reason, and may be a
second effect. A command has no user whom the history of the admin could name: the log has the id and the reason, and
that a person did it.
"""

from __future__ import annotations

import json
import logging
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import translation

from ..core.states import Seen, State
from ..interventions.progress import lease_of
from ..resolving import Refusal, Refused, release_by_person
from ..support import finding
from . import databases
from .show import add_key_arguments, key_of

logger = logging.getLogger("django_idempotency")


class _OnlyAsked(Exception):
    """Rolls back a release that was done in order to see whether it would be."""


def add_arguments(parser: ArgumentParser) -> None:
    add_key_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say whether it would be released")
    parser.add_argument(
        "--whatever-happened", action="store_true", help="also where something may have happened under it"
    )
    parser.add_argument("--reason", metavar="TEXT", help="why, for the log; needed with --whatever-happened")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(command: BaseCommand, options: Mapping[str, Any]) -> None:
    """:raises CommandError: nothing was released, or would be, and why."""
    if options["whatever_happened"] and not (options["reason"] or "").strip():
        raise CommandError("--whatever-happened needs a --reason: somebody will ask why it ran twice.")
    alias, record = _only(options)
    refusal = _refusal(alias, record, options)
    dry_run = options["dry_run"]
    if options["json"]:
        document = {
            "dry_run": dry_run,
            "database": alias,
            "id": str(record.pk),
            "scope": record.scope,
            "released": refusal is None and not dry_run,
            "would_release": refusal is None and dry_run,
            "refusal": refusal.value if refusal else None,
        }
        command.stdout.write(json.dumps(document))
    elif refusal is None:
        command.stdout.write(f"{alias}: {record.pk} {'would be' if dry_run else 'is'} released: {record.scope}")
    if refusal is not None:
        raise CommandError(f"{alias}: {record.pk} is not released: {_why(refusal, record)}")


def _only(options: Mapping[str, Any]) -> tuple[str, Any]:
    """The database and the record that are meant.

    :raises CommandError: there is none, or more than one.
    """
    wanted = key_of(options)
    try:
        found = [
            (alias, record)
            for alias in databases.chosen(options["databases"])
            for record in finding.at_hand(alias, wanted, scope=options["scope"])
        ]
    except databases.FAILURES as error:
        raise CommandError(databases.explain(error)) from error
    if not found:
        raise CommandError(
            "No claim is in flight under this key: it is free, or it has its answer. "
            "manage.py idempotency show looks among the sealed records as well."
        )
    if len(found) > 1:
        raise CommandError("\n".join(["More than one claim has this key. Say which with --scope, or by its id:",
                                      *_listed(found)]))  # fmt: skip
    return found[0]


def _listed(found: Sequence[tuple[str, Any]]) -> list[str]:
    return [f"{alias}: {record.pk} {record.scope}" for alias, record in found]


def _refusal(alias: str, record: Any, options: Mapping[str, Any]) -> Refusal | None:
    if record.state == State.SEALED.value:
        return Refusal.SEALED

    def note() -> None:
        if options["dry_run"]:
            raise _OnlyAsked
        logger.warning("%s is released by command: %s", record.pk, options["reason"] or "no reason was given")

    try:
        seen = Seen(record.pk, record.owner_token, record.lease_expires_at)
        release_by_person(alias, seen, note, whatever_happened=options["whatever_happened"])
    except _OnlyAsked:
        return None
    except Refused as refused:
        return refused.reason
    except databases.FAILURES as error:
        raise CommandError(databases.explain(error)) from error
    return None


def _why(refusal: Refusal, record: Any) -> str:
    with translation.override(None, deactivate=True):
        lease = lease_of(record) if record.lease_left is not None else ""
    return {
        Refusal.GONE: "it is free already.",
        Refusal.SEALED: "it has its answer, which every retry receives until it expires. Nothing is stuck.",
        Refusal.ALIVE: f"somebody works under it (lease left: {lease}). Wait until the lease has lapsed.",
        Refusal.CHANGED: "something has happened to it this moment. Look at it with show, and decide again.",
        Refusal.BEGUN: (
            "something may have happened under it, so that a release could be a second effect. Find out what did: show "
            "has its steps. If it happened, mark it as resolved in the admin; a sweep may do so by itself. If it "
            "certainly did not and cannot any more, release it with --whatever-happened --reason TEXT."
        ),
    }[refusal]
