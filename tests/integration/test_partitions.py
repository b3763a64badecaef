"""Leaves of the sealed rows: there before anybody needs them, whoever makes them, whatever the session looks like."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace

import pytest
from django.db import Error, OperationalError, ProgrammingError, connections

from django_idempotency import IdempotencyMode, IdempotencyPolicy, retention
from django_idempotency.conf import current
from django_idempotency.core.errors import StoreUnavailable
from django_idempotency.core.fingerprint import Content, EmptyBody
from django_idempotency.core.intervals import Interval, plan, reach_of
from django_idempotency.core.keys import record_id
from django_idempotency.core.states import State, Verdict
from django_idempotency.ownership import Outcome
from django_idempotency.request_transactions import RequestTransactions
from django_idempotency.retention import ensure_leaf, make_ahead
from django_idempotency.service import Execution, Intent
from django_idempotency.storage import partitions
from django_idempotency.storage.transactions import own_connection
from tests.support.crowds import Crowd
from tests.support.keys import CREATED, Keys, new_claim
from tests.support.modes import TRANSACTIONAL
from tests.support.waiting import eventually

DAY = timedelta(days=1)
PATIENT = 20.0

LEAVES = """
SELECT leaf.relname, pg_get_expr(leaf.relpartbound, leaf.oid)
FROM pg_inherits AS i JOIN pg_class AS leaf ON leaf.oid = i.inhrelid
WHERE i.inhparent = 'idempotency_key_sealed'::regclass ORDER BY 2
"""
# A leaf's columns are those of its parent; what is left without one was made and never attached.
STRAYS = """
SELECT relname FROM pg_class AS c WHERE relkind = 'r' AND NOT relispartition AND relnamespace = %s::regnamespace
AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'owner_token')
"""


@pytest.fixture
def crowd():
    with Crowd(8) as crowd:
        yield crowd


def intervals(lab, alias=None):
    with own_connection(alias or lab.aliases[0]) as connection:
        return partitions.covered(connection)[1]


def now(lab):
    with own_connection(lab.aliases[0]) as connection:
        return partitions.covered(connection)[0]


def names(lab):
    return [name for name, _ in lab.rows(LEAVES)]


def drop_leaves(lab, *positions):
    for name in [names(lab)[position] for position in positions]:
        lab.do(f"DROP TABLE {name}")


def is_seamless(found):
    return all(one.upper == other.lower for one, other in pairwise(found))


# --- made ahead ---


def test_the_migration_leaves_a_table_that_can_serve_at_once(lab):
    moment = now(lab)
    found = intervals(lab)
    assert is_seamless(found)
    assert reach_of(found, moment) >= moment + current().MAX_RETENTION + 2 * DAY
    assert found == plan([], moment, current().MAX_RETENTION)
    assert make_ahead(lab.aliases[0]).intervals == []


def test_every_leaf_is_known_by_its_mark_and_has_what_its_parent_demands(lab):
    leaves = lab.rows(
        "SELECT obj_description(leaf.oid), relispartition,"
        " (SELECT array_agg(pg_get_constraintdef(c.oid) ORDER BY contype) FROM pg_constraint AS c"
        "  WHERE conrelid = leaf.oid AND contype IN ('p', 'c'))"
        " FROM pg_inherits AS i JOIN pg_class AS leaf ON leaf.oid = i.inhrelid"
        " WHERE i.inhparent = 'idempotency_key_sealed'::regclass"
    )
    assert len(leaves) >= 10
    for comment, attached, (check, key) in leaves:
        assert (comment, attached, key) == (partitions.MARK, True, "PRIMARY KEY (id)")
        assert "in_flight" in check


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_gap_is_filled_and_a_plan_can_be_shown_first(lab, dry_run):
    before = intervals(lab)
    drop_leaves(lab, 2, 3, 7)
    made = make_ahead(lab.aliases[0], dry_run=dry_run)
    assert made.intervals == [before[2], before[3], before[7]]
    assert made.until == before[-1].upper, "as far as it reaches, or would"
    assert (intervals(lab) == before) is not dry_run


def test_a_longer_max_retention_extends_the_cover(lab, settings):
    before = intervals(lab)
    settings.IDEMPOTENCY = {"MAX_RETENTION": 30 * DAY}
    made = make_ahead(lab.aliases[0])
    assert made.until >= now(lab) + 30 * DAY
    after = intervals(lab)
    assert after[: len(before)] == before
    assert is_seamless(after)
    assert len(after) <= len(before) + 8, "in longer intervals, not in more of them"


def test_leaves_of_other_lengths_and_names_are_recognised_by_their_bounds(lab):
    first, second, third, *_ = intervals(lab)
    drop_leaves(lab, 0, 1, 2)
    lab.do(
        "CREATE TABLE renamed PARTITION OF idempotency_key_sealed (PRIMARY KEY (id))"
        f" FOR VALUES FROM ('{first.lower.isoformat()}') TO ('{(third.lower + DAY / 2).isoformat()}')"
    )
    assert make_ahead(lab.aliases[0]).intervals == [Interval(third.lower + DAY / 2, third.upper)]
    assert second.lower < third.lower


def test_leaves_are_made_while_a_request_holds_the_table(lab):
    keys = Keys(lab.session())
    drop_leaves(lab, -1)
    with keys.atomic():
        keys.sealed(new_claim())
        make_ahead(lab.session(server={"statement_timeout": "5s"}))
    assert len(intervals(lab)) >= 10


# --- two at once, and the unlucky ---


def test_two_creators_at_once_make_each_leaf_once(lab, crowd):
    before = intervals(lab)
    drop_leaves(lab, 1, 2, -1)
    administrator = lab.session()
    # Both have seen the gaps and wait here.
    lab.do(f"SELECT pg_advisory_lock({partitions._ADVISORY_LOCK})", alias=administrator)
    creators = [crowd.start(make_ahead, lab.session()) for _ in range(2)]
    lab.until_waiting(2)
    lab.do(f"SELECT pg_advisory_unlock({partitions._ADVISORY_LOCK})", alias=administrator)
    made = [creator.result(PATIENT) for creator in creators]
    assert sorted(len(each.intervals) for each in made) == [0, 3]
    assert {each.until for each in made} == {before[-1].upper}
    assert intervals(lab) == before
    assert lab.rows(STRAYS, lab.schema) == []


def test_many_processes_that_start_at_once_agree(lab, crowd):
    before = intervals(lab)
    drop_leaves(lab, *range(len(before)))
    aliases = [lab.session() for _ in range(6)]
    crowd.all_at_once([lambda alias=alias: ensure_leaf(alias, DAY) for alias in aliases])
    assert intervals(lab) == before


def test_a_creator_that_takes_too_long_is_not_waited_for(lab):
    drop_leaves(lab, -1)
    administrator = lab.session()
    lab.do(f"SELECT pg_advisory_lock({partitions._ADVISORY_LOCK})", alias=administrator)
    with (
        own_connection(lab.aliases[0]) as connection,
        pytest.raises(OperationalError, match="lock timeout"),
        partitions.creating(connection, lock_timeout="50ms"),
    ):
        pytest.fail("not alone")


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("after", [1, 2, 3, 4])
@pytest.mark.parametrize("way", ["error", "killed session"])
def test_a_crash_at_any_statement_leaves_nothing_that_blocks_the_interval(lab, monkeypatch, after, way):
    before = intervals(lab)
    drop_leaves(lab, -2, -1)
    usual = partitions._statements

    def interrupted(*arguments):
        for number, statement in enumerate(usual(*arguments)):
            if number == after:
                if way == "killed session":
                    yield "SELECT pg_terminate_backend(pg_backend_pid())"
                raise Crash
            yield statement

    with monkeypatch.context() as patch:
        patch.setattr(partitions, "_statements", interrupted)
        with pytest.raises((Crash, Error)):
            make_ahead(lab.aliases[0])
    assert lab.rows(STRAYS, lab.schema) == []
    assert intervals(lab) == before[:-2]
    assert make_ahead(lab.aliases[0]).intervals == before[-2:]


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE {} (n int)",
        "CREATE VIEW {} AS SELECT 1 AS n",
        "CREATE SEQUENCE {}",
        "CREATE MATERIALIZED VIEW {} AS SELECT 1",
    ],
)
def test_a_name_that_somebody_else_has_taken_is_left_to_them(lab, made):
    before = intervals(lab)
    taken = names(lab)[-1]
    drop_leaves(lab, -1)
    lab.do(made.format(taken), f"CREATE TABLE {taken}_2 (n int)")
    assert make_ahead(lab.aliases[0]).intervals == [before[-1]]
    assert names(lab)[-1] == f"{taken}_3"
    assert intervals(lab) == before


def test_a_leaf_that_was_detached_by_hand_keeps_its_name_and_its_rows(lab):
    keys = Keys(lab.aliases[0])
    keys.sealed(new_claim(), retention=3600.0)
    (leaf,) = lab.rows("SELECT tableoid::regclass::text FROM idempotency_key_sealed LIMIT 1")[0]
    lab.do(f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {leaf}")
    make_ahead(lab.aliases[0])
    assert lab.ask(f"SELECT count(*) FROM {leaf}") == 1
    assert lab.ask("SELECT count(*) FROM idempotency_key_sealed") == 0


# --- sessions that look otherwise ---

SESSIONS = {
    "Kolkata": {"timezone": "Asia/Kolkata"},
    "Kiritimati": {"timezone": "Pacific/Kiritimati"},
    "a zone of 1893": {"timezone": "Europe/Amsterdam"},
    "SQL dates": {"datestyle": "SQL, DMY", "timezone": "America/New_York"},
    "SQL dates in Kolkata": {"datestyle": "SQL, MDY", "timezone": "Asia/Kolkata"},
    "POSTGRES dates": {"datestyle": "Postgres, DMY", "timezone": "Asia/Kolkata"},
    "German dates": {"datestyle": "German", "timezone": "Europe/Berlin"},
    "everything": {
        "datestyle": "SQL, DMY", "timezone": "Australia/Lord_Howe", "intervalstyle": "sql_standard",
        "extra_float_digits": "-15", "standard_conforming_strings": "off", "quote_all_identifiers": "on",
    },
}  # fmt: skip


@pytest.mark.parametrize("server", SESSIONS.values(), ids=SESSIONS)
def test_bounds_are_utc_whatever_the_session_thinks_of_dates(lab, server):
    before = intervals(lab)
    drop_leaves(lab, 0, -1)
    alias = lab.session(server=server, TIME_ZONE=server["timezone"])
    made = make_ahead(alias)
    assert made.intervals == [before[0], before[-1]]
    assert intervals(lab) == before == intervals(lab, alias)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Sao_Paulo"])
def test_bounds_are_utc_without_time_zone_support_as_well(lab, settings, zone):
    before = intervals(lab)
    drop_leaves(lab, 0, -1)
    settings.USE_TZ = False
    settings.TIME_ZONE = zone
    alias = lab.session()
    ensure_leaf(alias, DAY)
    assert intervals(lab, alias) == before
    keys = Keys(alias)
    claim = keys.sealed(new_claim(), retention=3600.0)
    assert keys.store.find(claim.id).state is State.SEALED


def test_leaves_lie_beside_their_table_wherever_the_session_would_put_them(lab):
    before = intervals(lab)
    drop_leaves(lab, -1)
    lab.do(f"CREATE SCHEMA {lab.schema}_tenant")
    try:
        make_ahead(lab.session(server={"search_path": f"{lab.schema}_tenant,{lab.schema}"}))
    finally:
        lab.do(f"DROP SCHEMA {lab.schema}_tenant CASCADE")
    assert intervals(lab) == before


@pytest.mark.parametrize("mode", ["ACCESS EXCLUSIVE", "SHARE"])
def test_making_and_looking_never_wait_long_for_ddl(lab, crowd, mode):
    drop_leaves(lab, -1)
    administrator = Keys(lab.session())
    with administrator.atomic():
        lab.do(f"LOCK TABLE idempotency_key IN {mode} MODE", alias=administrator.alias)
        making = crowd.start(make_ahead, lab.session(server={"statement_timeout": "0"}))
        with pytest.raises(OperationalError, match="lock timeout"):
            making.result(PATIENT)


# --- roles ---


@contextmanager
def role(lab, name, *grants):
    """A role of this test's own, as a name that needs quoting."""
    full = f"{lab.schema} {name}"
    lab.do(f'CREATE ROLE "{full}" NOLOGIN', f'GRANT USAGE ON SCHEMA {lab.schema} TO "{full}"')
    try:
        lab.do(*(f'{grant} TO "{full}"' for grant in grants))
        yield full
    finally:
        lab.do(f'DROP OWNED BY "{full}" CASCADE', f'DROP ROLE "{full}"')


