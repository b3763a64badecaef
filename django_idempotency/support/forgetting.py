"""What a person may ask to be forgotten: the answers that are kept under their keys. That a key was used stays known.

So a retry hears what it would hear if the body had been too large to keep, and no second run begins. This is the one
thing that is done to a sealed record before its time, and it can only take away.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from django.db import connections

from ..storage import sections

logger = logging.getLogger("django_idempotency")


@dataclass(frozen=True)
class Forgotten:
    """One section of the sealed records."""

    number: int
    of: int
    records: int
    """How many lost their answer here, or would."""


def forget(alias: str, scope: str, *, dry_run: bool = False) -> Iterator[Forgotten]:
    """Drop the answers under a scope, section by section, each committed by itself. Told of as it is done.

    Interrupted, it can be begun again. What is sealed while it runs may be missed.

    :param scope: a whole one, or the principal that those of several operations begin with.
    """
    connection = connections[alias]
    act = sections.count_forgettable if dry_run else sections.forget
    parts = sections.sections(connection)
    total = 0
    for number, section in enumerate(parts, start=1):
        records = act(connection, section, scope)
        total += records
        yield Forgotten(number, len(parts), records)
    if not dry_run:
        # Without the scope, which may name a person.
        logger.warning("The answers of %d records of one scope on %r are forgotten.", total, alias)


def still_in_flight(alias: str, scope: str) -> list[UUID]:
    """Claims of this scope, whose answers are yet to come."""
    return sections.in_flight_of(connections[alias], scope)
