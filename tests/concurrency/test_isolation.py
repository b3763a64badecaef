"""A database whose default isolation is stricter, changed where Django cannot see it."""

from __future__ import annotations

import pytest
from django.db import connection

from tests.support.calls import ask, call
from tests.support.crowds import Crowd
from tests.support.leases import states
from tests.support.modes import ATOMIC, LEASED
from tests.support.payer import effects
from tests.support.servers import served
from tests.support.waiting import eventually

pytestmark = pytest.mark.urls("tests.support.charges_urls")


def set_default(level):
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"ALTER DATABASE {name} {level}")


@pytest.fixture(params=["repeatable read", "serializable"])
def stricter(committed, request):
    """For sessions that begin from now on, such as a crowd's; the test's own was there before."""
    set_default(f"SET default_transaction_isolation = '{request.param}'")
    yield request.param
    set_default("RESET default_transaction_isolation")


def test_atomic_is_refused_before_the_view_runs(stricter, crowd, payer):
    request = payer.charge(ATOMIC)
    refused = crowd.start(ask, request, token=payer.token).result(30)
    assert (refused.status, refused.problem) == (503, "store-unavailable")
    assert refused.retry_after >= 1
    assert (effects(request), states()) == (0, [])


def test_leased_works(stricter, crowd, payer):
    request = payer.charge(LEASED)
    made, replay = (crowd.start(ask, request, token=payer.token).result(30) for _ in range(2))
    assert (made.status, made.replayed) == (201, False)
    assert (replay.status, replay.replayed, replay.body) == (201, True, made.body)
    assert effects(request) == 1


def test_leased_the_renewer_leaves_the_row_alone_so_that_its_owner_can_seal(
    stricter, crowd, payer, pausing, short_leases, caplog
):
    """A row that was changed after the snapshot of the owner's transaction could not be sealed by it any more."""
    request = payer.charge(LEASED)
    with pausing.armed("after_effect") as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        eventually(lambda: "are not renewed" in caplog.text, "the renewer has been there")
        pause.go()
    assert first.result(30).status == 201
    assert effects(request) == 1


def test_leased_an_owner_that_is_slower_than_its_lease_keeps_nothing(stricter, crowd, payer, pausing, short_leases):
    request = payer.deposit(LEASED)
    with pausing.armed("after_effect") as pause:
        first = crowd.start(ask, request, token=payer.token)
        pause.wait()
        second = crowd.start(come_back, request, payer.token).result(30)
        assert (second.status, second.replayed, effects(request)) == (201, False, 1)
        pause.go()
        late = first.result(30)
    assert (late.status, late.problem) == (409, "lease-lost")
    assert effects(request) == 1


def come_back(request, token):
    def retry():
        answer = ask(request, token=token)
        return None if answer.problem == "in-progress" else answer

    return eventually(retry, "the lease lapses")


@pytest.fixture
def serializable_api(committed):
    set_default("SET default_transaction_isolation = 'serializable'")
    with served({"CONN_MAX_AGE": "600"}) as api:
        yield api
    set_default("RESET default_transaction_isolation")


def test_leased_fifty_equal_and_fifty_different_keys_at_once(serializable_api, payer):
    """On one account, so that their transactions do get into each other's way."""
    equal = payer.charge(LEASED)
    different = [payer.charge(LEASED) for _ in range(50)]

    def post(request):
        return call(serializable_api.address, request, token=payer.token)

    with Crowd(100) as crowd:
        answers = crowd.all_at_once([lambda request=request: post(request) for request in [equal] * 50 + different])
    for answer in answers:
        known = {(201, ""), (409, "in-progress"), (409, "lease-lost"), (503, "transaction-conflict")}
        assert (answer.status, answer.problem) in known
        assert answer.status == 201 or answer.retry_after >= 1
    for request in (equal, *different):
        assert eventually(lambda request=request: post(request).status == 201, "a retry gets through")
        assert effects(request) == 1
    assert states() == ["sealed"] * 51