SERVING = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_key, idempotency_key_in_flight, idempotency_key_sealed",
)


def session_as(lab, name):
    return lab.session(server={"role": name})


def test_a_role_that_may_not_make_tables_is_silent_where_there_is_cover_for_days(lab, caplog):
    """It starts before the owner has made the leaf of the day."""
    drop_leaves(lab, -1)
    with role(lab, "server", *SERVING) as name:
        alias = session_as(lab, name)
        with caplog.at_level(logging.WARNING, "django_idempotency"):
            ensure_leaf(alias, 7 * DAY)
        assert caplog.text == ""
        lab.end(alias)


def test_a_role_that_may_not_make_tables_serves_as_long_as_the_cover_lasts(lab, caplog):
    drop_leaves(lab, -3, -2, -1)
    with role(lab, "server", *SERVING) as name:
        alias = session_as(lab, name)
        with caplog.at_level(logging.WARNING, "django_idempotency"):
            ensure_leaf(alias, DAY)
        assert f"idempotency partitions --database {alias}" in caplog.text
        assert "InsufficientPrivilege" in caplog.text
        caplog.clear()
        ensure_leaf(alias, DAY)
        assert caplog.text == "", "once in a while is enough"
        keys = Keys(alias)
        claim = keys.sealed(new_claim())
        assert keys.store.find(claim.id).response == CREATED
        expired = keys.expired(new_claim())
        assert keys.claim(expired).verdict is Verdict.CLAIMED
        assert keys.release(expired)
        lab.end(alias)


