"""The stretches of time that the dashboard can show, each cut into pieces. Time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

_MINUTE, _HOUR = 60, 3600


@dataclass(frozen=True)
class Range:
    """``pieces`` pieces of ``step`` seconds, cut at multiples of ``step`` in UTC. The last one is not over yet."""

    slug: str
    step: int
    pieces: int

    def first(self, now: float) -> int:
        """The number of the first piece. A piece begins at its number times ``step``, in seconds since the epoch."""
        return int(now // self.step) - self.pieces + 1

    def begins(self, now: float) -> list[int]:
        """When each piece begins, in seconds since the epoch."""
        first = self.first(now)
        return [number * self.step for number in range(first, first + self.pieces)]


RANGES = {
    each.slug: each
    for each in (
        Range("1h", _MINUTE, 60),
        Range("24h", 30 * _MINUTE, 48),
        Range("7d", 4 * _HOUR, 42),
        Range("14d", 8 * _HOUR, 42),
    )
}
USUAL = RANGES["24h"]
