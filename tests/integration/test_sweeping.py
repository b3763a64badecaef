"""What a sweeper makes of claims whose owner is gone: by each strategy, once, and never by a guess."""

from __future__ import annotations

import logging
from datetime import timedelta
from unittest.mock import Mock
from uuid import uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_idempotency import BodyCodec, sweeping
from django_idempotency.core.errors import Held, InProgress, LeaseLost, OutcomeUnknown
from django_idempotency.core.operations import registry
from django_idempotency.core.scope import operation_of
from django_idempotency.core.states import IdempotencyMode, State
from django_idempotency.models import IdempotencyKey, OldestInFlight
from django_idempotency.numbers import readings
from django_idempotency.operations import Declined, DidNotHappen, Happened, Unknown
from django_idempotency.storage.base import NEVER
from django_idempotency.sweeping import Fate
from tests.support.workshops import break_connection, commits, on_both_stores, taken_over

pytestmark = on_both_stores


@pytest.fixture
def asked():
    """What the resolver was asked about."""
    return []


def payment(workshop, answers, **how):
    """Reserve, authorise, record; the call gives one answer after the other, and the last one for ever."""

    def pay(op, *, amount):
        op.phase("reserve", lambda: workshop.effect("reserved"))

        def answer():
            given = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(given, BaseException):
                raise given
            return given

        try:
            charge = op.call("authorise", workshop.send("authorise", answer))
        except Declined as declined:
            result = declined.result
            return op.finish(lambda: workshop.effect("declined", result), status=402)
        return op.finish(lambda: workshop.effect("recorded", {"charge": charge, "amount": amount}))

    return workshop.declare(pay, **how)


def stuck(workshop, answers, **how):
    """Its call had no answer, and its lease is over since an hour."""
    called = payment(workshop, answers, **how)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called, amount=5)
    workshop.lapse()
    return called


def look_up(resolution, asked=None):
    def resolver(record):
        if asked is not None:
            asked.append(record)
        if isinstance(resolution, BaseException):
            raise resolution
        return resolution

    return resolver


def is_for_a_person(workshop):
    return workshop.row().sweep_after == NEVER


def pause(workshop):
    """Seconds until it is tried again."""
    return (workshop.row().sweep_after - timezone.now()).total_seconds()


# --- what is taken up, and when ---


def test_there_may_be_nothing_to_do(workshop):
    assert workshop.sweep() == []
    assert sweeping.stale(workshop.alias, limit=5) == []


def test_it_notes_how_long_the_oldest_has_been_in_flight(workshop):
    called = stuck(workshop, [TimeoutError(), 1], downstream_takes_keys=True)
    workshop.sweep()
    route = operation_of(workshop.full_scope(called))
    assert OldestInFlight.objects.using(workshop.alias).filter(route=route).exists()


def test_without_counts_a_sweep_does_not_touch_their_tables(workshop, settings):
    """Its role needs no right to them."""
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"COUNTS": False}
    with CaptureQueriesContext(connections[workshop.alias]) as captured:
        workshop.sweep()
    tables = "idempotency_outcome_count", "idempotency_oldest_in_flight"
    assert captured.captured_queries
    assert [query for query in captured.captured_queries if any(table in query["sql"] for table in tables)] == []


def test_where_that_cannot_be_noted_it_sweeps_all_the_same(workshop, monkeypatch, caplog):
    monkeypatch.setattr(readings, "note_oldest", Mock(side_effect=OperationalError))
    stuck(workshop, [TimeoutError(), 1], downstream_takes_keys=True)
    assert len(workshop.sweep()) == 1
    assert "could not be noted" in caplog.text


def test_nothing_is_taken_from_an_owner_that_is_trusted_still(workshop):
    called = payment(workshop, [TimeoutError()], downstream_takes_keys=True)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called, amount=5)
    assert workshop.sweep() == []


@pytest.mark.parametrize(("lapsed", "taken"), [(119, False), (121, True)])
def test_a_lease_must_be_over_for_as_long_as_the_operation_says(workshop, lapsed, taken):
    called = payment(workshop, [TimeoutError(), "yes"], downstream_takes_keys=True, stale_after=timedelta(minutes=2))
    with pytest.raises(OutcomeUnknown):
        workshop.run(called, amount=5)
    workshop.lapse(timedelta(seconds=lapsed))
    assert workshop.fates() == [Fate.FINISHED] * taken