def test_without_cover_that_role_refuses_before_anything_runs(lab, settings, monkeypatch):
    monkeypatch.setattr(retention, "PAUSE_SECONDS", 0.0)
    drop_leaves(lab, *range(1, len(names(lab))))
    with role(lab, "server", *SERVING) as name:
        alias = session_as(lab, name)
        with pytest.raises(StoreUnavailable) as refused:
            claim_through_the_service(settings, alias)
        assert refused.value.retry_after == retention.RETRY_SECONDS
        assert lab.ask("SELECT count(*) FROM idempotency_key") == 0
        assert not connections[alias].in_atomic_block
        make_ahead(lab.aliases[0])  # what its owner does meanwhile
        ensure_leaf(alias, DAY)
        lab.end(alias)


def test_new_leaves_belong_to_whom_the_table_belongs_and_allow_what_it_allows(lab):
    reader_rights = ("GRANT SELECT ON idempotency_key_sealed",)
    with (
        role(lab, "owner", f"GRANT CREATE ON SCHEMA {lab.schema}") as owner,
        role(lab, "reader", *reader_rights) as reader,
        role(lab, "heir") as heir,
    ):
        tables = ("idempotency_key", "idempotency_key_in_flight", "idempotency_key_sealed")
        lab.do(*(f'ALTER TABLE {table} OWNER TO "{owner}"' for table in tables))
        lab.do(
            f'GRANT INSERT ON idempotency_key_sealed TO "{heir}" WITH GRANT OPTION',
            "GRANT UPDATE ON idempotency_key_sealed TO PUBLIC",
        )
        drop_leaves(lab, -2, -1)
        make_ahead(lab.aliases[0])  # as a superuser
        as_owner, as_reader = session_as(lab, owner), session_as(lab, reader)
        leaf = names(lab)[-1]
        assert privileges(lab, leaf) == privileges(lab, "idempotency_key_sealed")
        lab.do(f"DROP TABLE {names(lab)[-2]}", alias=as_owner)
        assert len(make_ahead(as_owner).intervals) == 1, "and as the owner itself"
        assert privileges(lab, names(lab)[-2]) == privileges(lab, "idempotency_key_sealed")
        assert lab.ask(f"SELECT count(*) FROM {leaf}", alias=as_reader) == 0
        with pytest.raises(ProgrammingError, match="permission denied"):
            lab.do(f"DELETE FROM {leaf}", alias=as_reader)
        lab.end(as_owner)
        lab.end(as_reader)
        lab.do(*(f"ALTER TABLE {name} OWNER TO CURRENT_USER" for name in (*tables, *names(lab))))


