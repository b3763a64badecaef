"""``manage.py idempotency``: a door. Each subcommand is a module next door, in ``management``."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...conf import problems
from .. import forget, partitions, prune, reconcile, release, show, status, sweep

SUBCOMMANDS: dict[str, ModuleType] = {
    "status": status,
    "partitions": partitions,
    "prune": prune,
    "sweep": sweep,
    "show": show,
    "release": release,
    "forget": forget,
    "reconcile": reconcile,
}
"""A subcommand is a module with a docstring, ``add_arguments(parser)`` and ``run(command, options)``."""


class Command(BaseCommand):
    help = "Look after idempotency keys."
    # What these commands repair, the checks complain of.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="subcommand")
        for name, module in SUBCOMMANDS.items():
            description = (module.__doc__ or "").strip()
            subparser = subcommands.add_parser(name, help=description.partition("\n")[0], description=description)
            module.add_arguments(subparser)

    def handle(self, *_: Any, **options: Any) -> None:
        if faults := problems():
            raise CommandError("\n".join(f"{message} {hint}" for message, hint in faults))
        SUBCOMMANDS[options["subcommand"]].run(self, options)
