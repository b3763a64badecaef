"""What the scenarios stand on: a site of the test's own, both modes, and data that is really committed."""

from __future__ import annotations

import logging

import pytest
from django.db import connection, connections
from django.test import TransactionTestCase

from django_idempotency import IdempotencyMode
from tests.support.commits import delete_everything

from .site import Site


@pytest.fixture
def quick_flush(monkeypatch):
    monkeypatch.setattr(TransactionTestCase, "_fixture_teardown", delete_everything)


@pytest.fixture
def committed(quick_flush, transactional_db):
    """COMMIT commits. The test's rows are deleted afterwards."""
    yield
    assert not connection.in_atomic_block, "a transaction was left open"
    assert connection.get_autocommit(), "the connection was left without autocommit"


@pytest.fixture
def site(settings):
    site = Site()
    settings.ROOT_URLCONF = site
    # What goes wrong on purpose is looked at in the response; the log of it would drown a real failure.
    logging.getLogger("django.request").disabled = True
    yield site
    logging.getLogger("django.request").disabled = False


@pytest.fixture(params=IdempotencyMode, ids=lambda mode: mode.name)
def mode(request):
    return request.param


@pytest.fixture
def in_atomic_requests(monkeypatch):
    """Switch ATOMIC_REQUESTS, which connections remember, for one test."""

    def switch(on=True, alias="default"):
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", on)

    return switch