def privileges(lab, table):
    """The owner and every grant."""
    owner = lab.ask("SELECT relowner::regrole::text FROM pg_class WHERE oid = %s::regclass", table)
    grants = lab.rows(
        "SELECT grantee::regrole::text, privilege_type, is_grantable"
        " FROM pg_class, aclexplode(relacl) WHERE oid = %s::regclass",
        table,
    )
    return owner, set(grants)


def test_a_table_that_nobody_granted_anything_on_needs_no_grants(lab):
    assert lab.ask("SELECT relacl IS NULL FROM pg_class WHERE oid = 'idempotency_key_sealed'::regclass")
    drop_leaves(lab, -1)
    make_ahead(lab.aliases[0])
    assert privileges(lab, names(lab)[-1]) == privileges(lab, "idempotency_key_sealed")


# --- what a process remembers ---


@pytest.fixture
def looks(monkeypatch):
    """How often a process asked the database how far the leaves reach."""
    seen = []
    usual = partitions.covered
    monkeypatch.setattr(partitions, "covered", lambda connection: seen.append(1) or usual(connection))
    return seen


def test_a_process_that_knows_the_cover_asks_nobody(lab, looks):
    alias = lab.aliases[0]
    ensure_leaf(alias, DAY)
    assert len(looks) == 1
    for _ in range(5):
        ensure_leaf(alias, DAY)
    ensure_leaf(alias, 7 * DAY)
    assert len(looks) == 1


