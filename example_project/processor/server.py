"""The processor's HTTP: what merchants call, and what only tests and the demo do."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from .book import Answer, Parameters
from .desk import Call, Desk
from .faults import Planned

Made = TypeVar("Made")

NOT_FOUND = Answer(404, {"error": "not_found"})


class Refused(Exception):
    """The request makes no sense; nothing was done, and no key was used."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.answer = Answer(status, {"error": "invalid_request", "detail": detail})


class Server(ThreadingHTTPServer):
    """Listens on 127.0.0.1.

    :param shared_port: somebody else has bound the port as well, to reserve it, and listens to nothing.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, desk: Desk, *, shared_port: bool = False) -> None:
        self.desk = desk
        self._shared_port = shared_port
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def server_bind(self) -> None:
        if self._shared_port:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that gave up is what this processor is for.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    # Head and body of an answer are two writes, and the second should not wait for an acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        """The log is in the database."""

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        route, query = (self.command, *url.path.strip("/").split("/")), dict(parse_qsl(url.query))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        desk = self.server.desk
        try:
            sent = _checked(json.loads, body) if body else {}
            call = _call(desk, route, query, self.headers.get("Idempotency-Key") or None, sent)
            answer = desk.serve(call) if call else _operate(desk, route, query, sent)
        except Refused as refused:
            answer = refused.answer
        if answer is None:
            self.close_connection = True
        else:
            self._send(answer)

    do_GET = do_DELETE = do_POST  # noqa: N815 - the names that http.server looks for

    def _send(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if answer.replayed:
            self.send_header("Idempotent-Replayed", "true")
        self.end_headers()
        self.wfile.write(body)


def _call(desk: Desk, route: tuple[str, ...], query: dict[str, str], key: str | None, sent: Any) -> Call | None:
    """What a merchant wants; None where it is no merchant who asks."""
    book = desk.book
    match route:
        case "POST", "charges":
            parameters = _made(Parameters, sent)
            return Call("charge", key, parameters.reference, lambda number: book.charge(parameters, key, number))
        case "POST", "charges", charge_id, "void":
            return Call("void", key, book.reference_of(charge_id), lambda number: book.void(charge_id, number))
        case "GET", "charges":
            by = {name: query[name] for name in ("key", "reference") if name in query}
            if not by:
                raise Refused(422, "a key or a reference is needed")
            find = partial(book.find, **by)
            return Call("look_up", by.get("key"), by.get("reference"), lambda _: Answer(200, {"charges": find()}))
    return None


def _operate(desk: Desk, route: tuple[str, ...], query: dict[str, str], sent: Any) -> Answer:
    """What nobody outside could ask of a real processor."""
    match route:
        case "GET", "log":
            return Answer(200, desk.book.log())
        case "POST", "faults":
            desk.plan.add([_made(Planned, {"fault": item} if isinstance(item, str) else item) for item in sent["next"]])
        case "DELETE", "faults":
            desk.plan.clear()
        case "GET", "held":
            return Answer(200, {"held": desk.gate.wait_for(int(query["count"]), float(query["seconds"]))})
        case "DELETE", "held":
            desk.gate.open()
        case "DELETE", "keys":
            desk.book.forget_keys()
        case "POST", "clock":
            desk.clock.ahead += sent["advance"]
        case "GET", "faults":
            pass
        case _:
            return NOT_FOUND
    return Answer(200, {"pending": [asdict(planned) for planned in desk.plan.pending()]})


def _made(kind: Callable[..., Made], fields: Any) -> Made:
    if not isinstance(fields, dict):
        raise Refused(422, "a JSON object is expected")
    return _checked(lambda given: kind(**given), fields, status=422)


def _checked(make: Callable[[Any], Made], given: Any, *, status: int = 400) -> Made:
    try:
        return make(given)
    except (TypeError, ValueError) as error:
        raise Refused(status, str(error)) from error
