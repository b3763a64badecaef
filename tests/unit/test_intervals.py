"""Which partitions there should be, at any midnight, with any history."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from django_idempotency.core.intervals import (
    Interval,
    alarming_reach,
    comfortable_reach,
    horizon,
    interval_length,
    needed_reach,
    plan,
    reach_of,
)

UTC = timezone.utc
DAY = timedelta(days=1)
WEEK = 7 * DAY
TICK = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def days(*texts):
    """One-day intervals that begin at these dates."""
    return [Interval(at(text), at(text) + DAY) for text in texts]


moments = st.integers(-10_000, 50_000).flatmap(
    lambda day: st.timedeltas(timedelta(0), DAY - TICK).map(lambda time: EPOCH + day * DAY + time)
)
midnights = moments.map(lambda moment: moment.replace(hour=0, minute=0, second=0, microsecond=0))
near_midnight = st.builds(lambda moment, off: moment + off * TICK, midnights, st.integers(-2, 2))
retentions = st.timedeltas(timedelta(seconds=1), timedelta(days=400))


@st.composite
def leaves(draw, around):
    """Leaves as an earlier setting, a restored dump or a person may have left them: disjoint, unaligned, with gaps."""
    bounds = sorted(draw(st.sets(st.integers(-20 * 24, 60 * 24), max_size=12)))
    starts = around.replace(minute=0, second=0, microsecond=0)
    pairs = zip(bounds[::2], bounds[1::2], strict=False)
    return [Interval(starts + timedelta(hours=low), starts + timedelta(hours=high)) for low, high in pairs]


@pytest.mark.parametrize(
    ("retention", "length"),
    [
        (timedelta(seconds=1), 1),
        (DAY, 1),
        (WEEK, 1),
        (8 * DAY, 1),
        (8 * DAY + TICK, 2),
        (9 * DAY, 2),
        (16 * DAY, 2),
        (30 * DAY, 4),
        (90 * DAY, 12),
        (365 * DAY, 46),
    ],
)
def test_a_longer_retention_makes_longer_intervals_instead_of_more(retention, length):
    assert interval_length(retention) == length * DAY
    assert len(plan([], at("2026-12-01"), retention)) <= 12


@given(retentions)
def test_an_interval_is_whole_days_and_eight_of_them_hold_the_longest_retention(retention):
    length = interval_length(retention)
    assert length % DAY == timedelta(0)
    assert 8 * length >= retention
    assert length == DAY or 8 * (length - DAY) < retention


def test_an_empty_table_gets_leaves_from_this_day_to_the_horizon():
    planned = plan([], at("2026-12-01T13:45"), WEEK)
    assert planned[0] == Interval(at("2026-12-01"), at("2026-12-02"))
    assert planned[-1] == Interval(at("2026-12-12"), at("2026-12-13"))
    assert len(planned) == 12


@pytest.mark.parametrize(
    ("now", "first", "last"),
    [
        ("2026-11-30T23:59:59.999999", "2026-11-30", "2026-12-11"),
        ("2026-12-01T00:00:00", "2026-12-01", "2026-12-11"),
        ("2026-12-01T08:00:00", "2026-12-01", "2026-12-11"),
        ("2026-12-01T08:00:00.000001", "2026-12-01", "2026-12-12"),
    ],
)
def test_either_side_of_a_boundary(now, first, last):
    planned = plan([], at(now), WEEK)
    assert (planned[0].lower, planned[-1].lower) == (at(first), at(last))


def test_days_that_are_not_24_hours_long_anywhere_else_are_in_utc():
    berlin_autumn = datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=2)))
    assert plan([], berlin_autumn, WEEK) == plan([], at("2026-10-25T00:30"), WEEK)


def test_a_leap_day_and_a_change_of_year_are_days_like_others():
    assert Interval(at("2028-02-29"), at("2028-03-01")) in plan([], at("2028-02-26"), WEEK)
    assert Interval(at("2026-12-31"), at("2027-01-01")) in plan([], at("2026-12-30"), WEEK)


def test_a_gap_is_filled_and_shields_nothing_behind_it():
    existing = days("2026-12-01", "2026-12-02", "2026-12-05")
    planned = plan(existing, at("2026-12-01T12:00"), WEEK)
    assert planned == days(
        "2026-12-03", "2026-12-04", "2026-12-06", "2026-12-07", "2026-12-08", "2026-12-09", "2026-12-10", "2026-12-11",
        "2026-12-12",
    )  # fmt: skip


def test_old_leaves_of_another_length_stay_and_only_gaps_are_cut_to_fit():
    four_days = Interval(at("2026-11-29"), at("2026-12-03"))
    odd = Interval(at("2026-12-04T06:00"), at("2026-12-04T18:00"))
    planned = plan([odd, four_days], at("2026-12-01T12:00"), WEEK)
    assert planned[:4] == [
        Interval(at("2026-12-03"), at("2026-12-04")),
        Interval(at("2026-12-04"), at("2026-12-04T06:00")),
        Interval(at("2026-12-04T18:00"), at("2026-12-05")),
        Interval(at("2026-12-05"), at("2026-12-06")),
    ]


def test_a_longer_max_retention_adds_and_removes_nothing():
    existing = plan([], at("2026-12-01"), WEEK)
    added = plan(existing, at("2026-12-01"), 30 * DAY)
    assert added[0].lower == existing[-1].upper
    assert reach_of([*existing, *added], at("2026-12-01")) >= horizon(at("2026-12-01"), 30 * DAY)


def test_longer_intervals_do_not_reach_back_behind_the_first_leaf():
    existing = plan([], at("2026-12-04"), WEEK)
    added = plan(existing, at("2026-12-04"), 30 * DAY)
    assert plan([], at("2026-12-04"), 30 * DAY)[0].lower < existing[0].lower, "they would begin before it"
    assert added[0].lower == existing[-1].upper


def test_a_shorter_max_retention_needs_nothing_new():
    existing = plan([], at("2026-12-01"), 30 * DAY)
    assert plan(existing, at("2026-12-01"), WEEK) == []


def test_leaves_of_the_past_are_not_planned_for_and_do_not_matter():
    past = days("2026-11-01", "2026-11-02", "2026-11-30")
    assert plan(past, at("2026-12-01T12:00"), WEEK) == plan([], at("2026-12-01T12:00"), WEEK)


def test_a_leaf_beyond_the_horizon_is_left_alone():
    far = Interval(at("2030-01-01"), at("2030-01-02"))
    assert plan([far], at("2026-12-01"), WEEK) == plan([], at("2026-12-01"), WEEK)


def test_the_longest_retention_that_a_policy_may_have_can_be_planned_for():
    planned = plan([], at("2026-12-01"), 36_500 * DAY)
    assert planned[-1].upper >= horizon(at("2026-12-01"), 36_500 * DAY)
    assert len(planned) <= 12


def test_one_leaf_over_everything_leaves_nothing_to_plan():
    assert plan([Interval(at("2020-01-01"), at("2030-01-01"))], at("2026-12-01"), WEEK) == []


@given(st.data(), st.one_of(moments, near_midnight), retentions)
@example(None, at("2026-12-01"), WEEK)
@example(None, at("1970-01-01"), WEEK)
@example(None, at("1969-12-31T23:59:59.999999"), 90 * DAY)
def test_whatever_existed_the_plan_fills_every_gap_and_overlaps_nothing(data, now, retention):
    existing = data.draw(leaves(now)) if data else []
    planned = plan(existing, now, retention)
    together = sorted([*existing, *planned])
    assert all(interval.lower < interval.upper for interval in planned)
    assert all(one.upper <= other.lower for one, other in pairwise(together))
    assert reach_of(together, now) >= horizon(now, retention)
    assert all(interval.upper > now for interval in planned)
    assert plan(together, now, retention) == [], "planning is idempotent"


@given(st.data(), st.one_of(moments, near_midnight), retentions)
def test_new_bounds_are_utc_multiples_of_the_length_or_bounds_that_exist(data, now, retention):
    existing = data.draw(leaves(now))
    length = interval_length(retention)
    taken = {bound for interval in existing for bound in (interval.lower, interval.upper)}
    for interval in plan(existing, now, retention):
        assert interval.upper - interval.lower <= length
        for bound in (interval.lower, interval.upper):
            assert bound in taken or (bound - EPOCH) % length == timedelta(0)


@given(moments, retentions, st.integers(0, 40))
def test_a_process_that_plans_again_however_late_has_no_gap_ahead_of_it(now, retention, later):
    existing = plan([], now, retention)
    then = now + timedelta(hours=7 * later)
    after = [*existing, *plan(existing, then, retention)]
    assert reach_of(after, then) >= horizon(then, retention)
    assert plan(after, then, retention) == []


@given(moments, retentions)
def test_a_record_that_is_sealed_at_the_last_moment_of_the_day_has_its_leaf(now, retention):
    cover = plan([], now, retention)
    end_of_day = now.replace(hour=23, minute=59, second=59, microsecond=999999)
    assert any(interval.lower <= end_of_day + retention < interval.upper for interval in cover)


def test_reach_is_now_where_nothing_covers_now():
    now = at("2026-12-01T12:00")
    assert reach_of([], now) == now
    assert reach_of(days("2026-12-02"), now) == now
    assert reach_of(days("2026-11-30"), now) == now


def test_reach_ends_at_the_first_gap_in_whatever_order_leaves_are_given():
    now = at("2026-12-01T12:00")
    assert reach_of(days("2026-12-04", "2026-12-02", "2026-12-01"), now) == at("2026-12-03")
    assert reach_of(days("2026-12-01"), at("2026-12-01")) == at("2026-12-02")
    assert reach_of(days("2026-12-01"), at("2026-12-02")) == at("2026-12-02")


def test_reach_passes_through_overlapping_leaves():
    wide = Interval(at("2026-11-29"), at("2026-12-05"))
    inside = Interval(at("2026-12-01"), at("2026-12-02"))
    assert reach_of([inside, wide], at("2026-12-01T12:00")) == at("2026-12-05")


# --- when somebody is told ---


@given(st.data(), retentions)
def test_what_is_comfortable_alarms_nobody_whatever_is_sealed(data, longest):
    retention = data.draw(st.timedeltas(timedelta(seconds=1), longest))
    assert comfortable_reach(longest) >= alarming_reach(retention) + timedelta(hours=12), "a night without a request"


@given(moments, retentions, st.timedeltas(timedelta(0), timedelta(hours=27)))
def test_where_leaves_are_made_once_a_day_the_processes_have_nothing_to_do(now, longest, later):
    reach = reach_of(plan([], now, longest), now)
    assert reach - (now + later) >= comfortable_reach(longest)


@given(retentions)
def test_two_days_are_left_when_somebody_is_told(retention):
    assert alarming_reach(retention) - needed_reach(retention) == 2 * DAY
