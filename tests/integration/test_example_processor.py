"""The card processor that other tests trust to charge once, and to fail exactly where they ask it to."""

from __future__ import annotations

import pickle
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import httpx
import pytest
from django.core.exceptions import ImproperlyConfigured

from example_project.payments import processor as client
from example_project.processor import Fault, Planned, ProcessorServer
from tests.support.waiting import eventually

BEFORE = [Fault.NO_ANSWER_BEFORE_EFFECT, Fault.ERROR_BEFORE_EFFECT, Fault.DOWN]
AFTER = [Fault.NO_ANSWER_AFTER_EFFECT, Fault.ERROR_AFTER_EFFECT]


@pytest.fixture
def order():
    """What one intent sends, each time that it sends it."""
    return {"amount": 4200, "currency": "EUR", "reference": f"order {uuid4()}", "key": str(uuid4())}


def charge(order, *, timeout=10.0, **changes):
    return client.charge(**{**order, "timeout": timeout, **changes})


def effects(control, order):
    return [(effect.kind, effect.key) for effect in control.effects(order["reference"])]


def statuses(control, order):
    return [request.status for request in control.requests(order["reference"])]


# --- what it does -----------------------------------------------------------------------------------


def test_a_key_is_charged_once_and_answered_alike(control, order):
    first = charge(order)
    assert first["status"] == "succeeded"
    assert charge(order) == first
    assert effects(control, order) == [("charge", order["key"])]
    assert statuses(control, order) == [201, 201]


def test_a_replay_says_so(processor, order):
    parameters = {name: value for name, value in order.items() if name != "key"}
    with httpx.Client(base_url=processor.url, headers={"Idempotency-Key": order["key"]}, trust_env=False) as http:
        replayed = [http.post("/charges", json=parameters).headers.get("Idempotent-Replayed") for _ in range(2)]
    assert replayed == [None, "true"]


def test_without_a_key_each_request_charges(processor, control, order):
    parameters = {name: value for name, value in order.items() if name != "key"}
    for _ in range(2):
        assert httpx.post(f"{processor.url}/charges", json=parameters, trust_env=False).status_code == 201
    assert effects(control, order) == [("charge", None)] * 2
    assert control.keys_by_reference()[order["reference"]] == {None}


def test_two_keys_are_two_charges(control, order):
    charge(order)
    charge(order, key="another")
    assert control.charges_by_reference()[order["reference"]] == 2
    assert control.charges_by_key()[order["key"]] == 1
    assert control.keys_by_reference()[order["reference"]] == {order["key"], "another"}


@pytest.mark.parametrize("change", [{"amount": 4201}, {"currency": "USD"}, {"card": "another"}])
def test_a_key_with_other_parameters_is_refused(control, order, change):
    first = charge(order)
    with pytest.raises(client.Refused, match="422"):
        charge(order, **change)
    assert charge(order) == first
    assert len(effects(control, order)) == 1


@pytest.mark.parametrize(
    "change", [{"amount": 0}, {"amount": -1}, {"amount": "1"}, {"amount": True}, {"amount": 2**63}, {"currency": ""}]
)
def test_a_request_that_makes_no_sense_uses_no_key(control, order, change):
    with pytest.raises(client.Refused, match="422"):
        charge(order, **change)
    assert charge(order)["status"] == "succeeded"
    assert len(effects(control, order)) == 1


@pytest.mark.parametrize(
    ("change", "code"), [({"card": "declined"}, "card_declined"), ({"amount": 1_000_001}, "over_limit")]
)
def test_a_decline_is_an_answer_that_is_kept(control, order, change, code):
    with pytest.raises(client.Declined, match=code) as first:
        charge(order, **change)
    with pytest.raises(client.Declined) as second:
        charge(order, **change)
    assert second.value.result == first.value.result
    assert client.look_up(key=order["key"]) == [first.value.result]
    assert effects(control, order) == []
    assert statuses(control, order)[:2] == [402, 402]
    with pytest.raises(client.Refused, match="nothing_to_void"):
        client.void(first.value.result["id"])


def test_the_same_key_at_once_has_one_effect(control, order):
    together = threading.Barrier(8)

    def one(_):
        together.wait()
        return charge(order)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(8)))
    assert len({answer["id"] for answer in answers}) == 1
    assert len(effects(control, order)) == 1


def test_look_up_by_key_and_by_reference(processor, order):
    assert client.look_up(key=order["key"]) == client.look_up(reference=order["reference"]) == []
    made = [charge(order), charge(order, key="b" + order["key"])]
    assert client.look_up(key=order["key"]) == [made[0]]
    assert client.look_up(reference=order["reference"]) == made
    assert client.look_up(key=order["key"], reference="of somebody else") == []
    with pytest.raises(client.Refused):
        client.look_up()


