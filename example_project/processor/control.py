"""What tests and the demo hold in their hands: the processor as a process, and a say in what goes wrong in it."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .faults import Fault, Planned

if TYPE_CHECKING:
    from typing_extensions import Self

TIMEOUT = 30.0


@dataclass(frozen=True)
class Request:
    """A line of the processor's log. ``status`` is None while there is no answer, and where there never was one."""

    number: int
    operation: str
    key: str | None
    reference: str | None
    fault: str | None
    status: int | None


@dataclass(frozen=True)
class Effect:
    """Money that moved: a ``charge`` or a ``void``, and the number of the request that did it."""

    kind: str
    charge: str
    amount: int
    key: str | None
    reference: str
    request: int


class ProcessorControl:
    """Plans faults and reads the log. It keeps no connection, so that it can be used from any thread or fork."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def plan(self, *faults: Fault | Planned) -> None:
        """Faults for the next requests, one after the other; a bare one is for a charge, whosever it is."""
        planned = [Planned(fault) if isinstance(fault, Fault) else fault for fault in faults]
        self._ask("POST", "/faults", {"next": [asdict(each) for each in planned]})

    def clear(self) -> None:
        """Plan no more faults. What is held already stays held."""
        self._ask("DELETE", "/faults")

    def pending(self) -> list[Planned]:
        """The faults that no request has met yet."""
        return [Planned(**each) for each in self._ask("GET", "/faults")["pending"]]

    def until_held(self, count: int = 1, *, within: float = 20.0) -> None:
        """Return when so many slow requests are waiting.

        :raises TimeoutError: they did not come.
        """
        held = self._ask("GET", f"/held?count={count}&seconds={within}", timeout=within + TIMEOUT)["held"]
        if held < count:
            raise TimeoutError(f"{held} of {count} requests are held after {within:g} s")

    def resume(self) -> None:
        """Let all slow requests go on, and return when they have done what they came for."""
        self._ask("DELETE", "/held")

    def forget_keys(self) -> None:
        self._ask("DELETE", "/keys")

    def advance(self, time: timedelta) -> None:
        """Set the processor's clock ahead, for as long as it runs."""
        self._ask("POST", "/clock", {"advance": time.total_seconds()})

    def requests(self, reference: str | None = None) -> list[Request]:
        return [Request(**row) for row in self._log("requests", reference)]

    def effects(self, reference: str | None = None) -> list[Effect]:
        return [Effect(**row) for row in self._log("effects", reference)]

    def charges_by_reference(self) -> Counter[str]:
        """How often money was taken, for each intent. Declines took none."""
        return Counter(effect.reference for effect in self.effects() if effect.kind == "charge")

    def charges_by_key(self) -> Counter[str | None]:
        return Counter(effect.key for effect in self.effects() if effect.kind == "charge")

    def keys_by_reference(self) -> dict[str, set[str | None]]:
        """Under which keys charges were asked for, for each intent; None is a request without a key."""
        keys: dict[str, set[str | None]] = {}
        for request in self.requests():
            if request.operation == "charge" and request.reference is not None:
                keys.setdefault(request.reference, set()).add(request.key)
        return keys

    def _log(self, part: str, reference: str | None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._ask("GET", "/log")[part]
        return [row for row in rows if reference in (None, row["reference"])]

    def _ask(self, method: str, path: str, body: object = None, *, timeout: float = TIMEOUT) -> dict[str, Any]:
        connection = http.client.HTTPConnection(*self._address, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{method} {path}: {response.status} {answer}")
        return answer


class ProcessorServer:
    """The processor on a free port of 127.0.0.1, from ``with`` to its end, and no longer than this process lives.

    :param database: an SQLite file; without it, one that is deleted at the end.
    :param key_retention: how long the processor knows a key; none at all is a processor without keys.
    """

    def __init__(self, database: Path | None = None, *, key_retention: timedelta = timedelta(days=1)) -> None:
        self._database = database
        self._retention = key_retention
        self._process: subprocess.Popen[bytes] | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with self._held:
            if self._database is None:
                folder = self._held.enter_context(tempfile.TemporaryDirectory(prefix="processor-"))
                self._database = Path(folder, "processor.sqlite3")
            # The port stays ours while the processor is stopped. Nobody listens to this socket: it refuses.
            reserved = self._held.enter_context(socket.socket())
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind(("127.0.0.1", 0))
            self.address: tuple[str, int] = reserved.getsockname()
            self.control = ProcessorControl(self.address)
            self._held.callback(self.stop)
            self.start()
            self._held = self._held.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._held.close()

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def start(self) -> None:
        """Start again after :meth:`stop`: on the same port, with what the database holds, and with no faults."""
        process = self._process = subprocess.Popen(
            [
                sys.executable, "-m", "example_project.processor", "--owned", "--port", str(self.address[1]),
                "--database", str(self._database), "--key-retention", str(self._retention.total_seconds()),
            ],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The terminal's Ctrl-C is for the owner, who then stops its servers in order.
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        if process.stdout.readline().decode().strip() != self.url:
            self.stop()
            raise RuntimeError("the processor did not start; it has said why on stderr")

    def stop(self) -> None:
        """Kill it in whatever it is doing. From here on connections are refused."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """A time in which there is no processor at all."""
        self.stop()
        try:
            yield
        finally:
            self.start()
