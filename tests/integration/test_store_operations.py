"""What operations and sweepers ask of every kind of store: each transition, and only from the state that it leaves."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings

from django_idempotency.core.documents import as_document
from django_idempotency.core.progress import Progress, Step, StepKind
from django_idempotency.core.states import IdempotencyMode, Sealing, Seen, State
from django_idempotency.models import IdempotencyKey
from django_idempotency.storage import postgres
from tests.support.crowds import Crowd
from tests.support.keys import new_claim, rival_of
from tests.unit.test_documents import json_values

PARAMETERS = {"amount": 5, "currency": "EUR", "nested": {"b": [1, None], "a": "✓"}}
RESERVED = Step("reserve", StepKind.PHASE, done=True, result={"id": 7})
STARTED = Step("authorise", StepKind.CALL, key="a-key", started_at=1.5, sends=1)
ANSWERED = replace(STARTED, done=True, result={"charge": "c-1"})

EARLIEST = -3600.0


def progress(*steps):
    return Progress("payments.card_payment", PARAMETERS, steps)


def advance(keys, claim, *steps, token=None, lease=30.0, stale_after=20.0, durable=True):
    return keys.store.advance(
        claim.id, token or claim.owner_token, progress(*steps), lease=lease, stale_after=stale_after, durable=durable
    )


def begun(keys, *steps, lease=30.0, **how):
    """A claim under which an operation has come as far as its last step."""
    claim = keys.own(new_claim(mode=IdempotencyMode.PHASED))
    assert advance(keys, claim, *steps, lease=lease, **how)
    return claim


def hold(keys, claim, reason="nobody knows", *, token=None, sweep_after=0.0):
    return keys.store.hold(claim.id, token or claim.owner_token, reason, sweep_after=sweep_after)


def row(keys, claim):
    return IdempotencyKey.objects.using(keys.alias).get(id=claim.id)


@pytest.fixture
def alone(keys):
    """What other tests left in flight is not stale here: a sweeper would take theirs first."""
    IdempotencyKey.objects.using(keys.alias).filter(state="in_flight").delete()
    return keys


# --- advance ---


def test_an_operation_is_found_as_far_as_it_came(keys, rival):
    claim = keys.own(new_claim(mode=IdempotencyMode.PHASED))
    assert rival.store.find(claim.id).progress is None
    for steps in [(RESERVED,), (RESERVED, STARTED), (RESERVED, ANSWERED)]:
        assert advance(keys, claim, *steps) is True
        assert rival.store.find(claim.id).progress == progress(*steps)
        assert row(keys, claim).recovery_point == progress(*steps).recovery_point
    assert row(keys, claim).operation == "payments.card_payment"


@pytest.mark.parametrize("mode", IdempotencyMode)
def test_where_an_operation_has_begun_nothing_else_takes_over(keys, rival, mode):
    """A view that has left PHASED mode looked before the first step, and was suspended until after the lease."""
    claim = keys.own(new_claim(mode=IdempotencyMode.PHASED, lease=EARLIEST))
    seen = rival.store.find(claim.id)
    assert advance(keys, claim, STARTED, lease=EARLIEST)
    assert not rival.store.take_over(seen, rival_of(claim, mode=mode))
    seen = rival.store.find(claim.id)
    assert rival.store.take_over(seen, rival_of(claim, mode=mode)) is (mode is IdempotencyMode.PHASED)


def test_an_advance_that_is_rolled_back_was_never_there(keys, rival):
    claim = begun(keys, RESERVED)
    with keys.undone():
        assert advance(keys, claim, RESERVED, STARTED)
    assert rival.store.find(claim.id).progress == progress(RESERVED)


def test_each_advance_trusts_the_owner_anew(keys):
    claim = begun(keys, RESERVED, lease=0.0)
    assert keys.store.find(claim.id).lease_left <= 0
    assert advance(keys, claim, RESERVED, STARTED, lease=50.0, stale_after=7.5)
    assert 49.0 < keys.store.find(claim.id).lease_left <= 50.0
    assert row(keys, claim).stale_after == 7.5


def test_only_the_owner_can_advance(keys, rival):
    claim = begun(keys, RESERVED, lease=0.0)
    assert advance(rival, claim, RESERVED, STARTED, token=uuid4()) is False
    successor = rival_of(claim)
    assert rival.take_over(claim, successor)
    assert advance(keys, claim, RESERVED, STARTED) is False
    assert keys.store.find(claim.id).progress == progress(RESERVED)
    assert advance(rival, successor, RESERVED, STARTED) is True


def test_what_an_operation_has_begun_for_stays_what_was_asked_for(keys, rival):
    claim = begun(keys, RESERVED, lease=0.0)
    assert rival.take_over(claim, rival_of(claim, fingerprint=b"other"))
    assert keys.store.find(claim.id).fingerprint == claim.fingerprint


def test_who_saw_a_claim_before_an_operation_began_cannot_take_it_over_after(keys, rival):
    claim = keys.lapsed(new_claim())
    seen = rival.store.find(claim.id)
    assert advance(keys, claim, RESERVED, lease=0.0)
    assert rival.store.take_over(seen, rival_of(claim, fingerprint=b"other")) is False
    assert keys.store.find(claim.id).fingerprint == claim.fingerprint


@pytest.mark.parametrize("after", ["seal", "release"])
def test_what_has_ended_cannot_advance(keys, after):
    claim = keys.own(new_claim())
    getattr(keys, after)(claim)
    assert advance(keys, claim, RESERVED) is False


def test_the_seal_forgets_what_it_took_to_get_there(keys):
    claim = begun(keys, RESERVED, ANSWERED)
    hold(keys, claim)
    assert keys.seal(claim) is Sealing.SEALED
    sealed = row(keys, claim)
    assert (sealed.parameters, sealed.steps, sealed.held_reason, sealed.held_at, sealed.sweep_after) == (None,) * 5
    assert (sealed.operation, sealed.recovery_point) == ("payments.card_payment", "authorise")
    assert keys.store.find(claim.id).progress is None


@given(value=json_values)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_an_operation_stores_is_read_back_to_the_byte(keys, value):
    document = as_document(value, "it")
    claim = keys.own(new_claim())
    before = Progress("x", {"it": document}, (replace(RESERVED, result=document),))
    with keys.atomic():
        assert keys.store.advance(claim.id, claim.owner_token, before, lease=9.0, stale_after=9.0, durable=False)
        after = keys.store.find(claim.id).progress
    assert after == before
    assert json.dumps(after.parameters) == json.dumps(before.parameters)
    assert json.dumps(after.steps[0].result) == json.dumps(document)


# --- release, with and without something begun ---


def test_a_key_is_not_free_once_something_has_begun_under_it(keys):
    for steps in [(RESERVED,), (STARTED,)]:
        claim = begun(keys, *steps)
        assert keys.release(claim) is False
        assert keys.store.find(claim.id).progress == progress(*steps)


def test_what_was_begun_and_rolled_back_does_not_keep_the_key(keys):
    claim = keys.own(new_claim())
    with keys.undone():
        advance(keys, claim, RESERVED)
    assert keys.release(claim) is True


# --- hold ---


def test_a_held_key_stays_in_flight_and_says_why_and_since_when(keys, rival):
    claim = begun(keys, RESERVED, STARTED)
    assert hold(keys, claim, "the call 'authorise' ended in ReadTimeout") is True
    record = rival.store.find(claim.id)
    assert (record.state, record.held_reason) == (State.IN_FLIGHT, "the call 'authorise' ended in ReadTimeout")
    assert row(keys, claim).held_at is not None
    assert 29.0 < record.lease_left <= 30.0, "whom it answered is still trusted until the lease ends"


def test_only_the_owner_can_hold(keys):
    claim = begun(keys, STARTED)
    assert hold(keys, claim, token=uuid4()) is False
    assert keys.store.find(claim.id).held_reason is None
    keys.seal(claim)
    assert hold(keys, claim) is False


def test_it_is_held_since_the_first_time_whatever_was_tried_meanwhile(keys):
    claim = begun(keys, RESERVED, STARTED)
    hold(keys, claim, "first", sweep_after=None)
    since = row(keys, claim).held_at
    advance(keys, claim, RESERVED, replace(STARTED, sends=2))
    again = row(keys, claim)
    assert (again.held_reason, again.held_at, again.sweep_after) == ("first", since, None)
    hold(keys, claim, "second")
    assert (row(keys, claim).held_reason, row(keys, claim).held_at) == ("second", since)


def test_it_is_held_no_more_when_it_comes_further(keys):
    for first, then in [((RESERVED, STARTED), (RESERVED, ANSWERED)), ((STARTED,), (ANSWERED,))]:
        claim = begun(keys, *first)
        hold(keys, claim)
        advance(keys, claim, *then)
        after = row(keys, claim)
        assert (after.held_reason, after.held_at, after.sweep_after) == (None, None, None)


# --- stale, and taking what is stale ---


def stale(keys, **how):
    return [record.id for record in keys.store.stale(100, **({"stale_after": 20.0} | how))]


def take(keys, token=None, *, lease=30.0, stale_after=20.0):
    return keys.store.take_stale(token or uuid4(), lease=lease, stale_after=stale_after)


def test_nothing_is_stale_where_nothing_is_in_flight(alone):
    alone.sealed(new_claim())
    assert stale(alone) == []
    assert take(alone) is None


def test_a_claim_is_stale_when_its_lease_has_been_over_for_long_enough(alone):
    claim = alone.own(new_claim(lease=-10.0))
    assert stale(alone, stale_after=9.0) == [claim.id]
    assert stale(alone, stale_after=11.0) == []
    assert take(alone, stale_after=11.0) is None


def test_an_operation_has_a_threshold_of_its_own(alone):
    patient = begun(alone, STARTED, lease=-10.0, stale_after=600.0)
    quick = begun(alone, STARTED, lease=-10.0, stale_after=1.0)
    assert stale(alone, stale_after=9.0) == [quick.id]
    assert stale(alone, stale_after=9999.0) == [quick.id]
    assert patient.id not in stale(alone, stale_after=0.0)


def test_the_longest_lapsed_come_first_and_no_more_than_asked_for(alone):
    claims = [begun(alone, STARTED, lease=EARLIEST - lapsed) for lapsed in (2, 3, 1)]
    ordered = [claims[1].id, claims[0].id, claims[2].id]
    assert stale(alone) == ordered
    assert [record.id for record in alone.store.stale(2, stale_after=20.0)] == ordered[:2]
    assert [take(alone).id for _ in range(3)] == ordered


def test_listing_what_is_stale_changes_nothing(alone):
    claim = begun(alone, RESERVED, STARTED, lease=EARLIEST)
    before = row(alone, claim).__dict__
    (record,) = alone.store.stale(9, stale_after=20.0)
    assert record.progress == progress(RESERVED, STARTED)
    after = row(alone, claim).__dict__
    assert {name: after[name] for name in after if name != "_state"} == {
        name: before[name] for name in before if name != "_state"
    }


def test_what_is_taken_belongs_to_the_sweeper(alone, rival):
    claim, token = begun(alone, RESERVED, STARTED, lease=EARLIEST), uuid4()
    record = rival.store.take_stale(token, lease=40.0, stale_after=20.0)
    assert (record.id, record.owner_token, record.attempts, record.sweeps) == (claim.id, token, 2, 1)
    assert 39.0 < record.lease_left <= 40.0
    assert (record.scope, record.key, record.progress) == (claim.scope, claim.key, progress(RESERVED, STARTED))
    assert advance(alone, claim, RESERVED, ANSWERED) is False, "the old owner can write nothing more"
    assert alone.seal(claim) is Sealing.LOST
    assert hold(alone, claim) is False


def test_what_is_taken_is_not_taken_again(alone, rival):
    begun(alone, STARTED, lease=EARLIEST)
    assert take(alone) is not None
    assert take(rival) is None


def test_a_claim_without_an_operation_is_taken_too_and_can_be_released(alone):
    claim, token = alone.own(new_claim(lease=EARLIEST)), uuid4()
    record = take(alone, token)
    assert (record.id, record.mode, record.progress) == (claim.id, IdempotencyMode.LEASED, None)
    assert alone.release(claim) is False
    assert alone.release(claim, token=token) is True


def test_what_is_postponed_is_taken_no_sooner(alone):
    claim = begun(alone, STARTED, lease=EARLIEST)
    hold(alone, claim, sweep_after=600.0)
    assert stale(alone) == []
    assert take(alone) is None
    hold(alone, claim, sweep_after=0.0)
    assert stale(alone) == [claim.id]
    assert take(alone).held_reason == "nobody knows"


def test_what_is_for_a_person_is_never_taken(alone):
    claim = begun(alone, STARTED, lease=-1e9)
    hold(alone, claim, sweep_after=None)
    assert stale(alone) == []
    assert take(alone) is None
    assert alone.store.find(claim.id).state is State.IN_FLIGHT


# --- the clock ---


def test_the_clock_is_the_one_that_leases_are_measured_with(keys):
    assert abs(keys.store.now() - time.time()) < 60
    before = keys.store.now()
    assert before <= keys.store.now()
    claim = keys.own(new_claim(lease=30.0))
    ends = row(keys, claim).lease_expires_at.timestamp()
    assert abs(ends - 30.0 - keys.store.now()) < 2.0


# --- PostgreSQL alone ---

on_postgres = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)


@on_postgres
def test_a_sweeper_passes_by_what_another_is_just_taking(alone, rival):
    first, second = begun(alone, STARTED, lease=EARLIEST - 1), begun(alone, STARTED, lease=EARLIEST)
    with alone.atomic():
        assert take(alone).id == first.id
        assert take(rival).id == second.id
        assert take(rival) is None


@on_postgres
def test_a_sweeper_passes_by_what_is_just_being_sealed_and_goes_on(alone, rival, monkeypatch):
    """40001: the row moved between the sweeper's look and its lock. Those behind it are there still."""
    sealing, stale_one = begun(alone, STARTED, lease=EARLIEST - 1), begun(alone, STARTED, lease=EARLIEST)
    executed = postgres._executed

    def just_moving(cursor, statement, arguments):
        monkeypatch.setattr(postgres, "_executed", executed)
        assert alone.seal(sealing) is Sealing.SEALED
        return False

    monkeypatch.setattr(postgres, "_executed", just_moving)
    assert take(rival).id == stale_one.id
    monkeypatch.setattr(postgres, "_executed", lambda *ignored: False)
    assert take(rival) is None, "it gives up in the end"


