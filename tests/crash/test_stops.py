"""A worker is suspended, loses its key, and wakes up: what it was about to do must not happen any more."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest

from django_idempotency import IdempotencyMode
from tests.support.calls import call
from tests.support.leases import let_leases_lapse, states
from tests.support.modes import TRANSACTIONAL
from tests.support.pauses import Failpoints
from tests.support.payer import effects
from tests.support.servers import ONE_REQUEST_A_PROCESS, served, workers_of
from tests.support.waiting import eventually, until_waiting

LEASE_SECONDS = 1


@pytest.fixture(scope="module")
def stopping(tmp_path_factory):
    return Failpoints(tmp_path_factory.mktemp("stops"), "stop")


@contextmanager
def served_with_leases_of(seconds, stopping, renewal_cap=900):
    environment = {
        "IDEMPOTENCY_FAILPOINTS": stopping.specification,
        "IDEMPOTENCY_LEASE": str(seconds),
        "IDEMPOTENCY_RENEWAL_CAP": str(renewal_cap),
        **ONE_REQUEST_A_PROCESS,
    }
    with served(environment, workers=3, threads=1) as api:
        yield api


@pytest.fixture(scope="module")
def api(django_db_setup, stopping):
    with served_with_leases_of(LEASE_SECONDS, stopping) as api:
        yield api


@pytest.fixture
def wake(api):
    """Let whatever is suspended go on."""
    yield lambda: wake_workers_of(api)
    wake_workers_of(api)


def wake_workers_of(api):
    for pid in workers_of(api):
        os.kill(pid, signal.SIGCONT)


def come_back(api, request, token):
    """Retry until the answer is another than "come back later"."""

    def retry():
        answer = call(api.address, request, token=token)
        if answer.problem == "in-progress":
            assert 1 <= answer.retry_after <= LEASE_SECONDS
            return None
        return answer

    return eventually(retry, "the key ends")


@pytest.mark.parametrize("mode", TRANSACTIONAL, ids=lambda mode: mode.value)
@pytest.mark.parametrize("point", ["after_claim", "after_effect", "before_seal", "after_seal"])
def test_an_owner_that_lost_its_key_changes_nothing(api, stopping, wake, crowd, payer, mode, point):
    request = payer.deposit(mode)
    with stopping.armed(point) as stop:
        stopped = crowd.start(call, api.address, request, token=payer.token)
        stop.wait()
        second = come_back(api, request, payer.token)
        assert (second.status, second.replayed, effects(request)) == (201, False, 1)
        wake()
    late = stopped.result(30)
    # An ATOMIC transaction was ended by the database, and hears so before it can learn who has the key.
    ended = mode is IdempotencyMode.ATOMIC and point != "after_seal"
    assert (late.status, late.problem) == ((503, "transaction-conflict") if ended else (409, "lease-lost"))
    assert late.retry_after >= 1

    again = call(api.address, request, token=payer.token)
    assert (again.status, again.replayed, again.body) == (201, True, second.body)
    assert effects(request) == 1
    assert states() == ["sealed"]


def test_a_release_that_comes_too_late_frees_nothing(api, stopping, wake, crowd, payer):
    good = payer.charge(IdempotencyMode.LEASED)
    bad = replace(good, body={**good.body, "currency": "USD"})
    with stopping.armed("before_release") as stop:
        stopped = crowd.start(call, api.address, bad, token=payer.token)
        stop.wait()
        assert come_back(api, bad, payer.token).status == 400
        first = call(api.address, good, token=payer.token)
        assert (first.status, first.replayed) == (201, False)
        wake()
    assert stopped.result(30).status == 400
    again = call(api.address, good, token=payer.token)
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    assert effects(good) == 1


def test_an_owner_suspended_after_its_commit_answers_what_the_retry_was_answered(api, stopping, wake, crowd, payer):
    for mode in TRANSACTIONAL:
        request = payer.charge(mode)
        with stopping.armed("after_commit") as stop:
            stopped = crowd.start(call, api.address, request, token=payer.token)
            stop.wait()
            again = call(api.address, request, token=payer.token)
            assert (again.status, again.replayed) == (201, True)
            wake()
        late = stopped.result(30)
        assert (late.status, late.replayed, late.body) == (201, False, again.body)
        assert effects(request) == 1


def test_a_take_over_waits_for_the_rows_that_the_old_owner_holds(django_db_setup, stopping, crowd, payer):
    """The key changed hands, the account is locked still: the new owner's effect comes after the old one is undone."""
    request = payer.charge(IdempotencyMode.LEASED)
    with served_with_leases_of(20, stopping) as api, stopping.armed("after_effect") as stop:
        stopped = crowd.start(call, api.address, request, token=payer.token)
        stop.wait()
        assert let_leases_lapse() == 1
        second = crowd.start(call, api.address, request, token=payer.token)
        until_waiting(containing="payments_account")
        third = call(api.address, request, token=payer.token)
        assert (third.status, third.problem) == (409, "in-progress")
        wake_workers_of(api)
        late = stopped.result(30)
        assert second.result(30).status == 201
    assert (late.status, late.problem) == (409, "lease-lost")
    assert effects(request) == 1


def test_rows_of_an_owner_that_stays_suspended_are_free_once_its_lease_is_renewed_no_more(
    django_db_setup, stopping, crowd, payer
):
    request = payer.charge(IdempotencyMode.LEASED)
    with served_with_leases_of(1, stopping, renewal_cap=2) as api, stopping.armed("after_effect") as stop:
        stopped = crowd.start(call, api.address, request, token=payer.token)
        stop.wait()
        second = come_back(api, request, payer.token)
        assert (second.status, second.replayed, effects(request)) == (201, False, 1)
        wake_workers_of(api)
        late = stopped.result(30)
    assert (late.status, late.problem) == (503, "transaction-conflict")
    assert effects(request) == 1
