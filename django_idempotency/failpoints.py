"""Named places at which a test can kill, stop or pause the process. Inert unless FAILPOINTS_ENABLED is set.

``IDEMPOTENCY_FAILPOINTS="before_seal:kill@/tmp/once,after_claim:wait@/tmp/here"`` arms them. With ``@path``, kill, stop
and raise act only in the process that creates that file first, so that the worker that replaces a killed one lives.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

OF_A_REQUEST = (
    "before_claim",
    "after_claim",
    "after_effect",
    "before_seal",
    "after_seal",
    "after_commit",
    "before_release",
    "after_release",
)

OF_AN_OPERATION = (
    "before_phase",
    "before_phase_commit",
    "after_phase",
    "before_call_started",
    "before_call",
    "after_call",
    "after_call_stored",
)
"""Each also as point/step, such as before_call/authorise."""

OF_A_SWEEPER = ("after_taken", "after_looked_up")

OF_A_PRUNER = ("after_batch", "before_detach", "before_drop")

POINTS = (*OF_A_REQUEST, *OF_AN_OPERATION, *OF_A_SWEEPER, *OF_A_PRUNER)

VARIABLE = "IDEMPOTENCY_FAILPOINTS"


class FailpointReached(Exception):
    """What the action ``raise`` raises."""


_armed: dict[str, Callable[[], None]] = {}


def hit(point: str, step: str | None = None) -> None:
    if not _armed:
        return
    action = _armed.get(f"{point}/{step}") or _armed.get(point)
    if action is not None:
        action()


def is_armed(point: str) -> bool:
    return point in _armed


def arm(specification: str) -> None:
    """Replace what is armed by ``specification``.

    :raises ValueError: it names an unknown point or action. A typo would pass for a test that survived.
    """
    _armed.clear()
    for entry in filter(None, specification.split(",")):
        point, _, rest = entry.strip().partition(":")
        name, _, path = rest.partition("@")
        if point.partition("/")[0] not in POINTS or name not in _ACTIONS:
            raise ValueError(
                f"{VARIABLE}: {entry!r} is not point:action[@path] with a point of {', '.join(POINTS)} "
                f"and an action of {', '.join(_ACTIONS)}."
            )
        _armed[point] = _ACTIONS[name](point, Path(path) if path else None)


def _signal(number: signal.Signals) -> Callable[[str, Path | None], Callable[[], None]]:
    def build(_point: str, marker: Path | None) -> Callable[[], None]:
        return lambda: os.kill(os.getpid(), number) if _first(marker) else None

    return build


def _raise(point: str, marker: Path | None) -> Callable[[], None]:
    def action() -> None:
        if _first(marker):
            raise FailpointReached(point)

    return action


def _wait(point: str, path: Path | None) -> Callable[[], None]:
    if path is None:
        raise ValueError(f"{VARIABLE}: wait needs a path to meet at, as in {point}:wait@/tmp/here.")

    def action() -> None:
        if not _first(path.with_name(path.name + ".reached")):
            return
        while not path.with_name(path.name + ".go").exists():
            time.sleep(0.005)

    return action


def _first(marker: Path | None) -> bool:
    if marker is None:
        return True
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


_ACTIONS: dict[str, Callable[[str, Path | None], Callable[[], None]]] = {
    "kill": _signal(signal.SIGKILL),
    "stop": _signal(signal.SIGSTOP),
    "raise": _raise,
    "wait": _wait,
}
