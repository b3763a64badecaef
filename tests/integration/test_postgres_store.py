"""What only a server with rivals, locks and settings of its own can show of the PostgreSQL store."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from django.db import DataError, Error, IntegrityError, InternalError, OperationalError, connections
from django.db.backends.postgresql.base import ServerBindingCursor

from django_idempotency import renewal
from django_idempotency.core.states import Sealing, State, Verdict
from django_idempotency.storage import postgres
from django_idempotency.storage.partitions import covered, create_leaves
from django_idempotency.storage.transactions import own_connection, sqlstate
from tests.support.crowds import Crowd
from tests.support.keys import CREATED, Keys, new_claim, rival_of
from tests.support.laboratory import doctor
from tests.support.waiting import eventually

LOCK_NOT_AVAILABLE = "55P03"
PATIENT = 20.0  # seconds; nobody waits that long unless something is wrong
SECOND_LOOK = "IF sealed_until > clock_timestamp() THEN"
REFRESH = "ignored := pg_partition_root(sealed_rows);"


@pytest.fixture
def crowd():
    with Crowd(8) as crowd:
        yield crowd


@pytest.fixture
def owner(shared_lab):
    return Keys(shared_lab.session())


@pytest.fixture
def rival(shared_lab):
    return Keys(shared_lab.session())


# --- a rival's claim that is not committed ---


def test_a_duplicate_waits_for_the_owner_and_finds_its_answer(shared_lab, crowd, owner, rival):
    claim = new_claim()
    with owner.atomic():
        owner.own(claim)
        waiting = crowd.start(rival.claim, rival_of(claim, max_wait=PATIENT))
        shared_lab.until_waiting()
        owner.seal(claim)
    answer = waiting.result(PATIENT)
    assert (answer.verdict, answer.record.response) == (Verdict.FOUND, CREATED)
    assert owner.count(claim) == 1


def test_without_the_second_look_that_duplicate_would_run_too(lab, crowd):
    owner, rival = Keys(lab.session()), Keys(lab.session())
    doctor(lab, "claim_v1", SECOND_LOOK, "IF false THEN")
    claim = new_claim()
    with owner.atomic():
        owner.own(claim)
        waiting = crowd.start(rival.claim, rival_of(claim, max_wait=PATIENT))
        lab.until_waiting()
        owner.seal(claim)
    assert waiting.result(PATIENT).verdict is Verdict.CLAIMED


def test_a_duplicate_that_waited_for_an_owner_that_gave_up_has_the_key(shared_lab, crowd, owner, rival):
    claim = new_claim()
    with owner.undone():
        owner.own(claim)
        waiting = crowd.start(rival.claim, rival_of(claim, max_wait=PATIENT))
        shared_lab.until_waiting()
    assert waiting.result(PATIENT).verdict is Verdict.CLAIMED


def test_a_duplicate_that_waited_for_a_claim_that_was_committed_goes_round_and_finds_it(
    shared_lab, crowd, owner, rival
):
    claim = new_claim()
    with owner.atomic():
        owner.own(claim)
        waiting = crowd.start(rival.claim, rival_of(claim, max_wait=PATIENT))
        shared_lab.until_waiting()
    answer = waiting.result(PATIENT)
    assert (answer.verdict, answer.record.state) == (Verdict.FOUND, State.IN_FLIGHT)
    assert answer.record.owner_token == claim.owner_token


@pytest.mark.parametrize("ending", ["released", "sealed"])
def test_an_owner_that_ends_between_the_insert_and_the_next_look_is_never_an_empty_answer(lab, crowd, ending):
    gate = "PERFORM pg_advisory_xact_lock_shared(7); waited :="
    doctor(lab, "claim_v1", "waited := extract", f"{gate} extract")
    owner, rival, porter = Keys(lab.session()), Keys(lab.session()), lab.session()
    lab.do("SELECT pg_advisory_lock(7)", alias=porter)
    claim = new_claim()
    with owner.atomic():
        owner.own(claim)
        waiting = crowd.start(rival.claim, rival_of(claim, max_wait=PATIENT))
        lab.until_waiting()
    eventually(lambda: lab.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"), "the gate")
    if ending == "released":
        owner.release(claim)
    else:
        owner.seal(claim)
    lab.do("SELECT pg_advisory_unlock(7)", alias=porter)
    answer = waiting.result(PATIENT)
    assert answer.verdict is (Verdict.CLAIMED if ending == "released" else Verdict.FOUND)


@pytest.mark.parametrize("max_wait", [0.0, 1e-9, 0.0004, 0.001, 0.05])
def test_however_short_the_wait_is_it_ends(owner, rival, max_wait):
    claim = new_claim()
    with owner.atomic():
        owner.own(claim)
        began = time.monotonic()
        assert rival.claim(rival_of(claim, max_wait=max_wait)).verdict is Verdict.WAITED
        assert time.monotonic() - began < 5
        assert rival.store.find(claim.id) is None
    assert rival.claim(rival_of(claim, max_wait=0.001)).verdict is Verdict.FOUND


def test_the_transaction_of_a_duplicate_that_waited_in_vain_can_go_on(owner, rival):
    claim, other = new_claim(), new_claim()
    with owner.atomic():
        owner.own(claim)
        with rival.atomic():
            assert rival.claim(rival_of(claim, max_wait=0.01)).verdict is Verdict.WAITED
            rival.own(other)
    assert rival.store.find(other.id) is not None


def test_two_that_wait_for_each_other_are_told_apart_and_nobody_waits_for_ever(shared_lab, crowd):
    owner, rival = (Keys(shared_lab.session(server={"deadlock_timeout": "50ms"})) for _ in range(2))
    one, other = new_claim(max_wait=PATIENT), new_claim(max_wait=PATIENT)
    with owner.atomic():
        owner.own(one)

        def crosswise():
            with rival.atomic():
                rival.own(other)
                return rival.claim(rival_of(one)).verdict

        waiting = crowd.start(crosswise)
        shared_lab.until_waiting()
        verdicts = [owner.claim(rival_of(other)).verdict]
    verdicts.append(waiting.result(PATIENT))
    assert sorted(verdicts) in (["found", "waited"], ["claimed", "waited"])


# --- DDL in the way ---

LOCKS = [
    ("idempotency_key_in_flight", "SHARE"),
    ("idempotency_key_in_flight", "ACCESS EXCLUSIVE"),
    ("idempotency_key", "SHARE"),
    ("idempotency_key", "ACCESS EXCLUSIVE"),
    ("idempotency_key_sealed", "ACCESS EXCLUSIVE"),
]


@pytest.mark.parametrize("warm", [True, False], ids=["session in use", "new session"])
@pytest.mark.parametrize(("table", "mode"), LOCKS)
def test_a_lock_of_ddl_is_an_outage_and_not_a_rival(lab, crowd, table, mode, warm):
    keys, administrator = Keys(lab.session()), Keys(lab.session())
    if warm:
        keys.own(new_claim())
    with administrator.atomic():
        lab.do(f"LOCK TABLE {table} IN {mode} MODE", alias=administrator.alias)
        began = time.monotonic()
        # A thread has a session of its own, which knows nothing of the tables yet.
        claim = keys.claim if warm else lambda claim: crowd.start(keys.claim, claim).result(PATIENT)
        with pytest.raises(OperationalError) as refused:
            claim(new_claim(max_wait=0.1))
        assert time.monotonic() - began < 10
    assert sqlstate(refused.value) == LOCK_NOT_AVAILABLE
    assert keys.claim(new_claim()).verdict is Verdict.CLAIMED, "afterwards all is well"


@pytest.mark.parametrize("mode", ["SHARE", "ACCESS EXCLUSIVE"])
def test_a_lock_of_ddl_in_the_way_of_taking_over_is_an_outage_too(lab, mode):
    keys, administrator = Keys(lab.session()), Keys(lab.session())
    claim = keys.lapsed(new_claim())
    record = keys.store.find(claim.id)
    with administrator.atomic():
        lab.do(f"LOCK TABLE idempotency_key_in_flight IN {mode} MODE", alias=administrator.alias)
        with pytest.raises(OperationalError) as refused, keys.atomic():
            keys.store.take_over(record, rival_of(claim, max_wait=0.05))
    assert sqlstate(refused.value) == LOCK_NOT_AVAILABLE
    assert keys.take_over(claim, rival_of(claim))


def test_an_owner_that_ddl_waits_for_is_not_held_up_by_it(lab, crowd):
    keys, rival, administrator = Keys(lab.session()), Keys(lab.session()), Keys(lab.session())
    claim = new_claim()

    def change_the_table():
        with administrator.atomic():
            lab.do("LOCK TABLE idempotency_key IN ACCESS EXCLUSIVE MODE", alias=administrator.alias)

    with keys.atomic():
        keys.own(claim)
        ddl = crowd.start(change_the_table)
        lab.until_waiting()
        with pytest.raises(OperationalError) as refused:
            rival.claim(new_claim(max_wait=0.05))
        assert sqlstate(refused.value) == LOCK_NOT_AVAILABLE
        assert keys.seal(claim, durable=True) is Sealing.SEALED
    ddl.result(PATIENT)
    assert rival.claim(rival_of(claim)).record.response == CREATED


# --- writes to a row that is just moving ---


def test_sealing_a_row_that_somebody_else_is_sealing_is_lost(shared_lab, crowd, owner, rival):
    claim = owner.own(new_claim())
    with owner.atomic():
        owner.seal(claim)
        second = crowd.start(rival.seal, claim)
        shared_lab.until_waiting()
    assert second.result(PATIENT) is Sealing.LOST


def test_sealing_a_row_that_was_just_taken_over_is_lost(shared_lab, crowd, owner, rival):
    claim = owner.lapsed(new_claim())
    with rival.atomic():
        rival.take_over(claim, rival_of(claim))
        late = crowd.start(owner.seal, claim)
        shared_lab.until_waiting()
    assert late.result(PATIENT) is Sealing.LOST


def test_releasing_a_row_that_is_being_sealed_releases_nothing(shared_lab, crowd, owner, rival):
    claim = owner.own(new_claim())
    with owner.atomic():
        owner.seal(claim)
        release = crowd.start(rival.release, claim)
        shared_lab.until_waiting()
    assert release.result(PATIENT) is False
    assert owner.store.find(claim.id).response == CREATED


def test_an_error_while_releasing_that_is_no_move_is_not_hidden(lab):
    keys = Keys(lab.session(server={"lock_timeout": "50ms"}))
    claim, rival = keys.own(new_claim()), Keys(lab.session())
    with rival.atomic():
        lab.do("LOCK TABLE idempotency_key_in_flight IN SHARE MODE", alias=rival.alias)
        with pytest.raises(OperationalError):
            keys.release(claim)


@pytest.mark.parametrize("max_wait", [0.05, PATIENT])
def test_taking_over_what_its_late_owner_is_sealing_takes_nothing(shared_lab, crowd, owner, rival, max_wait):
    claim = owner.lapsed(new_claim())
    with owner.atomic():
        owner.seal(claim)
        attempt = crowd.start(rival.take_over, claim, rival_of(claim, max_wait=max_wait))
        if max_wait == PATIENT:
            shared_lab.until_waiting()
        else:
            assert attempt.result(PATIENT) is False
    assert attempt.result(PATIENT) is False
    assert owner.store.find(claim.id).response == CREATED


def test_taking_over_without_patience_ends_as_well(shared_lab, owner, rival):
    claim = owner.lapsed(new_claim())
    with owner.atomic():
        owner.seal(claim)
        assert rival.take_over(claim, rival_of(claim, max_wait=0.0)) is False


def test_a_key_that_was_taken_over_very_often_can_be_taken_over_again(shared_lab, owner):
    claim = owner.lapsed(new_claim())
    shared_lab.rows("UPDATE idempotency_key SET attempts = 32767 WHERE id = %s", claim.id)
    assert owner.take_over(claim, rival_of(claim))
    assert owner.store.find(claim.id).attempts == 32767


def test_a_lease_is_renewed_for_its_owner_alone(owner):
    mine, lost, gone = (owner.own(new_claim(lease=5.0)) for _ in range(3))
    owner.release(gone)
    with own_connection(owner.alias) as connection:
        renewed = postgres.renew(
            connection,
            [(mine.id, mine.owner_token, 60.0), (lost.id, mine.owner_token, 60.0), (gone.id, gone.owner_token, 60.0)],
        )
    assert renewed == {mine.id}
    assert owner.store.find(mine.id).lease_left > 50
    assert owner.store.find(lost.id).lease_left < 6


def test_renewing_rows_of_which_one_is_being_sealed_renews_the_others_at_once(owner, rival):
    moving, staying = (owner.own(new_claim(lease=5.0)) for _ in range(2))
    leases = [(each.id, each.owner_token, 60.0) for each in (moving, staying)]
    with own_connection(rival.alias) as connection:
        with owner.atomic():
            owner.seal(moving)
            assert postgres.renew(connection, leases) == {moving.id, staying.id}
        assert owner.store.find(staying.id).lease_left > 50
        assert postgres.renew(connection, leases) == {staying.id}


def test_a_row_that_moved_away_during_the_renewal_costs_the_others_nothing(owner, rival, monkeypatch):
    moving, staying = (owner.own(new_claim(lease=5.0)) for _ in range(2))
    leases = [renewal.Renewal(rival.alias, each.id, each.owner_token, 60.0, 1e9) for each in (moving, staying)]
    renew = postgres.renew

    def meets_a_move(connection, leases):
        if any(each[0] == moving.id for each in leases):
            raise OperationalError from psycopg.errors.SerializationFailure("already moved to another partition")
        return renew(connection, leases)

    monkeypatch.setattr(postgres, "renew", meets_a_move)
    with own_connection(rival.alias) as connection:
        assert renewal._still_owned(connection, leases) == {staying.id}
        assert renewal._still_owned(connection, leases[:1]) == set()
    assert owner.store.find(staying.id).lease_left > 50


# --- isolation ---

STRICTER = {
    "database settings": {"server": {"default_transaction_isolation": "repeatable read"}},
    "database settings, serializable": {"server": {"default_transaction_isolation": "serializable"}},
    "Django's option": {"options": {"isolation_level": psycopg.IsolationLevel.REPEATABLE_READ}},
    "Django's option, serializable": {"options": {"isolation_level": psycopg.IsolationLevel.SERIALIZABLE}},
}


@pytest.mark.parametrize("how", STRICTER.values(), ids=STRICTER)
def test_a_claim_in_another_isolation_is_refused_by_the_claim_itself(shared_lab, how):
    keys = Keys(shared_lab.session(**how))
    claim = new_claim()
    assert keys.claim(claim).verdict is Verdict.WRONG_ISOLATION
    assert keys.store.find(claim.id) is None


def test_a_claim_that_begins_the_next_transaction_is_committed_and_what_follows_is_not(shared_lab, owner, rival):
    claim, effect, limit = new_claim(), new_claim(), "SHOW idle_in_transaction_session_timeout"
    with owner.undone():
        assert owner.store.claim_and_begin(claim, silence=7.5).verdict is Verdict.CLAIMED
        assert shared_lab.ask(limit, alias=owner.alias) == "7500ms"
        assert rival.store.find(claim.id).owner_token == claim.owner_token
        owner.own(effect)
        assert rival.store.find(effect.id) is None
    assert rival.store.find(claim.id).owner_token == claim.owner_token
    assert rival.store.find(effect.id) is None
    assert shared_lab.ask(limit, alias=owner.alias) == "0"


def test_so_is_what_it_finds_answered(owner, rival):
    running, sealed = owner.own(new_claim()), owner.sealed(new_claim())
    for claim in (running, sealed):
        with rival.undone():
            answer = rival.store.claim_and_begin(rival_of(claim), silence=7.5)
        assert (answer.verdict, answer.record.owner_token) == (Verdict.FOUND, claim.owner_token)


ONE_BY_ONE = {
    "server-side binding": {"server_side_binding": True},
    "a cursor that binds on the server": {"cursor_factory": ServerBindingCursor},
    "the driver's own cursor": {"cursor_factory": psycopg.Cursor},
}


@pytest.mark.parametrize("how", ["wrapped", "in a block", *ONE_BY_ONE])
def test_it_is_not_tried_where_statements_do_not_travel_together(shared_lab, how):
    keys = Keys(shared_lab.session(options=ONE_BY_ONE.get(how)))
    connections[keys.alias].ensure_connection()
    assert keys.store.can_claim_and_begin() is (how not in ONE_BY_ONE)
    wrapped = connections[keys.alias].execute_wrapper(lambda execute, *rest: execute(*rest))
    around = {"wrapped": wrapped, "in a block": keys.atomic()}.get(how, nullcontext())
    with around:
        assert not keys.store.can_claim_and_begin()


@pytest.mark.parametrize("how", STRICTER.values(), ids=STRICTER)
@pytest.mark.parametrize("binding", [False, True])
def test_a_claim_in_a_transaction_of_its_own_is_pinned_to_read_committed(shared_lab, how, binding):
    options = how.get("options", {}) | ({"server_side_binding": True} if binding else {})
    keys = Keys(shared_lab.session(**(how | {"options": options})))
    claim = new_claim()
    assert keys.store.claim_committed(claim).verdict is Verdict.CLAIMED
    assert keys.store.claim_committed(rival_of(claim)).verdict is Verdict.FOUND
    with keys.atomic():
        level = shared_lab.ask("SHOW transaction_isolation", alias=keys.alias)
    assert level != "read committed", "only the claim's own transaction was pinned"


def test_a_default_that_was_changed_with_alter_database_is_seen_where_django_cannot_see_it(lab):
    lab.do(f"ALTER DATABASE \"{lab.database}\" SET default_transaction_isolation = 'serializable'")
    try:
        keys = Keys(lab.session())
        assert keys.claim(new_claim()).verdict is Verdict.WRONG_ISOLATION
        assert keys.store.claim_committed(new_claim()).verdict is Verdict.CLAIMED
    finally:
        lab.do(f'ALTER DATABASE "{lab.database}" RESET default_transaction_isolation')


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_the_seal_is_fenced_in_stricter_isolation_as_well(shared_lab, owner, level):
    strict = Keys(shared_lab.session(server={"default_transaction_isolation": level}))
    claim = new_claim(lease=0.0)
    assert strict.store.claim_committed(claim).verdict is Verdict.CLAIMED
    with strict.atomic():
        shared_lab.do("SELECT count(*) FROM pg_class", alias=strict.alias)  # the snapshot is taken
        assert owner.take_over(claim, rival_of(claim))
        assert strict.seal(claim) is Sealing.LOST


# --- a seal that brings its COMMIT ---


@pytest.fixture
def seal_and_commit():
    def seal_and_commit(keys, claim, response=CREATED, *, token=None, retention=3600.0):
        token = token or claim.owner_token
        return keys.store.seal_and_commit(claim.id, token, response, retention=retention, lease=claim.lease)

    return seal_and_commit


def status(keys):
    return connections[keys.alias].connection.info.transaction_status


def test_a_seal_commits_along_with_what_was_written_before(owner, rival, seal_and_commit):
    claim, effect = owner.own(new_claim()), new_claim()
    with owner.atomic():
        owner.own(effect)
        assert rival.store.find(effect.id) is None
        assert seal_and_commit(owner, claim)
        assert status(owner) == psycopg.pq.TransactionStatus.IDLE
        assert rival.store.find(effect.id) is not None
    assert rival.store.find(claim.id).response == CREATED


@pytest.mark.parametrize("wrong", ["token", "nothing claimed", "sealed", "a value that cannot be sent"])
def test_without_a_seal_the_commit_is_not_reached_and_nothing_is_lost(owner, rival, seal_and_commit, wrong):
    claim, effect = new_claim(), new_claim()
    if wrong != "nothing claimed":
        owner.own(claim)
    if wrong == "sealed":
        owner.seal(claim)
    response = replace(CREATED, body="a\0b") if wrong == "a value that cannot be sent" else CREATED
    with owner.atomic():
        owner.own(effect)
        assert not seal_and_commit(owner, claim, response, token=uuid4() if wrong == "token" else None)
        assert status(owner) == psycopg.pq.TransactionStatus.INTRANS
        assert rival.store.find(effect.id) is None
        assert owner.store.find(effect.id) is not None
    assert rival.store.find(effect.id) is not None


def test_without_a_leaf_the_effect_waits_for_one(lab, seal_and_commit):
    interval = drop_leaf_in_three_days(lab)
    keys, claim = Keys(lab.session()), new_claim()
    with keys.atomic():
        keys.own(claim)
        assert not seal_and_commit(keys, claim, retention=THREE_DAYS)
        attach(lab, interval)
        assert seal_and_commit(keys, claim, retention=THREE_DAYS)
    assert keys.store.find(claim.id).response == CREATED


def test_it_is_not_tried_one_statement_at_a_time(shared_lab, rival, seal_and_commit):
    for options in ONE_BY_ONE.values():
        keys = Keys(shared_lab.session(options=options))
        claim = keys.own(new_claim())
        with keys.atomic():
            assert not seal_and_commit(keys, claim)
        assert rival.store.find(claim.id).state is State.IN_FLIGHT


def test_what_commit_itself_refuses_ends_the_transaction(lab, seal_and_commit):
    lab.do(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
    )
    keys = Keys(lab.session())
    claim = keys.own(new_claim())
    with keys.undone():
        lab.do("INSERT INTO child VALUES (7)", alias=keys.alias)
        with pytest.raises(IntegrityError):
            seal_and_commit(keys, claim)
        assert status(keys) == psycopg.pq.TransactionStatus.IDLE
    assert lab.ask("SELECT count(*) FROM child") == 0
    assert keys.store.find(claim.id).state is State.IN_FLIGHT


def test_a_session_that_has_ended_hears_of_it_from_the_seal_alone(lab, seal_and_commit):
    """Of a COMMIT without an answer nobody would know whether it was reached."""
    keys = Keys(lab.session())
    claim = keys.own(new_claim())
    with keys.undone():
        lab.do(f"SELECT pg_terminate_backend({lab.ask('SELECT pg_backend_pid()', alias=keys.alias)}, 5000)")
        assert not seal_and_commit(keys, claim)
        with pytest.raises(OperationalError):
            keys.seal(claim)
    assert keys.store.find(claim.id).state is State.IN_FLIGHT


def test_where_the_effect_cannot_be_brought_back_the_seal_that_follows_says_so(owner, seal_and_commit, monkeypatch):
    claim, connection = owner.own(new_claim()), connections[owner.alias]
    with owner.undone():
        owner.own(new_claim())
        with monkeypatch.context() as patched:
            patched.setattr(connection, "savepoint_rollback", lambda sid: connection.cursor().execute("SELECT 1"))
            assert not seal_and_commit(owner, claim, token=uuid4())
        assert status(owner) == psycopg.pq.TransactionStatus.INERROR
        with pytest.raises(InternalError, match="aborted"):
            owner.store.find(claim.id)


def test_what_a_repetition_gets_past_is_not_waited_for_twice(shared_lab, owner, rival, seal_and_commit):
    claim = owner.own(new_claim())
    with rival.undone():
        shared_lab.rows("SELECT FROM idempotency_key WHERE id = %s FOR UPDATE", claim.id, alias=rival.alias)
        with owner.undone():
            shared_lab.do("SET LOCAL lock_timeout = '20ms'", alias=owner.alias)
            with pytest.raises(OperationalError) as waited:
                seal_and_commit(owner, claim)
            assert sqlstate(waited.value) == LOCK_NOT_AVAILABLE
    assert owner.store.find(claim.id).state is State.IN_FLIGHT


def test_it_ends_no_block_of_the_driver_and_no_transaction_that_has_not_begun(owner, rival, seal_and_commit):
    claim = owner.own(new_claim())
    with owner.atomic():
        assert status(owner) == psycopg.pq.TransactionStatus.IDLE
        assert not seal_and_commit(owner, claim)
        assert owner.store.find(claim.id) is not None  # which begins it
        with connections[owner.alias].connection.transaction():
            assert not seal_and_commit(owner, claim)
        assert seal_and_commit(owner, claim)
    assert rival.store.find(claim.id).state is State.SEALED


# --- settings of the session ---

WATCHED = (
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "synchronous_commit",
    "enable_seqscan",
    "statement_timeout",
)


def settings_of(lab, alias):
    return {name: lab.ask(f"SHOW {name}", alias=alias) for name in WATCHED}


@pytest.mark.parametrize("lock_timeout", ["0", "7s", "1500ms", "1d"])
def test_inside_the_transaction_only_the_limit_of_silence_changes_and_after_it_nothing(shared_lab, lock_timeout):
    keys = Keys(shared_lab.session(server={"lock_timeout": lock_timeout, "synchronous_commit": "local"}))
    before = settings_of(shared_lab, keys.alias)
    claim = new_claim()
    with keys.atomic():
        keys.claim(claim, limit_silence=True)
        assert settings_of(shared_lab, keys.alias) == before | {"idle_in_transaction_session_timeout": "30s"}
        keys.claim(rival_of(claim))
        keys.seal(claim, durable=True)
        during = settings_of(shared_lab, keys.alias)
    assert during == before | {"idle_in_transaction_session_timeout": "30s", "synchronous_commit": "on"}
    assert settings_of(shared_lab, keys.alias) == before


def test_waiting_taking_over_and_committed_claims_leave_the_settings_alone_too(shared_lab, owner):
    keys = Keys(shared_lab.session(server={"lock_timeout": "7s"}))
    before = settings_of(shared_lab, keys.alias)
    lapsed, running = owner.lapsed(new_claim()), new_claim()
    with owner.atomic():
        owner.own(running)
        with keys.atomic():
            assert keys.claim(rival_of(running, max_wait=0.01)).verdict is Verdict.WAITED
            assert settings_of(shared_lab, keys.alias) == before
    with keys.atomic():
        assert keys.take_over(lapsed, rival_of(lapsed))
        assert settings_of(shared_lab, keys.alias) == before
    keys.store.claim_committed(new_claim())
    assert settings_of(shared_lab, keys.alias) == before


@pytest.mark.parametrize("what", ["claim", "seal"])
@pytest.mark.parametrize(
    ("session", "lease", "limit"),
    [
        ("0", 30.0, "30s"),
        ("0", 1.5, "1500ms"),
        ("10s", 30.0, "10s"),
        ("500ms", 30.0, "500ms"),
        ("29999", 30.0, "29999ms"),
        ("1min", 30.0, "30s"),
        ("2h", 30.0, "30s"),
        ("3d", 86400.0, "1d"),
        ("0", 1e9, "2147483647ms"),
    ],
)
def test_the_limit_of_silence_is_the_lease_and_never_raises_a_smaller_one(shared_lab, what, session, lease, limit):
    keys = Keys(shared_lab.session(server={"idle_in_transaction_session_timeout": session}))
    claim = new_claim(lease=lease)
    with keys.atomic():
        keys.claim(claim, limit_silence=what == "claim")
        keys.seal(claim, durable=what == "seal")
        assert shared_lab.ask("SHOW idle_in_transaction_session_timeout", alias=keys.alias) == limit


def test_an_owner_that_hangs_in_its_transaction_is_ended_and_the_key_is_free(shared_lab, owner, rival):
    claim = new_claim(lease=0.05)
    connections[owner.alias].set_autocommit(False)
    owner.store.claim(claim, limit_silence=True, savepoint=None)
    assert rival.claim(rival_of(claim, max_wait=PATIENT)).verdict is Verdict.CLAIMED
    with pytest.raises(Error):
        owner.store.find(claim.id)


@pytest.mark.parametrize(
    ("session", "durable", "seen"),
    [
        ("off", True, "on"),
        ("local", True, "on"),
        ("remote_write", True, "on"),
        ("on", True, "on"),
        ("remote_apply", True, "remote_apply"),
        ("off", False, "off"),
    ],
)
def test_an_answered_request_survives_a_crash_of_the_server(shared_lab, session, durable, seen):
    keys = Keys(shared_lab.session(server={"synchronous_commit": session}))
    with keys.atomic():
        keys.sealed(new_claim(), durable=durable)
        assert shared_lab.ask("SHOW synchronous_commit", alias=keys.alias) == seen
    assert shared_lab.ask("SHOW synchronous_commit", alias=keys.alias) == session


# --- clocks ---


def test_times_are_those_of_the_moment_and_not_of_the_start_of_a_long_transaction(shared_lab, owner):
    claim = new_claim(lease=30.0)
    ask = "SELECT clock_timestamp()"
    with owner.atomic():
        began = shared_lab.ask("SELECT now()", alias=owner.alias)
        before_claim = shared_lab.ask(ask, alias=owner.alias)
        owner.own(claim)
        ((claimed, lease),) = shared_lab.rows(
            "SELECT claimed_at, lease_expires_at - claimed_at FROM idempotency_key WHERE id = %s",
            claim.id,
            alias=owner.alias,
        )
        before_seal = shared_lab.ask(ask, alias=owner.alias)
        owner.seal(claim, retention=60.0)
        ((sealed, lasts),) = shared_lab.rows(
            "SELECT sealed_at, expires_at - sealed_at FROM idempotency_key WHERE id = %s", claim.id, alias=owner.alias
        )
    assert began < before_claim < claimed < before_seal < sealed
    # Counted from the start of the transaction, they would be shorter.
    assert timedelta(seconds=30) <= lease < timedelta(seconds=31)
    assert timedelta(seconds=60) <= lasts < timedelta(seconds=61)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Sao_Paulo", "Pacific/Kiritimati"])
@pytest.mark.parametrize("use_tz", [True, False])
def test_leases_are_counted_by_the_servers_clock_in_any_time_zone(shared_lab, settings, owner, zone, use_tz):
    settings.USE_TZ = use_tz
    keys = Keys(shared_lab.session(TIME_ZONE=zone if use_tz else None, server={"timezone": zone}))
    settings.TIME_ZONE = zone
    claim = keys.own(new_claim(lease=30.0))
    assert 28 < keys.claim(rival_of(claim)).record.lease_left <= 30
    assert 28 < owner.store.find(claim.id).lease_left <= 30
    keys.seal(claim, retention=3600.0)
    assert owner.claim(rival_of(claim)).verdict is Verdict.FOUND


# --- text ---


@pytest.mark.parametrize("binding", [False, True])
@pytest.mark.parametrize("field", ["scope", "key"])
def test_text_with_nul_is_refused_before_it_reaches_the_server(shared_lab, field, binding):
    keys = Keys(shared_lab.session(options={"server_side_binding": binding}))
    with keys.atomic():
        with pytest.raises(DataError, match="NUL"):
            keys.store.claim(new_claim(**{field: "a\0b"}), limit_silence=False, savepoint=None)
        assert keys.claim(new_claim()).verdict is Verdict.CLAIMED, "the transaction has seen no error"


# --- plans, publications, partitions ---


def scans(lab, alias):
    """Sequential and index scans of the claims' leaf in this transaction so far."""
    ((sequential, by_index),) = lab.rows(
        "SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables WHERE relid = 'idempotency_key_in_flight'::regclass",
        alias=alias,
    )
    return sequential, by_index


