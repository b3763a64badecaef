"""What became of requests, route by route and piece by piece, made of the rows that a query adds up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..core.counted import Counted

ANSWERED = frozenset(
    {Counted.NEW.value, Counted.TAKEOVER.value, Counted.REPLAYED.value, Counted.CONFLICT.value, Counted.MISMATCH.value}
)
"""A request whose key was looked at is counted under exactly one of these. The rate of replays is a part of them."""


@dataclass(frozen=True)
class Series:
    """Of one route; each sequence has a value for every piece of the range."""

    route: str
    requests: Sequence[int]
    replays: Sequence[int]
    conflicts: Sequence[int]
    mismatches: Sequence[int]
    oldest: Sequence[int | None]
    """Seconds: the longest that any claim had been in flight. None where nothing was, or nobody looked."""

    @property
    def rates(self) -> list[float | None]:
        """The part of requests that was answered with what is recorded. None where there was no request."""
        return [replays / n if n else None for replays, n in zip(self.replays, self.requests, strict=True)]

    @property
    def rate(self) -> float | None:
        requests = sum(self.requests)
        return sum(self.replays) / requests if requests else None


def series_of(
    pieces: int, counts: Iterable[tuple[int, str, str, int]], readings: Iterable[tuple[int, str, int]]
) -> list[Series]:
    """The routes with the most requests first.

    :param counts: number of the piece from 0, route, outcome, how often.
    :param readings: number of the piece, route, seconds.
    """
    tables: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * pieces)
    ages: defaultdict[str, list[int | None]] = defaultdict(lambda: [None] * pieces)
    for piece, route, outcome, n in counts:
        if outcome in ANSWERED and 0 <= piece < pieces:
            tables[route, "requests"][piece] += n
            tables[route, outcome][piece] += n
    for piece, route, seconds in readings:
        if 0 <= piece < pieces:
            ages[route][piece] = seconds
    every = {
        route: Series(
            route,
            requests=tables[route, "requests"],
            replays=tables[route, Counted.REPLAYED.value],
            conflicts=tables[route, Counted.CONFLICT.value],
            mismatches=tables[route, Counted.MISMATCH.value],
            oldest=ages[route],
        )
        for route in {*(route for route, _ in tables), *ages}
    }
    return sorted(every.values(), key=lambda each: (-sum(each.requests), each.route))
