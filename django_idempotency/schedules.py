"""When the tasks of this app are due. For a project's settings: it imports neither Django nor Celery."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

__all__ = ["beat_schedule"]

# Sweeps that nobody took up are dropped rather than done one after the other when the workers are back. Not sooner: it
# is the clock of another machine that a worker compares with its own.
_KEPT_FOR = timedelta(minutes=10)


def beat_schedule(
    *,
    sweep_every: timedelta = timedelta(minutes=1),
    make_partitions_every: timedelta | None = timedelta(hours=6),
    prune_every: timedelta | None = timedelta(hours=1),
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Entries for Celery's ``beat_schedule``.

    :param sweep_every: how long a stale claim waits at most. A sweep that finds none is one query a database.
    :param make_partitions_every: None where the workers' role may not create tables.
    :param prune_every: None where it may not drop them.
    :param options: how the tasks are sent, such as ``queue="low"``.
    """
    due = {"sweep": sweep_every, "make_partitions": make_partitions_every, "prune": prune_every}
    return {
        f"idempotency-{name}": {
            "task": f"django_idempotency.tasks.{name}",
            "schedule": every,
            "options": {"expires": max(every, _KEPT_FOR).total_seconds(), **options},
        }
        for name, every in due.items()
        if every is not None
    }