@pytest.mark.parametrize(("lapsed", "taken"), [(19, False), (21, True)])
def test_a_claim_without_an_operation_by_the_setting(workshop, settings, lapsed, taken):
    settings.IDEMPOTENCY |= {"STALE_AFTER": timedelta(seconds=20)}
    workshop.abandoned(payment(workshop, ["yes"]), ago=lapsed)
    assert workshop.fates() == [Fate.RELEASED] * taken


def test_no_more_are_taken_than_asked_for_and_the_longest_lapsed_first(workshop):
    called = payment(workshop, ["yes"])
    claims = [workshop.abandoned(called, ago=ago) for ago in (100, 300, 200)]
    assert [swept.id for swept in workshop.sweep(2)] == [claims[1].id, claims[2].id]
    assert [swept.id for swept in workshop.sweep(2)] == [claims[0].id]


def test_each_is_told_as_it_is_done(workshop):
    called = payment(workshop, ["yes"])
    for ago in (300, 200):
        workshop.abandoned(called, ago=ago)
    telling = sweeping.sweep(workshop.alias, limit=5)
    assert next(telling).fate is Fate.RELEASED
    assert workshop.row(), "the other is there still"
    telling.close()
    assert workshop.fates() == [Fate.RELEASED]


def test_listing_changes_nothing(workshop, asked):
    called = stuck(workshop, [TimeoutError()], downstream_takes_keys=True, resolver=look_up(Unknown(), asked))
    before = workshop.record(called)
    for _ in range(2):
        (listed,) = sweeping.stale(workshop.alias, limit=5)
        assert (listed.id, listed.progress) == (before.id, before.progress)
    after = workshop.record(called)
    assert (after.owner_token, after.sweeps, after.attempts) == (before.owner_token, 0, 1)
    assert (asked, len(workshop.sent)) == ([], 1)


def test_inside_a_transaction_nothing_is_swept(workshop):
    workshop.abandoned(payment(workshop, ["yes"]))
    with transaction.atomic(using=workshop.alias), pytest.raises(ImproperlyConfigured, match="is open around"):
        workshop.sweep()
    assert workshop.fates() == [Fate.RELEASED]


# --- claims without anything begun ---


@pytest.mark.parametrize("mode", [IdempotencyMode.LEASED, IdempotencyMode.PHASED])
def test_where_nothing_has_begun_the_key_is_free(workshop, mode):
    claim = workshop.abandoned(payment(workshop, ["yes"]), mode=mode)
    swept = workshop.swept()
    assert (swept.id, swept.operation, swept.fate, swept.reason) == (claim.id, None, Fate.RELEASED, "")
    assert workshop.store.find(claim.id) is None


def test_an_atomic_claim_that_can_be_seen_is_for_a_person(workshop, caplog):
    claim = workshop.abandoned(payment(workshop, ["yes"]), mode=IdempotencyMode.ATOMIC)
    swept = workshop.swept()
    assert swept.fate is Fate.LEFT
    assert "an ATOMIC claim was committed without its outcome" in swept.reason
    assert workshop.row().held_reason == swept.reason
    assert workshop.store.find(claim.id).state is State.IN_FLIGHT
    assert any(line.levelno == logging.ERROR and "is left to a person" in line.message for line in caplog.records)
    workshop.lapse()
    assert workshop.sweep() == [], "and a sweeper leaves it alone from then on"


def test_an_owner_that_comes_in_the_last_moment_keeps_its_key(workshop, monkeypatch):
    workshop.abandoned(payment(workshop, ["yes"]))
    monkeypatch.setattr(type(workshop.store), "release", Mock(return_value=False))
    swept = workshop.swept()
    assert (swept.fate, swept.reason) == (Fate.POSTPONED, "LeaseLost")


# --- resume ---


def test_phases_alone_are_always_gone_on_with(workshop):
    fails = [True]

    def two(op):
        op.phase("first", lambda: workshop.effect("first"))
        op.phase("second", lambda: workshop.effect("second", 1 / (not fails)))
        return op.finish(lambda: "done")

    called = workshop.declare(two)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    workshop.lapse()
    fails.clear()
    swept = workshop.swept()
    assert (swept.operation, swept.fate) == (called.definition.name, Fate.FINISHED)
    assert workshop.effects == ["first", "second"]
    assert workshop.run(called).data == "done"


def test_a_call_is_sent_again_under_its_key_and_the_client_gets_the_truth(workshop):
    called = stuck(workshop, [TimeoutError(), "c-1"], downstream_takes_keys=True)
    assert workshop.fates() == [Fate.FINISHED]
    assert workshop.sent == [("authorise", workshop.derived_key(called, "authorise"))] * 2
    answer = workshop.run(called, amount=5)
    assert (answer.status, answer.data, answer.replayed) == (201, {"charge": "c-1", "amount": 5}, True)
    assert workshop.effects == ["recorded", "reserved"]