@on_postgres
def test_each_take_is_counted_within_its_column(alone):
    claim = begun(alone, STARTED, lease=EARLIEST)
    IdempotencyKey.objects.using(alone.alias).filter(id=claim.id).update(sweeps=32766, attempts=32766)
    assert take(alone, lease=EARLIEST).sweeps == 32767
    assert (take(alone).sweeps, alone.store.find(claim.id).attempts) == (32767, 32767)


@on_postgres
def test_a_call_is_announced_durably_whatever_the_session_prefers(alone, backend):
    """A server that crashes would otherwise forget what was sent."""
    claim = begun(alone, RESERVED)
    backend.laboratory.do("SET synchronous_commit = off", alias=alone.alias)
    for durable, level in [(False, "off"), (True, "on")]:
        with alone.atomic():
            advance(alone, claim, RESERVED, STARTED, durable=durable)
            assert backend.laboratory.ask("SHOW synchronous_commit", alias=alone.alias) == level
    backend.laboratory.do("SET synchronous_commit = remote_apply", alias=alone.alias)
    with alone.atomic():
        advance(alone, claim, RESERVED, STARTED)
        assert backend.laboratory.ask("SHOW synchronous_commit", alias=alone.alias) == "remote_apply"


@on_postgres
def test_an_owner_that_falls_silent_before_the_commit_of_a_phase_loses_it_with_its_lease(alone, backend):
    claim = begun(alone, RESERVED)
    with alone.atomic():
        advance(alone, claim, RESERVED, STARTED, lease=12.0)
        assert backend.laboratory.ask("SHOW idle_in_transaction_session_timeout", alias=alone.alias) == "12s"
    assert backend.laboratory.ask("SHOW idle_in_transaction_session_timeout", alias=alone.alias) == "0"


