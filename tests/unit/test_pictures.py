"""From numbers to geometry: what is drawn says what the numbers say."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest

from django_idempotency.core.counted import Counted
from django_idempotency.dashboard.pictures import (
    BAR_HEIGHT,
    BAR_WIDTH,
    HEIGHT,
    WIDTH,
    bars,
    place,
    round_up,
    segments,
)
from django_idempotency.dashboard.ranges import RANGES, USUAL
from django_idempotency.dashboard.series import series_of

DAY = timedelta(days=1)
NOW = datetime(2026, 11, 30, 13, 17, tzinfo=timezone.utc)


def drawn(path):
    """Left edge, height and width of each bar."""
    return [tuple(map(float, each)) for each in re.findall(r"M([\d.]+) 60v-([\d.]+)h([\d.]+)v[\d.]+z", path)]


class TestBars:
    def test_each_is_as_high_as_its_value_and_stands_in_its_place(self):
        picture = bars([0, 5, None, 10])
        assert picture.top == 10
        assert drawn(picture.path) == [(66.0, HEIGHT / 2, 48.0), (186.0, HEIGHT, 48.0)]

    def test_what_is_not_zero_can_be_seen(self):
        low, high = drawn(bars([1, 1_000_000]).path)
        assert 1 <= low[1] < 2
        assert high[1] == HEIGHT

    def test_none_leaves_the_picture(self):
        for values in ([0.07] * 60, [1.0], [3, 0, 400_000]):
            for left, height, width in drawn(bars(values, at_most=1 if max(values) <= 1 else 10**9).path):
                assert left >= 0
                assert left + width <= WIDTH
                assert height <= HEIGHT

    def test_a_rate_never_has_an_edge_above_one(self):
        assert bars([1.0], at_most=1).top == 1
        assert bars([0.04], at_most=1).top == 0.05

    @pytest.mark.parametrize("values", [[], [None], [0, 0]])
    def test_nothing_is_nothing(self, values):
        assert bars(values).path == ""
        assert bars(values).top == 1


@pytest.mark.parametrize(
    ("value", "edge"),
    [
        (0, 1),
        (1, 1),
        (1.1, 2),
        (3, 5),
        (5, 5),
        (5.1, 10),
        (99, 100),
        (3 * 0.1, 0.5),
        (0.2, 0.2),
        (2_000_001, 5_000_000),
    ],
)
def test_an_edge_can_be_read(value, edge):
    assert round_up(value) == pytest.approx(edge)


class TestPartitions:
    def test_the_largest_is_filled_and_an_empty_one_is_not(self):
        large, small, empty = segments([400, 1, 0])
        assert f"v-{BAR_HEIGHT:.1f}h" in large.fill
        assert "v-1.5h" in small.fill
        assert empty.fill == ""
        assert empty.frame
        assert [float(each.middle) for each in (large, small, empty)] == [120, 360, 600]

    def test_now_lies_where_its_partition_does(self):
        bounds = [(NOW - DAY, NOW - DAY / 4), (NOW - DAY / 4, NOW + 3 * DAY / 4)]
        assert float(place(NOW, bounds)) == BAR_WIDTH / 2 + BAR_WIDTH / 8

    def test_now_may_lie_in_a_gap(self):
        assert place(NOW, [(NOW - DAY, NOW)]) is None
        assert place(NOW, []) is None


class TestRanges:
    @pytest.mark.parametrize("each", RANGES.values(), ids=lambda each: each.slug)
    def test_the_last_piece_is_the_one_that_goes_on(self, each):
        begins = each.begins(NOW.timestamp())
        assert begins[-1] <= NOW.timestamp() < begins[-1] + each.step
        assert {later - earlier for earlier, later in pairwise(begins)} == {each.step}
        assert len(begins) == each.pieces

    def test_they_are_what_they_are_called(self):
        lengths = {slug: timedelta(seconds=each.step * each.pieces) for slug, each in RANGES.items()}
        assert lengths == {"1h": DAY / 24, "24h": DAY, "7d": 7 * DAY, "14d": 14 * DAY}
        assert USUAL.slug == "24h"


class TestSeries:
    def test_a_rate_is_of_the_requests_whose_key_was_looked_at(self):
        counts = [
            (0, "a", Counted.NEW.value, 6),
            (0, "a", Counted.REPLAYED.value, 2),
            (1, "a", Counted.CONFLICT.value, 1),
            (0, "a", Counted.MISSING_KEY.value, 50),
            (0, "a", Counted.SWEPT_FINISHED.value, 50),
        ]
        (series,) = series_of(3, counts, [(2, "a", 90)])
        assert series.requests == [8, 1, 0]
        assert series.rates == [0.25, 0.0, None]
        assert series.rate == pytest.approx(2 / 9)
        assert (series.conflicts, series.mismatches, series.oldest) == ([0, 1, 0], [0, 0, 0], [None, None, 90])

    def test_the_busiest_route_comes_first_and_one_that_only_waits_comes_last(self):
        counts = [(0, "few", Counted.NEW.value, 1), (0, "many", Counted.NEW.value, 2)]
        assert [each.route for each in series_of(1, counts, [(0, "none", 5)])] == ["many", "few", "none"]

    def test_a_clock_that_runs_ahead_does_no_harm(self):
        assert series_of(1, [(1, "a", Counted.NEW.value, 1), (-1, "a", Counted.NEW.value, 1)], [(7, "a", 1)]) == []
