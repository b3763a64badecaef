"""What the page shows of the data: pictures, each with its words, and the tables behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

from django.template.defaultfilters import filesizeformat
from django.utils.html import escape
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _

from ..core.intervals import Interval
from ..core.pruning import MARGIN, Attachment, Decision, Leaf, Plan
from . import pictures, words
from .data import InFlight, Share
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
    number: int
    """Of its requests; below, in words."""
    requests: str
    figures: Sequence[Figure]
    rows: str
    """When, requests, replays, rate, 409, 422, oldest: of every piece in which there was anything."""


def route(number: int, series: Series, begins: Sequence[str], present: InFlight | None) -> Route:
    """:param number: tells its ids from those of the other routes.
    :param begins: when each piece of the series begins, in words.
    """

    def figure(name: str, title: str, headline: str, values: Sequence[float | None], say: Words) -> Figure:
        drawn = pictures.bars(values, at_most=1 if name == "replays" else math.inf)
        description = _described(values, begins, say)
        return Figure(f"{name}-{number}", title, headline, description, drawn.path, say(drawn.top), begins[0])

    oldest = words.readable(present.oldest) if present else _("nothing in flight")
    conflicts, mismatches = words.whole(sum(series.conflicts)), words.whole(sum(series.mismatches))
    return Route(
        series.route,
        sum(series.requests),
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


def _described(values: Sequence[float | None], begins: Sequence[str], say: Words) -> str:
    known = [(value, begin) for value, begin in zip(values, begins, strict=True) if value]
    if not known:
        return _("Nothing in this time.")
    most, when = max(known, key=itemgetter(0))
    last, last_when = known[-1]
    return _("At most %(most)s, on %(when)s; last %(last)s, on %(last_when)s.") % {
        "most": say(most), "when": when, "last": say(last), "last_when": last_when,
    }  # fmt: skip


def _rows(series: Series, begins: Sequence[str]) -> str:
    pieces = zip(
        begins, series.requests, series.replays, series.rates, series.conflicts, series.mismatches, series.oldest,
        strict=True,
    )  # fmt: skip
    return table_rows(
        (
            begin, words.whole(requests), words.whole(replays), words.percent(rate), words.whole(conflicts),
            words.whole(mismatches), "-" if oldest is None else _seconds(oldest),
        )
        for begin, requests, replays, rate, conflicts, mismatches, oldest in pieces
        if requests or oldest is not None
    )  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """The partitions of one table, as a picture and as rows."""

    id: str
    title: str
    caption: str
    heads: Sequence[str]
    segments: Sequence[tuple[str, pictures.Segment, str]]
    """What kind, what to draw, and the label below."""
    now: str | None
    description: str
    rows: str
    """Name, from, to, size, records, what becomes of it."""


def sealed(decisions: Sequence[Decision], now: datetime) -> Bar:
    heads = _("records that expire from"), _("until"), _("size"), _("records")
    titles = _("Partitions of sealed records"), _("What will be dropped when")
    return _bar("partitions", titles, heads, decisions, now)


def tombstones(decisions: Sequence[Decision], now: datetime) -> Bar:
    heads = _("tombstones whose time ends from"), _("until"), _("size"), _("tombstones")
    titles = _("Partitions of tombstones"), _("Which tombstones will be dropped when")
    return _bar("tombstones", titles, heads, decisions, now)


def _bar(name: str, titles: tuple[str, str], heads: Sequence[str], decisions: Sequence[Decision], now: datetime) -> Bar:
    drawn = [(leaf, leaf.interval) for leaf in (each.leaf for each in decisions) if leaf.interval]
    segments = pictures.segments([leaf.size for leaf, _interval in drawn])
    due = [each.leaf.size for each in decisions if each.plan is Plan.DROP]
    return Bar(
        name,
        *titles,
        [_("partition"), *heads, _("what becomes of it")],
        [
            (_kind(interval, now), segment, words.day(interval.lower))
            for (_leaf, interval), segment in zip(drawn, segments, strict=True)
        ],
        pictures.place(now, [(interval.lower, interval.upper) for _leaf, interval in drawn]),
        _("Partitions: %(n)d, with %(size)s. The next pruning drops %(due)d, with %(due_size)s.") % {
            "n": len(decisions), "size": filesizeformat(sum(each.leaf.size for each in decisions)),
            "due": len(due), "due_size": filesizeformat(sum(due)),
        },
        table_rows(_partition(each) for each in decisions),
    )  # fmt: skip


def _kind(interval: Interval, now: datetime) -> str:
    return "expired" if interval.upper <= now else "ahead" if interval.lower > now else "current"


def _partition(decision: Decision) -> Sequence[str]:
    leaf = decision.leaf
    moments = (leaf.interval.lower, leaf.interval.upper) if leaf.interval else ()
    bounds = [words.moment(each) for each in moments] or ["-", "-"]
    return leaf.name, *bounds, filesizeformat(leaf.size), _("about %s") % words.whole(leaf.rows), _fate(decision)


def _fate(decision: Decision) -> str:
    if decision.plan is Plan.DROP:
        return _("dropped by the next pruning")
    if decision.plan is Plan.FINALIZE:
        return _("its detachment was interrupted; the next pruning ends it")
    if decision.plan is Plan.LEAVE:
        return _("a person has to end its detachment, which blocks that of all others")
    return _stay(decision.leaf)


def _stay(leaf: Leaf) -> str:
    if leaf.attachment is Attachment.DETACHED:
        return _("stays: it was detached by hand")
    if not leaf.ours:
        return _("stays: it was not made by this app")
    if leaf.interval is None:
        return _("stays: its bounds are not two moments")
    return _("dropped after %s") % words.moment(leaf.interval.upper + MARGIN)


def storage(shares: Sequence[Share], total: int | None) -> str:
    """Route, part of the records, part of the bytes, bytes in all, bytes of a record.

    :param total: bytes of all sealed records, where that is known.
    """
    return table_rows(
        (
            each.route,
            words.percent(each.of_records),
            words.percent(each.of_bytes),
            _("not known here") if total is None else _("about %s") % filesizeformat(math.ceil(total * each.of_bytes)),
            filesizeformat(math.ceil(each.per_record)),
        )
        for each in shares
    )


def table_rows(rows: Iterable[Sequence[str]]) -> str:
    """Markup, each row headed by its first cell. Here, because loops in a template took most of the time of a page."""
    return mark_safe(  # noqa: S308 - every cell is escaped
        "\n".join(
            f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in others)}</tr>'
            for first, *others in rows
        )
    )
