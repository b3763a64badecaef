"""Failpoints as a test uses them: armed while a request is on its way, in this process or in a server's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django_idempotency import failpoints

from .waiting import eventually


@dataclass(frozen=True)
class Armed:
    """One failpoint that the next process to come by obeys, and no other."""

    marker: Path
    go_ahead: Path

    @property
    def reached(self) -> bool:
        return self.marker.exists()

    def wait(self) -> None:
        eventually(lambda: self.reached, f"{self.marker.name} is reached")

    def go(self) -> None:
        self.go_ahead.touch()


class Failpoints:
    """Every failpoint with one action, all disarmed: the marker that makes each act only once is there already."""

    def __init__(self, folder: Path, action: str, points: Sequence[str] = failpoints.POINTS) -> None:
        self._folder, self._suffix = folder, ".reached" if action == "wait" else ""
        self.specification = ",".join(f"{point}:{action}@{self._path(point)}" for point in points)
        for point in points:
            self._at(point).marker.touch()

    @contextmanager
    def armed(self, point: str) -> Iterator[Armed]:
        armed = self._at(point)
        armed.go_ahead.unlink(missing_ok=True)
        armed.marker.unlink()
        try:
            yield armed
        finally:
            armed.marker.touch()
            armed.go()

    def _at(self, point: str) -> Armed:
        path = self._path(point)
        return Armed(path.with_name(path.name + self._suffix), path.with_name(path.name + ".go"))

    def _path(self, point: str) -> Path:
        return self._folder / point.replace("/", " ")