def test_a_decline_is_the_truth_as_well(workshop):
    called = stuck(workshop, [TimeoutError(), Declined({"code": "no"})], downstream_takes_keys=True)
    assert workshop.fates() == [Fate.FINISHED]
    assert (workshop.run(called, amount=5).status, workshop.effects) == (402, ["declined", "reserved"])


def test_what_has_no_answer_again_is_tried_later_and_later(workshop):
    called = stuck(workshop, [TimeoutError()], downstream_takes_keys=True)
    pauses = []
    for attempt in range(1, 10):
        swept = workshop.swept()
        assert (swept.fate, swept.reason) == (Fate.POSTPONED, "the call 'authorise' ended in TimeoutError")
        record = workshop.record(called)
        assert (record.sweeps, record.held_reason) == (attempt, swept.reason)
        pauses.append(round(pause(workshop), -1))
        workshop.lapse()
        assert workshop.sweep() == [], "not before its time"
        workshop.change(sweep_after=timezone.now())
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert len(workshop.sent) == 10


def test_a_retry_may_come_before_the_sweeper_does(workshop):
    called = stuck(workshop, [TimeoutError(), TimeoutError(), "yes"], downstream_takes_keys=True)
    assert workshop.fates() == [Fate.POSTPONED]
    with pytest.raises(InProgress):
        workshop.run(called, amount=5)
    workshop.lapse()
    assert workshop.run(called, amount=5).data["charge"] == "yes"
    assert workshop.sweep() == []


def test_an_answer_that_a_sweeper_gets_is_kept_as_the_operation_says(workshop):
    codec = BodyCodec(pack=lambda body: body[::-1], unpack=lambda stored: stored[::-1])
    called = stuck(
        workshop,
        [TimeoutError(), "yes"],
        downstream_takes_keys=True,
        body_codec=codec,
        retention=timedelta(days=3),
    )
    workshop.sweep()
    row = IdempotencyKey.objects.using(workshop.alias).get(id=workshop.record(called).id)
    assert timedelta(days=2, hours=23) < row.expires_at - timezone.now()
    assert bytes(row.response_body) == b'}5:"tnuoma","sey":"egrahc"{'
    assert workshop.run(called, amount=5).data == {"charge": "yes", "amount": 5}


def test_after_a_commit_whose_answer_was_lost_it_is_finished(workshop):
    called = stuck(workshop, [TimeoutError(), "yes"], downstream_takes_keys=True)
    with commits(workshop.alias, really=True):
        assert workshop.fates() == [Fate.FINISHED]
    assert workshop.run(called, amount=5).replayed


# --- a person ---


def test_without_keys_and_without_a_resolver_it_is_for_a_person(workshop, caplog):
    called = stuck(workshop, [TimeoutError()])
    swept = workshop.swept()
    assert swept.fate is Fate.LEFT
    assert swept.reason == "the call 'authorise' was sent to a system that takes no keys and cannot be asked"
    assert is_for_a_person(workshop)
    assert workshop.row().held_reason == swept.reason
    assert len(workshop.sent) == 1
    assert any(line.levelno == logging.ERROR and "is left to a person" in line.message for line in caplog.records)
    workshop.lapse()
    assert workshop.sweep() == []
    with pytest.raises(Held):
        workshop.run(called, amount=5)


RETENTION = timedelta(hours=24)


def sent_ago(workshop, ago):
    """As if the call that has no answer had been started so long ago."""
    (row,) = IdempotencyKey.objects.using(workshop.alias).filter(state="in_flight")
    for step in row.steps:
        if step["started_at"] is not None:
            step["started_at"] -= ago.total_seconds()
    workshop.change(steps=row.steps)


@pytest.mark.parametrize(("ago", "sent"), [(timedelta(hours=17, minutes=59), 2), (timedelta(hours=18, minutes=1), 1)])
def test_nothing_is_sent_again_when_the_other_side_may_soon_forget(workshop, ago, sent, caplog):
    stuck(workshop, [TimeoutError(), "yes"], downstream_takes_keys=True, downstream_retention=RETENTION)
    sent_ago(workshop, ago)
    swept = workshop.swept()
    assert len(workshop.sent) == sent
    if sent == 1:
        assert swept.fate is Fate.LEFT
        assert "may not be sent again" in swept.reason
        assert "downstream_retention=1 day" in swept.reason
        assert is_for_a_person(workshop)
        assert any(line.levelno == logging.ERROR and "is left to a person" in line.message for line in caplog.records)


