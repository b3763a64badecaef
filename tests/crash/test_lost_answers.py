"""The request arrives and the answer does not: connections cut on the way back, clients and servers that leave."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from django_idempotency import IdempotencyMode
from example_project.faultproxy import Fault, FaultProxy
from tests.support.calls import call, wire_format
from tests.support.leases import states
from tests.support.modes import TRANSACTIONAL
from tests.support.pauses import Failpoints
from tests.support.payer import effects
from tests.support.servers import served
from tests.support.waiting import eventually, until_waiting

MODES = pytest.mark.parametrize("mode", TRANSACTIONAL, ids=lambda mode: mode.value)


@pytest.fixture(scope="module")
def pausing(tmp_path_factory):
    return Failpoints(tmp_path_factory.mktemp("pauses"), "wait")


@pytest.fixture(scope="module")
def api(django_db_setup, pausing):
    with served({"IDEMPOTENCY_FAILPOINTS": pausing.specification, "IDEMPOTENCY_MAX_WAIT": "20"}) as api:
        yield api


@MODES
def test_response_dropped_after_the_commit(api, payer, mode):
    request = payer.charge(mode)
    with FaultProxy(api.address) as proxy:
        proxy.fault = Fault.CUT
        assert call(proxy.server_address, request, token=payer.token).lost
        answered = proxy.next_answered().answers[0]
        assert answered.startswith(b"HTTP/1.1 201 ")
        assert effects(request) == 1
        proxy.fault = Fault.PASS
        retry = call(proxy.server_address, request, token=payer.token)
    assert (retry.status, retry.replayed) == (201, True)
    assert retry.body == answered.partition(b"\r\n\r\n")[2]
    assert effects(request) == 1


@MODES
@pytest.mark.parametrize("point", ["after_claim", "before_seal", "after_commit"])
def test_a_client_that_hung_up_finds_its_answer(api, pausing, payer, mode, point):
    request = payer.charge(mode)
    with pausing.armed(point) as pause:
        with socket.create_connection(api.address) as client:
            client.sendall(wire_format(request, payer.token))
            pause.wait()
        pause.go()
        eventually(lambda: states() == ["sealed"], "the outcome is on record, though nobody waits for it")
    retry = call(api.address, request, token=payer.token)
    assert (retry.status, retry.replayed) == (201, True)
    assert effects(request) == 1


@MODES
def test_a_proxy_that_sends_a_request_twice_has_it_run_once(api, pausing, crowd, payer, mode):
    """Both are in flight at once, on connections of their own, and the client never knows."""
    request = payer.charge(mode)
    with FaultProxy(api.address) as proxy, pausing.armed("before_seal") as pause:
        proxy.fault = Fault.TWICE
        answer = crowd.start(call, proxy.server_address, request, token=payer.token)
        pause.wait()
        if mode is IdempotencyMode.ATOMIC:
            until_waiting()
        pause.go()
        answers = proxy.next_answered().answers
        assert answer.result(30).status in {201, 409}
    ran = [each for each in answers if each.startswith(b"HTTP/1.1 201 ") and b"Idempotent-Replayed" not in each]
    (other,) = set(answers) - set(ran)
    assert len(ran) == effects(request) == 1
    if other.startswith(b"HTTP/1.1 201 "):
        assert other.partition(b"\r\n\r\n")[2] == ran[0].partition(b"\r\n\r\n")[2]
    else:
        assert (mode, other[:13]) == (IdempotencyMode.LEASED, b"HTTP/1.1 409 ")


def test_a_server_that_is_told_to_end_answers_what_it_has_begun(api, pausing, crowd, payer):
    begun = {"before_seal": payer.charge(IdempotencyMode.ATOMIC), "after_seal": payer.deposit(IdempotencyMode.LEASED)}
    with (
        served({"IDEMPOTENCY_FAILPOINTS": pausing.specification}) as ending,
        pausing.armed("before_seal") as first,
        pausing.armed("after_seal") as second,
    ):
        answers = [crowd.start(call, ending.address, begun["before_seal"], token=payer.token)]
        first.wait()
        answers.append(crowd.start(call, ending.address, begun["after_seal"], token=payer.token))
        second.wait()
        os.kill(ending.pid, signal.SIGTERM)
        eventually(lambda: "Handling signal: term" in ending.log(), "the server ends")
        first.go()
        second.go()
        for request, answer in zip(begun.values(), answers, strict=True):
            made = answer.result(30)
            assert (made.status, made.replayed) == (201, False)
            retry = call(api.address, request, token=payer.token)
            assert (retry.status, retry.replayed, retry.body) == (201, True, made.body)
            assert effects(request) == 1
