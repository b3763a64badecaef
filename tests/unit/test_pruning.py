"""Which partitions may go: whatever their history, only what this app made, and only long after its time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from django_idempotency.core.intervals import Interval, fill
from django_idempotency.core.pruning import MARGIN, Attachment, Leaf, Plan, decide

NOW = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
TICK = timedelta(microseconds=1)


def leaf(ended, *, length=DAY, **changes):
    """A leaf whose upper bound was so long ago."""
    upper = NOW - ended
    usual = Leaf(f"leaf_{upper:%m%d%H%M%S%f}", Attachment.ATTACHED, Interval(upper - length, upper), ours=True)
    return replace(usual, **changes)


def plans(*leaves, now=NOW):
    return {decision.leaf.name: decision.plan for decision in decide(leaves, now)}


def plan_of(one, now=NOW):
    ((_, plan),) = plans(one, now=now).items()
    return plan


@pytest.mark.parametrize(
    ("ended", "plan"),
    [
        (MARGIN, Plan.DROP),
        (MARGIN + 400 * DAY, Plan.DROP),
        (MARGIN - TICK, Plan.KEEP),
        (timedelta(0), Plan.KEEP),
        (-TICK, Plan.KEEP),
        (-DAY, Plan.KEEP),
    ],
)
def test_a_leaf_goes_when_the_margin_is_over(ended, plan):
    assert plan_of(leaf(ended)) is plan


@pytest.mark.parametrize("offset", [-12, -7, 0, 5.5, 14])
def test_a_session_in_another_zone_comes_to_the_same(offset):
    zone = timezone(timedelta(hours=offset))
    for ended in (MARGIN, MARGIN - TICK):
        one = leaf(ended)
        lower, upper = (bound.astimezone(zone) for bound in (one.interval.lower, one.interval.upper))
        shown = replace(one, interval=Interval(lower, upper))
        assert plan_of(shown, NOW.astimezone(zone)) is plan_of(one)


@pytest.mark.parametrize("strange", [{"ours": False}, {"interval": None}])
def test_what_this_app_did_not_make_or_cannot_read_stays(strange):
    assert plan_of(leaf(30 * DAY, **strange)) is Plan.KEEP


def test_neither_a_gap_nor_an_older_one_that_stays_shields_the_others():
    foreign, older, newer = leaf(20 * DAY, ours=False), leaf(40 * DAY), leaf(2 * DAY)
    assert plans(newer, foreign, older) == {
        older.name: Plan.DROP,
        foreign.name: Plan.KEEP,
        newer.name: Plan.DROP,
    }


def test_the_oldest_goes_first_and_what_was_interrupted_before_all():
    pending = leaf(2 * DAY, attachment=Attachment.PENDING)
    stray = leaf(9 * DAY, attachment=Attachment.DETACHED, leaving=True, interval=None)
    older, newer = leaf(5 * DAY), leaf(3 * DAY)
    found = decide([newer, stray, older, pending], NOW)
    assert [each.leaf for each in found] == [pending, stray, older, newer]
    assert {each.plan for each in found} == {Plan.DROP}


def test_an_interrupted_detachment_of_what_has_not_expired_is_ended_and_nothing_dropped():
    assert plan_of(leaf(-DAY, attachment=Attachment.PENDING)) is Plan.FINALIZE
    assert plan_of(leaf(MARGIN - TICK, attachment=Attachment.PENDING)) is Plan.FINALIZE


@pytest.mark.parametrize("strange", [{"ours": False}, {"interval": None}])
def test_an_interrupted_detachment_of_somebody_elses_is_for_a_person(strange):
    assert plan_of(leaf(30 * DAY, attachment=Attachment.PENDING, **strange)) is Plan.LEAVE


def test_until_that_is_ended_no_other_is_tried():
    foreign = leaf(30 * DAY, attachment=Attachment.PENDING, ours=False)
    due, kept = leaf(2 * DAY), leaf(-DAY)
    stray = leaf(9 * DAY, attachment=Attachment.DETACHED, leaving=True, interval=None)
    assert plans(due, kept, stray, foreign) == {
        foreign.name: Plan.LEAVE,
        due.name: Plan.KEEP,
        kept.name: Plan.KEEP,
        stray.name: Plan.DROP,
    }


def test_what_somebody_detached_to_keep_is_kept():
    kept = leaf(30 * DAY, attachment=Attachment.DETACHED, interval=None)
    assert plan_of(kept) is Plan.KEEP
    assert plan_of(replace(kept, leaving=True)) is Plan.DROP


def test_every_decision_has_a_reason_that_tells_the_cases_apart():
    cases = [
        leaf(30 * DAY), leaf(30 * DAY, ours=False), leaf(30 * DAY, interval=None), leaf(HOUR / 2), leaf(-HOUR),
        leaf(-DAY, attachment=Attachment.PENDING), leaf(DAY, attachment=Attachment.PENDING, ours=False),
        leaf(DAY, attachment=Attachment.DETACHED), leaf(DAY, attachment=Attachment.DETACHED, leaving=True),
    ]  # fmt: skip
    reasons = [decide([case], NOW)[0].reason for case in cases]
    assert len(set(reasons)) == len(cases)
    assert decide([leaf(30 * DAY)], NOW)[0].reason == "everything in it expired 30 days ago"


@given(st.lists(st.timedeltas(-9 * DAY, 9 * DAY), unique=True), st.timedeltas(-2 * DAY, 2 * DAY))
def test_nothing_whose_time_is_not_over_ever_goes(ends, jump):
    found = decide([leaf(ended) for ended in ends], NOW + jump)
    assert len(found) == len(ends)
    for decision in found:
        assert (decision.plan is Plan.DROP) == (decision.leaf.interval.upper + MARGIN <= NOW + jump)


# --- what is made to bury in ---


@given(st.integers(0, 50), st.timedeltas(TICK, 40 * DAY), st.integers(1, 9))
def test_a_span_is_filled_without_seams_and_at_round_bounds(days, span, length):
    wanted = Interval(NOW + days * DAY, NOW + days * DAY + span)
    made = fill([], wanted, length * DAY)
    assert made[0].lower <= wanted.lower < made[0].upper
    assert made[-1].lower < wanted.upper <= made[-1].upper
    assert all(one.upper == other.lower for one, other in pairwise(made))
    assert fill(made, wanted, length * DAY) == []
