"""A key whose time is over: run as new, or refused where the setting TOMBSTONES is on. Through every way in."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from django_idempotency import IdempotencyMode
from django_idempotency.core.intervals import Interval
from django_idempotency.models import IdempotencyKey, Tombstone
from django_idempotency.storage import partitions
from django_idempotency.storage.transactions import own_connection
from tests.support.listening import heard

from .site import BODY, Handling, assert_replays, problem, records, rows
from .table import answers
from .ways import every_way, every_way_and_mode, viewset

__all__ = ["heard"]

pytestmark = pytest.mark.usefixtures("committed")

MONTH = timedelta(days=30)


def expire():
    IdempotencyKey.objects.update(expires_at=timezone.now())


@pytest.fixture
def bury():
    """Replace the records by their tombstones, as pruning does."""
    leaves = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'idempotency_tombstone'::regclass"

    def bury(lasting=MONTH):
        until = timezone.now() + lasting
        if connection.vendor == "postgresql":
            with own_connection("default") as own, partitions.creating(own):
                span = Interval(until - MONTH, until + MONTH)
                partitions.create_leaves(own, [span], partitions.TOMBSTONES)
        for key in IdempotencyKey.objects.all():
            Tombstone.objects.create(
                id=key.id, fingerprint=key.fingerprint, fingerprint_scheme=key.fingerprint_scheme, forget_at=until
            )
        IdempotencyKey.objects.all().delete()

    yield bury
    if connection.vendor == "postgresql":
        with own_connection("default") as own, own.cursor() as cursor:
            cursor.execute(leaves)
            for (name,) in cursor.fetchall():
                cursor.execute(f"DROP TABLE {name}")


def assert_refused(response):
    assert (response.status_code, problem(response)) == (422, "key-expired")
    assert "Retry-After" not in response.headers, "repeating it never helps"


@pytest.fixture
def for_a_month(settings):
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"TOMBSTONES": MONTH}


@every_way_and_mode
def test_a_refusal_is_counted_as_late(site, heard, way, mode, bury, for_a_month):
    site.add(way(Handling(answers()), {"mode": mode}))
    site.send()
    expire()
    assert_refused(site.send())
    bury()
    assert_refused(site.send())
    assert heard.take() == ["new", "late", "late"]


@every_way_and_mode
def test_by_default_it_runs_as_new(site, way, mode, bury):
    site.add(way(Handling(answers()), {"mode": mode}))
    assert site.send().status_code == 201
    expire()
    assert site.send().status_code == 201
    assert (rows(), records("sealed")) == (2, 1)
    bury()
    assert site.send().status_code == 201


@every_way_and_mode
def test_where_that_is_wanted_it_is_refused_with_the_record_and_without_it(site, way, mode, for_a_month, bury):
    handler = Handling(answers())
    site.add(way(handler, {"mode": mode}))
    first = site.send()
    assert_replays(site.send(), first)
    expire()
    assert_refused(site.send())
    assert (rows(), records("sealed"), records("in_flight")) == (1, 1, 0)
    bury()
    assert_refused(site.send())
    assert (rows(), records()) == (1, 0), "nothing is left of the attempt"
    assert handler.entered == 1
    assert site.send("another-key").status_code == 201, "the same request, when the client is sure"


@every_way
def test_another_request_under_that_key_hears_the_same(site, way, for_a_month, bury):
    site.add(way(Handling(answers()), {}))
    site.send()
    expire()
    other = BODY | {"amount": "9.99"}
    assert_refused(site.send(body=other))
    bury()
    assert_refused(site.send(body=other))
    assert rows() == 1


def test_whoever_else_uses_that_key_has_another_one(site, for_a_month, bury):
    site.add(viewset(Handling(answers()), {}))
    site.send()
    bury()
    assert site.send(user="bob").status_code == 201


def test_when_the_tombstones_time_is_over_it_runs_as_new(site, for_a_month, bury):
    site.add(viewset(Handling(answers()), {}))
    site.send()
    bury(lasting=timedelta(0))
    assert site.send().status_code == 201
    assert rows() == 2


def test_a_released_key_was_never_used_up(site, for_a_month):
    site.add(viewset(Handling(answers(400), answers()), {}))
    assert site.send().status_code == 400
    assert site.send().status_code == 201


def test_in_phased_mode_as_well(site, for_a_month, bury):
    site.add(viewset(Handling(answers()), {"operation": "charge"}))
    handler = Handling(answers())
    site.add(viewset(handler, {"operation": "charge", "mode": IdempotencyMode.PHASED}), name="phased")
    site.send()
    expire()
    assert_refused(site.send(to="/phased/"))
    bury()
    assert_refused(site.send(to="/phased/"))
    assert handler.entered == 0