def test_a_void_is_done_once(control, order):
    made = charge(order)
    voided = client.void(made["id"])
    assert voided == made | {"status": "voided"}
    assert client.void(made["id"]) == voided
    assert client.look_up(reference=order["reference"]) == [voided]
    assert [kind for kind, _ in effects(control, order)] == ["charge", "void"]
    assert charge(order) == made, "a replay is what was answered then"
    with pytest.raises(client.Refused, match="404"):
        client.void("ch_unknown")


# --- how long it remembers --------------------------------------------------------------------------


def test_after_its_retention_a_key_charges_again(settings, order):
    with ProcessorServer(key_retention=timedelta(hours=1)) as server:
        settings.PROCESSOR_URL = server.url
        charge(order)
        server.control.advance(timedelta(minutes=59))
        charge(order)
        assert server.control.charges_by_key() == {order["key"]: 1}
        server.control.advance(timedelta(minutes=1))
        assert client.look_up(key=order["key"]) == []
        assert len(client.look_up(reference=order["reference"])) == 1
        charge(order)
        assert server.control.charges_by_key() == {order["key"]: 2}


def test_a_processor_can_do_without_keys(settings, order):
    with ProcessorServer(key_retention=timedelta(0)) as server:
        settings.PROCESSOR_URL = server.url
        charge(order)
        charge(order)
        assert server.control.charges_by_reference() == {order["reference"]: 2}


# --- what goes wrong on request ---------------------------------------------------------------------


@pytest.mark.parametrize("fault", BEFORE)
def test_a_fault_before_the_effect_leaves_nothing(control, order, fault):
    control.plan(fault)
    with pytest.raises(client.ProcessorUnavailable):
        charge(order)
    assert effects(control, order) == []
    assert client.look_up(key=order["key"]) == []
    assert charge(order)["status"] == "succeeded"
    assert len(effects(control, order)) == 1


@pytest.mark.parametrize("fault", AFTER)
def test_a_fault_after_the_effect_hides_it(control, order, fault):
    control.plan(fault)
    with pytest.raises(client.ProcessorUnavailable):
        charge(order)
    assert len(effects(control, order)) == 1
    assert [charge(order)] == client.look_up(key=order["key"])
    assert len(effects(control, order)) == 1


def test_a_declined_charge_can_be_hidden_too(control, order):
    control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
    with pytest.raises(client.ProcessorUnavailable):
        charge(order, card="declined")
    with pytest.raises(client.Declined):
        charge(order, card="declined")


def test_a_slow_charge_may_come_after_everybody_has_looked(control, order):
    control.plan(Fault.SLOW)
    with pytest.raises(client.ProcessorUnavailable, match="ReadTimeout"):
        charge(order, timeout=0.5)
    control.until_held()
    assert client.look_up(key=order["key"]) == client.look_up(reference=order["reference"]) == []
    control.resume()
    assert effects(control, order) == [("charge", order["key"])]
    assert len(client.look_up(key=order["key"])) == 1


def test_a_retry_overtakes_a_slow_charge(control, order):
    control.plan(Fault.SLOW)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(charge, order)
        control.until_held()
        overtaking = charge(order)
        assert not slow.done()
        control.resume()
        assert slow.result(10) == overtaking
    assert len(effects(control, order)) == 1


def test_a_slow_answer_is_to_something_done(control, order):
    control.plan(Fault.SLOW_ANSWER)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(charge, order)
        control.until_held()
        assert len(effects(control, order)) == 1
        assert statuses(control, order) == [None]
        control.resume()
        assert [slow.result(10)] == client.look_up(key=order["key"])


def test_a_slow_charge_goes_on_by_itself_where_a_time_is_given(control, order):
    control.plan(Planned(Fault.SLOW, seconds=0.1))
    assert charge(order)["status"] == "succeeded"


def test_waiting_for_what_does_not_come_has_an_end(control):
    with pytest.raises(TimeoutError, match="0 of 1"):
        control.until_held(within=0.05)


def test_forgotten_keys_charge_again(control, order):
    charge(order)
    control.plan(Fault.FORGET_KEYS)
    charge(order)
    assert len(effects(control, order)) == 2
    control.forget_keys()
    charge(order)
    assert len(effects(control, order)) == 3


