"""Pruners as processes of their own, which can be killed."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from typing import Any

from django.conf import settings
from django.db import connections

_SPAWN = multiprocessing.get_context("spawn")


def queue() -> SimpleQueue[int]:
    """Where pruners say how many rows they removed."""
    return _SPAWN.SimpleQueue()


def start(alias: str, *, failpoints: str = "", told: SimpleQueue[int] | None = None) -> SpawnProcess:
    """One that prunes the database of an alias once, with the settings of this process.

    It ends with 0, or with 3 where another pruner was at work.
    """
    arguments = (connections.settings[alias], settings.IDEMPOTENCY, failpoints, told)
    process = _SPAWN.Process(target=_prune, args=arguments)
    process.start()
    return process


def _prune(
    entry: dict[str, Any], idempotency: dict[str, Any], specification: str, told: SimpleQueue[int] | None
) -> None:
    import django

    django.setup()
    from django_idempotency import failpoints
    from django_idempotency.conf import current
    from django_idempotency.pruning import AnotherPruner, prune

    connections.settings["pruned"] = entry
    settings.IDEMPOTENCY = idempotency | {"DATABASES": ("pruned",)}
    current.cache_clear()
    failpoints.arm(specification)
    try:
        pruned = list(prune("pruned"))
    except AnotherPruner:
        raise SystemExit(3) from None
    if told is not None:
        told.put(sum(each.rows for each in pruned))
