"""Threads that act beside the test, each on a database connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections

if TYPE_CHECKING:
    from typing_extensions import Self

Result = TypeVar("Result")


class Crowd:
    """As many threads as are asked for. Leaving waits for all of them."""

    def __init__(self, size: int = 64) -> None:
        self._pool = ThreadPoolExecutor(size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def start(self, act: Callable[..., Result], *arguments: Any, **named: Any) -> Future[Result]:
        return self._pool.submit(_on_own_connection, act, *arguments, **named)

    def at_once(self, count: int, act: Callable[[], Result]) -> list[Result]:
        """The same act from ``count`` threads that wait for each other before they begin."""
        return self.all_at_once([act] * count)

    def all_at_once(self, acts: list[Callable[[], Result]]) -> list[Result]:
        together = threading.Barrier(len(acts))

        def after_the_others(act: Callable[[], Result]) -> Result:
            together.wait(30)
            return act()

        futures = [self.start(after_the_others, act) for act in acts]
        return [future.result(60) for future in futures]


def _on_own_connection(act: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
    try:
        return act(*arguments, **named)
    finally:
        connections.close_all()
