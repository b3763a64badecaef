"""What the declared operations say. Their modules are imported, and nothing is called."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.core.checks import CheckMessage

from ..conf import current
from ..core.operations import Definition, Strategy
from ..sweeping import declared
from .ids import found

# A sweep comes each minute by the schedule that this package proposes.
_NEXT_SWEEP = timedelta(minutes=1)


def operations() -> Iterator[CheckMessage]:
    for definition in declared():
        yield from _renewed_long_enough(definition)
        yield from _swept_in_time(definition)


def _renewed_long_enough(definition: Definition) -> Iterator[CheckMessage]:
    cap = current().RENEWAL_CAP
    if definition.call_timeout >= cap:
        yield found(
            "W040",
            f"A call of {definition.name!r} may take {_seconds(definition.call_timeout)}, and its lease is renewed for "
            f"{_seconds(cap)} (RENEWAL_CAP): somebody else can take over and send again while it runs.",
            "Lower its call_timeout, or raise IDEMPOTENCY['RENEWAL_CAP'].",
            definition.name,
        )


def _swept_in_time(definition: Definition) -> Iterator[CheckMessage]:
    if definition.strategy is Strategy.PERSON:
        return
    lease = current().resolve(definition.policy).lease
    soonest = lease + definition.stale_after + _NEXT_SWEEP
    if soonest >= definition.last_resend:
        yield found(
            "W041",
            f"A sweeper comes to a call of {definition.name!r} that has no answer after about {_seconds(soonest)} "
            f"(lease, stale_after, a minute), and it is a person's after {_seconds(definition.last_resend)}, three "
            "quarters of downstream_retention: hardly one will be resolved without a person.",
            "Raise downstream_retention, if the other side remembers its keys for longer; else lower lease and "
            "stale_after.",
            definition.name,
        )


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"
