"""How the store stands: what can go wrong while nobody changes anything. ``status`` says the same as ``check``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta

from django.core.checks import CheckMessage, Error
from django.db.backends.base.base import BaseDatabaseWrapper

from ..conf import current
from ..core.wording import number_of
from ..numbers import attention, signatures
from ..sweeping import declared, discover
from .ids import found

HEALTH = frozenset({"E030", "W031", "E032", "E033", "E035", "E036", "W037", "W050", "W051", "W052", "W053"})
"""The checks whose answer may be another one tomorrow, with the same code and settings."""

_ERRORS_OF_CHECK = frozenset({"W037", "W050", "W051", "W052", "W053"})

# Fifteen sweeps of the schedule that this package proposes, and more than any pause of a service or of cron.
_NO_SWEEP = timedelta(minutes=15)

# Autovacuum looks at each table once a minute. At 2,000 claims a second, the most that this layout was seen to do on
# two cores, with two dead rows each, that much piles up between two looks; more of it is what vacuum could not remove.
_MOST_DEAD = 250_000
# Ten times what autovacuum is to begin at, ten of its looks ago: it does not run on this table.
_SOME_DEAD, _NO_VACUUM = 10_000, timedelta(minutes=10)


def health(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    """Of a database whose tables are there and can be read."""
    discover()
    yield from _sweeper(connection.alias)
    yield from _left_to_a_person(connection.alias)
    yield from _downstream(connection.alias)
    if connection.vendor == "postgresql":
        yield from _vacuum(connection)


def weighed(message: CheckMessage) -> CheckMessage:
    """An error, if it is about the store's health and ``manage.py check`` asks, whose exit status should say so.

    Of all other commands, a warning: an error would stop the very deployment that brings the sweeper.
    """
    if sys.argv[1:2] == ["check"] and str(message.id).rpartition(".")[2] in _ERRORS_OF_CHECK:
        return Error(message.msg, hint=message.hint, obj=message.obj, id=message.id)
    return message


def _sweeper(alias: str) -> Iterator[CheckMessage]:
    how = f"Run manage.py idempotency sweep --forever, or Celery beat with the tasks of this app, for {alias!r}."
    waiting = attention.waiting_for_a_sweeper(alias, longer_than=_NO_SWEEP)
    if waiting.number:
        yield found(
            "W050",
            f"Waiting for a sweeper on {alias!r}: {number_of(waiting.number, 'claim')}, the longest for "
            f"{_span(waiting.longest)}.",
            f"{how} If one runs, its log says why it does not get through.",
        )
    # Only its operations need one: what else is left behind, the next request under the key takes over.
    elif current().COUNTS and any(declared()):
        try:
            ago = signatures.last_sweep(alias)
        except signatures.CountsElsewhere:
            return
        if ago is None or ago > _NO_SWEEP:
            since = "No sweep is known of" if ago is None else f"The last sweep was {_span(ago)} ago"
            yield found("W050", f"{since} on {alias!r}, and this project has operations.", how)


def _left_to_a_person(alias: str) -> Iterator[CheckMessage]:
    left = attention.left_to_a_person(alias)
    if left is not None:
        yield found(
            "W053",
            f"Left to a person on {alias!r}: {number_of(left.number, 'key')}. The oldest has been in flight for "
            f"{_span(left.age)}: {left.oldest}.",
            f"No sweeper takes it up again. manage.py idempotency show {left.oldest} says why, and what to ask the "
            "other side by. Then decide in the admin.",
        )


def _downstream(alias: str) -> Iterator[CheckMessage]:
    unanswered = attention.nearly_forgotten(alias)
    if unanswered:
        first = unanswered[0]
        left = f"in {_span(first.left)}" if first.left > timedelta(0) else f"{_span(-first.left)} ago"
        yield found(
            "W051",
            f"Without an answer on {alias!r}, for three quarters of the time for which the other side remembers it: "
            f"{number_of(len(unanswered), 'call of an operation', 'calls of operations')}. The first one is forgotten "
            f"there {left}: {first.id}.",
            f"manage.py idempotency show {first.id} has what to ask the other side by. Then decide in the admin.",
        )


def _vacuum(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    from ..storage import inspection

    upkeep = inspection.upkeep(connection)
    never = upkeep.vacuumed is None or upkeep.vacuumed > _NO_VACUUM
    if upkeep.dead < (_SOME_DEAD if never else _MOST_DEAD):
        return
    when = "it was never vacuumed" if upkeep.vacuumed is None else f"the last vacuum was {_span(upkeep.vacuumed)} ago"
    yield found(
        "W052",
        f"On {connection.alias!r} {upkeep.dead} dead rows lie in idempotency_key_in_flight, and {when}.",
        "Is autovacuum on, and has it workers left? If it runs and removes nothing, something holds an old snapshot: a "
        "transaction that is left open (pg_stat_activity.backend_xmin), a prepared one, or a replication slot.",
    )


def _span(span: timedelta) -> str:
    minutes = span.total_seconds() / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
