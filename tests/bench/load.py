"""Clients: processes that send one request after the other and time each."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from typing_extensions import Self

Address = tuple[str, int]


@dataclass(frozen=True)
class Block:
    """Requests of one kind, sent back to back: seconds for each, and from the first to the last of all clients."""

    latencies: list[float]
    elapsed: float

    @property
    def throughput(self) -> float:
        return len(self.latencies) / self.elapsed


class Clients:
    def __init__(self, address: Address, count: int) -> None:
        self._address = address
        self.count = count
        self._pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.shutdown()

    def block(self, path: str, requests: int, *, replay: bool = False) -> Block:
        """Let each client send ``requests`` POSTs, under a new key each, or all under one that was used before."""
        tasks = [self._pool.submit(send, self._address, path, requests, replay) for _ in range(self.count)]
        parts = [task.result() for task in tasks]
        elapsed = max(end for _, _, end in parts) - min(start for _, start, _ in parts)
        return Block([latency for latencies, _, _ in parts for latency in latencies], elapsed)


def send(address: Address, path: str, requests: int, replay: bool) -> tuple[list[float], float, float]:
    """One request after the other: seconds for each, and when the first began and the last ended."""
    messages = list(_messages(path, requests, replay))
    if replay:
        exchange(address, messages[0], replayed=False)
    latencies = []
    start = time.perf_counter()
    for message in messages:
        before = time.perf_counter()
        exchange(address, message, replayed=replay)
        latencies.append(time.perf_counter() - before)
    return latencies, start, time.perf_counter()


def _messages(path: str, requests: int, replay: bool) -> Iterator[bytes]:
    key = str(uuid4())
    for number in range(requests):
        body = json.dumps({"amount": 1250, "currency": "EUR", "reference": f"order-{0 if replay else number}"})
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"Accept: application/json\r\nIdempotency-Key: {key if replay else uuid4()}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        yield (head + body).encode()


def exchange(address: Address, message: bytes, *, replayed: bool) -> None:
    # gunicorn's sync workers close the connection after each answer, so a plain socket is the whole client: one that
    # parsed more would compete with the server for the processor.
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(message)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    if not answer.startswith(b"HTTP/1.1 201 ") or (b"\r\nIdempotent-Replayed: true\r\n" in answer) != replayed:
        raise RuntimeError(f"Not the expected answer: {answer[:2000]!r}")
