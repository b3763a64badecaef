"""What the scenarios stand on: a site of the test's own, both modes, and data that is really committed."""

from __future__ import annotations

import logging

import pytest
from django.db import connection, connections
from django.test import TransactionTestCase

from tests.support.commits import delete_everything, validate_databases
from tests.support.modes import TRANSACTIONAL

from .site import Site


@pytest.fixture
def own_flush(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(TransactionTestCase, "_fixture_teardown", delete_everything)
        # A connection for each test would take longer than the test.
        patched.setattr(TransactionTestCase, "_should_reload_connections", lambda test_case: False)
        # Which aliases a test may use is said before it begins; some of ours make one.
        patched.setattr(TransactionTestCase, "_add_databases_failures", validate_databases)
        patched.setattr(TransactionTestCase, "_remove_databases_failures", lambda: None)
        yield


@pytest.fixture
def committed(own_flush, transactional_db):
    """COMMIT commits. The test's rows are deleted afterwards."""
    yield
    assert not connection.in_atomic_block, "a transaction was left open"
    assert connection.get_autocommit(), "the connection was left without autocommit"


@pytest.fixture
def other(committed, monkeypatch, settings):
    """A second alias: the same database, through a connection of its own."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    monkeypatch.setitem(settings.DATABASES, "other", {**connections["default"].settings_dict, "ATOMIC_REQUESTS": False})
    settings.IDEMPOTENCY = {"DATABASES": ("default", "other")}
    yield "other"
    assert not connections["other"].in_atomic_block
    connections["other"].close()
    del connections["other"]


@pytest.fixture
def site(settings):
    site = Site()
    settings.ROOT_URLCONF = site
    # Who is asking is found out by a query, as in production; what else a session holds is not what this is about.
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    # What goes wrong on purpose is looked at in the response; the log of it would drown a real failure.
    logging.getLogger("django.request").disabled = True
    yield site
    logging.getLogger("django.request").disabled = False


@pytest.fixture(params=TRANSACTIONAL, ids=lambda mode: mode.name)
def mode(request):
    return request.param


@pytest.fixture
def in_atomic_requests(monkeypatch):
    """Switch ATOMIC_REQUESTS, which connections remember, for one test."""

    def switch(on=True, alias="default"):
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", on)

    return switch
