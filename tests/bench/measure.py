"""The variants, and rounds in which each of them has its turn."""

from __future__ import annotations

import random
from dataclasses import dataclass

from example_project.serving import ApiServer

from . import processor
from .load import Block, Clients
from .peers import INSTALLED


@dataclass(frozen=True)
class Variant:
    """What is compared. ``floor`` names the variant that does the same by hand."""

    name: str
    path: str
    floor: str | None = None
    replay: bool = False


UNPROTECTED = Variant("unprotected", "/unprotected/")
FLOOR_ATOMIC = Variant("floor, ATOMIC", "/floor-atomic/")
FLOOR_LEASED = Variant("floor, LEASED", "/floor-leased/")
PEERS = tuple(Variant(f"{name} {number}", f"/{name}/") for name, number in INSTALLED.items())
FLOOR_REPLAY = Variant("floor, replay", "/floor-atomic/", replay=True)
VARIANTS = (
    UNPROTECTED,
    FLOOR_ATOMIC,
    Variant("ATOMIC", "/atomic/", FLOOR_ATOMIC.name),
    FLOOR_LEASED,
    Variant("LEASED", "/leased/", FLOOR_LEASED.name),
    *PEERS,
    FLOOR_REPLAY,
    Variant("replay", "/atomic/", FLOOR_REPLAY.name, replay=True),
)


@dataclass(frozen=True)
class Turn:
    """One block of one variant, with the processor time of one request, in seconds."""

    block: Block
    application: float
    database: float


Round = dict[str, Turn]


def rounds(server: ApiServer, count: int, *, clients: int, requests: int) -> list[Round]:
    """``count`` rounds; in each, every variant has one block of ``requests`` for each client, in random order."""
    with Clients(server.address, clients) as sending:
        # Connections, plans and caches are made in a round that does not count.
        _round(server, sending, 2 * requests)
        return [_round(server, sending, requests) for _ in range(count)]


def _round(server: ApiServer, clients: Clients, requests: int) -> Round:
    return {each.name: _turn(server, clients, each, requests) for each in random.sample(VARIANTS, len(VARIANTS))}


def _turn(server: ApiServer, clients: Clients, variant: Variant, requests: int) -> Turn:
    workers, backends = processor.workers(server.pid), processor.backends()
    application, database = processor.seconds(workers), processor.seconds(backends)
    block = clients.block(variant.path, requests, replay=variant.replay)
    sent = len(block.latencies) + variant.replay * clients.count
    return Turn(
        block,
        (processor.seconds(workers) - application) / sent,
        (processor.seconds(backends) - database) / sent,
    )
