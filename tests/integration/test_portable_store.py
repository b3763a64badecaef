"""What is particular about keeping keys in one plain table: one writer, whose lock is the database's own."""

from __future__ import annotations

import time

import pytest
from django.db import connections

from django_idempotency import IdempotencyMode, IdempotencyPolicy, retention
from django_idempotency.conf import current
from django_idempotency.core.errors import StoreUnavailable
from django_idempotency.core.fingerprint import Content, EmptyBody
from django_idempotency.core.states import Verdict
from django_idempotency.ownership import Outcome
from django_idempotency.request_transactions import RequestTransactions
from django_idempotency.service import Execution, Intent
from django_idempotency.storage.portable import PortableStore
from tests.support.keys import CREATED, Keys, new_claim, rival_of
from tests.support.laboratory import LaboratoryFile
from tests.support.modes import TRANSACTIONAL


@pytest.fixture
def file(sqlite_file, django_db_blocker):
    with django_db_blocker.unblock():
        made = LaboratoryFile(sqlite_file)
        yield made
        made.close()


@pytest.fixture
def keys(file):
    return Keys(file.session())


@pytest.fixture
def begin(settings):
    """Begin a keyed request; the execution is at its handler, or the record to replay is returned."""

    def begin(alias, mode, key):
        settings.IDEMPOTENCY = {"DATABASES": ["default", alias]}
        execution = Execution(RequestTransactions())
        intent = Intent("auth.user:5 charge:POST", key, Content(method="POST", principal="", body=EmptyBody()))
        return execution.claim(intent, current().resolve(IdempotencyPolicy(using=alias, mode=mode))) or execution

    return begin


def test_a_rival_that_cannot_get_the_one_writers_lock_is_told_that_the_store_is_out(file, keys, begin):
    rival = file.session()
    with keys.atomic():
        keys.own(new_claim())
        for mode in TRANSACTIONAL:
            with pytest.raises(StoreUnavailable):
                begin(rival, mode, "locked")
            assert not connections[rival].in_atomic_block
    begin(rival, IdempotencyMode.ATOMIC, "locked").abandon()


@pytest.mark.parametrize("mode", TRANSACTIONAL)
def test_a_request_needs_no_partition_and_no_renewal(file, begin, mode, monkeypatch):
    monkeypatch.setattr(retention, "ensure_leaf", lambda *_: pytest.fail("there is none"))
    alias, key = file.session(), f"once {mode.value}"
    begin(alias, mode, key).finish(Outcome(201, lambda: CREATED))
    assert begin(alias, mode, key).response == CREATED


@pytest.mark.parametrize("mode", TRANSACTIONAL)
def test_a_view_that_raised_is_undone_and_its_answer_recorded(file, begin, mode):
    alias, key = file.session(), f"raised {mode.value}"
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE TABLE raised_effect (n int)")
    execution = begin(alias, mode, key)
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO raised_effect VALUES (1)")
    execution.undo()
    execution.finish(Outcome(402, lambda: CREATED))
    assert file.ask("SELECT count(*) FROM raised_effect", alias=alias) == 0
    assert begin(alias, mode, key).response == CREATED
    file.do("DROP TABLE raised_effect", alias=alias)


@pytest.mark.parametrize(("stands", "verdict"), [(True, Verdict.FOUND), (False, Verdict.WAITED)])
def test_a_row_that_appears_between_the_look_and_the_insert_is_never_an_empty_answer(
    keys, monkeypatch, stands, verdict
):
    claim = keys.own(new_claim())
    looks = iter([None, keys.store.find(claim.id) if stands else None])
    monkeypatch.setattr(PortableStore, "_standing", lambda *_: next(looks))
    answer = keys.claim(rival_of(claim))
    assert answer.verdict is verdict
    assert (answer.record is not None) is stands


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_leases_and_expiry_count_without_time_zone_support_as_well(file, settings, zone):
    settings.USE_TZ = False
    settings.TIME_ZONE = zone
    keys = Keys(file.session())
    claim = keys.own(new_claim(lease=30.0))
    assert 28 < keys.store.find(claim.id).lease_left <= 30
    assert not keys.take_over(claim, rival_of(claim))
    keys.seal(claim, retention=3600.0)
    assert keys.claim(rival_of(claim)).verdict is Verdict.FOUND
    expired = keys.expired(new_claim())
    assert keys.claim(rival_of(expired)).verdict is Verdict.CLAIMED


def test_a_clock_that_is_put_back_without_time_zone_support_makes_no_lease_longer(file, settings, monkeypatch):
    settings.USE_TZ = False
    keys = Keys(file.session())
    try:
        set_local_time(monkeypatch, "EST4")
        claim = keys.own(new_claim(lease=30.0))
        set_local_time(monkeypatch, "EST5")
        assert 28 < keys.store.find(claim.id).lease_left <= 30
        assert abs(keys.store.now() - time.time()) < 5
    finally:
        monkeypatch.undo()
        time.tzset()


def set_local_time(monkeypatch, zone):
    monkeypatch.setenv("TZ", zone)
    time.tzset()


def test_what_is_for_a_person_is_kept_from_sweepers_without_time_zone_support_as_well(file, settings):
    settings.USE_TZ = False
    keys = Keys(file.session())
    left, due = keys.lapsed(new_claim()), keys.lapsed(new_claim())
    assert keys.store.hold(left.id, left.owner_token, "nobody knows", sweep_after=None)
    stale = [record.id for record in keys.store.stale(99, stale_after=0.0)]
    assert (due.id in stale, left.id in stale) == (True, False)