@pytest.mark.parametrize("doctored", [None, "claim_v1", "seal_v1", "take_over_v1"])
def test_a_leaf_that_was_vacuumed_while_empty_is_still_read_by_its_index(lab, doctored):
    if doctored:
        doctor(lab, doctored, "SET enable_seqscan = off", "")
    lab.do("VACUUM ANALYZE idempotency_key_in_flight")
    keys = Keys(lab.session())
    with keys.atomic():
        for _ in range(20):
            lapsed = keys.lapsed(new_claim())
            successor = rival_of(lapsed)
            assert keys.store.take_over(keys.claim(successor).record, successor)
            keys.seal(successor)
        sequential, by_index = scans(lab, keys.alias)
    assert (sequential > 0) is bool(doctored)
    assert doctored or by_index >= 60


def test_a_publication_of_all_tables_does_not_stop_claims_from_moving(lab):
    keys = Keys(lab.session())
    lab.do("CREATE TABLE without_key (n int)", "INSERT INTO without_key VALUES (1)")
    lab.do(f"CREATE PUBLICATION {lab.schema} FOR ALL TABLES")
    try:
        with pytest.raises(Error, match="replica identity"):
            lab.do("UPDATE without_key SET n = 2")
        claim = keys.lapsed(new_claim())
        successor = rival_of(claim)
        assert keys.take_over(claim, successor)
        with own_connection(keys.alias) as connection:
            assert postgres.renew(connection, [(claim.id, successor.owner_token, 30.0)]) == {claim.id}
        assert keys.seal(successor, retention=0.0) is Sealing.SEALED
        again = keys.own(rival_of(claim))
        assert keys.release(again)
    finally:
        lab.do(f"DROP PUBLICATION {lab.schema}")


