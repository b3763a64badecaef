"""An owner comes back late, while whoever took its key over is still at work."""

from __future__ import annotations

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

    Returns the first one's answer, and how to let the second go on.
    """

    def meet(request, *, first_at, second_at):
        with pausing.armed(first_at) as stalled:
            first = crowd.start(ask, request, token=payer.token)
            stalled.wait()
            assert let_leases_lapse() == 1
            with pausing.armed(second_at) as busy:
                second = crowd.start(ask, request, token=payer.token)
                busy.wait()
                stalled.go()
                late = first.result(30)
                assert states() == ["in_flight"]
                third = ask(request, token=payer.token)
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
