"""Partitions that are dropped: which, how, and what becomes of everything that is not to be dropped."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import psycopg
import pytest
from django.db import Error, OperationalError, ProgrammingError, connections

from django_idempotency.core.states import Verdict
from django_idempotency.pruning import AnotherPruner, Fate, prune
from django_idempotency.retention import make_ahead
from django_idempotency.storage import partitions, pruning as steps
from django_idempotency.storage.transactions import own_connection
from tests.support.crowds import Crowd
from tests.support.keys import Keys, new_claim, rival_of
from tests.support.leaves import (
    DAY,
    expire_in,
    is_attached,
    is_pending,
    is_there,
    make_past,
    older_transaction,
    past,
    today,
)
from tests.support.waiting import eventually

PATIENT = 20.0
WAIT_FOR_A_LOCK = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
def crowd():
    with Crowd(8) as crowd:
        yield crowd


@pytest.fixture
def impatient(settings):
    """Pruning waits for a second, the least that the setting allows."""
    settings.IDEMPOTENCY = {"DETACH_TIMEOUT": timedelta(seconds=1)}


def fates(lab, alias=None, **how):
    """What became of each leaf that is not in use, by its name."""
    found = {each.name: each for each in prune(alias or lab.aliases[0], **how)}
    return {name: each.fate for name, each in found.items() if "may not have" not in (each.reason or "")}


def look_at_all(lab, alias=None):
    with own_connection(alias or lab.aliases[0]) as connection:
        return steps.leaves(connection, partitions.SEALED)


def reason(lab, name):
    return {each.name: each.reason for each in prune(lab.aliases[0])}[name]


def detach_and_stop_half_way(lab, name):
    """What a pruner leaves behind that was cancelled while it waited."""
    with older_transaction(lab):
        session = lab.session(server={"statement_timeout": "100ms"})
        with pytest.raises(OperationalError, match="statement timeout"):
            lab.do(f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {name} CONCURRENTLY", alias=session)
    assert is_pending(lab, name)


def mark_as_leaving(lab, name):
    with own_connection(lab.aliases[0]) as connection:
        steps.mark_as_leaving(connection, partitions.SEALED, name, buried_for=None)


# --- what goes ---


def test_what_is_over_goes_and_everything_else_stays(lab):
    older, newer = make_past(lab, 9, 2)
    expire_in(lab, 9, 3), expire_in(lab, 2, 2)
    keys = Keys(lab.aliases[0])
    kept, flying = keys.sealed(new_claim()), keys.own(new_claim())
    before = len(list(prune(lab.aliases[0], dry_run=True)))
    assert fates(lab) == {older: Fate.DROPPED, newer: Fate.DROPPED}
    assert not is_there(lab, older)
    assert not is_there(lab, newer)
    assert len(list(prune(lab.aliases[0]))) == before - 2, "and nothing is done twice"
    assert [keys.count(each) for each in (kept, flying)] == [1, 1]
    assert lab.ask("SELECT count(*) FROM idempotency_key") == 2


def test_it_says_what_went(lab):
    (name,) = make_past(lab, 2)
    expire_in(lab, 2, 30)
    lab.do(f"ANALYZE {name}")
    (gone,) = (each for each in prune(lab.aliases[0]) if each.fate is Fate.DROPPED)
    assert (gone.name, gone.rows, gone.interval) == (name, 30, past(2))
    assert gone.size >= 8192
    assert gone.reason.startswith("everything in it expired ")


def test_a_dry_run_says_the_same_and_changes_nothing(lab):
    (name,) = make_past(lab, 2)
    detach_and_stop_half_way(lab, *make_past(lab, 5))
    comments = "SELECT objoid, description FROM pg_description ORDER BY 1"
    before = lab.rows(comments)
    assert list(fates(lab, dry_run=True).values()) == [Fate.DUE, Fate.DUE]
    assert lab.rows(comments) == before
    assert is_attached(lab, name)
    assert list(fates(lab).values()) == [Fate.DROPPED, Fate.DROPPED]


def test_a_gap_shields_nothing(lab):
    names = make_past(lab, 30, 12, 3)
    assert fates(lab) == dict.fromkeys(names, Fate.DROPPED)


def test_the_margin_is_waited_for(lab, monkeypatch):
    (name,) = make_past(lab, 0)
    monkeypatch.setattr(steps, "trusted_now", lambda connection: today() + timedelta(minutes=59))
    assert fates(lab) == {name: Fate.KEPT}
    assert "less than the margin of 60 minutes" in reason(lab, name)
    monkeypatch.setattr(steps, "trusted_now", lambda connection: today() + timedelta(minutes=60))
    assert fates(lab) == {name: Fate.DROPPED}


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Pacific/Kiritimati", "America/Sao_Paulo"])
@pytest.mark.parametrize("style", ["ISO, DMY", "SQL, DMY", "German", "Postgres, MDY"])
def test_bounds_are_utc_whatever_the_session_thinks_of_dates(lab, monkeypatch, zone, style):
    """The day is over for some of them, and not for others."""
    due, kept = make_past(lab, 1, 0)
    monkeypatch.setattr(steps, "trusted_now", lambda connection: today())
    alias = lab.session(server={"timezone": zone, "datestyle": style}, TIME_ZONE=zone)
    assert fates(lab, alias) == {due: Fate.DROPPED, kept: Fate.KEPT}


def test_without_time_zone_support_as_well(lab, settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
    (name,) = make_past(lab, 2)
    assert fates(lab, lab.session()) == {name: Fate.DROPPED}


def test_leaves_of_another_release_are_known_by_their_bounds_and_their_mark(lab):
    """Other names, other lengths, bounds that are not midnight."""
    odd, long = "a leaf", "a_long_one"
    lab.do(
        f'CREATE TABLE "{odd}" PARTITION OF idempotency_key_sealed (PRIMARY KEY (id))'
        f" FOR VALUES FROM ('{past(3).lower.isoformat()}') TO ('{(past(3).lower + DAY / 7).isoformat()}')",
        f"CREATE TABLE {long} PARTITION OF idempotency_key_sealed (PRIMARY KEY (id))"
        f" FOR VALUES FROM ('{past(30).lower.isoformat()}') TO ('{past(20).upper.isoformat()}')",
        f"COMMENT ON TABLE \"{odd}\" IS '{partitions.MARK}'",
        f"COMMENT ON TABLE {long} IS '{partitions.MARK}'",
    )
    assert set(fates(lab).values()) == {Fate.DROPPED}
    assert lab.ask("SELECT count(*) FROM pg_class WHERE relname IN (%s, %s)", odd, long) == 0


# --- what stays ---


def test_a_partition_without_the_mark_is_never_touched(lab):
    foreign, ours = make_past(lab, 9, 2)
    for comment in ("NULL", "'mine'", "'not a django_idempotency: leaf of sealed keys'"):
        lab.do(f"COMMENT ON TABLE {foreign} IS {comment}")
        assert fates(lab)[foreign] is Fate.KEPT
    assert not is_there(lab, ours)
    assert is_attached(lab, foreign)


def test_bounds_that_are_not_moments_are_not_judged(lab):
    lab.do(
        "CREATE TABLE since_ever PARTITION OF idempotency_key_sealed (PRIMARY KEY (id))"
        f" FOR VALUES FROM (MINVALUE) TO ('{past(30).lower.isoformat()}')",
        f"COMMENT ON TABLE since_ever IS '{partitions.MARK}'",
    )
    assert fates(lab) == {f"{lab.schema}.since_ever": Fate.KEPT}


@pytest.mark.parametrize("whose", ["database", "machine"])
def test_one_clock_that_jumps_ahead_drops_nothing(lab, monkeypatch, whose):
    Keys(lab.aliases[0]).sealed(new_claim())
    ahead = datetime.now(timezone.utc) + 40 * DAY
    if whose == "database":
        monkeypatch.setattr(steps, "clock", lambda connection: ahead)
    else:
        monkeypatch.setattr(steps, "datetime", type("Ahead", (datetime,), {"now": classmethod(lambda *_: ahead)}))
    assert fates(lab) == {}
    assert lab.ask("SELECT count(*) FROM idempotency_key") == 1


def test_a_clock_that_is_set_back_meanwhile_keeps_what_is_not_over_any_more(lab, monkeypatch):
    """Decided by one clock, and looked at again by the other, in each step."""
    (name,) = make_past(lab, 2)
    expire_in(lab, 2)
    times = iter([today(), today()])  # for the tombstones, and for the records
    monkeypatch.setattr(steps, "trusted_now", lambda connection: next(times, past(2).lower))
    found = {each.name: each for each in prune(lab.aliases[0])}
    assert (found[name].fate, found[name].reason) == (Fate.KEPT, "records in it have not expired")
    assert is_attached(lab, name)


def test_set_back_after_the_detachment_it_is_not_dropped_and_a_person_is_told(lab, monkeypatch):
    (name,) = make_past(lab, 2)
    expire_in(lab, 2)
    usual = steps.detach

    def then_set_back(*arguments):
        usual(*arguments)
        monkeypatch.setattr(steps, "trusted_now", lambda connection: past(2).lower)

    with monkeypatch.context() as patched:
        patched.setattr(steps, "detach", then_set_back)
        assert fates(lab)[name] is Fate.LEFT
    assert lab.ask(f"SELECT count(*) FROM {name}") == 1
    monkeypatch.undo()
    assert fates(lab) == {name: Fate.DROPPED}, "when its time is over"


def test_the_bounds_prove_that_nothing_is_unexpired_without_reading_it(lab):
    """Looking at two million rows would take as long as everything else together."""
    (name,) = make_past(lab, 2)
    expire_in(lab, 2, 5)
    scans = "SELECT seq_scan FROM pg_stat_all_tables WHERE relid = %s::regclass"
    before = lab.ask(scans, name)
    with own_connection(lab.aliases[0]) as connection:
        assert not steps.holds_unexpired(connection, partitions.SEALED, name)
        steps.mark_as_leaving(connection, partitions.SEALED, name, buried_for=None)
        steps.detach(connection, partitions.SEALED, name)
        assert not steps.holds_unexpired(connection, partitions.SEALED, name)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
    assert lab.ask(scans, name) == before
    lab.rows(f"SELECT expires_at FROM {name}")
    lab.rows("SELECT pg_stat_force_next_flush()")
    assert lab.ask(scans, name) == before + 1, "it would have been counted"


# --- what was interrupted ---


def test_an_interrupted_detachment_is_ended_and_then_the_others_go(lab):
    """Until then, PostgreSQL detaches no other leaf of the table."""
    pending, other = make_past(lab, 2, 5)
    expire_in(lab, 2, 2)
    detach_and_stop_half_way(lab, pending)
    assert fates(lab) == {pending: Fate.DROPPED, other: Fate.DROPPED}


def test_a_leaf_that_was_detached_and_not_dropped_is_dropped(lab):
    (name,) = make_past(lab, 2)
    mark_as_leaving(lab, name)
    lab.do(f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {name} CONCURRENTLY")
    assert fates(lab) == {name: Fate.DROPPED}
    assert not is_there(lab, name)


def test_a_leaf_that_somebody_detached_is_theirs(lab):
    (name,) = make_past(lab, 2)
    expire_in(lab, 2)
    lab.do(f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {name}")
    assert fates(lab) == {name: Fate.KEPT}
    assert lab.ask(f"SELECT count(*) FROM {name}") == 1


def test_a_table_that_is_not_attached_and_has_no_mark_is_nobodys_business(lab):
    (name,) = make_past(lab, 2)
    lab.do(f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {name}", f"COMMENT ON TABLE {name} IS NULL")
    assert fates(lab) == {}
    assert is_there(lab, name)


@pytest.mark.parametrize("odd", ["expires_at = clock_timestamp() + interval '1 hour'", "expires_at = NULL"])
def test_a_detached_leaf_with_anything_that_has_not_expired_stays(lab, odd):
    (name,) = make_past(lab, 2)
    expire_in(lab, 2, 2)
    mark_as_leaving(lab, name)
    lab.do(f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {name}")
    lab.do(f"ALTER TABLE {name} DROP CONSTRAINT idempotency_key_state", f"UPDATE {name} SET {odd}")
    assert fates(lab) == {name: Fate.LEFT}
    assert lab.ask(f"SELECT count(*) FROM {name}") == 2


def test_a_detachment_before_its_time_is_ended_for_the_sake_of_the_others(lab):
    """A person's, perhaps: its records answer nobody, which pruning cannot mend, and has to say."""
    (due,) = make_past(lab, 2)
    keys = Keys(lab.aliases[0])
    keys.sealed(new_claim(), retention=3 * 86_400.0)
    early = lab.ask("SELECT tableoid::regclass::text FROM idempotency_key_sealed WHERE expires_at > now()")
    detach_and_stop_half_way(lab, early)
    found = {each.name: each for each in prune(lab.aliases[0])}
    left = found[f"{lab.schema}.{early}"]
    assert (found[due].fate, left.fate) == (Fate.DROPPED, Fate.LEFT)
    assert lab.ask(f"SELECT count(*) FROM {early}") == 1
    assert lab.ask("SELECT count(*) FROM idempotency_key") == 0
    lab.do(left.reason.partition("to undo that: ")[2])
    assert lab.ask("SELECT count(*) FROM idempotency_key") == 1
    assert fates(lab) == {}


