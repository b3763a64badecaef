"""From numbers to what an SVG draws. Plain Python: no request, no database, no words.

Bars of one picture are one path, written here. As elements of a template, a page of thirty pictures would be thousands
of them, and the project's locale would write their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

WIDTH, HEIGHT = 240, 60
_LEAST = 1.5
"""The height of the lowest bar: a value that is not zero can be seen."""

BAR_WIDTH, BAR_HEIGHT = 720, 56


@dataclass(frozen=True)
class Bars:
    path: str
    top: float
    """The value at the upper edge."""


def bars(values: Sequence[float | None], *, at_most: float = math.inf) -> Bars:
    """A bar for each value; none where it is zero or there is nothing to know."""
    top = min(at_most, round_up(max((value for value in values if value is not None), default=0)))
    slot = WIDTH / max(1, len(values))
    width = slot * 0.8
    parts = []
    for number, value in enumerate(values):
        if value:
            height = max(_LEAST, HEIGHT * min(1.0, value / top))
            parts.append(f"M{number * slot + slot * 0.1:.1f} {HEIGHT}v-{height:.1f}h{width:.1f}v{height:.1f}z")
    return Bars("".join(parts), top)


def round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten: an upper edge that can be read. 1 where there is nothing."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    # Rounded, because 3 * 0.1 is a little more than 0.3 and would ask for the next step.
    return next(step * power for step in (1, 2, 5, 10) if round(value / power, 9) <= step)


@dataclass(frozen=True)
class Segment:
    """One partition in the bar: a frame in order of time, filled as far as its size says."""

    frame: str
    fill: str
    middle: str
    """Where its label stands."""


def segments(sizes: Sequence[int]) -> list[Segment]:
    """As wide as each other, whatever interval they cover; the largest one is filled."""
    largest = max(sizes, default=0) or 1
    slot = BAR_WIDTH / max(1, len(sizes))
    drawn = []
    for number, size in enumerate(sizes):
        left, width = number * slot + 1, slot - 2
        height = max(_LEAST, BAR_HEIGHT * size / largest) if size else 0
        drawn.append(
            Segment(
                f"M{left:.1f} 0h{width:.1f}v{BAR_HEIGHT}h-{width:.1f}z",
                f"M{left:.1f} {BAR_HEIGHT}v-{height:.1f}h{width:.1f}v{height:.1f}z" if height else "",
                f"{left + width / 2:.1f}",
            )
        )
    return drawn


def place(moment: datetime, bounds: Sequence[tuple[datetime, datetime]]) -> str | None:
    """Where a moment lies in the bar of :func:`segments`, or None where no segment covers it."""
    slot = BAR_WIDTH / max(1, len(bounds))
    for number, (lower, upper) in enumerate(bounds):
        if lower <= moment < upper:
            return f"{(number + (moment - lower) / (upper - lower)) * slot:.1f}"
    return None