def test_a_process_asks_again_when_it_is_told_to_forget(lab, looks):
    alias = lab.aliases[0]
    ensure_leaf(alias, DAY)
    retention.forget_reach(alias)
    ensure_leaf(alias, DAY)
    assert len(looks) == 2
    retention.forget_reach("nobody")


class Clock(datetime):
    """A clock that the test moves."""

    moved = timedelta(0)

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + cls.moved


def test_a_process_looks_ahead_before_the_cover_becomes_thin(lab, looks, monkeypatch):
    alias = lab.aliases[0]
    ensure_leaf(alias, DAY)
    monkeypatch.setattr(retention, "datetime", type("Moved", (Clock,), {"moved": 3 * DAY}))
    ensure_leaf(alias, DAY)
    assert len(looks) == 1, "the cover is enough, and this process has only just looked"
    monkeypatch.setattr(retention, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(retention, "PAUSE_SECONDS", 0.0)
    ensure_leaf(alias, DAY)
    assert len(looks) == 2


def test_a_cover_that_a_slow_view_would_outlast_is_not_enough(lab, looks):
    alias = lab.aliases[0]
    just_enough = datetime.now(timezone.utc) + DAY + timedelta(minutes=30)
    retention._reaches[alias] = retention._Reach(just_enough, time.monotonic() - 10)
    ensure_leaf(alias, DAY - timedelta(hours=1))
    assert looks == []
    ensure_leaf(alias, DAY)
    assert len(looks) == 1


def test_a_cover_that_is_too_short_is_never_waited_out(lab, looks, monkeypatch):
    alias = lab.aliases[0]
    ensure_leaf(alias, DAY)
    monkeypatch.setattr(retention, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(retention, "datetime", type("Moved", (Clock,), {"moved": 30 * DAY}))
    for attempt in (2, 3):
        with pytest.raises(StoreUnavailable, match="covers"):
            ensure_leaf(alias, DAY)
        assert len(looks) == attempt


def test_a_crowd_that_comes_again_does_not_ask_for_a_cover_that_has_just_been_found_missing(lab, looks, monkeypatch):
    drop_leaves(lab, *range(1, len(names(lab))))
    with role(lab, "server", *SERVING) as name:
        alias = session_as(lab, name)
        looked = set()
        for _ in range(5):
            with pytest.raises(StoreUnavailable, match="covers"):
                ensure_leaf(alias, 3 * DAY)
            looked.add(len(looks))
        assert len(looked) == 1, "the first alone asks"
        make_ahead(lab.aliases[0])  # what its owner does meanwhile
        passed = time.monotonic() + retention.PAUSE_SECONDS
        monkeypatch.setattr(retention, "time", SimpleNamespace(monotonic=lambda: passed))
        ensure_leaf(alias, 3 * DAY)
        lab.end(alias)


def test_a_seal_that_finds_no_leaf_looks_for_itself(lab):
    alias = lab.session()
    retention._reaches[alias] = retention._Reach(now(lab), time.monotonic())
    with pytest.raises(StoreUnavailable, match="covers"):
        ensure_leaf(alias, DAY)
    retention.forget_reach(alias)
    ensure_leaf(alias, DAY)


def test_a_database_that_cannot_be_reached_is_an_error_of_the_database(lab, monkeypatch):
    alias = lab.session(PORT="1")
    with pytest.raises(OperationalError):
        ensure_leaf(alias, DAY)
    with pytest.raises(StoreUnavailable, match="a moment ago") as refused:
        ensure_leaf(alias, DAY)
    assert refused.value.retry_after < retention.RETRY_SECONDS
    monkeypatch.setattr(retention, "PAUSE_SECONDS", 0.0)
    with pytest.raises(OperationalError):
        ensure_leaf(alias, DAY)


def test_a_look_that_fails_does_not_make_a_process_forget_what_it_knows(lab):
    alias = lab.session(PORT="1")
    retention._reaches[alias] = retention._Reach(now(lab) + 2 * DAY, time.monotonic() - retention.RETRY_SECONDS)
    with pytest.raises(OperationalError):
        ensure_leaf(alias, DAY)
    ensure_leaf(alias, DAY)


def test_work_beside_a_request_leaves_no_session_behind(lab):
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    )
    before = lab.ask(count)
    drop_leaves(lab, -1)
    make_ahead(lab.aliases[0])
    ensure_leaf(lab.aliases[0], DAY)
    eventually(lambda: lab.ask(count) <= before, "the session has ended")


# --- a leaf that is missing all the same ---


def claim_through_the_service(settings, alias, mode=IdempotencyMode.ATOMIC):
    """A request that owns its key and has not ended."""
    settings.IDEMPOTENCY = {"DATABASES": ["default", alias]}
    policy = current().resolve(IdempotencyPolicy(using=alias, mode=mode, retention=3 * DAY))
    execution = Execution(RequestTransactions())
    intent = Intent("auth.user:5 charge:POST", "k", Content(method="POST", principal="", body=EmptyBody()))
    assert execution.claim(intent, policy) is None
    return execution


@pytest.mark.parametrize("mode", TRANSACTIONAL)
def test_a_leaf_that_is_missing_at_the_seal_is_made_and_nothing_is_lost(lab, settings, mode):
    alias = lab.session()
    lab.do("CREATE TABLE effect (n int)")
    before = intervals(lab)
    drop_leaves(lab, *range(1, len(before)))
    # This process believes what is not so any more.
    retention._reaches[alias] = retention._Reach(now(lab) + 100 * DAY, float("inf"))
    execution = claim_through_the_service(settings, alias, mode)
    lab.do("INSERT INTO effect VALUES (1)", alias=alias)
    execution.finish(Outcome(201, lambda: CREATED))
    assert lab.ask("SELECT count(*) FROM effect") == 1
    assert lab.ask("SELECT response_status FROM idempotency_key_sealed") == 201
    assert intervals(lab) == before
    assert Keys(alias).store.find(record_id("auth.user:5 charge:POST", "k")).response == CREATED


@pytest.mark.parametrize("mode", TRANSACTIONAL)
def test_a_leaf_that_cannot_be_made_at_the_seal_undoes_the_effect_and_frees_the_key(lab, settings, mode):
    lab.do("CREATE TABLE effect (n int)")
    drop_leaves(lab, *range(1, len(names(lab))))
    with role(lab, "server", *SERVING, "GRANT INSERT ON effect") as name:
        alias = session_as(lab, name)
        retention._reaches[alias] = retention._Reach(now(lab) + 100 * DAY, float("inf"))
        execution = claim_through_the_service(settings, alias, mode)
        lab.do("INSERT INTO effect VALUES (1)", alias=alias)
        with pytest.raises(StoreUnavailable):
            execution.finish(Outcome(201, lambda: CREATED))
        assert lab.ask("SELECT count(*) FROM effect") == 0
        assert lab.ask("SELECT count(*) FROM idempotency_key") == 0
        assert not connections[alias].in_atomic_block
        lab.end(alias)


def test_a_leaf_that_nobody_finds_though_it_was_made_is_an_outage(lab, settings, monkeypatch):
    alias = lab.session()
    drop_leaves(lab, *range(1, len(names(lab))))
    retention._reaches[alias] = retention._Reach(now(lab) + 100 * DAY, float("inf"))
    execution = claim_through_the_service(settings, alias)
    monkeypatch.setattr(retention, "ensure_leaf", lambda alias, retention: None)
    with pytest.raises(StoreUnavailable, match="no partition"):
        execution.finish(Outcome(201, lambda: CREATED))


def test_the_first_leaves_can_be_printed_without_a_database(settings):
    settings.IDEMPOTENCY = {"MAX_RETENTION": 30 * DAY}
    statements = partitions.create_leaf_statements()
    today = datetime.now(timezone.utc).strftime("%Y")
    assert len(statements) % 5 == 0
    assert 9 <= len(statements) // 5 <= 11
    assert today in statements[0]