def test_somebody_elses_detachment_is_for_a_person_and_keeps_all_others(lab):
    foreign, ours = make_past(lab, 9, 2)
    lab.do(f"COMMENT ON TABLE {foreign} IS NULL")
    detach_and_stop_half_way(lab, foreign)
    assert fates(lab) == {foreign: Fate.LEFT, ours: Fate.KEPT}
    assert f"finalize the detachment of {foreign}" in reason(lab, ours)
    lab.do(f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {foreign} FINALIZE")
    assert fates(lab) == {ours: Fate.DROPPED}


def test_a_leaf_that_is_being_detached_is_no_cover(lab):
    with own_connection(lab.aliases[0]) as connection:
        _, before = partitions.covered(connection)
    last = lab.ask(
        "SELECT max(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'idempotency_key_sealed'::regclass"
    )
    lab.do(f"DROP TABLE {partitions._name(before[4], partitions.SEALED)}")
    detach_and_stop_half_way(lab, last)
    with own_connection(lab.aliases[0]) as connection:
        assert partitions.covered(connection)[1] == [*before[:4], *before[5:-1]]
    made = make_ahead(lab.aliases[0])
    assert (made.intervals, made.until) == ([before[4]], before[-1].lower), "what can be made is, and no more is said"


# --- others at work ---


def test_an_older_transaction_is_waited_for_and_the_next_run_goes_on(lab, impatient):
    (name,) = make_past(lab, 2)
    with older_transaction(lab) as other:
        backend = lab.ask("SELECT pg_backend_pid()", alias=other.alias)
        found = {each.name: each for each in prune(lab.aliases[0])}
        assert found[name].fate is Fate.WAITING
        assert f"backend {backend}, open for " in found[name].reason
        assert is_pending(lab, name)
        assert fates(lab)[name] is Fate.WAITING, "and again"
    assert fates(lab) == {name: Fate.DROPPED}


def test_what_ends_in_time_is_not_left_for_the_next_run(lab, crowd):
    (name,) = make_past(lab, 2)
    with older_transaction(lab):
        pruner = crowd.start(fates, lab, lab.session())
        eventually(lambda: is_pending(lab, name), "it is being detached")
        lab.until_waiting()
    assert pruner.result(PATIENT) == {name: Fate.DROPPED}


@pytest.mark.parametrize("where", ["role", "session"])
def test_the_roles_time_outs_do_not_cut_it_short(lab, crowd, where):
    """Two seconds for a statement are usual, and a detachment waits longer."""
    (name,) = make_past(lab, 2)
    alias = lab.session(server={"statement_timeout": "200ms", "lock_timeout": "100ms"})
    if where == "role":
        lab.do(f"CREATE ROLE {lab.schema}_hurried SUPERUSER LOGIN PASSWORD 'x'")
        lab.do(f"ALTER ROLE {lab.schema}_hurried SET statement_timeout = '200ms'")
        alias = lab.session(USER=f"{lab.schema}_hurried", PASSWORD="x", server={})
        connections.settings[alias]["OPTIONS"]["options"] = f"-c search_path={lab.schema}"
    try:
        with older_transaction(lab):
            pruner = crowd.start(fates, lab, alias)
            lab.until_waiting()
            began = lab.ask("SELECT clock_timestamp()")
            eventually(
                lambda: lab.ask("SELECT clock_timestamp() > %s + interval '0.5 s'", began), "longer than they allow"
            )
            assert not pruner.done()
        assert pruner.result(PATIENT) == {name: Fate.DROPPED}
    finally:
        if where == "role":
            lab.end(alias)
            lab.do(f"DROP ROLE {lab.schema}_hurried")


def test_of_two_pruners_one_does_nothing(lab, crowd):
    (name,) = make_past(lab, 2)
    with older_transaction(lab):
        first = crowd.start(fates, lab, lab.session())
        eventually(lambda: is_pending(lab, name), "the first is at it")
        with pytest.raises(AnotherPruner):
            fates(lab, lab.session())
        assert fates(lab, dry_run=True) == {name: Fate.DUE}, "looking is allowed"
    assert first.result(PATIENT) == {name: Fate.DROPPED}
    assert fates(lab) == {}


def test_where_no_session_is_kept_two_pruners_do_no_harm(lab, crowd, monkeypatch):
    """Behind a pooler in transaction mode there is no lock to be alone by, and no time-out of the session's."""
    monkeypatch.setattr(steps, "begin", lambda connection, *, patience: True)
    names = make_past(lab, *range(2, 8))
    expire_in(lab, 4, 3)
    kept = Keys(lab.aliases[0]).sealed(new_claim())
    aliases = [lab.session() for _ in range(3)]
    for found in crowd.all_at_once([lambda alias=alias: list(prune(alias)) for alias in aliases]):
        assert [each for each in found if each.fate is not Fate.DROPPED and "may not have" not in each.reason] == []
    assert not any(is_there(lab, name) for name in names)
    assert Keys(lab.aliases[0]).count(kept) == 1


def test_a_leaf_that_is_dropped_while_it_is_looked_at_is_not_taken_for_a_strange_one(lab, crowd):
    """From PostgreSQL 16 on, writing out its bounds waits for whoever drops it, and finds nothing then."""
    (name,) = make_past(lab, 2)
    others = {each.name for each in look_at_all(lab)} - {name}
    dropper = Keys(lab.session())
    with dropper.atomic():
        lab.do(f"DROP TABLE {name}", alias=dropper.alias)
        looking = crowd.start(look_at_all, lab, lab.session())
        eventually(lambda: looking.done() or lab.ask(WAIT_FOR_A_LOCK), "it has passed the table, or waits for it")
    found = looking.result(PATIENT)
    assert {each.name for each in found} - {name} == others
    assert [each for each in found if each.interval is None] == []


def test_the_bounds_of_a_leaf_are_written_out_once(lab):
    """Written again, they could be gone in between: the leaf would be taken for one with other bounds, and be kept."""
    parameters = {"table": partitions.SEALED.table, "mark": partitions.MARK, "name": None}
    with connections[lab.aliases[0]].cursor() as cursor:
        cursor.execute(f"EXPLAIN VERBOSE {steps._LEAVES}", parameters)
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert plan.count("pg_get_expr(") == 1, plan


def test_a_pooler_is_noticed_and_nothing_is_set_for_its_sessions(lab, monkeypatch):
    with own_connection(lab.aliases[0]) as connection:
        connection.ensure_connection()
        info = type("Info", (), {"backend_pid": 0})
        monkeypatch.setattr(psycopg.Connection, "info", info)
        assert steps.begin(connection, patience=timedelta(minutes=7))
        monkeypatch.undo()
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('statement_timeout'), count(*) FROM pg_locks"
                           " WHERE locktype = 'advisory' AND pid = pg_backend_pid()")  # fmt: skip
            assert cursor.fetchone() == ("30s", 0)


