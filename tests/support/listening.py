"""Hears what the app tells of requests and records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from django_idempotency.signals import counted
from django_idempotency.storage.transactions import within_test_case


class Heard:
    """What was told since the last look."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self.within: list[str] = []
        """Aliases on which a transaction was open, other than a TestCase's."""

    def __call__(self, sender: object, signal: object, **told: Any) -> None:
        assert sender is told["outcome"]
        self.all.append(told)
        open_blocks = [each for each in connections.all(initialized_only=True) if each.in_atomic_block]
        self.within += [each.alias for each in open_blocks if not within_test_case(each)]

    def take(self) -> list[str]:
        told, self.all = self.all, []
        return [each["outcome"].value for each in told]


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    counted.connect(heard)
    yield heard
    counted.disconnect(heard)
    assert heard.within == [], "told inside a transaction"