THREE_DAYS = 3 * 86400.0


def drop_leaf_in_three_days(lab):
    """Take away the leaf of what is sealed now for three days, and return its interval."""
    name = lab.ask(
        "SELECT 'idempotency_key_sealed_' || to_char((now() + interval '3 days') AT TIME ZONE 'UTC', 'YYYYMMDD')"
    )
    with own_connection(lab.aliases[0]) as connection:
        _, before = covered(connection)
        lab.do(f"DROP TABLE {name}")
        _, after = covered(connection)
    (interval,) = set(before) - set(after)
    return interval


def attach(lab, interval):
    with own_connection(lab.aliases[0]) as connection:
        create_leaves(connection, [interval])


@pytest.mark.parametrize("doctored", [False, True])
def test_a_leaf_attached_since_the_transaction_looked_is_seen_at_the_seal(lab, doctored):
    if doctored:
        doctor(lab, "seal_v1", REFRESH, "")
    interval = drop_leaf_in_three_days(lab)
    keys, claim = Keys(lab.session()), new_claim()
    with keys.atomic():
        keys.sealed(new_claim())  # this transaction has looked for the leaves that it can write to
        keys.own(claim)
        attach(lab, interval)
        sealing = keys.seal(claim, retention=THREE_DAYS)
    assert sealing is (Sealing.NO_PARTITION if doctored else Sealing.SEALED)