def test_a_leaf_that_somebody_reads_is_not_queued_for(lab, impatient):
    """Whoever waits for a table keeps everybody behind it waiting."""
    (name,) = make_past(lab, 2)
    mark_as_leaving(lab, name)
    lab.do(f"ALTER TABLE idempotency_key_sealed DETACH PARTITION {name} CONCURRENTLY")
    reader = Keys(lab.session())
    with reader.atomic():
        lab.rows(f"SELECT FROM {name}", alias=reader.alias)
        found = {each.name: each for each in prune(lab.aliases[0])}
        assert found[name].fate is Fate.WAITING
        assert is_there(lab, name)
    assert fates(lab) == {name: Fate.DROPPED}


def test_one_that_cannot_go_does_not_keep_the_others(lab):
    stuck, other = make_past(lab, 5, 2)
    lab.do(f"CREATE VIEW somebodys AS SELECT id FROM {stuck}")
    found = {each.name: each for each in prune(lab.aliases[0])}
    assert (found[stuck].fate, found[other].fate) == (Fate.LEFT, Fate.DROPPED)
    assert "somebodys" in found[stuck].reason
    lab.do("DROP VIEW somebodys")
    assert fates(lab) == {stuck: Fate.DROPPED}


def test_a_role_that_does_not_own_the_table_is_told_so(lab):
    make_past(lab, 2)
    role = f"{lab.schema}_server"
    lab.do(
        f"CREATE ROLE {role} NOLOGIN",
        f"GRANT USAGE ON SCHEMA {lab.schema} TO {role}",
        f"GRANT SELECT, DELETE ON ALL TABLES IN SCHEMA {lab.schema} TO {role}",
    )
    alias = lab.session(server={"role": role})
    try:
        with pytest.raises(ProgrammingError, match="must be owner"):
            fates(lab, alias)
    finally:
        lab.end(alias)
        lab.do(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_database_that_cannot_be_reached_is_an_error_of_the_database(lab):
    with pytest.raises(OperationalError):
        list(prune(lab.session(PORT="1")))


@pytest.mark.parametrize("step", ["mark_as_leaving", "detach", "drop"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_session_that_is_cut_at_any_step_leaves_what_the_next_run_ends(lab, monkeypatch, step, when):
    names = make_past(lab, 5, 2)
    usual = getattr(steps, step)

    def cut(connection, *arguments, **named):
        if when == "after":
            usual(connection, *arguments, **named)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with monkeypatch.context() as patched:
        patched.setattr(steps, step, cut)
        with pytest.raises(Error):
            fates(lab)
    left = [name for name in names if is_there(lab, name)]
    assert fates(lab) == dict.fromkeys(left, Fate.DROPPED)


# --- the keys meanwhile ---


def test_a_publication_of_all_tables_stands_in_nobodys_way(lab, settings):
    """It refuses changes of a table without a key of its own, such as a leaf that was made carelessly."""
    settings.IDEMPOTENCY = {"TOMBSTONES": 30 * DAY}
    lab.do(f"CREATE PUBLICATION {lab.schema}_all FOR ALL TABLES")
    try:
        (name,) = make_past(lab, 2)
        (expired, other) = expire_in(lab, 2, 2)
        keys = Keys(lab.aliases[0])
        keys.sealed(rival_of(expired))
        assert fates(lab) == {name: Fate.DROPPED}
        assert keys.claim(rival_of(other, refuse_expired_for=60.0)).verdict is Verdict.EXPIRED
        lab.do("DELETE FROM idempotency_tombstone")
    finally:
        lab.do(f"DROP PUBLICATION {lab.schema}_all")


def test_a_key_that_is_used_again_after_its_expiry_survives(lab):
    (name,) = make_past(lab, 2)
    (expired,) = expire_in(lab, 2)
    keys = Keys(lab.aliases[0])
    again = keys.own(rival_of(expired))
    assert fates(lab) == {name: Fate.DROPPED}
    keys.seal(again)
    assert keys.claim(rival_of(expired)).verdict is Verdict.FOUND


def test_a_record_that_is_sealed_into_a_leaf_that_is_due_is_waited_for(lab, crowd):
    """By a transaction that has taken very long. It has the table, so the leaf is detached after it."""
    (name,) = make_past(lab, 2)
    owner = Keys(lab.session())
    with owner.atomic():
        claim = owner.own(new_claim())
        owner.seal(claim, retention=(past(2).lower + DAY / 2 - datetime.now(timezone.utc)).total_seconds())
        pruner = crowd.start(fates, lab, lab.session())
        lab.until_waiting()
        assert is_there(lab, name)
    assert pruner.result(PATIENT) == {name: Fate.DROPPED}


def test_work_of_a_pruner_leaves_no_session_behind(lab):
    make_past(lab, 2)
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    )
    before = lab.ask(count)
    fates(lab)
    eventually(lambda: lab.ask(count) <= before, "the session has ended")
