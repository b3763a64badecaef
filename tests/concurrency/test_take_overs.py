"""An owner comes back late, while whoever took its key over is still at work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_idempotency import IdempotencyMode
from tests.support.calls import ask
from tests.support.leases import let_leases_lapse, states
from tests.support.payer import effects

pytestmark = pytest.mark.urls("tests.support.charges_urls")

LEASED = IdempotencyMode.LEASED


@pytest.fixture
def meet(crowd, payer, pausing):
    """The first request stalls at one point and loses its key, the second stalls at another; then the first goes on.

    Returns both answers. The second asks for the same, unless for ``other``.
    """

    def meet(request, *, first_at, second_at, other=None):
        other = other or request
        with pausing.armed(first_at) as stalled:
            first = crowd.start(ask, request, token=payer.token)
            stalled.wait()
            assert let_leases_lapse() == 1
            with pausing.armed(second_at) as busy:
                second = crowd.start(ask, other, token=payer.token)
                busy.wait()
                stalled.go()
                late = first.result(30)
                assert states() == ["in_flight"]
                third = ask(other, token=payer.token)
                assert (third.status, third.problem) == (409, "in-progress")
                busy.go()
                return late, second.result(30)

    return meet


@pytest.mark.parametrize("at", ["after_effect", "before_seal"])
def test_a_late_seal_does_not_end_the_claim_of_the_successor(meet, payer, at):
    request = payer.deposit(LEASED)
    late, made = meet(request, first_at=at, second_at="after_claim" if at == "after_effect" else "after_effect")
    assert (late.status, late.problem) == (409, "lease-lost")
    assert (made.status, made.replayed) == (201, False)
    replay = ask(request, token=payer.token)
    assert (replay.replayed, replay.body, effects(request)) == (True, made.body, 1)


def test_a_late_release_does_not_free_the_key_of_the_successor(meet, payer):
    late, second = meet(payer.charge(LEASED, currency="USD"), first_at="before_release", second_at="after_claim")
    assert (late.status, second.status) == (400, 400)
    assert states() == []


@pytest.mark.parametrize("at", ["after_effect", "before_seal"])
def test_a_late_seal_does_not_answer_for_a_successor_with_another_body(meet, payer, at):
    request = payer.deposit(LEASED)
    other = corrected(request)
    second_at = "after_claim" if at == "after_effect" else "after_effect"
    late, made = meet(request, other=other, first_at=at, second_at=second_at)
    assert (late.status, late.problem) == (409, "lease-lost")
    assert (made.status, made.replayed) == (201, False)
    replay = ask(other, token=payer.token)
    assert (replay.replayed, replay.body) == (True, made.body)
    assert ask(request, token=payer.token).problem == "key-reused"
    assert (effects(request), effects(other)) == (0, 1)


def test_another_body_that_meets_the_seal_of_an_owner_whose_lease_lapsed_leaves_it_alone(crowd, payer, pausing):
    request = payer.deposit(LEASED)
    other = corrected(request)
    with pausing.armed("before_seal") as stalled, pausing.armed("after_seal") as sealing:
        first = crowd.start(ask, request, token=payer.token)
        stalled.wait()
        assert let_leases_lapse() == 1
        stalled.go()
        sealing.wait()
        waited = ask(other, token=payer.token)
        assert (waited.status, waited.problem) == (409, "in-progress")
        sealing.go()
        assert first.result(30).status == 201
    assert ask(other, token=payer.token).problem == "key-reused"
    assert (effects(request), effects(other)) == (1, 0)


def corrected(request):
    return replace(request, body={**request.body, "reference": f"{request.body['reference']}-corrected"})
