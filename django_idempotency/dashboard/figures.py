"""What the page shows of the data: pictures, each with its words, and the tables behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _

from . import pictures, words
from .data import InFlight, Partition, Share
from .ranges import Range
from .series import Series

Words = Callable[[Any], str]


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    headline: str
    description: str
    """What a reader hears who does not see the bars."""
    path: str
    top: str
    begins: str


@dataclass(frozen=True)
class Route:
    """Everything about one route."""

    name: str
    requests: str
    figures: Sequence[Figure]
    rows: Sequence[Sequence[str]]
    """When, requests, replays, rate, 409, 422, oldest: of every piece in which there was anything."""


def route(number: int, series: Series, shown: Range, now: float, present: InFlight | None) -> Route:
    """:param number: tells its ids from those of the other routes."""
    begins = shown.begins(now)

    def figure(name: str, title: str, headline: str, values: Sequence[float | None], say: Words) -> Figure:
        drawn = pictures.bars(values, at_most=1 if name == "replays" else math.inf)
        description = _described(values, begins, say)
        return Figure(f"{name}-{number}", title, headline, description, drawn.path, say(drawn.top), words.at(begins[0]))

    oldest = words.readable(present.oldest) if present else _("nothing in flight")
    conflicts, mismatches = words.whole(sum(series.conflicts)), words.whole(sum(series.mismatches))
    return Route(
        series.route,
        words.whole(sum(series.requests)),
        [
            figure("replays", _("Answered by a replay"), words.percent(series.rate), series.rates, words.percent),
            figure("409", _("409: still running"), conflicts, series.conflicts, _count),
            figure("422", _("422: other content"), mismatches, series.mismatches, _count),
            figure("oldest", _("Oldest in flight"), oldest, series.oldest, _seconds),
        ],
        _rows(series, begins),
    )


def _count(n: float) -> str:
    return words.whole(round(n))


def _seconds(n: float) -> str:
    return words.readable(timedelta(seconds=n))


def _described(values: Sequence[float | None], begins: Sequence[int], say: Words) -> str:
    known = [(value, begin) for value, begin in zip(values, begins, strict=True) if value]
    if not known:
        return _("Nothing in this time.")
    most, when = max(known)
    last, last_when = known[-1]
    return _("At most %(most)s, on %(when)s; last %(last)s, on %(last_when)s.") % {
        "most": say(most), "when": words.at(when), "last": say(last), "last_when": words.at(last_when),
    }  # fmt: skip


def _rows(series: Series, begins: Sequence[int]) -> list[list[str]]:
    pieces = zip(
        begins, series.requests, series.replays, series.rates, series.conflicts, series.mismatches, series.oldest,
        strict=True,
    )  # fmt: skip
    return [
        [
            words.at(begin), words.whole(requests), words.whole(replays), words.percent(rate), words.whole(conflicts),
            words.whole(mismatches), "-" if oldest is None else _seconds(oldest),
        ]
        for begin, requests, replays, rate, conflicts, mismatches, oldest in pieces
        if requests or oldest is not None
    ]  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """The partitions, as a picture and as rows."""

    segments: Sequence[tuple[str, pictures.Segment, str]]
    """What kind, what to draw, and the label below."""
    now: str | None
    description: str
    rows: Sequence[Sequence[str]]
    """Name, from, to, size, records, what becomes of it."""


def bar(partitions: Sequence[Partition], now: datetime) -> Bar:
    drawn = pictures.segments([each.size for each in partitions])
    kinds = ["expired" if each.upper <= now else "ahead" if each.lower > now else "current" for each in partitions]
    total, going = sum(each.size for each in partitions), [each for each in partitions if each.upper <= now]
    return Bar(
        [
            (kind, segment, words.day(each.lower))
            for kind, segment, each in zip(kinds, drawn, partitions, strict=True)
        ],
        pictures.place(now, [(each.lower, each.upper) for each in partitions]),
        _("%(n)d partitions with %(total)s; %(expired)d have expired, with %(size)s.") % {
            "n": len(partitions), "total": filesizeformat(total),
            "expired": len(going), "size": filesizeformat(sum(each.size for each in going)),
        },
        [
            (
                each.name, words.date_and_time(each.lower), words.date_and_time(each.upper), filesizeformat(each.size),
                _("not known yet") if each.rows is None else _("about %s") % words.whole(each.rows), _fate(each, now),
            )
            for each in partitions
        ],
    )  # fmt: skip


def _fate(partition: Partition, now: datetime) -> str:
    if partition.goes is None:
        return _("stays: %s") % partition.why
    if partition.goes <= now:
        return _("dropped by the next pruning")
    return _("dropped after %s") % words.date_and_time(partition.goes)


def storage(shares: Sequence[Share], total: int | None) -> list[Sequence[str]]:
    """Route, part of the records, part of the bytes, bytes in all, bytes of a record.

    :param total: bytes of all sealed records, where that is known.
    """
    return [
        (
            each.route,
            words.percent(each.of_records),
            words.percent(each.of_bytes),
            _("not known here") if total is None else _("about %s") % filesizeformat(math.ceil(total * each.of_bytes)),
            filesizeformat(math.ceil(each.per_record)),
        )
        for each in shares
    ]
