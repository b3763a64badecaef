"""A proxy that fails on purpose, at the one point of an exchange where a client learns the least.

    with FaultProxy(api.address) as proxy:
        proxy.fault = Fault.CUT
        post(proxy.url, ...)                # the connection ends without a byte of an answer
        exchange = proxy.next_answered()    # what the API had answered by then
        proxy.fault = Fault.PASS
        post(proxy.url, ...)                # the retry

Nothing here waits for a time to pass: ``next_answered`` returns when the API's answer has been read to its
end, and a stalled exchange goes on when it is told to.
"""

from __future__ import annotations

import queue
import socket
import socketserver
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from io import BufferedIOBase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

UPSTREAM_TIMEOUT = 60.0


class Fault(Enum):
    """What becomes of an exchange."""

    PASS = "pass"
    CUT = "cut"
    """The API's answer is read to its end; then the client's connection is closed, with nothing sent."""
    TWICE = "twice"
    """The request is sent on a second connection as well, as proxies and client libraries do by themselves.
    Both are in flight together, and the client gets what the second one is answered."""
    STALL = "stall"
    """The answer is held back until :meth:`Exchange.resume`."""


@dataclass
class Exchange:
    """One request as it went on to the API, and all that came back."""

    fault: Fault
    request: bytes
    answers: list[bytes]
    resumed: threading.Event = field(default_factory=threading.Event, repr=False)

    def resume(self) -> None:
        self.resumed.set()


class FaultProxy(socketserver.ThreadingTCPServer):
    """Listens on a free port of 127.0.0.1. ``fault`` holds for each request that begins after it was set."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.upstream = upstream
        self.fault = Fault.PASS
        self._answered: queue.SimpleQueue[Exchange] = queue.SimpleQueue()
        self._stalled: list[Exchange] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="fault-proxy", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
        for exchange in self._stalled:
            exchange.resume()
        self._thread.join()
        self.server_close()

    def next_answered(self, timeout: float = 30.0) -> Exchange:
        """The next exchange, in the order of their answers, that the API has answered in full.

        :raises queue.Empty: there was none within ``timeout``.
        """
        return self._answered.get(timeout=timeout)

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that hangs up is what a fault proxy is for; anything else is a fault of this module.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def carry(self, request: bytes) -> bytes:
        """Take one request to the API, and return what the client is to get: nothing for a cut answer."""
        fault = self.fault
        exchange = Exchange(fault, request, self._ask(request, copies=2 if fault is Fault.TWICE else 1))
        if fault is Fault.STALL:
            self._stalled.append(exchange)
        self._answered.put(exchange)
        if fault is Fault.STALL:
            exchange.resumed.wait()
        return b"" if fault is Fault.CUT else exchange.answers[-1]

    def _ask(self, request: bytes, copies: int) -> list[bytes]:
        with ExitStack() as stack:
            connections = [
                stack.enter_context(socket.create_connection(self.upstream, UPSTREAM_TIMEOUT)) for _ in range(copies)
            ]
            for connection in connections:
                connection.sendall(request)
            return [_read_to_end(connection) for connection in connections]


class _Connection(socketserver.StreamRequestHandler):
    """One request a connection. The API is asked to close after it, so its answer ends with the stream."""

    server: FaultProxy

    def handle(self) -> None:
        request = _read_request(self.rfile)
        if request:
            self.wfile.write(self.server.carry(request))


def _read_request(stream: BufferedIOBase) -> bytes:
    """A whole request with ``Connection: close``; nothing where the client left before its end.

    Bodies come with a Content-Length here. No client of the example sends a chunked one.
    """
    head, length = [stream.readline()], 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        name = line.partition(b":")[0].lower()
        if name == b"content-length":
            length = int(line.partition(b":")[2])
        if name != b"connection":
            head.append(line)
    body = stream.read(length)
    if not line or len(body) < length:
        return b""
    return b"".join((*head, b"Connection: close\r\n\r\n", body))


def _read_to_end(connection: socket.socket) -> bytes:
    chunks = []
    try:
        while chunk := connection.recv(65536):
            chunks.append(chunk)
    except ConnectionError:
        pass  # a killed worker: what it had sent is all there is
    return b"".join(chunks)
