"""Failpoints: inert unless armed, and armed only by exact words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from django_idempotency import failpoints
from django_idempotency.apps import IdempotencyConfig
from django_idempotency.failpoints import POINTS, VARIABLE, FailpointReached, arm, hit


@pytest.fixture(autouse=True)
def disarmed():
    arm("")
    yield
    arm("")


@pytest.fixture
def signals(monkeypatch):
    """Every signal that this process would have sent to itself."""
    sent = []
    monkeypatch.setattr(failpoints.os, "kill", lambda process, number: sent.append((process, number)))
    return sent


@pytest.mark.parametrize("point", [*POINTS, "no_such_point"])
def test_nothing_happens_at_a_point_that_is_not_armed(point):
    hit(point)


@pytest.mark.parametrize("point", POINTS)
def test_the_armed_point_alone_acts(point):
    arm(f"{point}:raise")
    for other in POINTS:
        if other != point:
            hit(other)
    with pytest.raises(FailpointReached, match=point):
        hit(point)


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_kill_and_stop_are_signals_to_this_process(signals, action, number):
    arm(f"after_claim:{action}")
    hit("after_claim")
    assert signals == [(os.getpid(), number)]


def test_several_points_are_armed_at_once(signals):
    arm(" after_claim:raise , before_seal:kill,")
    with pytest.raises(FailpointReached):
        hit("after_claim")
    hit("before_seal")
    assert len(signals) == 1


def test_arming_replaces_what_was_armed():
    arm("after_claim:raise")
    arm("after_seal:raise")
    hit("after_claim")
    arm("")
    hit("after_seal")


@pytest.mark.parametrize("action", ["kill", "stop"])
def test_with_a_marker_only_the_first_process_that_comes_acts(signals, tmp_path, action):
    marker = tmp_path / "once"
    arm(f"after_claim:{action}@{marker}")
    hit("after_claim")
    assert marker.exists()
    hit("after_claim")
    assert len(signals) == 1


def test_a_marker_holds_for_raise_as_well(tmp_path):
    arm(f"after_claim:raise@{tmp_path / 'once'}")
    with pytest.raises(FailpointReached):
        hit("after_claim")
    hit("after_claim")


def test_wait_meets_at_a_path_and_goes_on_when_told(tmp_path):
    meeting = tmp_path / "here"
    arm(f"before_seal:wait@{meeting}")
    waiting = threading.Thread(target=hit, args=["before_seal"], daemon=True)
    waiting.start()
    deadline = time.monotonic() + 10
    while not (tmp_path / "here.reached").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert (tmp_path / "here.reached").exists()
    assert waiting.is_alive()
    (tmp_path / "here.go").touch()
    waiting.join(10)
    assert not waiting.is_alive()
    hit("before_seal")  # the second to come does not wait again


@pytest.mark.parametrize(
    "specification",
    [
        "after_clam:kill",
        "after_claim:kil",
        "after_claim",
        "after_claim:",
        ":kill",
        "after_claim:raise,nonsense",
        "kill",
    ],
)
def test_a_typo_is_refused_since_it_would_pass_for_a_test_that_survived(specification):
    with pytest.raises(ValueError, match=f"{VARIABLE}: .* with a point of before_claim, .* an action of kill, "):
        arm(specification)


def test_waiting_needs_a_place_to_meet():
    with pytest.raises(ValueError, match="wait needs a path"):
        arm("after_claim:wait")


@pytest.mark.parametrize(("enabled", "armed"), [(True, True), (False, False)])
def test_the_environment_is_obeyed_only_where_the_setting_allows(settings, monkeypatch, enabled, armed):
    settings.IDEMPOTENCY = {"FAILPOINTS_ENABLED": enabled}
    monkeypatch.setenv(VARIABLE, "after_claim:raise")
    IdempotencyConfig.create("django_idempotency").ready()
    assert bool(failpoints._armed) is armed


def test_wrong_settings_are_left_to_the_system_check(settings, monkeypatch):
    settings.IDEMPOTENCY = {"FAILPOINTS_ENABLED": True, "LEESE": 1}
    monkeypatch.setenv(VARIABLE, "after_claim:raise")
    IdempotencyConfig.create("django_idempotency").ready()
    assert failpoints._armed == {}


def test_kill_really_kills():
    script = (
        "from django_idempotency.failpoints import arm, hit; arm('after_claim:kill'); hit('after_claim'); print('on')"
    )
    died = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=60)
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, b"")
