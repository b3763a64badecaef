"""The session of a request is ended by the server, as in a restart or a failover, at every named point of its way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db import connection

from django_idempotency import failpoints
from django_idempotency.failpoints import OF_A_REQUEST
from tests.support.calls import ask
from tests.support.leases import let_leases_lapse, states
from tests.support.modes import TRANSACTIONAL
from tests.support.pauses import Failpoints
from tests.support.payer import effects
from tests.support.waiting import eventually, sessions

pytestmark = pytest.mark.urls("tests.support.charges_urls")

COMMITTED = {"after_commit"}
RELEASING = {"before_release", "after_release"}


@pytest.fixture
def pausing(tmp_path):
    pausing = Failpoints(tmp_path, "wait")
    failpoints.arm(pausing.specification)
    yield pausing
    failpoints.arm("")


def cut_all_others_off():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(unnest(%s))", (sessions(),))
    eventually(lambda: not sessions(), "they are gone")


@pytest.mark.parametrize("mode", TRANSACTIONAL, ids=lambda mode: mode.value)
@pytest.mark.parametrize("point", OF_A_REQUEST)
def test_cut_off_anywhere_there_is_one_effect_and_the_key_ends(crowd, payer, pausing, mode, point):
    good = payer.charge(mode)
    request = replace(good, body={**good.body, "currency": "USD"}) if point in RELEASING else good
    with pausing.armed(point) as pause:
        going = crowd.start(ask, request, token=payer.token)
        pause.wait()
        cut_all_others_off()
        pause.go()
        answer = going.result(30)
    if point in RELEASING:
        assert answer.status == 400
    elif point in COMMITTED:
        assert (answer.status, answer.replayed) == (201, False)
    else:
        assert (answer.status, answer.retry_after >= 1) == (503, True)
    assert effects(good) == (1 if point in COMMITTED else 0)

    let_leases_lapse()
    first = ask(good, token=payer.token)
    assert (first.status, first.replayed) == (201, point in COMMITTED)
    again = ask(good, token=payer.token)
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    assert effects(good) == 1
    assert states() == ["sealed"]