@pytest.mark.parametrize("resolution", [Unknown("the clerk is at lunch"), ConnectionError(), "nonsense"])
def test_a_person_has_time_left_when_the_other_side_cannot_say(workshop, resolution):
    stuck(workshop, [TimeoutError()], resolver=look_up(resolution), downstream_retention=RETENTION)
    sent_ago(workshop, timedelta(hours=17))
    assert workshop.fates() == [Fate.POSTPONED]
    workshop.lapse()
    workshop.change(sweep_after=timezone.now())
    sent_ago(workshop, timedelta(hours=1, minutes=1))
    assert workshop.fates() == [Fate.LEFT]
    assert is_for_a_person(workshop)


@pytest.mark.parametrize(("ago", "fate"), [(17, Fate.POSTPONED), (19, Fate.LEFT)])
def test_a_connection_that_broke_while_the_other_side_was_asked_does_not_keep_it_from_being_put_off(
    workshop, ago, fate
):
    """Asking takes long, and meanwhile an idle time-out ends the session: each sweep would do the same for ever."""

    def resolver(_record):
        break_connection(workshop.alias)
        raise TimeoutError

    stuck(workshop, [TimeoutError()], resolver=resolver, downstream_retention=RETENTION)
    sent_ago(workshop, timedelta(hours=ago))
    assert workshop.fates() == [fate]
    assert workshop.row().held_reason == "TimeoutError"
    assert is_for_a_person(workshop) == (fate is Fate.LEFT)


def test_that_nobody_knows_the_time_postpones_it(workshop, monkeypatch):
    stuck(workshop, [TimeoutError()], resolver=look_up(Unknown()))
    monkeypatch.setattr(type(workshop.store), "now", Mock(side_effect=OperationalError))
    assert workshop.fates() == [Fate.POSTPONED]


def test_code_that_has_changed_is_for_a_person(workshop):
    called = stuck(workshop, [TimeoutError()], downstream_takes_keys=True)
    workshop.redeclare(called, lambda op, *, amount: op.phase("book", lambda: None), downstream_takes_keys=True)
    swept = workshop.swept()
    assert swept.fate is Fate.LEFT
    assert "not reached any more" in swept.reason
    assert is_for_a_person(workshop)


@pytest.mark.parametrize("comes", ["a sweeper", "a retry"])
def test_code_that_has_changed_sends_nothing_again(workshop, comes):
    """It leaves out a phase before the open call. That is noticed before the call, not behind it."""

    def without_reserving(op, *, amount):
        charge = op.call("authorise", workshop.send("authorise"))
        return op.finish(lambda: charge)

    called = stuck(workshop, [TimeoutError()], downstream_takes_keys=True)
    called = workshop.redeclare(called, without_reserving, downstream_takes_keys=True)
    if comes == "a sweeper":
        assert workshop.fates() == [Fate.LEFT]
    else:
        with pytest.raises(OutcomeUnknown):
            workshop.run(called, amount=5)
    assert len(workshop.sent) == 1
    assert "not reached any more" in workshop.row().held_reason
    assert is_for_a_person(workshop)


# --- look up ---


def test_what_the_other_side_knows_is_recorded_and_gone_on_with(workshop, asked):
    called = stuck(workshop, [TimeoutError()], resolver=look_up(Happened({"id": "c-1"}), asked))
    token = workshop.record(called).owner_token
    assert workshop.fates() == [Fate.FINISHED]
    (record,) = asked
    assert record.progress.open_call.key == workshop.derived_key(called, "authorise")
    assert (record.progress.parameters, record.sweeps) == ({"amount": 5}, 1)
    assert record.owner_token != token, "it is asked under a token of the sweeper's"
    assert workshop.run(called, amount=5).data == {"charge": {"id": "c-1"}, "amount": 5}
    assert len(workshop.sent) == 1, "it asks, and does not send again"


def test_what_a_resolver_does_to_the_record_is_not_recorded(workshop):
    def resolver(record):
        record.progress.parameters.pop("amount")
        record.progress.step("reserve").result.clear()
        return Happened("yes")

    def pay(op, *, amount):
        reserved = op.phase("reserve", lambda: {"amount": amount})
        charge = op.call("authorise", workshop.send("authorise", TimeoutError()))
        return op.finish(lambda: {**reserved, "charge": charge})

    called = workshop.declare(pay, resolver=resolver)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called, amount=5)
    workshop.lapse()
    assert workshop.fates() == [Fate.FINISHED]
    assert workshop.run(called, amount=5).data == {"amount": 5, "charge": "yes"}


