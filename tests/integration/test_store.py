"""One suite for every store: each transition, and that it happens only from the state that it leaves."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_idempotency.core.states import IdempotencyMode, RecordedResponse, Sealing, State, Verdict
from django_idempotency.storage import store_for
from tests.support.keys import CREATED, new_claim, rival_of

# --- claim ---


def test_a_new_key_is_claimed_as_it_was_brought(keys, rival):
    claim = new_claim(key=str(uuid4()).ljust(255, "k"), lease=30.0)
    answer = keys.claim(claim)
    assert (answer.verdict, answer.record) == (Verdict.CLAIMED, None)
    record = rival.store.find(claim.id)
    assert record.state is State.IN_FLIGHT
    assert (record.id, record.scope, record.key) == (claim.id, claim.scope, claim.key)
    assert (record.fingerprint, record.fingerprint_scheme) == (claim.fingerprint, 1)
    assert (record.owner_token, record.mode, record.attempts) == (claim.owner_token, IdempotencyMode.LEASED, 1)
    assert 29.0 < record.lease_left <= 30.0
    assert record.response is None


@pytest.mark.parametrize("scope", ["x", "pröncipal 😀 view:POST", "a" * 20_000])
def test_a_scope_may_be_any_text(keys, scope):
    claim = keys.own(new_claim(scope=scope))
    assert keys.store.find(claim.id).scope == scope


def test_the_key_of_a_running_request_is_found_and_left_as_it_is(keys, rival):
    claim = keys.own(new_claim())
    for session in (keys, rival):
        answer = session.claim(rival_of(claim, mode=IdempotencyMode.ATOMIC, lease=1.0))
        assert answer.verdict is Verdict.FOUND
        assert answer.record.owner_token == claim.owner_token
        assert answer.record.mode is IdempotencyMode.LEASED
        assert answer.record.lease_left > 20
    assert keys.count(claim) == 1


def test_the_key_of_a_finished_request_is_found_with_its_answer(keys, rival):
    claim = keys.sealed(new_claim())
    answer = rival.claim(rival_of(claim))
    assert answer.verdict is Verdict.FOUND
    assert answer.record.state is State.SEALED
    assert answer.record.response == CREATED
    assert answer.record.lease_left is None
    assert keys.count(claim) == 1


def test_a_claim_that_is_rolled_back_was_never_there(keys, rival):
    claim = new_claim()
    with keys.undone():
        keys.claim(claim)
    assert rival.store.find(claim.id) is None
    assert rival.claim(rival_of(claim)).verdict is Verdict.CLAIMED


def test_a_claim_sees_its_own_transactions_claim(keys):
    claim = new_claim()
    with keys.atomic():
        assert keys.claim(claim).verdict is Verdict.CLAIMED
        again = keys.claim(rival_of(claim))
    assert (again.verdict, again.record.owner_token) == (Verdict.FOUND, claim.owner_token)


def test_another_scope_or_another_key_is_another_record(keys):
    one = keys.own(new_claim())
    keys.own(new_claim(scope="auth.user:6 shop.charge:POST", key=one.key))
    keys.own(new_claim(scope=one.scope))
    assert keys.count(one) == 1


def test_a_committed_claim_is_visible_at_once_and_leaves_no_transaction_open(keys, rival):
    claim = new_claim()
    assert keys.store.claim_committed(claim).verdict is Verdict.CLAIMED
    assert connections[keys.alias].get_autocommit()
    assert rival.store.claim_committed(rival_of(claim)).record.owner_token == claim.owner_token


def test_inside_the_transaction_of_a_test_case_a_committed_claim_is_part_of_it(keys, rival):
    claim = new_claim()
    with keys.undone():
        assert keys.store.claim_committed(claim).verdict is Verdict.CLAIMED
        assert keys.store.find(claim.id).owner_token == claim.owner_token
    assert rival.store.find(claim.id) is None


CENTURY = 36_500 * 86_400.0


def test_the_longest_durations_of_a_policy_are_within_the_reach_of_the_database(keys):
    claim = keys.own(new_claim(lease=CENTURY, max_wait=CENTURY))
    assert keys.store.find(claim.id).lease_left == pytest.approx(CENTURY, abs=60)
    keys.release(claim)
    lapsed = keys.lapsed(new_claim())
    assert keys.take_over(lapsed, rival_of(lapsed, lease=CENTURY, max_wait=CENTURY))


# --- expiry ---


def test_an_expired_record_counts_as_absent_and_goes_with_the_claim_that_replaces_it(keys, rival):
    claim = keys.expired(new_claim())
    assert keys.count(claim) == 1, "nobody has pruned it"
    again = rival.own(rival_of(claim))
    assert keys.count(claim) == 1
    assert keys.store.find(claim.id).owner_token == again.owner_token


def test_the_record_that_replaces_an_expired_one_can_be_sealed_into_the_same_interval(keys):
    claim = keys.expired(new_claim())
    again = keys.own(rival_of(claim))
    answer = RecordedResponse(202, (), b"second")
    assert keys.seal(again, answer) is Sealing.SEALED
    assert keys.claim(rival_of(claim)).record.response == answer
    assert keys.count(claim) == 1


def test_an_expired_record_stays_until_then_when_its_successor_is_rolled_back(keys):
    claim = keys.expired(new_claim())
    with keys.undone():
        keys.own(rival_of(claim))
    assert keys.count(claim) == 1
    assert keys.claim(rival_of(claim)).verdict is Verdict.CLAIMED


def test_a_record_whose_time_has_not_come_is_never_replaced(keys):
    claim = keys.sealed(new_claim(), retention=60.0)
    for _ in range(3):
        assert keys.claim(rival_of(claim)).verdict is Verdict.FOUND


def test_what_was_committed_is_found_by_its_id_though_it_expired_meanwhile(keys):
    claim = keys.expired(new_claim())
    record = keys.store.find(claim.id)
    assert (record.state, record.owner_token) == (State.SEALED, claim.owner_token)


# --- seal ---

RESPONSES = [
    RecordedResponse(200, (), b""),
    RecordedResponse(204, (), None),
    RecordedResponse(402, (("X-One", "1"), ("x-one", "2"), ("Link", "<a>"), ("X-Name", 'Zoë ✓ "quoted" \\')), b"{}"),
    RecordedResponse(201, (), bytes(range(256)) * 5000),
]


@pytest.mark.parametrize("response", RESPONSES, ids=["empty", "not kept", "headers", "every byte"])
def test_a_response_comes_back_as_it_was_sealed(keys, rival, response):
    claim = keys.sealed(new_claim(), response)
    assert rival.store.find(claim.id).response == response


def test_sealing_ends_the_claim_and_keeps_whose_it_was(keys):
    claim = keys.sealed(new_claim())
    record = keys.store.find(claim.id)
    assert (record.state, record.owner_token, record.attempts) == (State.SEALED, claim.owner_token, 1)
    assert (record.scope, record.key, record.fingerprint) == (claim.scope, claim.key, claim.fingerprint)


def test_only_the_owner_can_seal(keys):
    claim = keys.own(new_claim())
    assert keys.seal(claim, token=uuid4()) is Sealing.LOST
    assert keys.store.find(claim.id).state is State.IN_FLIGHT
    assert keys.seal(claim) is Sealing.SEALED


def test_a_sealed_record_never_changes_again(keys):
    claim = keys.sealed(new_claim())
    assert keys.seal(claim, RecordedResponse(500, (), b"other")) is Sealing.LOST
    assert not keys.release(claim)
    assert not keys.take_over(claim, rival_of(claim))
    assert keys.store.find(claim.id).response == CREATED


def test_what_was_never_claimed_cannot_be_sealed(keys):
    assert keys.seal(new_claim()) is Sealing.LOST


def test_a_seal_that_is_rolled_back_leaves_the_claim(keys, rival):
    claim = keys.own(new_claim())
    with keys.undone():
        assert keys.seal(claim) is Sealing.SEALED
    assert rival.store.find(claim.id).state is State.IN_FLIGHT
    assert keys.seal(claim) is Sealing.SEALED


# --- release ---


def test_a_released_key_is_free(keys, rival):
    claim = keys.own(new_claim())
    assert keys.release(claim) is True
    assert keys.store.find(claim.id) is None
    assert rival.claim(rival_of(claim)).verdict is Verdict.CLAIMED


def test_only_the_owner_can_release_and_only_once(keys):
    claim = keys.own(new_claim())
    assert keys.release(claim, token=uuid4()) is False
    assert keys.release(claim) is True
    assert keys.release(claim) is False
    assert keys.release(new_claim()) is False


# --- take over ---


def test_a_lapsed_claim_is_taken_over(keys, rival):
    claim = keys.lapsed(new_claim())
    assert keys.store.find(claim.id).lease_left <= 0
    successor = rival_of(claim, mode=IdempotencyMode.ATOMIC, lease=9.0)
    assert rival.take_over(claim, successor) is True
    record = keys.store.find(claim.id)
    assert (record.owner_token, record.mode, record.attempts) == (successor.owner_token, IdempotencyMode.ATOMIC, 2)
    assert 8.0 < record.lease_left <= 9.0


def test_a_claim_whose_lease_runs_is_not_taken_over(keys):
    claim = keys.own(new_claim())
    assert keys.take_over(claim, rival_of(claim)) is False
    assert keys.store.find(claim.id).owner_token == claim.owner_token


def test_who_takes_over_a_claim_under_which_nothing_has_begun_may_ask_for_something_else(keys, rival):
    claim = keys.lapsed(new_claim(fingerprint=b"first", fingerprint_scheme=1))
    assert rival.take_over(claim, rival_of(claim, fingerprint=b"second", fingerprint_scheme=2))
    record = keys.store.find(claim.id)
    assert (record.fingerprint, record.fingerprint_scheme) == (b"second", 2)


def test_of_two_that_saw_the_same_lapsed_claim_one_takes_it(keys, rival):
    claim = keys.lapsed(new_claim())
    assert [keys.take_over(claim, rival_of(claim, lease=0.0)), rival.take_over(claim, rival_of(claim))] == [True, False]


def test_the_old_owner_can_neither_seal_nor_release_what_was_taken_over(keys, rival):
    claim = keys.lapsed(new_claim())
    successor = rival_of(claim)
    assert rival.take_over(claim, successor)
    assert keys.seal(claim) is Sealing.LOST
    assert keys.release(claim) is False
    assert rival.seal(successor) is Sealing.SEALED


def test_an_owner_that_comes_late_and_finds_nobody_in_its_place_may_still_seal(keys):
    claim = keys.lapsed(new_claim())
    assert keys.seal(claim) is Sealing.SEALED


def test_what_is_gone_is_not_taken_over(keys):
    claim = keys.lapsed(new_claim())
    record = keys.store.find(claim.id)
    keys.release(claim)
    assert keys.store.take_over(record, rival_of(claim)) is False
    keys.own(replace(claim, owner_token=uuid4()))
    assert keys.store.take_over(record, rival_of(claim)) is False


# --- which store ---


def test_nothing_is_found_where_nothing_was_claimed(keys):
    assert keys.store.find(uuid4()) is None


def test_a_store_says_what_it_can_do(keys):
    on_postgres = connections[keys.alias].vendor == "postgresql"
    assert keys.store.partitioned is on_postgres
    assert keys.store.renews_leases is on_postgres


def test_another_kind_of_database_is_refused_by_name(keys, monkeypatch):
    monkeypatch.setattr(connections[keys.alias], "vendor", "oracle")
    with pytest.raises(ImproperlyConfigured, match=f"'oracle' .*{keys.alias}.*PostgreSQL and SQLite"):
        store_for(keys.alias)
