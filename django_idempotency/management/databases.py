"""What the subcommands have in common: which databases they go over, and what they say of one that fails."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import Error as DatabaseFailure

from ..conf import current
from ..storage.transactions import sqlstate

FAILURES = (DatabaseFailure, ImproperlyConfigured)
"""What keeps a subcommand from doing its work on one database, and not on the others."""

FOR_A_PERSON = 3
"""The exit status where all went well, and somebody has to look at what was found."""

_REASONS = {
    "42P01": "the table of keys is missing; run manage.py migrate django_idempotency first",
    "55P03": "the table is locked by something else; try again when that has ended",
    "25006": "this database is read-only, a replica perhaps; name the alias of its primary",
}


def add_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--database",
        action="append",
        dest="databases",
        metavar="ALIAS",
        help="a database of IDEMPOTENCY['DATABASES']; may be repeated (default: all of them)",
    )


def chosen(named: Sequence[str] | None) -> Sequence[str]:
    """:raises CommandError: one of them holds no keys."""
    known: Sequence[str] = current().DATABASES
    if unknown := [alias for alias in named or () if alias not in known]:
        raise CommandError(
            f"{', '.join(map(repr, unknown))}: not in IDEMPOTENCY['DATABASES'], which lists {', '.join(known)}."
        )
    return list(dict.fromkeys(named or known))


def explain(error: Exception, reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """:param reasons: what an SQLSTATE means to this subcommand in particular."""
    return {**_REASONS, **reasons}.get(sqlstate(error) or "", f"{error}".strip())