def test_a_refusal_that_the_other_side_knows_of_is_one(workshop):
    called = stuck(workshop, [TimeoutError()], resolver=look_up(Happened({"code": "no"}, declined=True)))
    assert workshop.fates() == [Fate.FINISHED]
    answer = workshop.run(called, amount=5)
    assert (answer.status, answer.data) == (402, {"code": "no"})


def test_what_the_other_side_does_not_know_is_sent_again_where_it_takes_keys(workshop):
    called = stuck(workshop, [TimeoutError(), "yes"], resolver=look_up(DidNotHappen()), downstream_takes_keys=True)
    assert workshop.fates() == [Fate.FINISHED]
    assert workshop.sent == [("authorise", workshop.derived_key(called, "authorise"))] * 2


def test_not_found_decides_nothing_where_it_takes_none(workshop):
    """The owner may have been suspended just before sending, and wake up now."""
    called = stuck(workshop, [TimeoutError()], resolver=look_up(DidNotHappen()))
    swept = workshop.swept()
    assert (swept.fate, is_for_a_person(workshop)) == (Fate.LEFT, True)
    assert "takes no keys" in swept.reason
    assert (workshop.record(called).state, len(workshop.sent)) == (State.IN_FLIGHT, 1)
    assert workshop.effects == ["reserved"]


def test_a_resolver_is_not_asked_about_phases(workshop, asked):
    fails = [True]

    def two(op):
        op.call("send", workshop.send("send"))
        op.phase("second", lambda: 1 / (not fails))
        return op.finish(lambda: "done")

    called = workshop.declare(two, resolver=look_up(Unknown(), asked))
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    workshop.lapse()
    fails.clear()
    assert workshop.fates() == [Fate.FINISHED]
    assert asked == []


@pytest.mark.parametrize(
    ("resolution", "reason"),
    [
        (Unknown("the clerk is at lunch"), "the clerk is at lunch"),
        (Unknown(), "the other side does not know yet"),
        (ConnectionError("card 4242"), "ConnectionError"),
        ("nonsense", "The resolver of {name!r} must answer Happened, DidNotHappen or Unknown."),
        (None, "The resolver of {name!r} must answer Happened, DidNotHappen or Unknown."),
        (
            Happened({1}),
            "the resolver's result for 'authorise' is a set, which is not JSON: convert it, to a str for example.",
        ),
    ],
    ids=str,
)
def test_what_the_resolver_cannot_say_is_asked_again_later(workshop, resolution, reason):
    called = stuck(workshop, [TimeoutError()], resolver=look_up(resolution))
    swept = workshop.swept()
    assert (swept.fate, swept.reason) == (Fate.POSTPONED, reason.format(name=called.definition.name))
    assert workshop.row().held_reason == swept.reason
    assert 25 < pause(workshop) <= 30
    assert workshop.effects == ["reserved"]


@pytest.mark.parametrize(("said", "stored"), [("half \ud83d", "half \\ud83d"), ("nul \0", "nul \\x00")])
def test_words_of_the_other_side_that_cannot_be_stored_do_not_stop_the_others(workshop, said, stored):
    stuck(workshop, [TimeoutError()], resolver=look_up(Unknown(said)))
    claim = workshop.abandoned(payment(workshop, ["yes"]), ago=60)
    first, second = workshop.sweep()
    assert (first.fate, first.reason) == (Fate.POSTPONED, stored)
    assert (second.id, second.fate) == (claim.id, Fate.RELEASED)
    assert workshop.row().held_reason == stored
    assert pause(workshop) > 25


def test_the_other_side_is_asked_outside_any_transaction(workshop):
    def resolver(record):
        with transaction.atomic(using=workshop.alias, durable=True):
            return Happened("yes")

    stuck(workshop, [TimeoutError()], resolver=resolver)
    assert workshop.fates() == [Fate.FINISHED]


# --- void ---


def reversed_by(workshop, *, fails=(), answers=("voided",)):
    answers = list(answers)

    def void(op, *, amount):
        def answer():
            given = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(given, BaseException):
                raise given
            return given

        voided = op.call("void", workshop.send("void", answer))
        op.phase("give back", lambda: workshop.effect("given back", 1 / (not fails)))
        return op.finish(lambda: {"status": voided, "amount": amount}, status=409)

    return void


