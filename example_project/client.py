"""A client of the API that never retries by itself, and to which a lost connection is an answer too."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import httpx

REPLAYED = "Idempotent-Replayed"


@dataclass(frozen=True)
class Request:
    """What a client wants, and the key of wanting it once."""

    path: str
    body: Mapping[str, Any]
    key: str = field(default_factory=lambda: str(uuid4()))

    def __str__(self) -> str:
        amount = f" amount {self.body['amount'] / 100:.2f}" if "amount" in self.body else ""
        return f"POST {self.path}{amount} key {self.key[:8]}.."


@dataclass(frozen=True)
class Answer:
    """What came back. A status of 0: the connection ended without an answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.lost:
            return "no answer"
        return f"{self.status} {HTTPStatus(self.status).phrase}{' (replay)' if self.replayed else ''}"

    @property
    def lost(self) -> bool:
        return self.status == 0

    @property
    def replayed(self) -> bool:
        return self.headers.get(REPLAYED) == "true"

    @property
    def retry_after(self) -> int:
        return int(self.headers.get("Retry-After", 0))

    @property
    def problem(self) -> str:
        """The slug of a problem's type: the part that does not depend on where the docs are published."""
        if self.headers.get("Content-Type") != "application/problem+json":
            return ""
        return str(json.loads(self.body)["type"]).rpartition("#")[2]


def post(url: str, request: Request, *, token: str, keys: Sequence[bytes] | None = None) -> Answer:
    """Send a request, with ``keys`` in place of its own where a client gets that wrong."""
    headers: list[tuple[str, str | bytes]] = [
        ("Authorization", f"Token {token}"),
        ("Content-Type", "application/json"),
    ]
    headers += [("Idempotency-Key", key) for key in ([request.key.encode()] if keys is None else keys)]
    return send(url + request.path, json.dumps(request.body).encode(), headers)


def send(url: str, body: bytes, headers: Sequence[tuple[str, str | bytes]]) -> Answer:
    raw = [(name.encode(), value.encode() if isinstance(value, str) else value) for name, value in headers]
    try:
        # Without the environment: a proxy that is set for the world outside does not know our ports.
        with httpx.Client(trust_env=False, timeout=30) as client:
            response = client.post(url, content=body, headers=raw)
    except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
        return Answer(0)
    return Answer(response.status_code, response.content, response.headers)


def at_once(count: int, ask: Callable[[], Answer]) -> list[Answer]:
    """Ask from ``count`` threads that wait for each other before they begin."""
    together = threading.Barrier(count)

    def one(_: int) -> Answer:
        together.wait()
        return ask()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
