"""Which partitions may go, and why the others stay. Time is an argument, as in ``intervals``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from .intervals import Interval

MARGIN = timedelta(hours=1)
"""How long after its upper bound a partition stays. A record may be sealed into it by a transaction that is committed
much later, and a clock that is set back must not bring to life what has been dropped. An hour is more than either
takes in practice, and costs next to no space."""


class Attachment(str, Enum):
    ATTACHED = "attached"
    PENDING = "pending"
    """A DETACH CONCURRENTLY was interrupted, or goes on. Its records are hidden, and no other leaf can be detached."""

    DETACHED = "detached"


@dataclass(frozen=True)
class Leaf:
    """A partition as the catalog shows it, or a table that was one."""

    name: str
    """Quoted, with its schema."""

    attachment: Attachment
    interval: Interval | None
    """None where its bounds are not two moments, and once it is detached."""

    ours: bool
    """Whether this app made it."""

    leaving: bool = False
    """Whether a pruner has begun with it."""

    rows: int = 0
    """About how many, by the statistics of the server."""

    size: int = 0
    """In bytes, with indexes and all."""

    buried_for: float | None = None
    """For how many seconds after their expiry the ids of all its records are kept, if they are."""


class Plan(str, Enum):
    DROP = "drop"
    FINALIZE = "finalize"
    """End its detachment, which blocks all others, and keep what it holds."""

    KEEP = "keep"
    LEAVE = "leave"
    """A person has to look at it."""


@dataclass(frozen=True)
class Decision:
    leaf: Leaf
    plan: Plan
    reason: str


def decide(leaves: Iterable[Leaf], now: datetime, margin: timedelta = MARGIN) -> list[Decision]:
    """What to do with each, in the order in which it has to be done: what was interrupted first, then the oldest.

    Each leaf is judged by itself. A gap, or an older one that has to stay, shields none.
    """
    decisions = [Decision(leaf, *_judge(leaf, now, margin)) for leaf in sorted(leaves, key=_turn)]
    in_the_way = next((each.leaf for each in decisions if each.plan is Plan.LEAVE), None)
    return [_postponed(each, in_the_way) if in_the_way else each for each in decisions]


def _postponed(decision: Decision, in_the_way: Leaf) -> Decision:
    """Nothing can be detached while the detachment of another leaf is pending, and that one is not ours to end."""
    if decision.plan is not Plan.DROP or decision.leaf.attachment is not Attachment.ATTACHED:
        return decision
    return Decision(decision.leaf, Plan.KEEP, f"first somebody has to finalize the detachment of {in_the_way.name}")


def _turn(leaf: Leaf) -> tuple[int, datetime | None, str]:
    order = (Attachment.PENDING, Attachment.DETACHED, Attachment.ATTACHED).index(leaf.attachment)
    if leaf.interval is None:
        return order * 2 + 1, None, leaf.name
    return order * 2, leaf.interval.upper, leaf.name


def _judge(leaf: Leaf, now: datetime, margin: timedelta) -> tuple[Plan, str]:
    if leaf.attachment is Attachment.DETACHED:
        by_us = Plan.DROP, "it was detached by a pruner that did not come to drop it"
        return by_us if leaf.leaving else (Plan.KEEP, "it was detached by hand, and is for whoever did it to drop")
    if not leaf.ours or leaf.interval is None:
        return _judge_strange(leaf)
    past = now - leaf.interval.upper
    if past >= margin:
        return Plan.DROP, f"everything in it expired {_for_people(past)} ago"
    if leaf.attachment is Attachment.PENDING:
        return Plan.FINALIZE, "it was being detached before its time: its records answer nobody"
    if past >= timedelta(0):
        return Plan.KEEP, f"it expired {_for_people(past)} ago, less than the margin of {_for_people(margin)}"
    return Plan.KEEP, "records in it may not have expired"


def _judge_strange(leaf: Leaf) -> tuple[Plan, str]:
    what = "its bounds are not two moments" if leaf.ours else "it was not made by this app"
    if leaf.attachment is Attachment.PENDING:
        return Plan.LEAVE, f"{what}, and until somebody finalizes its detachment no other can be detached"
    return Plan.KEEP, what


def _for_people(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
