"""What counting costs a request: one worker serves it with nobody listening, with counting, and with Prometheus.

The receivers change before each request, in one process: two that do the same differ from each other by more than what
is looked for, for as long as they live.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from django.http import HttpRequest, HttpResponse

from django_idempotency import prometheus
from django_idempotency.numbers import counting
from django_idempotency.signals import counted
from example_project.serving import ApiServer

from . import processor
from .load import exchange, send
from .report import interval

PATH = "/atomic/"

LISTENERS = {
    "nobody": (),
    "counting": (counting.count,),
    "counting and Prometheus": (counting.count, prometheus._observe),
}
_UID = "tests.bench.{}"


@dataclass(frozen=True)
class Request:
    """In seconds."""

    latency: float
    application: float


Turns = dict[str, Request]
"""One request under each of the listeners."""


# Importing it is what the setting PROMETHEUS does, which is off here.
counted.disconnect(dispatch_uid="django_idempotency.prometheus")


def listen(request: HttpRequest) -> HttpResponse:
    """Change who is told of requests."""
    counted.disconnect(dispatch_uid="django_idempotency.numbers.counting")
    wanted = LISTENERS[request.GET["to"]]
    for receiver in LISTENERS["counting and Prometheus"]:
        counted.disconnect(dispatch_uid=_UID.format(receiver.__module__))
    for receiver in wanted:
        counted.connect(receiver, dispatch_uid=_UID.format(receiver.__module__))
    return HttpResponse(status=201)


def measure(rounds: int, environment: dict[str, str]) -> list[Turns]:
    with ApiServer(environment, workers=1, threads=1) as server:
        # Connections, plans and caches.
        send(server.address, PATH, 50, replay=False)
        workers = processor.workers(server.pid)
        return [{each: _turn(server, workers, each) for each in _shuffled()} for _ in range(rounds)]


def _shuffled() -> list[str]:
    return random.sample(list(LISTENERS), len(LISTENERS))


def _turn(server: ApiServer, workers: list[int], listener: str) -> Request:
    query = listener.replace(" ", "+")
    exchange(server.address, f"GET /listen/?to={query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), replayed=False)
    before = processor.seconds(workers)
    (latency,), _, _ = send(server.address, PATH, 1, replay=False)
    return Request(latency, processor.seconds(workers) - before)


def sentences(rounds: list[Turns]) -> Iterator[str]:
    for what, field in (("takes", "latency"), ("uses of the application's processor", "application")):
        seconds = {each: [getattr(turns[each], field) for turns in rounds] for each in LISTENERS}
        plain = seconds.pop("nobody")
        yield f"A fresh ATOMIC request {what} {median(plain) * 1000:.3f} ms without counting."
        for listener, counted_seconds in seconds.items():
            ratio = interval([counted_seconds, plain], lambda one, other: median(one) / median(other), digits=3)
            yield f"With {listener}: {ratio} times as much."
