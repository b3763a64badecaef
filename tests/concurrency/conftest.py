from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connections

from django_idempotency import failpoints
from tests.support.fixtures import committed, crowd, payer, quick_flush, what_the_server_says
from tests.support.laboratory import lab, laboratory_database, sqlite_file
from tests.support.pauses import Failpoints

__all__ = [
    "committed",
    "crowd",
    "lab",
    "laboratory_database",
    "payer",
    "quick_flush",
    "sqlite_file",
    "what_the_server_says",
]


@pytest.fixture
def pausing(tmp_path):
    """Failpoints of this process at which a thread waits until it is told to go on."""
    pausing = Failpoints(tmp_path, "wait")
    failpoints.arm(pausing.specification)
    yield pausing
    failpoints.arm("")


@pytest.fixture
def configure(settings):
    """Change settings of the app for one test."""

    def configure(**changed):
        settings.IDEMPOTENCY = settings.IDEMPOTENCY | changed

    return configure


@pytest.fixture
def short_leases(configure):
    """Leases of a second, the shortest there are: renewed three times in that second."""
    configure(LEASE=timedelta(seconds=1))


@pytest.fixture
def atomic_requests(monkeypatch):
    """Every connection that is opened during the test has ATOMIC_REQUESTS on."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