def test_an_effect_is_reversed_and_the_client_hears_of_it(workshop):
    called = stuck(workshop, [TimeoutError()], void=reversed_by(workshop))
    assert workshop.fates() == [Fate.FINISHED]
    assert workshop.sent == [
        ("authorise", workshop.derived_key(called, "authorise")),
        ("void", workshop.derived_key(called, "void")),
    ]
    answer = workshop.run(called, amount=5)
    assert (answer.status, answer.data) == (409, {"status": "voided", "amount": 5})
    assert workshop.effects == ["given back", "reserved"]


def test_what_the_other_side_knows_is_not_reversed(workshop):
    called = stuck(workshop, [TimeoutError()], void=reversed_by(workshop), resolver=look_up(Happened("c-1")))
    assert workshop.fates() == [Fate.FINISHED]
    assert workshop.run(called, amount=5).data["charge"] == "c-1"


def test_what_it_does_not_know_is(workshop):
    called = stuck(workshop, [TimeoutError()], void=reversed_by(workshop), resolver=look_up(DidNotHappen()))
    assert workshop.fates() == [Fate.FINISHED]
    assert workshop.run(called, amount=5).status == 409


@pytest.mark.parametrize("takes_keys", [True, False])
@pytest.mark.parametrize("comes", ["a retry", "a sweeper"])
def test_a_reversal_that_has_begun_goes_on_whoever_comes(workshop, comes, takes_keys, asked):
    """A retry that went forward from there would tell of a payment that has been given back."""
    fails = [True]
    called = stuck(
        workshop, [TimeoutError(), "late"], void=reversed_by(workshop, fails=fails), downstream_takes_keys=takes_keys
    )
    assert workshop.fates() == [Fate.POSTPONED]
    assert workshop.record(called).progress.compensating
    workshop.lapse()
    workshop.change(sweep_after=timezone.now())
    fails.clear()
    if comes == "a retry" and not takes_keys:
        # It cannot know what a sweeper may still find out.
        with pytest.raises(Held):
            workshop.run(called, amount=5)
        assert workshop.fates() == [Fate.FINISHED]
    elif comes == "a retry":
        assert workshop.run(called, amount=5).status == 409
    else:
        assert workshop.fates() == [Fate.FINISHED]
    assert workshop.run(called, amount=5).data == {"status": "voided", "amount": 5}
    assert [step for step, _ in workshop.sent] == ["authorise", "void"]
    assert workshop.effects == ["given back", "reserved"]


def test_a_reversal_is_not_looked_up_again(workshop, asked):
    fails = [True]
    stuck(
        workshop,
        [TimeoutError()],
        void=reversed_by(workshop, fails=fails),
        resolver=look_up(DidNotHappen(), asked),
    )
    assert workshop.fates() == [Fate.POSTPONED]
    workshop.lapse()
    workshop.change(sweep_after=timezone.now())
    fails.clear()
    assert workshop.fates() == [Fate.FINISHED]
    assert len(asked) == 1


@pytest.mark.parametrize(("takes_keys", "fate"), [(True, Fate.FINISHED), (False, Fate.LEFT)])
def test_a_reversal_without_an_answer_is_a_call_like_any_other(workshop, takes_keys, fate):
    stuck(
        workshop,
        [TimeoutError()],
        void=reversed_by(workshop, answers=[TimeoutError(), "voided"]),
        downstream_takes_keys=takes_keys,
    )
    assert workshop.fates() == [Fate.POSTPONED]
    workshop.lapse()
    workshop.change(sweep_after=timezone.now())
    assert workshop.fates() == [fate]
    assert len(workshop.sent) == (3 if takes_keys else 2)


def test_a_reversal_may_send_the_open_call_once_more_to_have_something_to_reverse(workshop):
    def void(op, *, amount):
        charge = op.call("authorise", workshop.send("authorise", "c-1"))
        op.call("void", workshop.send("void"))
        return op.finish(lambda: {"voided": charge}, status=409)

    called = stuck(workshop, [TimeoutError()], void=void, downstream_takes_keys=True)
    assert workshop.fates() == [Fate.FINISHED]
    assert workshop.run(called, amount=5).data == {"voided": "c-1"}
    assert [step for step, _ in workshop.sent] == ["authorise", "authorise", "void"]