WRITES = {
    "advance": lambda keys, claim: advance(keys, claim, RESERVED, ANSWERED),
    "hold": hold,
    "take seen": lambda keys, claim: keys.store.take_seen(seen_of(keys, claim), uuid4(), lease=30.0) is not None,
    "release seen": lambda keys, claim: keys.store.release_seen(seen_of(keys, claim), whatever_happened=True),
}


def seen_of(keys, claim):
    return Seen(claim.id, claim.owner_token, row(keys, claim).lease_expires_at)


@on_postgres
@pytest.mark.parametrize("write", WRITES)
def test_what_waited_for_a_row_that_was_just_sealed_changes_nothing(alone, rival, backend, write):
    """SQLSTATE 40001: the row has moved to another partition while the statement waited for it."""
    claim = begun(alone, RESERVED, STARTED, lease=EARLIEST)
    with Crowd(1) as crowd:
        with alone.atomic():
            assert alone.seal(claim) is Sealing.SEALED
            late = crowd.start(WRITES[write], rival, claim)
            backend.laboratory.until_waiting()
        assert late.result(20) is False
    assert rival.store.find(claim.id).state is State.SEALED


@on_postgres
@pytest.mark.parametrize("write", ["advance", "hold"])
def test_what_waited_for_a_take_over_changes_nothing(alone, rival, backend, write):
    claim = begun(alone, RESERVED, STARTED, lease=EARLIEST)
    with Crowd(1) as crowd:
        with alone.atomic():
            taken = take(alone)
            late = crowd.start(WRITES[write], rival, claim)
            backend.laboratory.until_waiting()
        assert late.result(20) is False
    left = rival.store.find(claim.id)
    assert (left.owner_token, left.progress, left.held_reason) == (taken.owner_token, progress(RESERVED, STARTED), None)


# --- SQLite alone ---


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_an_owner_that_comes_further_in_the_last_moment_is_left_alone(alone, monkeypatch):
    """Between the look and the take-over, which are two statements here: the token is the same, the lease is not."""
    claim = begun(alone, STARTED, lease=EARLIEST)
    look = alone.store._stale

    def looked(*args, **kwargs):
        seen = look(*args, **kwargs)
        assert advance(alone, claim, ANSWERED)
        return seen

    monkeypatch.setattr(alone.store, "_stale", looked)
    assert take(alone) is None
    assert alone.store.find(claim.id).owner_token == claim.owner_token
