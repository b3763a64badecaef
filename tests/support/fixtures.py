"""What the tests with processes and connections of their own have in common."""

from __future__ import annotations

import pytest
from django.db import connection, connections
from django.test import TransactionTestCase

from example_project.payments import ledger

from .commits import delete_everything
from .crowds import Crowd
from .payer import Payer


@pytest.fixture
def quick_flush(monkeypatch):
    if connection.vendor != "postgresql":
        pytest.skip("this is about the locks and the processes of PostgreSQL")
    monkeypatch.setattr(TransactionTestCase, "_fixture_teardown", delete_everything)


@pytest.fixture
def committed(quick_flush, transactional_db):
    """COMMIT commits. The books are looked at when the test is over."""
    yield
    assert ledger.is_balanced()


@pytest.fixture
def payer(committed):
    return Payer()


@pytest.fixture
def crowd(committed):
    with Crowd() as crowd:
        yield crowd


@pytest.fixture(autouse=True)
def what_the_server_says(request):
    """Shown by pytest beside a failure."""
    if "api" not in request.fixturenames:
        yield
        return
    api = request.getfixturevalue("api")
    said = len(api.log())
    yield
    print(api.log()[said:])


@pytest.fixture
def two_aliases(settings, monkeypatch):
    """A second alias of the same database; what was asked of it is told by its connection."""
    monkeypatch.setitem(settings.DATABASES, "other", connections["default"].settings_dict)
    settings.IDEMPOTENCY = {"DATABASES": ("default", "other")}
    connections["other"] = connections["default"]
    yield
    del connections["other"]
