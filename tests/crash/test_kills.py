"""A worker is killed at every point where killing could hurt; then the client comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_idempotency import IdempotencyMode
from django_idempotency.failpoints import OF_A_REQUEST
from tests.support.calls import call
from tests.support.leases import let_leases_lapse, states
from tests.support.modes import TRANSACTIONAL
from tests.support.pauses import Failpoints
from tests.support.payer import effects
from tests.support.servers import ONE_REQUEST_A_PROCESS, served

LEASE_SECONDS = 20

COMMITTED = {"after_commit"}
"""Points at which the effect and its record are there to stay."""

RELEASING = {"before_release", "after_release"}
"""Points on the way of a request that is refused by the view."""

HOLDS_A_LEASE = set(OF_A_REQUEST) - {"before_claim", "after_commit", "after_release"}
"""Points at which a LEASED owner has a claim that others can see."""


@pytest.fixture(scope="module")
def killing(tmp_path_factory):
    return Failpoints(tmp_path_factory.mktemp("kills"), "kill")


@pytest.fixture(scope="module")
def api(django_db_setup, killing):
    environment = {
        "IDEMPOTENCY_FAILPOINTS": killing.specification,
        "IDEMPOTENCY_LEASE": str(LEASE_SECONDS),
        "IDEMPOTENCY_MAX_WAIT": "20",
        **ONE_REQUEST_A_PROCESS,
    }
    with served(environment, workers=2, threads=1) as api:
        yield api


def die(api, killing, point, request, token):
    with killing.armed(point) as kill:
        assert call(api.address, request, token=token).lost
        assert kill.reached


def hears_that_it_is_in_progress(api, request, token):
    answer = call(api.address, request, token=token)
    assert (answer.status, answer.problem) == (409, "in-progress")
    assert 1 <= answer.retry_after <= LEASE_SECONDS


@pytest.mark.parametrize("mode", TRANSACTIONAL, ids=lambda mode: mode.value)
@pytest.mark.parametrize("point", OF_A_REQUEST)
def test_killed_anywhere_there_is_one_effect_and_the_key_ends(api, killing, payer, mode, point):
    good = payer.charge(mode)
    request = replace(good, body={**good.body, "currency": "USD"}) if point in RELEASING else good
    die(api, killing, point, request, payer.token)
    assert effects(good) == (1 if point in COMMITTED else 0)

    if mode is IdempotencyMode.LEASED and point in HOLDS_A_LEASE:
        hears_that_it_is_in_progress(api, request, payer.token)
        assert let_leases_lapse() == 1
    first = call(api.address, request, token=payer.token)
    if point in RELEASING:
        assert (first.status, first.problem, effects(good)) == (400, "", 0)
        first = call(api.address, good, token=payer.token)
    assert (first.status, first.replayed) == (201, point in COMMITTED)

    again = call(api.address, good, token=payer.token)
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    assert effects(good) == 1
    assert states() == ["sealed"]


def test_process_killed_between_effect_and_seal(api, killing, payer):
    for mode in TRANSACTIONAL:
        request = payer.charge(mode)
        die(api, killing, "before_seal", request, payer.token)
        assert effects(request) == 0
        if mode is IdempotencyMode.LEASED:
            hears_that_it_is_in_progress(api, request, payer.token)
            let_leases_lapse()
        first, again = (call(api.address, request, token=payer.token) for _ in range(2))
        assert (first.status, first.replayed) == (201, False)
        assert (again.status, again.replayed, again.body) == (201, True, first.body)
        assert effects(request) == 1


@pytest.mark.parametrize("mode", TRANSACTIONAL, ids=lambda mode: mode.value)
def test_every_attempt_is_killed_at_the_next_point_and_the_last_one_runs(api, killing, payer, mode):
    """A retry may meet the same fate. Nothing adds up over the attempts but their number."""
    request = payer.charge(mode)
    for point in ("before_claim", "after_claim", "after_effect", "before_seal", "after_seal"):
        die(api, killing, point, request, payer.token)
        let_leases_lapse()
    assert effects(request) == 0
    first, again = (call(api.address, request, token=payer.token) for _ in range(2))
    assert (first.status, first.replayed) == (201, False)
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    assert effects(request) == 1
