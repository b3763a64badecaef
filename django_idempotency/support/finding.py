"""Where a record is that a customer tells the key of: without the scope there is no id to look it up by.

Claims in flight are few and are looked through at once. The sealed records take a while, and are looked through
section by section.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models.functions import Length, Now

from ..core.errors import MalformedKey
from ..core.keys import parse_key, record_id
from ..core.states import State
from ..models import IdempotencyKey, Tombstone
from ..storage import sections
from ..storage.ages import with_ages


@dataclass(frozen=True)
class Wanted:
    """What somebody was told: a key, or the id that the log and the admin show, or either."""

    key: str | None
    id: UUID | None


def wanted(text: str) -> Wanted:
    """:param text: a key in either form that the header takes, or an id. Most keys look like ids.

    :raises MalformedKey: it is neither.
    """
    number = _uuid(text)
    try:
        return Wanted(parse_key(text), number)
    except MalformedKey:
        if number is None:
            raise
        return Wanted(None, number)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def at_hand(alias: str, wanted: Wanted, *, scope: str | None = None) -> list[Any]:
    """Those that can be found at once: by their id, or by their scope and key, or in flight. Rows of ``with_ages``.

    :param scope: whose key it is, and for which operation. Then there is no other.
    """
    keys = with_ages(IdempotencyKey.objects.using(alias)).annotate(response_size=Length("response_body"))
    if scope is not None:
        return list(keys.filter(pk=record_id(scope, wanted.key))) if wanted.key is not None else []
    found = list(keys.filter(pk=wanted.id)) if wanted.id is not None else []
    if not found and wanted.key is not None:
        found = list(keys.filter(state=State.IN_FLIGHT.value, key=wanted.key).order_by("claimed_at", "pk"))
    return found


def buried(alias: str, wanted: Wanted, *, scope: str | None = None) -> Tombstone | None:
    """What is left of a record that has gone. Only its id is kept, so a key alone does not lead there."""
    number = record_id(scope, wanted.key) if scope is not None and wanted.key is not None else wanted.id
    if number is None:
        return None
    return Tombstone.objects.using(alias).filter(pk=number, forget_at__gt=Now()).first()


@dataclass(frozen=True)
class Searched:
    """One section of the sealed records."""

    number: int
    of: int
    found: list[Any]


def among_sealed(alias: str, key: str) -> Iterator[Searched]:
    """Look through all sealed records, expired or not. Told after each section, so that somebody can watch."""
    connection = connections[alias]
    parts = sections.sections(connection)
    keys = with_ages(IdempotencyKey.objects.using(alias)).annotate(response_size=Length("response_body"))
    for number, section in enumerate(parts, start=1):
        ids = sections.sealed_under(connection, section, key)
        yield Searched(number, len(parts), list(keys.filter(pk__in=ids).order_by("sealed_at", "pk")) if ids else [])
