"""Keys that are refused after their time, where a project wants that: as long as the record is there, and after it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from django.db import Error

from django_idempotency import pruning
from django_idempotency.core.intervals import Interval
from django_idempotency.core.states import Verdict
from django_idempotency.models import Tombstone
from django_idempotency.pruning import Fate, prune
from django_idempotency.storage import partitions, pruning as steps
from django_idempotency.storage.transactions import own_connection
from tests.support.keys import Keys, new_claim, rival_of
from tests.support.leaves import DAY, expire_in, is_attached, is_there, make_past, past

MONTH = 30 * DAY
FOR_A_MONTH = MONTH.total_seconds()


def refused(keys, claim, **changes):
    """Whether another attempt at a key is refused for its expiry, and leaves nothing."""
    rival = rival_of(claim, refuse_expired_for=FOR_A_MONTH, **changes)
    with keys.undone():
        verdict = keys.store.claim(rival, limit_silence=False, savepoint=None).verdict
        if verdict is Verdict.EXPIRED:
            assert keys.count(claim) <= 1, "no claim of its own is left"
        return verdict is Verdict.EXPIRED


@pytest.fixture
def for_a_month(settings):
    settings.IDEMPOTENCY = {"TOMBSTONES": MONTH}


def tombstones(lab):
    return lab.ask("SELECT count(*) FROM idempotency_tombstone")


def fates(lab):
    return {each.name: each for each in prune(lab.aliases[0]) if each.fate is not Fate.KEPT}


# --- the claim ---


def test_an_expired_record_refuses_whatever_the_request(keys):
    claim = keys.expired(new_claim())
    assert refused(keys, claim)
    assert refused(keys, claim, fingerprint=b"x" * 32)
    assert keys.claim(rival_of(claim)).verdict is Verdict.CLAIMED, "without the setting, it counts as absent"


def test_a_record_that_is_not_dropped_in_time_refuses_no_longer_than_a_tombstone(lab):
    make_past(lab, 31, 28)
    keys = Keys(lab.aliases[0])
    assert [refused(keys, *expire_in(lab, days)) for days in (31, 28)] == [False, True]


def test_a_record_and_a_claim_are_what_they_were(keys):
    standing, flying = keys.sealed(new_claim()), keys.own(new_claim())
    for claim in (standing, flying):
        answer = keys.claim(rival_of(claim, refuse_expired_for=FOR_A_MONTH))
        assert answer.verdict is Verdict.FOUND
    assert keys.claim(new_claim(refuse_expired_for=FOR_A_MONTH)).verdict is Verdict.CLAIMED


@pytest.mark.parametrize("left", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_tombstone_refuses_until_its_time_is_over(lab, left):
    keys, claim = Keys(lab.aliases[0]), new_claim()
    until = datetime.now(timezone.utc) + left
    with own_connection(keys.alias) as connection, partitions.creating(connection):
        partitions.create_leaves(connection, [Interval(until - DAY, until + DAY)], partitions.TOMBSTONES)
    Tombstone.objects.using(keys.alias).create(id=claim.id, fingerprint=b"", fingerprint_scheme=1, forget_at=until)
    assert refused(keys, claim) is (left > timedelta(0))
    assert keys.claim(claim).verdict is Verdict.CLAIMED


@pytest.mark.parametrize("committed", [True, False])
def test_a_refusal_leaves_no_claim_that_others_meet(keys, committed):
    claim = keys.expired(new_claim())
    rival = rival_of(claim, refuse_expired_for=FOR_A_MONTH)
    answer = keys.store.claim_committed(rival) if committed else keys.claim(rival)
    assert answer.verdict is Verdict.EXPIRED
    assert keys.store.find(claim.id).owner_token == claim.owner_token


def test_with_the_setting_off_the_table_of_tombstones_is_not_looked_at(lab):
    lab.do("DROP TABLE idempotency_tombstone")
    keys = Keys(lab.aliases[0])
    claim = keys.expired(new_claim())
    assert keys.claim(rival_of(claim)).verdict is Verdict.CLAIMED
    with pytest.raises(Error, match="idempotency_tombstone"):
        keys.claim(new_claim(refuse_expired_for=FOR_A_MONTH))


# --- the drop of a day ---


def test_a_leaf_is_dropped_and_its_keys_are_refused_all_the_same(lab, for_a_month):
    (name,) = make_past(lab, 2)
    expired = expire_in(lab, 2, 3)
    keys = Keys(lab.aliases[0])
    assert all(refused(keys, claim) for claim in expired)
    gone = fates(lab)[name]
    assert (gone.fate, gone.buried) == (Fate.DROPPED, 3)
    assert not is_there(lab, name)
    assert all(refused(keys, claim) for claim in expired)
    assert not refused(keys, new_claim())
    kept = lab.rows("SELECT id, fingerprint, fingerprint_scheme FROM idempotency_tombstone ORDER BY id")
    assert [(each[0], bytes(each[1]), each[2]) for each in kept] == [
        (claim.id, claim.fingerprint, 1) for claim in sorted(expired, key=lambda claim: claim.id)
    ]
    assert lab.ask("SELECT max(abs(extract(epoch FROM forget_at - %s))) FROM idempotency_tombstone",
                   past(2).lower + DAY / 2 + MONTH) < 60  # fmt: skip


def test_without_the_setting_nothing_is_kept(lab):
    (name,) = make_past(lab, 2)
    expire_in(lab, 2, 3)
    assert fates(lab)[name].buried == 0
    assert tombstones(lab) == 0


def test_they_go_in_long_leaves_which_are_dropped_as_well(lab, settings, for_a_month):
    make_past(lab, 2, 9)
    expire_in(lab, 2), expire_in(lab, 9)
    assert len(fates(lab)) == 2
    graves = lab.rows(
        "SELECT inhrelid::regclass::text, obj_description(inhrelid) FROM pg_inherits"
        " WHERE inhparent = 'idempotency_tombstone'::regclass"
    )
    assert 1 <= len(graves) <= 4
    assert {mark for _, mark in graves} == {partitions.TOMBSTONES.mark}
    lab.do("TRUNCATE idempotency_tombstone")
    with own_connection(lab.aliases[0]) as connection, partitions.creating(connection):
        partitions.create_leaves(connection, [past(40)], partitions.TOMBSTONES)
    assert [each.fate for each in fates(lab).values()] == [Fate.DROPPED]
    assert len(graves) == lab.ask(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'idempotency_tombstone'::regclass"
    )


def test_what_is_past_the_time_of_its_tombstone_is_not_buried(lab, for_a_month):
    old, young = make_past(lab, 40, 2)
    expire_in(lab, 40, 2), expire_in(lab, 2)
    found = fates(lab)
    assert (found[old].fate, found[old].buried) == (Fate.DROPPED, 0)
    assert found[young].buried == 1


def test_no_leaf_goes_before_all_of_it_is_buried(lab, for_a_month, monkeypatch):
    """Cut in the middle, the next run goes on where it was, and makes nothing twice."""
    monkeypatch.setattr(steps, "_PAGES", 1)
    (name,) = make_past(lab, 2)
    expired = expire_in(lab, 2, 60)
    usual = steps.bury

    def cut(*arguments):
        for number, added in enumerate(usual(*arguments)):
            if number:
                raise KeyboardInterrupt
            yield added

    with monkeypatch.context() as patched:
        patched.setattr(steps, "bury", cut)
        with pytest.raises(KeyboardInterrupt):
            fates(lab)
    assert is_attached(lab, name)
    before = tombstones(lab)
    assert 0 < before < 60
    assert fates(lab)[name].buried == 60 - before
    assert tombstones(lab) == 60
    assert all(refused(Keys(lab.aliases[0]), claim) for claim in expired)


def test_what_a_transaction_that_is_long_open_has_sealed_is_buried_as_well(lab, settings, monkeypatch):
    """Nobody sees it before its commit, and the leaf is detached, and dropped, after that."""
    settings.IDEMPOTENCY = {"TOMBSTONES": MONTH, "DETACH_TIMEOUT": timedelta(seconds=1)}
    monkeypatch.setattr(pruning, "_OPEN_FOR", 0.0)
    (name,) = make_past(lab, 2)
    owner, keys = Keys(lab.session()), Keys(lab.session())
    with owner.atomic():
        claim = owner.own(new_claim())
        owner.seal(claim, retention=(past(2).lower + DAY / 2 - datetime.now(timezone.utc)).total_seconds())
        waiting = fates(lab)[name]
        assert waiting.fate is Fate.WAITING
        assert "has used the table" in waiting.reason
        assert is_attached(lab, name)
    gone = fates(lab)[name]
    assert (gone.fate, gone.buried) == (Fate.DROPPED, 1)
    assert refused(keys, claim)


@pytest.mark.parametrize("attachment", ["attached", "pending", "detached"])
def test_a_leaf_that_was_about_to_go_before_the_setting_was_on_is_buried_first(lab, settings, attachment):
    (name,) = make_past(lab, 2)
    (expired,) = expire_in(lab, 2)
    with own_connection(lab.aliases[0]) as connection:
        steps.mark_as_leaving(connection, partitions.SEALED, name, buried_for=None)
    if attachment == "pending":
        other = Keys(lab.session())
        with other.atomic():
            lab.rows("SELECT FROM idempotency_key LIMIT 1", alias=other.alias)
            with pytest.raises(Error):
                lab.do(
                    f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {name} CONCURRENTLY",
                    alias=lab.session(server={"statement_timeout": "100ms"}),
                )
    elif attachment == "detached":
        lab.do(f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {name} CONCURRENTLY")
    settings.IDEMPOTENCY = {"TOMBSTONES": MONTH}
    assert fates(lab)[name].buried == 1
    assert refused(Keys(lab.aliases[0]), expired)


def test_a_longer_time_is_kept_to_where_the_leaf_is_still_there(lab, settings, monkeypatch):
    (name,) = make_past(lab, 2)
    expire_in(lab, 2)
    settings.IDEMPOTENCY = {"TOMBSTONES": DAY * 5}
    with monkeypatch.context() as patched:
        patched.setattr(steps, "detach", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fates(lab)
    settings.IDEMPOTENCY = {"TOMBSTONES": MONTH}
    assert fates(lab)[name].fate is Fate.DROPPED
    assert lab.ask("SELECT max(forget_at) > clock_timestamp() + interval '20 days' FROM idempotency_tombstone")


def test_a_tombstone_does_not_outrank_a_record(lab, for_a_month, settings):
    """The key was run again while the setting was off, and is answered."""
    make_past(lab, 2)
    (expired,) = expire_in(lab, 2)
    fates(lab)
    keys = Keys(lab.aliases[0])
    again = keys.sealed(rival_of(expired))
    answer = keys.claim(rival_of(expired, refuse_expired_for=FOR_A_MONTH))
    assert (answer.verdict, answer.record.owner_token) == (Verdict.FOUND, again.owner_token)