def test_faults_come_in_their_order_and_to_those_they_are_for(control, order):
    other = {**order, "reference": f"other {uuid4()}", "key": str(uuid4())}
    control.plan(
        Planned(Fault.DOWN, reference=other["reference"], times=2),
        Planned(Fault.ERROR_BEFORE_EFFECT, key=order["key"]),
        Fault.NO_ANSWER_BEFORE_EFFECT,
    )
    for expected in ("500", "RemoteProtocolError"):
        with pytest.raises(client.ProcessorUnavailable, match=expected):
            charge(order)
    charge(order)
    for _ in range(2):
        with pytest.raises(client.ProcessorUnavailable, match="503"):
            charge(other)
    charge(other)
    assert [request.fault for request in control.requests(other["reference"])] == ["down", "down", None]


def test_a_fault_may_last_until_it_is_cleared(control, order):
    control.plan(Planned(Fault.DOWN, times=None))
    for _ in range(3):
        with pytest.raises(client.ProcessorUnavailable, match="503"):
            charge(order)
    assert [planned.fault for planned in control.pending()] == [Fault.DOWN]
    control.clear()
    charge(order)


def test_look_up_and_void_fail_on_request_as_well(control, order):
    made = charge(order)
    control.plan(
        Planned(Fault.ERROR_BEFORE_EFFECT, operation="look_up", key=order["key"]),
        Planned(Fault.NO_ANSWER_AFTER_EFFECT, operation="void", reference=order["reference"]),
    )
    with pytest.raises(client.ProcessorUnavailable, match="500"):
        client.look_up(key=order["key"])
    with pytest.raises(client.ProcessorUnavailable):
        client.void(made["id"])
    assert client.look_up(key=order["key"]) == [made | {"status": "voided"}]


# --- its process ------------------------------------------------------------------------------------


def test_killed_with_a_charge_in_hand_it_comes_back_with_what_it_had(settings, order):
    with ProcessorServer() as server:
        settings.PROCESSOR_URL = server.url
        server.control.plan(Fault.SLOW_ANSWER)
        with ThreadPoolExecutor(1) as pool:
            cut = pool.submit(charge, order)
            server.control.until_held()
            with server.stopped():
                with pytest.raises(client.ProcessorUnavailable, match=r"RemoteProtocolError|ReadError"):
                    cut.result(10)
                with pytest.raises(client.ProcessorUnavailable, match="ConnectError"):
                    charge(order)
        assert [charge(order)] == client.look_up(key=order["key"])
        assert server.control.charges_by_key() == {order["key"]: 1}


def test_its_database_outlives_it(settings, order, tmp_path):
    for _ in range(2):
        with ProcessorServer(tmp_path / "processor.sqlite3") as server:
            settings.PROCESSOR_URL = server.url
            charge(order)
            assert server.control.charges_by_key() == {order["key"]: 1}


def test_as_a_program_it_prints_where_it_is(settings, order, tmp_path):
    arguments = ["-m", "example_project.processor", "--port", "0", "--database", tmp_path / "processor.sqlite3"]
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as program:
        try:
            settings.PROCESSOR_URL = program.stdout.readline().strip()
            assert charge(order)["status"] == "succeeded"
        finally:
            program.send_signal(signal.SIGINT)
        assert program.wait(10) == 0


def test_it_ends_with_its_owner_even_by_sigkill(tmp_path):
    script = (
        "import sys; from pathlib import Path; from example_project.processor import ProcessorServer\n"
        "with ProcessorServer(Path(sys.argv[1])) as server: print(server.address[1], flush=True); input()"
    )
    arguments = [sys.executable, "-c", script, tmp_path / "processor.sqlite3"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        port = int(owner.stdout.readline())
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: refuses(port), "the processor ends with its owner")


def refuses(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_it_knows_nothing_of_what_it_tests():
    script = "import sys, example_project.processor.__main__; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert {name.partition(".")[0] for name in modules}.isdisjoint({"django", "django_idempotency"})


# --- the payments API's side ------------------------------------------------------------------------


def test_without_an_address_there_is_no_processor(settings, order):
    settings.PROCESSOR_URL = ""
    with pytest.raises(ImproperlyConfigured, match="PROCESSOR_URL"):
        charge(order)


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"{"), (302, b""), (402, b"<html>"), (404, b"no such page"), (429, b"{}"), (502, b"{}")]
)
def test_an_answer_that_the_processor_would_not_give_leaves_it_open(settings, order, monkeypatch, status, body):
    settings.PROCESSOR_URL = "http://processor"
    answering = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(status, content=body)))
    monkeypatch.setattr(client.httpx, "Client", lambda **options: answering)
    with pytest.raises(client.ProcessorUnavailable):
        charge(order)


@pytest.mark.parametrize("error", [client.Declined({"decline_code": "x"}), client.ProcessorUnavailable("x")])
def test_its_errors_travel_between_processes(error):
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "x"