@pytest.mark.parametrize("doctored", [False, True])
def test_a_leaf_attached_since_the_transaction_looked_is_seen_at_the_second_look(lab, crowd, doctored):
    if doctored:
        doctor(lab, "claim_v1", REFRESH, "")
    interval = drop_leaf_in_three_days(lab)
    owner, rival, claim = Keys(lab.session()), Keys(lab.session()), new_claim()

    def duplicate():
        with rival.atomic():
            rival.own(new_claim())  # this transaction has seen the leaves that there are
            return rival.claim(rival_of(claim, max_wait=PATIENT))

    with owner.atomic():
        owner.own(claim)
        waiting = crowd.start(duplicate)
        lab.until_waiting()
        attach(lab, interval)
        assert owner.seal(claim, retention=THREE_DAYS) is Sealing.SEALED
    answer = waiting.result(PATIENT)
    assert answer.verdict is (Verdict.CLAIMED if doctored else Verdict.FOUND)


def test_a_seal_without_a_leaf_says_so_and_can_be_repeated_in_the_same_transaction(lab):
    interval = drop_leaf_in_three_days(lab)
    keys, claim = Keys(lab.session()), new_claim()
    with keys.atomic():
        keys.own(claim)
        assert keys.seal(claim, retention=THREE_DAYS, durable=True) is Sealing.NO_PARTITION
        attach(lab, interval)
        assert keys.seal(claim, retention=THREE_DAYS, durable=True) is Sealing.SEALED
        assert lab.ask("SHOW synchronous_commit", alias=keys.alias) == "on"
    assert keys.store.find(claim.id).response == CREATED


def test_a_record_left_in_place_would_collide_with_its_successor_at_the_seal(lab):
    doctor(
        lab,
        "claim_v1",
        "idempotency_key_sealed AS k WHERE k.id = p_id AND",
        "idempotency_key_sealed AS k WHERE false AND",
    )
    keys = Keys(lab.session())
    claim = keys.expired(new_claim())
    again = keys.own(rival_of(claim))
    with pytest.raises(Error, match="duplicate key"):
        keys.seal(again, retention=0.0)


def test_a_committed_claim_that_fails_leaves_a_usable_session(lab):
    keys, administrator = Keys(lab.session()), Keys(lab.session())
    keys.own(new_claim())
    with administrator.atomic():
        lab.do("LOCK TABLE idempotency_key_in_flight IN SHARE MODE", alias=administrator.alias)
        with pytest.raises(OperationalError):
            keys.store.claim_committed(new_claim(max_wait=0.05))
    assert connections[keys.alias].connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert keys.store.claim_committed(new_claim()).verdict is Verdict.CLAIMED
