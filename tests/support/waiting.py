"""Waiting for what a test needs, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from django.db import connection

Seen = TypeVar("Seen")


def eventually(look: Callable[[], Seen | None], what: str, *, within: float = 20.0) -> Seen:
    """Look until there is something to see, and return it.

    :raises AssertionError: there is nothing until the deadline.
    """
    deadline = time.monotonic() + within
    while not (seen := look()):
        assert time.monotonic() < deadline, f"{what}: not within {within:g} s"
        time.sleep(0.005)
    return seen


def waiting_sessions(containing: str = "") -> list[int]:
    """Sessions in this database that wait for a lock, in a statement that holds a text."""
    return _sessions("wait_event_type = 'Lock'", containing)


def sessions(containing: str = "") -> list[int]:
    """Other sessions of this database whose last statement holds a text."""
    return _sessions("true", containing)


def _sessions(condition: str, containing: str) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            f"AND backend_type = 'client backend' AND position(%s in query) > 0 AND {condition}",
            (containing,),
        )
        return [pid for (pid,) in cursor.fetchall()]


def until_waiting(count: int = 1, *, containing: str = "idempotency_claim") -> list[int]:
    """The sessions that wait for a lock, once there are as many as the test needs."""
    return eventually(
        lambda: pids if len(pids := waiting_sessions(containing)) >= count else None,
        f"{count} session(s) wait for a lock in {containing!r}",
    )
