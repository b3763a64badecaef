"""Which partitions there should be. Times are arguments, so that a test can stand at any midnight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DAY = timedelta(days=1)
# Claims slow down with the number of leaves (measured: by half between 9 and 32), so a longer retention gets longer
# intervals instead of more of them.
_INTERVALS = 8
_AHEAD = 2
# Between two clocks, and between the claim and the seal of a view that takes its time.
_SLACK = timedelta(hours=1)
# So long before claims are refused, people hear that nobody makes more leaves.
_NOTICE = timedelta(days=2)
# A night without a request makes no leaf, and is no reason to call anybody.
_NIGHT = timedelta(hours=12)
# Where the processes may not make leaves, a job does once a day: on the day on which a clock is put back, and late.
_ROUND = timedelta(hours=27)


@dataclass(frozen=True, order=True)
class Interval:
    """Expiry times from ``lower`` up to, not including, ``upper``."""

    lower: datetime
    upper: datetime


def interval_length(max_retention: timedelta) -> timedelta:
    return max(_DAY, _DAY * -(-max_retention // (_INTERVALS * _DAY)))


def horizon(now: datetime, max_retention: timedelta) -> datetime:
    """How far the leaves should reach: two intervals beyond whatever is sealed now, and far enough that a daily job
    leaves the processes nothing to do.
    """
    ahead = max_retention + _AHEAD * interval_length(max_retention)
    return now + max(ahead, comfortable_reach(max_retention) + _ROUND)


@cache
def comfortable_reach(max_retention: timedelta) -> timedelta:
    """How far from now the leaves may end before there is anything to do: one of the intervals ahead is left.

    With short intervals it is more than that, so that leaves are made in time for nobody to be alarmed.
    """
    one_left = max_retention + (_AHEAD - 1) * interval_length(max_retention)
    return max(one_left, alarming_reach(max_retention) + _NIGHT)


def alarming_reach(retention: timedelta) -> timedelta:
    """Where the leaves end sooner, nobody makes more of them, and within two days claims are refused.

    For every retention it is less than what is comfortable, or a healthy project would be alarmed.
    """
    return needed_reach(retention) + _NOTICE


def needed_reach(retention: timedelta) -> timedelta:
    """How far from now the leaves have to reach for a claim, whose record is sealed later."""
    return retention + _SLACK


def plan(existing: Sequence[Interval], now: datetime, max_retention: timedelta) -> list[Interval]:
    """The intervals that have no leaf yet, from ``now`` to the horizon, cut at UTC multiples of the interval length.

    Whatever exists stays as it is, also where an earlier setting cut it elsewhere: only gaps are filled.
    """
    wanted = Interval(now, horizon(now, max_retention))
    # Where intervals grew longer, the present one may begin with a gap that lies in the past: nothing expires there.
    return [missing for missing in fill(existing, wanted, interval_length(max_retention)) if missing.upper > now]


def fill(existing: Sequence[Interval], wanted: Interval, length: timedelta) -> list[Interval]:
    """What is missing of ``wanted``, rounded up to UTC multiples of ``length`` and cut there."""
    cursor = _boundary(wanted.lower, length)
    end = _boundary(wanted.upper + length - timedelta(microseconds=1), length)
    missing = []
    for taken in [*sorted(existing), Interval(end, end)]:
        while cursor < min(taken.lower, end):
            upper = min(_boundary(cursor, length) + length, taken.lower)
            missing.append(Interval(cursor, upper))
            cursor = upper
        cursor = max(cursor, taken.upper)
    return missing


def reach_of(existing: Sequence[Interval], now: datetime) -> datetime:
    """The end of the unbroken cover that ``now`` lies in; ``now`` itself where it lies in none."""
    reach = now
    for interval in sorted(existing):
        if interval.lower <= reach < interval.upper:
            reach = interval.upper
    return reach


def _boundary(moment: datetime, length: timedelta) -> datetime:
    return _EPOCH + ((moment - _EPOCH) // length) * length
