"""Expired rows on a database without partitions: deleted in batches that are ordered, bounded and resumable."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_idempotency.core.pruning import MARGIN
from django_idempotency.core.states import Verdict
from django_idempotency.models import Tombstone
from django_idempotency.pruning import Fate, prune
from django_idempotency.storage import batches
from tests.support.keys import Keys, new_claim, rival_of
from tests.support.laboratory import LaboratoryFile, empty

HOUR = timedelta(hours=1)


@pytest.fixture
def file(sqlite_file, django_db_blocker):
    with django_db_blocker.unblock():
        made = LaboratoryFile(sqlite_file)
        alias = made.session()
        empty(alias)
        yield made
        empty(alias)
        made.close()


@pytest.fixture
def keys(file):
    return Keys(file.aliases[0])


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(batches, "SIZE", 3)
    monkeypatch.setattr(batches, "_AT_A_TIME", 7)


def expired(keys, count=1, ago=2 * HOUR):
    """The longest expired first."""
    return [
        keys.sealed(new_claim(), retention=-(ago + timedelta(minutes=count - number)).total_seconds())
        for number in range(count)
    ]


def there(keys, claims):
    return [keys.count(claim) for claim in claims]


def outcome(keys, **how):
    return [(each.name, each.fate, each.rows) for each in prune(keys.alias, **how)]


def test_what_has_expired_goes_and_nothing_else(keys):
    gone = expired(keys, 3)
    kept = [keys.sealed(new_claim()), *expired(keys, ago=MARGIN - timedelta(minutes=2)), keys.own(new_claim())]
    lapsed = keys.lapsed(new_claim())
    assert outcome(keys, dry_run=True) == [("idempotency_key", Fate.DUE, 3)]
    assert outcome(keys) == [("idempotency_key", Fate.DELETED, 3)]
    assert there(keys, gone) == [0, 0, 0]
    assert there(keys, [*kept, lapsed]) == [1, 1, 1, 1], "the margin, and what is in flight, however old"
    assert outcome(keys) == outcome(keys, dry_run=True) == [], "of what did not go nothing is said"


def test_in_batches_the_oldest_first_and_resumable(keys, small, monkeypatch):
    claims = expired(keys, 10)
    seen = []

    def stop(what, done, of):
        seen.append(done)
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(prune(keys.alias, progress=stop))
    assert seen == [3, 6]
    assert there(keys, claims) == [0] * 6 + [1] * 4
    assert outcome(keys) == [("idempotency_key", Fate.DELETED, 4)]


def test_every_batch_is_a_transaction_of_its_own(keys, small):
    expired(keys, 7)
    with CaptureQueriesContext(connections[keys.alias]) as captured:
        outcome(keys)
    queries = [query["sql"] for query in captured.captured_queries]
    statements = [query.split()[0] for query in queries if "idempotency_outcome_count" not in query]
    assert statements.count("DELETE") == statements.count("BEGIN") == statements.count("COMMIT") == 3
    assert not connections[keys.alias].in_atomic_block


@pytest.mark.parametrize("how", ["in flight", "sealed"])
def test_a_key_that_is_claimed_again_before_its_batch_survives(keys, small, how):
    claims = expired(keys, 4)
    rival = Keys(keys.alias)
    again = rival_of(claims[-1])

    def meanwhile(what, done, of):
        if not rival.count(again) or rival.store.find(again.id).owner_token != again.owner_token:
            (rival.own if how == "in flight" else rival.sealed)(again)

    assert [each.rows for each in prune(keys.alias, progress=meanwhile)] == [3]
    assert there(keys, claims) == [0, 0, 0, 1]
    assert keys.store.find(again.id).owner_token == again.owner_token


def test_tombstones_are_made_in_the_transaction_that_deletes(keys, small, settings):
    settings.IDEMPOTENCY = {"TOMBSTONES": timedelta(days=30)}
    claims = expired(keys, 4)
    (told,) = prune(keys.alias)
    assert (told.rows, told.buried) == (4, 4)
    for claim in claims:
        answer = keys.claim(rival_of(claim, refuse_expired_for=60.0))
        assert answer.verdict is Verdict.EXPIRED
    tombstone = Tombstone.objects.using(keys.alias).get(id=claims[0].id)
    assert bytes(tombstone.fingerprint) == claims[0].fingerprint
    assert timedelta(days=29) < tombstone.forget_at - timezone.now() < timedelta(days=30)


def test_a_key_that_expires_a_second_time_is_buried_anew(keys, settings):
    settings.IDEMPOTENCY = {"TOMBSTONES": timedelta(days=30)}
    (claim,) = expired(keys, ago=20 * timedelta(days=1))
    outcome(keys)
    keys.sealed(rival_of(claim), retention=-7200.0)
    outcome(keys)
    (forget_at,) = Tombstone.objects.using(keys.alias).values_list("forget_at", flat=True)
    assert forget_at - timezone.now() > timedelta(days=29)


def test_tombstones_whose_time_is_over_go(keys, small):
    for number in range(5):
        moment = timezone.now() - 2 * HOUR if number < 4 else timezone.now() + HOUR
        Tombstone.objects.using(keys.alias).create(
            id=new_claim().id, fingerprint=b"f", fingerprint_scheme=1, forget_at=moment
        )
    assert outcome(keys, dry_run=True) == [("idempotency_tombstone", Fate.DUE, 4)]
    assert outcome(keys) == [("idempotency_tombstone", Fate.DELETED, 4)]
    assert outcome(keys, dry_run=True) == outcome(keys) == []
    assert Tombstone.objects.using(keys.alias).count() == 1


def test_what_would_be_forgotten_at_once_is_not_buried(keys, settings):
    """A dry run knows of no tombstone that the run itself makes."""
    settings.IDEMPOTENCY = {"TOMBSTONES": timedelta(days=1)}
    expired(keys, ago=timedelta(days=2))
    expired(keys)
    assert outcome(keys, dry_run=True) == [("idempotency_key", Fate.DUE, 2)]
    (told,) = prune(keys.alias)
    assert (told.rows, told.buried) == (2, 1)


def test_a_record_that_is_not_deleted_in_time_refuses_no_longer_than_a_tombstone(keys):
    (claim,) = expired(keys, ago=timedelta(days=30))
    for days, verdict in ((31, Verdict.EXPIRED), (29, Verdict.CLAIMED)):
        rival = rival_of(claim, refuse_expired_for=timedelta(days=days).total_seconds())
        assert keys.claim(rival).verdict is verdict


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Auckland"])
def test_without_time_zone_support_the_hour_is_the_same(file, settings, zone):
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    settings.IDEMPOTENCY = {"TOMBSTONES": timedelta(days=30)}
    keys = Keys(file.session())
    (gone,), (kept,) = expired(keys), expired(keys, ago=MARGIN - timedelta(minutes=2))
    assert outcome(keys) == [("idempotency_key", Fate.DELETED, 1)]
    assert there(keys, [gone, kept]) == [0, 1]
    assert keys.claim(rival_of(gone, refuse_expired_for=60.0)).verdict is Verdict.EXPIRED