@pytest.mark.parametrize("comes", ["a sweeper", "a retry"])
def test_with_that_the_reversal_has_begun(workshop, comes):
    """Killed behind it, the operation would have gone on as if nobody had begun to reverse it."""
    killed = [KeyboardInterrupt]

    def void(op, *, amount):
        charge = op.call("authorise", workshop.send("authorise", "c-1"))
        if killed:
            raise killed.pop()
        op.call("void", workshop.send("void"))
        return op.finish(lambda: {"voided": charge}, status=409)

    called = stuck(workshop, [TimeoutError()], void=void, downstream_takes_keys=True)
    with pytest.raises(KeyboardInterrupt):
        workshop.sweep()
    workshop.lapse()
    if comes == "a sweeper":
        assert workshop.fates() == [Fate.FINISHED]
    assert workshop.run(called, amount=5).data == {"voided": "c-1"}
    assert [step for step, _ in workshop.sent] == ["authorise", "authorise", "void"]


def test_a_reversal_that_swallows_a_silence_cannot_finish(workshop):
    def void(op, *, amount):
        try:
            op.call("void", workshop.send("void", TimeoutError()))
        except OutcomeUnknown:
            return op.finish(lambda: "voided", status=409)

    called = stuck(workshop, [TimeoutError()], void=void)
    swept = workshop.swept()
    assert (swept.fate, swept.reason) == (Fate.POSTPONED, "the call 'void' ended in TimeoutError")
    assert workshop.record(called).state is State.IN_FLIGHT


def test_a_void_that_does_not_finish_has_not_finished(workshop):
    stuck(workshop, [TimeoutError()], void=lambda op, *, amount: "voided")
    swept = workshop.swept()
    assert swept.fate is Fate.POSTPONED
    assert "must return op.finish" in swept.reason


def test_a_void_that_is_gone_after_a_deployment_is_for_a_person(workshop):
    fails = [True]
    called = stuck(workshop, [TimeoutError()], void=reversed_by(workshop, fails=fails), downstream_takes_keys=True)
    workshop.sweep()
    workshop.redeclare(called, called.definition.function, downstream_takes_keys=True)
    workshop.lapse()
    workshop.change(sweep_after=timezone.now())
    swept = workshop.swept()
    assert (swept.fate, is_for_a_person(workshop)) == (Fate.LEFT, True)
    assert "is being reversed, and has no void any more" in swept.reason


def test_a_void_whose_steps_have_changed_is_for_a_person(workshop):
    fails = [True]
    called = stuck(workshop, [TimeoutError()], void=reversed_by(workshop, fails=fails))
    workshop.sweep()
    workshop.redeclare(
        called, called.definition.function, void=lambda op, *, amount: op.finish(lambda: "voided", status=409)
    )
    workshop.lapse()
    workshop.change(sweep_after=timezone.now())
    swept = workshop.swept()
    assert (swept.fate, is_for_a_person(workshop)) == (Fate.LEFT, True)
    assert "not reached any more" in swept.reason


# --- faults ---


def test_an_operation_that_this_process_does_not_know_is_tried_again_later(workshop):
    called = stuck(workshop, [TimeoutError()], downstream_takes_keys=True)
    registry._definitions.pop(called.definition.name)
    swept = workshop.swept()
    assert (swept.operation, swept.fate) == (called.definition.name, Fate.POSTPONED)
    assert f"no operation {called.definition.name!r} is declared in this process" in swept.reason
    assert 25 < pause(workshop) <= 30


def test_a_poisoned_record_does_not_stop_the_others(workshop):
    poisoned = stuck(workshop, [ZeroDivisionError(), "yes"], resolver=look_up(SystemError("poison")))
    workshop.lapse(timedelta(hours=2))
    workshop.key = str(uuid4())
    healthy = payment(workshop, [TimeoutError(), "yes"], downstream_takes_keys=True)
    with pytest.raises(OutcomeUnknown):
        workshop.run(healthy, amount=5)
    lapsed = timezone.now() - timedelta(hours=1)
    keys = IdempotencyKey.objects.using(workshop.alias).filter(state="in_flight", key=workshop.key)
    keys.update(lease_expires_at=lapsed)
    swept = workshop.sweep()
    assert [(each.operation, each.fate) for each in swept] == [
        (poisoned.definition.name, Fate.POSTPONED),
        (healthy.definition.name, Fate.FINISHED),
    ]


def test_a_record_that_cannot_be_read_does_not_stop_the_others(workshop, caplog):
    unreadable = stuck(workshop, [TimeoutError()])
    workshop.change(steps=[{"name": "x", "kind": "dance"}], lease_expires_at=timezone.now() - timedelta(days=1))
    claim = workshop.abandoned(unreadable)
    assert [record.id for record in sweeping.stale(workshop.alias, limit=9)] == [claim.id]
    assert "cannot be read" in caplog.text
    caplog.clear()
    assert [(swept.id, swept.fate) for swept in workshop.sweep()] == [(claim.id, Fate.RELEASED)]
    assert "cannot be read" in caplog.text


