"""The API under gunicorn, as a process of its own that never outlives its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

STOP_TIMEOUT = 15.0


class ApiServer:
    """gunicorn with the example on a free port of 127.0.0.1, from ``with`` to its end.

    :param environment: added to this process's own, such as ``IDEMPOTENCY_FAILPOINTS``.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, workers: int = 2, threads: int = 8) -> None:
        self._environment = {"DJANGO_SETTINGS_MODULE": "example_project.settings", **(environment or {})}
        self._size = ("--workers", str(workers), "--threads", str(threads))
        # For appending: the position is shared with the server, and reading here must not move its writing.
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed in __exit__

    def __enter__(self) -> Self:
        folder = Path(__file__).resolve().parent
        # The socket is opened here and handed on. Its port cannot be lost to somebody else meanwhile, and
        # connections queue up until the workers are there, so nobody has to ask whether they are.
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            self.address: tuple[str, int] = listener.getsockname()
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "gunicorn", "--config", str(folder / "gunicorn_conf.py"),
                    "--bind", f"fd://{listener.fileno()}", *self._size, "example_project.wsgi:application",
                ],
                cwd=folder.parent,
                env={**os.environ, **self._environment},
                pass_fds=(listener.fileno(),),
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                # The terminal's Ctrl-C is for the owner, who then stops its servers in order.
                start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT)
        # Whatever is left: workers of a master that did not listen, or that was killed.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        self._log.close()

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        """What the server has printed so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")
