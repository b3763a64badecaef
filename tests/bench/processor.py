"""Processor time of other processes: what a request costs, whatever else the machine does meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from django.db import connection

_PROC = Path("/proc")


def workers(master: int) -> list[int]:
    """The children of gunicorn's master."""
    return [int(status.parent.name) for status in _PROC.glob("[0-9]*/stat") if _parent(status) == master]


def backends() -> list[int]:
    """The database's processes that serve others than this one; none of them if they run on another machine."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        pids = [pid for (pid,) in cursor.fetchall()]
    return [pid for pid in pids if _is_postgres(pid)]


def seconds(pids: Iterable[int]) -> float:
    """What ``pids`` have used so far, all their threads together."""
    used = 0
    for pid in pids:
        for path in (_PROC / str(pid) / "task").glob("*/schedstat"):
            with suppress(OSError):  # a thread that just ended
                used += int(path.read_text().split()[0])
    return used / 1e9


def _parent(status: Path) -> int | None:
    try:
        # The name, in parentheses, may hold anything; state and parent follow it.
        return int(status.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _is_postgres(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "comm").read_text().startswith("postgres")
    except OSError:
        return False
