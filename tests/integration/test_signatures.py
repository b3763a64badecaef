"""Signs of broken clients in what is recorded and counted, as ``status`` tells them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_idempotency.core.counted import Counted
from django_idempotency.core.signatures import Kind
from django_idempotency.dashboard import data
from django_idempotency.dashboard.ranges import USUAL
from django_idempotency.models import IdempotencyKey, OutcomeCount
from django_idempotency.numbers.signatures import last_sweep, signatures, sums
from django_idempotency.storage import counts, sections
from django_idempotency.storage.twins import twins
from tests.support.keys import new_claim
from tests.support.workshops import on_both_stores


@pytest.fixture
def keys(backend, settings):
    keys = backend.session()
    settings.IDEMPOTENCY = {"DATABASES": (keys.alias,)}
    IdempotencyKey.objects.using(keys.alias).all().delete()
    OutcomeCount._default_manager.using(keys.alias).all().delete()
    return keys


@pytest.fixture
def route():
    return f"shop.{uuid4().hex}:POST"


def attempts(keys, route, number, *, apart=2.0, fingerprint=None, principal="user:5"):
    """As a client sends them that makes a new key each time."""
    content = fingerprint or uuid4().bytes * 2
    now = timezone.now()
    for nth in range(number):
        claim = keys.sealed(replace(new_claim(scope=f"{principal} {route}"), fingerprint=content))
        row = IdempotencyKey.objects.using(keys.alias).filter(pk=claim.id)
        row.update(claimed_at=now - timedelta(minutes=5) + timedelta(seconds=apart * nth))


def found(keys, route, within=10.0):
    return [(each.twins, each.records) for each in twins(connections[keys.alias], within=within) if each.route == route]


@on_both_stores
class TestTwins:
    def test_a_key_for_each_attempt(self, keys, route):
        attempts(keys, route, 4)
        assert found(keys, route) == [(3, 4)]

    def test_equal_requests_that_are_far_apart(self, keys, route):
        attempts(keys, route, 4, apart=11)
        assert found(keys, route) == [(0, 4)]
        assert found(keys, route, within=12.0) == [(3, 4)]

    def test_equal_requests_of_two_callers(self, keys, route):
        for principal in ("user:5", "user:6"):
            attempts(keys, route, 1, fingerprint=b"f" * 32, principal=principal)
        assert found(keys, route) == [(0, 2)]

    def test_other_requests_of_one_caller(self, keys, route):
        for _ in range(3):
            attempts(keys, route, 1)
        assert found(keys, route) == [(0, 3)]

    def test_only_what_is_recent(self, keys, route):
        attempts(keys, route, 3)
        old = timezone.now() - timedelta(hours=25)
        IdempotencyKey.objects.using(keys.alias).filter(scope__endswith=route).update(claimed_at=old)
        assert found(keys, route) == []

    def test_only_the_end_of_each_leaf_is_read(self, keys, route, monkeypatch):
        monkeypatch.setattr(sections, "_LATEST_BLOCKS", 1)
        monkeypatch.setattr(sections, "_LATEST_ROWS", 3)
        attempts(keys, route, 60)
        ((seen, of),) = found(keys, route)
        assert 0 < of < 60
        assert seen == of - 1

    def test_nothing_at_all(self, keys):
        assert list(twins(connections[keys.alias], within=10.0)) == []

    def test_it_is_told(self, keys, route):
        attempts(keys, route, 6)
        (signature,) = signatures(keys.alias)
        assert (signature.kind, signature.route, signature.cases, signature.of) == (Kind.MINTED, route, 5, 6)


@on_both_stores
def test_the_counts_of_a_day_and_of_an_hour(keys):
    now = timezone.now().replace(second=0, microsecond=0)
    lines = [("a:POST", Counted.NEW, 2, 0), ("a:POST", Counted.NEW, 3, 50), ("b:POST", Counted.MISMATCH, 5, 120),
             ("a:POST", Counted.NEW, 7, 1500), (keys.alias, Counted.SWEEP, 9, 1)]  # fmt: skip
    for route, outcome, n, minutes in lines:
        OutcomeCount(minute=now - timedelta(minutes=minutes), route=route, outcome=outcome.value, n=n).save(
            using=keys.alias, force_insert=True
        )
    assert sums(since=timedelta(hours=1)) == {"a:POST": {"new": 5}}
    assert sums(since=timedelta(days=1)) == {"a:POST": {"new": 5}, "b:POST": {"mismatch": 5}}


@on_both_stores
def test_where_nothing_is_counted_nobody_looks_at_the_counts(keys, settings):
    """The role may have no right to."""
    counts.add(connections[keys.alias], {(int(time.time() // 60), keys.alias, "sweep"): 1})
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"COUNTS": False}
    with CaptureQueriesContext(connections[keys.alias]) as asked:
        with suppress(CommandError):
            call_command("idempotency", "status", stdout=StringIO())
        data.history(keys.alias, USUAL, timezone.now())
    assert not [each["sql"] for each in asked if 'idempotency_outcome_count"' in each["sql"]]


@on_both_stores
def test_status_has_a_line_for_each_with_what_to_do(keys, route):
    attempts(keys, route, 6)
    now = timezone.now().replace(second=0, microsecond=0)
    for outcome, n in ((Counted.MISMATCH, 40), (Counted.NEW, 60), (Counted.LATE, 1), (Counted.CONFLICT, 60)):
        OutcomeCount(minute=now, route=route, outcome=outcome.value, n=n).save(using=keys.alias, force_insert=True)
    out = StringIO()
    with suppress(CommandError):
        call_command("idempotency", "status", stdout=out)
    for line in ("5 of the last 6 records repeat", "60 of 161 requests in a day were told to come back",
                 "40 of 161 requests in a day had the key", "1 of 161 requests in a day came after"):  # fmt: skip
        assert f"  {route}: {line}" in out.getvalue()
    out = StringIO()
    with suppress(CommandError):
        call_command("idempotency", "status", "--json", stdout=out)
    (database,) = json.loads(out.getvalue())["databases"]
    assert {each["kind"] for each in database["signatures"]} == {"minted", "never_replayed", "reused", "late"}
    assert all(each["advice"] for each in database["signatures"])


@on_both_stores
@pytest.mark.parametrize("zone", ["Pacific/Honolulu", "Pacific/Auckland"])
def test_without_time_zone_support_what_was_just_counted_is_of_now(keys, settings, zone):
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    minute = int(time.time() // 60)
    counts.add(
        connections[keys.alias],
        {(minute, "a:POST", "new"): 2, (minute - 120, "a:POST", "new"): 5, (minute, keys.alias, "sweep"): 1},
    )
    assert sums(since=timedelta(hours=1)) == {"a:POST": {"new": 2}}
    assert last_sweep(keys.alias) < timedelta(minutes=3)
