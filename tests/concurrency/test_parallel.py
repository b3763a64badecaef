"""Many requests with one key at the same moment."""

from __future__ import annotations

import logging
import os

import pytest
from django.db import connection

from django_idempotency import IdempotencyMode
from django_idempotency.storage.transactions import own_connection, transaction_on
from example_project.payments.models import Charge
from tests.support.calls import ask, call
from tests.support.leases import let_leases_lapse, states
from tests.support.modes import TRANSACTIONAL
from tests.support.payer import effects
from tests.support.servers import served
from tests.support.waiting import waiting_sessions

pytestmark = pytest.mark.urls("tests.support.charges_urls")

MODES = pytest.mark.parametrize("mode", TRANSACTIONAL, ids=lambda mode: mode.value)
SET_BY_A_CLAIM = ["lock_timeout", "idle_in_transaction_session_timeout", "enable_seqscan"]
ROUNDS = 300 if os.environ.get("CI") == "true" else 60


def one_ran_and_the_rest_agree(answers):
    """One answer is the first; each other is the same bytes, or 409 with advice to come back. Returns the first."""
    (made,) = [answer for answer in answers if answer.status == 201 and not answer.replayed]
    for answer in answers:
        if answer.replayed:
            assert (answer.status, answer.body) == (201, made.body)
        elif answer is not made:
            assert (answer.status, answer.problem) == (409, "in-progress")
            assert answer.retry_after >= 1
    return made


@pytest.fixture(scope="module")
def api(django_db_setup):
    # Kept connections are quicker, and show at once if a request leaves one in a bad state.
    with served({"CONN_MAX_AGE": "600"}) as api:
        yield api


@MODES
def test_same_key_in_parallel(api, crowd, payer, mode):
    """From four clients to the workers of a server, a new key each round."""
    requests = [payer.charge(mode) for _ in range(ROUNDS)]
    first_answers = []
    for request in requests:
        answers = crowd.at_once(4, lambda request=request: call(api.address, request, token=payer.token))
        first_answers.append(one_ran_and_the_rest_agree(answers))
    for request, made in list(zip(requests, first_answers, strict=True))[:: ROUNDS // 20]:
        retry = call(api.address, request, token=payer.token)
        assert (retry.replayed, retry.body, effects(request)) == (True, made.body, 1)
    references = Charge.objects.values_list("reference", flat=True)
    assert sorted(references) == sorted(request.body["reference"] for request in requests)
    assert states() == ["sealed"] * ROUNDS


def limits():
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", [SET_BY_A_CLAIM])
        return dict(cursor.fetchall())


@MODES
def test_fifty_requests_on_a_fresh_key(crowd, payer, caplog, mode):
    request = payer.charge(mode)
    usual = limits()

    def ask_and_look():
        answer = ask(request, token=payer.token)
        assert (connection.get_autocommit(), limits()) == (True, usual)
        return answer

    with caplog.at_level(logging.INFO):
        answers = crowd.at_once(50, ask_and_look)
    one_ran_and_the_rest_agree(answers)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    retry = ask(request, token=payer.token)
    assert (retry.status, retry.replayed) == (201, True)
    assert effects(request) == 1


def test_of_many_that_find_a_lapsed_lease_one_takes_over(crowd, payer, pausing):
    request = payer.deposit(IdempotencyMode.LEASED)
    with pausing.armed("after_effect") as pause:
        stalled = crowd.start(ask, request, token=payer.token)
        pause.wait()
        assert let_leases_lapse() == 1
        made = one_ran_and_the_rest_agree(crowd.at_once(10, lambda: ask(request, token=payer.token)))
        pause.go()
        late = stalled.result(30)
    assert (late.status, late.problem) == (409, "lease-lost")
    retry = ask(request, token=payer.token)
    assert (retry.replayed, retry.body) == (True, made.body)
    assert effects(request) == 1


@MODES
def test_forty_clients_get_their_replay_without_a_queue(crowd, payer, mode):
    """Somebody holds the very place in the table that a claim would have to wait for; no replay notices."""
    request = payer.charge(mode)
    made = ask(request, token=payer.token)
    hold = """
        INSERT INTO idempotency_key_in_flight (
            id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at,
            lease_expires_at, sweeps
        )
        SELECT id, 'in_flight', scope, key, fingerprint, fingerprint_scheme, mode, gen_random_uuid(), 1, claimed_at,
            clock_timestamp() + interval '1 hour', 0
        FROM idempotency_key_sealed
    """
    with own_connection("default") as other, transaction_on(other), other.cursor() as cursor:
        cursor.execute(hold)
        assert cursor.rowcount == 1
        cursor.execute("SELECT id FROM idempotency_key_sealed FOR UPDATE")
        answers = crowd.at_once(40, lambda: ask(request, token=payer.token))
        assert not waiting_sessions()
        other.rollback()
    assert {(answer.status, answer.replayed, answer.body) for answer in answers} == {(201, True, made.body)}
    assert effects(request) == 1
