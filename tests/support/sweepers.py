"""Sweepers as processes, forked off one that has loaded everything: ten of them are there in a moment.

``python -m tests.support.sweepers`` is that one. It forks for each line on stdin, which names a file for the report of
the sweep, and says on stdout which process was begun and how each of them ended.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sweep:
    """One process that sweeps once, and ends."""

    pid: int
    _report: Path
    _sweepers: Sweepers

    def wait(self, within: float = 60.0) -> int:
        """Its exit status; negative, the signal that ended it."""
        return self._sweepers.status(self.pid, within)

    @property
    def ended(self) -> bool:
        try:
            self.wait(0)
        except TimeoutError:
            return False
        return True

    @property
    def fates(self) -> dict[str, str]:
        """What became of each record that it finished with, by the record's id."""
        told = [json.loads(line) for line in self._report.read_text().splitlines()]
        assert len(told) == len(dict(told)), "a record came twice"
        return dict(told)


class Sweepers:
    """:param environment: added to this process's own, such as ``IDEMPOTENCY_FAILPOINTS``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._ended: dict[int, int] = {}
        self._begun = 0

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="sweepers-")
        self._log = Path(self._folder.name, "log").open("a+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.sweepers"],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()
        self._folder.cleanup()

    def start(self) -> Sweep:
        self._begun += 1
        report = Path(self._folder.name, str(self._begun))
        report.touch()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{report}\n".encode())
        self._process.stdin.flush()
        while "begun" not in (told := self._next(30.0)):
            self._note(told)
        return Sweep(told["begun"], report, self)

    def sweep(self) -> Sweep:
        """One that has ended, well or not."""
        sweep = self.start()
        sweep.wait()
        return sweep

    def status(self, pid: int, within: float) -> int:
        deadline = time.monotonic() + within
        while pid not in self._ended:
            self._note(self._next(deadline - time.monotonic()))
        return self._ended[pid]

    def log(self) -> str:
        """What all of them have printed so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _note(self, told: dict[str, Any]) -> None:
        self._ended[told["ended"]] = told["status"]

    def _next(self, within: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(max(within, 0.0)):
                raise TimeoutError(f"no sweeper says anything:\n{self.log()}")
        # Byte by byte: a buffer that has read ahead would make the selector wait for what is there already.
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._process.stdout.fileno(), 1)
            if not byte:
                raise AssertionError(f"the sweepers are gone:\n{self.log()}")
            line += byte
        told: dict[str, Any] = json.loads(line)
        return told


# --- the process that forks ---------------------------------------------------------------------------


def main() -> None:
    import django

    django.setup()
    from django.urls import get_resolver

    from django_idempotency import sweeping
    from example_project.payments import processor

    # Whatever is loaded late is loaded here, once. Nothing may be connected yet.
    sweeping.discover()
    processor._tls()
    assert get_resolver().url_patterns
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(readable, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == readable:
                    os.read(readable, 4096)
                    _tell_who_has_ended()
                elif reports := os.read(0, 65536).decode().split():
                    _begin(reports)
                else:
                    # Whoever started us is gone, however it ended. No fork may be left, not even a suspended one.
                    os.killpg(0, signal.SIGKILL)


def _begin(reports: list[str]) -> None:
    for report in reports:
        pid = os.fork()
        if pid == 0:
            _sweep(report)
        print(json.dumps({"begun": pid}), flush=True)


def _tell_who_has_ended() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        print(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}), flush=True)


def _sweep(report: str) -> None:
    """In the fork, to its end."""
    from django.db import connections

    from django_idempotency import sweeping

    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # What is said on stdout is for whoever started the sweepers.
        os.dup2(2, 1)
        with Path(report).open("a", buffering=1) as told:
            for swept in sweeping.sweep("default", limit=10_000):
                print(json.dumps([str(swept.id), swept.fate.value]), file=told)
        connections.close_all()
        status = 0
    except Exception:  # noqa: BLE001 - it is told, and nothing of the process that forked may run here
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