def test_nor_does_one_whose_operation_the_settings_have_become_too_small_for(workshop, settings, caplog):
    stuck(workshop, [TimeoutError(), "yes"], downstream_takes_keys=True, retention=timedelta(days=7))
    claim = workshop.abandoned(payment(workshop, ["yes"]), ago=60)
    settings.IDEMPOTENCY |= {"MAX_RETENTION": timedelta(days=2)}
    assert [(swept.id, swept.fate) for swept in workshop.sweep()] == [(claim.id, Fate.RELEASED)]
    assert "exceeds MAX_RETENTION" in caplog.text
    settings.IDEMPOTENCY |= {"MAX_RETENTION": timedelta(days=7)}
    workshop.lapse()
    assert workshop.fates() == [Fate.FINISHED]


def test_a_database_that_is_gone_is_the_callers_to_handle(workshop, monkeypatch):
    monkeypatch.setattr(type(workshop.store), "take_stale", Mock(side_effect=OperationalError))
    with pytest.raises(OperationalError):
        workshop.sweep()


def test_an_operation_that_fails_after_its_end_is_finished(workshop, caplog):
    fails = [True]

    def late(op):
        op.phase("first", lambda: None)
        op.phase("second", lambda: 1 / (not fails))
        op.finish(lambda: "done")
        raise ValueError

    called = workshop.declare(late)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    fails.clear()
    workshop.lapse()
    assert workshop.fates() == [Fate.FINISHED]
    assert "what its operation did afterwards failed" in caplog.text
    assert workshop.run(called).data == "done"


def test_a_sweeper_that_is_told_to_end_ends_and_another_goes_on(workshop):
    stuck(workshop, [TimeoutError()], resolver=look_up(SystemExit()))
    with pytest.raises(SystemExit):
        workshop.sweep()
    assert workshop.sweep() == []
    workshop.lapse()
    with pytest.raises(SystemExit):
        workshop.sweep()


# --- take-over ---


def test_a_suspended_owner_that_wakes_up_after_the_sweep_writes_nothing(workshop):
    """It is in its call when a sweeper takes over, sends the same and ends it."""
    called = payment(workshop, ["late"], downstream_takes_keys=True)
    swept = []
    original = workshop.send

    def send(step, answer="yes"):
        def sent(key):
            result = original(step, answer)(key)
            if not swept:
                swept.append(None)
                workshop.lapse()
                swept[0] = workshop.swept().fate
            return result

        return sent

    workshop.send = send
    with pytest.raises(LeaseLost):
        workshop.run(called, amount=5)
    assert swept == [Fate.FINISHED]
    assert workshop.effects == ["recorded", "reserved"]
    assert workshop.sent == [("authorise", workshop.derived_key(called, "authorise"))] * 2
    assert workshop.run(called, amount=5).replayed


def test_a_sweeper_that_was_overtaken_itself_writes_nothing(workshop, rival):
    taken = []

    def resolver(record):
        taken.append(taken_over(workshop, rival))
        return Happened("yes")

    called = stuck(workshop, [TimeoutError()], resolver=resolver)
    before = workshop.row()
    swept = workshop.swept()
    assert (swept.fate, swept.reason) == (Fate.POSTPONED, "LeaseLost")
    record = workshop.record(called)
    assert (record.owner_token, record.progress.open_call.name) == (taken[0].owner_token, "authorise")
    after = workshop.row()
    assert (after.sweep_after, after.held_reason) == (before.sweep_after, before.held_reason)


def test_it_is_trusted_for_the_lease_of_the_settings(workshop, settings):
    settings.IDEMPOTENCY |= {"LEASE": timedelta(seconds=40)}
    left = []

    def resolver(record):
        left.append(record.lease_left)
        return Happened("yes")

    def two(op):
        op.call("send", workshop.send("send", TimeoutError()))
        op.phase("second", lambda: None)
        left.append(workshop.record(called).lease_left)
        return op.finish(lambda: None)

    called = workshop.declare(two, resolver=resolver, lease=timedelta(minutes=10))
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    workshop.lapse()
    assert workshop.fates() == [Fate.FINISHED]
    assert all(39 < each <= 40 for each in left)
    assert len(left) == 2
