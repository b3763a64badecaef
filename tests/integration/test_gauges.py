"""How the store stands, by every kind of store, and at what price."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_idempotency.dashboard.data import in_flight
from django_idempotency.models import IdempotencyKey
from django_idempotency.storage.base import NEVER
from django_idempotency.storage.gauges import Gauges, gauges
from tests.support.keys import new_claim


@pytest.fixture
def empty(keys):
    IdempotencyKey.objects.using(keys.alias).filter(state="in_flight").delete()
    return keys


def look(keys, stale_after=20.0):
    return gauges(connections[keys.alias], stale_after=stale_after)


def change(keys, claim, **columns):
    assert IdempotencyKey.objects.using(keys.alias).filter(id=claim.id).update(**columns)


def test_an_empty_store(empty):
    found = look(empty)
    assert (found.in_flight, found.oldest_in_flight, found.held, found.stuck) == (0, None, 0, 0)
    assert found.left_to_a_person == 0


def test_claims_are_counted_by_how_they_stand(empty):
    now = timezone.now()
    running, lapsed, held, patient = (empty.own(new_claim()) for _ in range(4))
    change(empty, running, claimed_at=now - timedelta(seconds=90))
    change(empty, lapsed, lease_expires_at=now - timedelta(seconds=25))
    change(empty, held, lease_expires_at=now - timedelta(hours=1), held_at=now, held_reason="a time-out")
    change(empty, patient, lease_expires_at=now - timedelta(seconds=25), stale_after=60.0)
    found = look(empty)
    assert (found.in_flight, found.held, found.stuck) == (4, 1, 2)
    assert found.oldest_in_flight == pytest.approx(90, abs=30)
    assert look(empty, stale_after=26.0).stuck == 1


def test_stuck_is_only_what_a_sweeper_could_take_up_now(empty):
    """What is for a person, or to be tried again later, waits for no sweeper: an alarm about it would call in vain."""
    now = timezone.now()
    for sweep_after in (NEVER, now + timedelta(minutes=5), now - timedelta(minutes=5), None):
        change(empty, empty.lapsed(new_claim()), held_at=now, held_reason="a time-out", sweep_after=sweep_after)
    found = look(empty, stale_after=0.0)
    assert (found.in_flight, found.held, found.stuck) == (4, 4, 2)
    assert len(empty.store.stale(10, stale_after=0.0)) == found.stuck
    assert found.left_to_a_person == 1


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Honolulu", "Pacific/Auckland"])
@pytest.mark.parametrize("with_zones", [True, False])
def test_what_a_sweeper_leaves_is_counted_until_somebody_decides(empty, settings, with_zones, zone):
    settings.USE_TZ, settings.TIME_ZONE = with_zones, zone
    claims = [empty.lapsed(new_claim()) for _ in range(3)]
    for claim, sweep_after in zip(claims, (None, None, 3600.0), strict=True):
        assert empty.store.hold(claim.id, claim.owner_token, "a time-out", sweep_after=sweep_after)
    assert (look(empty).held, look(empty).left_to_a_person) == (3, 2)
    assert in_flight(empty.alias)[0].for_a_person == 2, "as on the dashboard"
    assert empty.store.release(claims[0].id, claims[0].owner_token)
    assert look(empty).left_to_a_person == 1


def test_on_postgresql_the_rest_is_known_too(lab):
    alias = lab.aliases[0]
    lab.do("ANALYZE")
    before = gauges(connections[alias], stale_after=20.0)
    assert before.sealed == 0
    assert timedelta(days=8) < timedelta(seconds=before.cover) < timedelta(days=12)
    leaf = lab.ask(
        "SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'idempotency_key_sealed'::regclass LIMIT 1"
    )
    lab.do(
        "INSERT INTO idempotency_key (id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token,"
        " attempts, claimed_at, sealed_at, expires_at, response_status, sweeps)"
        " SELECT gen_random_uuid(), 'sealed', 's', 'k', '', 1, 'atomic', gen_random_uuid(),"
        " 1, now(), now(), now() + interval '1 day', 201, 0 FROM generate_series(1, 5000)",
        # Else what the session has not told of yet is added to what ANALYZE finds.
        "SELECT pg_stat_force_next_flush()",
        f"ANALYZE {leaf}",
        "ANALYZE idempotency_key_sealed",
    )
    after = gauges(connections[alias], stale_after=20.0)
    assert after.sealed == pytest.approx(5000, rel=0.05)
    assert after.size > before.size + 5000 * 100


def test_the_size_has_the_tombstones_in_it(lab):
    before = gauges(connections[lab.aliases[0]], stale_after=20.0)
    lab.do(
        "CREATE TABLE graves PARTITION OF idempotency_tombstone FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')",
        "INSERT INTO idempotency_tombstone (id, fingerprint, fingerprint_scheme, forget_at)"
        " SELECT gen_random_uuid(), '', 1, '2020-01-01 12:00+00' FROM generate_series(1, 5000)",
    )
    after = gauges(connections[lab.aliases[0]], stale_after=20.0)
    assert after.size > before.size + 5000 * 32


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
def test_no_sealed_row_is_read(empty):
    """However many there are: pages of theirs are neither fetched from the disk nor found in memory."""
    connection = connections[empty.alias]
    with CaptureQueriesContext(connection) as asked:
        look(empty)
    assert len(asked) == 4
    with connection.cursor() as cursor:
        for query in asked.captured_queries:
            cursor.execute(f"EXPLAIN (FORMAT TEXT) {query['sql']}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "on idempotency_key_sealed_" not in plan


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_on_sqlite_what_is_not_cheap_is_not_said(empty):
    empty.own(new_claim())
    found = look(empty)
    assert found == Gauges(1, found.oldest_in_flight, 0, 0, 0, None, None, None)


@pytest.mark.parametrize("zone", ["Pacific/Honolulu", "Pacific/Auckland"])
def test_ages_without_time_zone_support(empty, settings, zone):
    """Far from UTC on both sides: a claim is neither hours old nor from tomorrow."""
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    empty.own(new_claim(lease=30.0))
    found = look(empty)
    assert (found.in_flight, found.stuck) == (1, 0)
    assert found.oldest_in_flight == pytest.approx(0, abs=30)
