"""A request is paused somewhere on its way, and another one comes with the same key."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from example_project.payments import services
from tests.support.calls import ask
from tests.support.leases import let_leases_lapse, states
from tests.support.modes import ATOMIC, LEASED, TRANSACTIONAL
from tests.support.payer import effects
from tests.support.waiting import until_waiting, waiting_sessions

pytestmark = pytest.mark.urls("tests.support.charges_urls")

MODES = pytest.mark.parametrize("mode", TRANSACTIONAL, ids=lambda mode: mode.value)
OWNED = ["after_claim", "after_effect", "before_seal", "after_seal"]
"""Where a request has the key and has not yet committed."""


@pytest.fixture(autouse=True)
def patience(configure):
    """Longer than any test takes. Where the point is that a wait ends, the test says so."""
    configure(MAX_WAIT=timedelta(seconds=20))


def is_in_progress(answer, lease=30):
    return (answer.status, answer.problem) == (409, "in-progress") and 1 <= answer.retry_after <= lease


def is_reused(answer):
    return (answer.status, answer.problem) == (422, "key-reused") and "Retry-After" not in answer.headers


@pytest.fixture(params=[False, True], ids=["autocommit", "ATOMIC_REQUESTS"])
def way_of_transactions(request):
    if request.param:
        request.getfixturevalue("atomic_requests")


@pytest.mark.parametrize("point", OWNED)
def test_atomic_a_duplicate_waits_until_the_first_has_committed(pausing, crowd, payer, way_of_transactions, point):
    request = payer.charge(ATOMIC)
    with pausing.armed(point) as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        second = crowd.start(ask, request, token=payer.token)
        until_waiting()
        assert not first.done()
        assert not second.done()
        pause.go()
    made, replay = first.result(30), second.result(30)
    assert (made.status, made.replayed) == (201, False)
    assert (replay.status, replay.replayed, replay.body) == (201, True, made.body)
    assert effects(request) == 1


@pytest.mark.parametrize("point", OWNED)
def test_leased_a_duplicate_is_told_at_once(pausing, crowd, payer, way_of_transactions, point):
    request = payer.charge(LEASED)
    with pausing.armed(point) as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        assert is_in_progress(ask(request, token=payer.token))
        assert not first.done()
        pause.go()
        made = first.result(30)
    assert (made.status, made.replayed) == (201, False)
    replay = ask(request, token=payer.token)
    assert (replay.status, replay.replayed, replay.body) == (201, True, made.body)
    assert effects(request) == 1


def test_atomic_a_duplicate_waits_no_longer_than_max_wait(pausing, crowd, payer, configure):
    configure(MAX_WAIT=timedelta(seconds=0.1))
    request = payer.charge(ATOMIC)
    with pausing.armed("after_seal") as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        assert is_in_progress(ask(request, token=payer.token), lease=1)
        assert not first.done()
        pause.go()
        assert first.result(30).status == 201
    assert ask(request, token=payer.token).replayed
    assert effects(request) == 1


@MODES
def test_committed_is_enough_for_a_replay(pausing, crowd, payer, mode):
    """The first client has no answer yet, the second one gets it."""
    request = payer.charge(mode)
    with pausing.armed("after_commit") as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        replay = ask(request, token=payer.token)
        assert (replay.status, replay.replayed, first.done()) == (201, True, False)
        pause.go()
        assert first.result(30).body == replay.body
    assert effects(request) == 1


def test_leased_another_body_is_refused_at_once(pausing, crowd, payer):
    request = payer.charge(LEASED)
    other = replace(request, body={**request.body, "amount": 2_00})
    with pausing.armed("after_claim") as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        assert is_reused(ask(other, token=payer.token))
        assert is_in_progress(ask(request, token=payer.token))
        pause.go()
        assert first.result(30).status == 201
    assert is_reused(ask(other, token=payer.token))
    assert effects(request) == 1


def test_atomic_another_body_is_refused_when_the_first_has_ended(pausing, crowd, payer):
    request = payer.charge(ATOMIC)
    other = replace(request, body={**request.body, "amount": 2_00})
    with pausing.armed("after_claim") as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        second = crowd.start(ask, other, token=payer.token)
        until_waiting()
        pause.go()
    assert first.result(30).status == 201
    assert is_reused(second.result(30))
    assert effects(request) == 1


def test_atomic_another_body_whose_wait_ends_cannot_know_better_than_in_progress(pausing, crowd, payer, configure):
    configure(MAX_WAIT=timedelta(seconds=0.1))
    request = payer.charge(ATOMIC)
    other = replace(request, body={**request.body, "amount": 2_00})
    with pausing.armed("after_claim") as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        assert is_in_progress(ask(other, token=payer.token), lease=1)
        pause.go()
        assert first.result(30).status == 201
    assert is_reused(ask(other, token=payer.token))


def test_atomic_a_duplicate_that_waited_for_a_refusal_runs_itself(pausing, crowd, payer):
    good = payer.charge(ATOMIC)
    bad = replace(good, body={**good.body, "currency": "USD"})
    with pausing.armed("before_release") as pause:
        first = crowd.start(ask, bad, token=payer.token)
        pause.wait()
        second = crowd.start(ask, good, token=payer.token)
        until_waiting()
        pause.go()
    assert first.result(30).status == 400
    made = second.result(30)
    assert (made.status, made.replayed) == (201, False)
    assert effects(good) == 1


def test_leased_a_key_is_free_only_when_it_is_released(pausing, crowd, payer):
    good = payer.charge(LEASED)
    bad = replace(good, body={**good.body, "currency": "USD"})
    with pausing.armed("before_release") as pause:
        first = crowd.start(ask, bad, token=payer.token)
        pause.wait()
        assert is_in_progress(ask(bad, token=payer.token))
        pause.go()
        assert first.result(30).status == 400
    made = ask(good, token=payer.token)
    assert (made.status, made.replayed, effects(good)) == (201, False, 1)


def test_a_release_that_makes_an_operation_leased_meets_an_atomic_owner(pausing, crowd, payer, configure):
    request = replace(payer.charge(ATOMIC), path="/api/charges/")
    configure(MODE=ATOMIC)
    with pausing.armed("after_effect") as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        configure(MODE=LEASED)
        second = crowd.start(ask, request, token=payer.token)
        until_waiting()
        pause.go()
    made, replay = first.result(30), second.result(30)
    assert (made.status, made.replayed) == (201, False)
    assert (replay.status, replay.replayed, replay.body) == (201, True, made.body)
    assert effects(request) == 1


def test_a_release_that_makes_an_operation_atomic_meets_a_leased_owner(pausing, crowd, payer, configure):
    request = replace(payer.charge(LEASED), path="/api/charges/")
    configure(MODE=LEASED)
    with pausing.armed("after_claim") as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        configure(MODE=ATOMIC)
        assert is_in_progress(ask(request, token=payer.token))
        let_leases_lapse()
        second = ask(request, token=payer.token)
        assert (second.status, second.replayed) == (201, False)
        pause.go()
        late = first.result(30)
    assert (late.status, late.problem) == (409, "lease-lost")
    assert ask(request, token=payer.token).body == second.body
    assert effects(request) == 1


@MODES
@pytest.mark.parametrize("end", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_view_that_is_torn_down_keeps_nothing_and_frees_the_key(payer, monkeypatch, mode, end):
    """Servers end their threads and greenlets with exceptions that no handler of errors sees."""
    request = payer.deposit(mode)
    deposit = services.deposit

    def torn_down(*arguments, **named):
        deposit(*arguments, **named)
        raise end

    with monkeypatch.context() as patch:
        patch.setattr(services, "deposit", torn_down)
        with pytest.raises(end):
            ask(request, token=payer.token)
    assert (effects(request), states()) == (0, [])
    assert ask(request, token=payer.token).status == 201
    assert effects(request) == 1


def test_nobody_waits_without_a_rival(pausing, crowd, payer):
    """What the tests above wait for is not there by itself."""
    with pausing.armed("after_claim") as pause:
        first = crowd.start(ask, payer.charge(ATOMIC), token=payer.token)
        pause.wait()
        assert ask(payer.deposit(ATOMIC), token=payer.token).status == 201
        assert not waiting_sessions()
        pause.go()
        assert first.result(30).status == 201
