"""What counting costs a request: the same view under two servers, one of which counts.

Requests go to one and to the other in turn, since what is looked for is smaller than how the machine's mood changes
within a block of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from example_project.serving import ApiServer

from . import processor
from .load import send
from .report import interval

PATH = "/atomic/"


@dataclass(frozen=True)
class Request:
    """In seconds."""

    latency: float
    application: float


Pair = tuple[Request, Request]
"""With counting, and without."""


def measure(pairs: int, environment: dict[str, str]) -> list[Pair]:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ApiServer(environment | {"BENCH_COUNTING": counting}, workers=1, threads=1))
            for counting in ("true", "false")
        ]
        for server in servers:
            send(server.address, PATH, 50, replay=False)
        workers = [processor.workers(server.pid) for server in servers]
        return [_pair(servers, workers) for _ in range(pairs)]


def _pair(servers: list[ApiServer], workers: list[list[int]]) -> Pair:
    sent: dict[int, Request] = {}
    for which in random.sample((0, 1), 2):
        before = processor.seconds(workers[which])
        (latency,), _, _ = send(servers[which].address, PATH, 1, replay=False)
        sent[which] = Request(latency, processor.seconds(workers[which]) - before)
    return sent[0], sent[1]


def sentences(pairs: list[Pair]) -> Iterator[str]:
    for what, field in (("takes", "latency"), ("uses of the application's processor", "application")):
        counted, plain = ([getattr(request, field) for request in column] for column in zip(*pairs, strict=True))
        ratio = interval([counted, plain], lambda one, other: median(one) / median(other), digits=3)
        yield (
            f"A fresh ATOMIC request {what} {median(counted) * 1000:.3f} ms with counting and "
            f"{median(plain) * 1000:.3f} ms without: {ratio} times as much."
        )
