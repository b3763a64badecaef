"""The savepoint that undoes a view's writes and keeps its claim: one promise, kept in two ways."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
from django.db import Error, IntegrityError, connections, transaction
from django.test.utils import CaptureQueriesContext
from psycopg import ClientCursor, IsolationLevel
from psycopg.pq import TransactionStatus

from django_idempotency import IdempotencyMode, IdempotencyPolicy
from django_idempotency.conf import current
from django_idempotency.core.errors import BrokenTransaction
from django_idempotency.core.fingerprint import Content, EmptyBody
from django_idempotency.core.states import Verdict
from django_idempotency.ownership import Outcome
from django_idempotency.request_transactions import RequestTransactions
from django_idempotency.service import Execution, Intent
from django_idempotency.storage.transactions import (
    NestedSavepoint,
    TravellingSavepoint,
    awaits_begin,
    cannot_commit,
    own_connection,
    passing,
    savepoint_on,
    sqlstate,
    transaction_on,
    within_test_case,
)
from tests.support.keys import CREATED, Keys, new_claim, rival_of
from tests.support.laboratory import LaboratoryFile


class Bench:
    """A session with a table to write to, and one kind of savepoint."""

    def __init__(self, alias, kind):
        self.alias = alias
        self.connection = connections[alias]
        self.kind = kind

    def savepoint(self):
        """Set one, as the claim does."""
        made = self.kind(self.connection)
        if made.statement is not None:
            with self.connection.cursor() as cursor:
                cursor.execute(f"SELECT 1; {made.statement}")
        made.began()
        return made

    def atomic(self, **how):
        return transaction.atomic(using=self.alias, **how)

    def write(self, word):
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO words VALUES (%s)", [word])

    def fail(self):
        with pytest.raises(Error):
            self.write(None)

    def words(self):
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT word FROM words ORDER BY word")
            return [word for (word,) in cursor.fetchall()]

    def on_commit(self, act):
        transaction.on_commit(act, using=self.alias)


KINDS = {
    "travelling": ("shared_lab", TravellingSavepoint),
    "nested": ("shared_lab", NestedSavepoint),
    "nested on SQLite": ("sqlite_file", NestedSavepoint),
}


@pytest.fixture(params=KINDS)
def bench(request, django_db_blocker):
    source, kind = KINDS[request.param]
    with django_db_blocker.unblock():
        place = request.getfixturevalue(source)
        place = LaboratoryFile(place) if isinstance(place, str) else place
        made = Bench(place.session(), kind)
        with made.connection.cursor() as cursor:
            cursor.execute("CREATE TABLE words (word varchar(20) NOT NULL)")
        yield made
        if made.connection.in_atomic_block:
            made.connection.close()
            made.connection.in_atomic_block = False
        with made.connection.cursor() as cursor:
            cursor.execute("DROP TABLE words")
        place.close()


def test_what_was_written_since_is_undone_and_what_was_before_stays(bench):
    with bench.atomic():
        bench.write("claim")
        savepoint = bench.savepoint()
        bench.write("view")
        savepoint.undo()
        assert bench.words() == ["claim"]
        bench.write("seal")
        savepoint.forget()
    assert bench.words() == ["claim", "seal"]


def test_without_undoing_everything_is_committed(bench):
    with bench.atomic():
        bench.write("claim")
        savepoint = bench.savepoint()
        bench.write("view")
        savepoint.forget()
    assert bench.words() == ["claim", "view"]


def test_it_can_be_undone_more_than_once(bench):
    with bench.atomic():
        savepoint = bench.savepoint()
        for word in ("one", "two"):
            bench.write(word)
            savepoint.undo()
        assert bench.words() == []
        savepoint.forget()


def test_a_rolled_back_transaction_takes_all_with_it(bench):
    with bench.atomic():
        bench.write("claim")
        savepoint = bench.savepoint()
        bench.write("view")
        savepoint.forget(rolling_back=True)
        transaction.set_rollback(True, using=bench.alias)
    assert bench.words() == []


def test_a_transaction_in_which_an_error_was_swallowed_is_clean_again(bench):
    with bench.atomic():
        bench.write("claim")
        savepoint = bench.savepoint()
        bench.write("view")
        bench.fail()
        savepoint.undo()
        assert not cannot_commit(bench.connection)
        bench.write("seal")
        savepoint.forget()
    assert bench.words() == ["claim", "seal"]


def test_a_transaction_that_was_marked_for_rollback_is_clean_again(bench):
    with bench.atomic():
        bench.write("claim")
        savepoint = bench.savepoint()
        bench.write("view")
        transaction.set_rollback(True, using=bench.alias)
        savepoint.undo()
        assert not cannot_commit(bench.connection)
        savepoint.forget()
    assert bench.words() == ["claim"]


def test_blocks_of_the_view_inside_it_are_its_own_business(bench):
    with bench.atomic():
        savepoint = bench.savepoint()
        with bench.atomic():
            bench.write("kept")
        with suppress(IntegrityError), bench.atomic():
            bench.write("lost")
            bench.write(None)
        assert bench.words() == ["kept"]
        with bench.atomic(), bench.atomic():
            bench.write("deep")
        savepoint.undo()
        assert bench.words() == []
        with bench.atomic():
            bench.write("seal")
        savepoint.forget()
    assert bench.words() == ["seal"]


def test_hooks_of_what_was_undone_do_not_fire_and_all_others_do(bench):
    fired = []
    with bench.atomic():
        bench.on_commit(lambda: fired.append("before"))
        savepoint = bench.savepoint()
        bench.on_commit(lambda: fired.append("undone"))
        with bench.atomic():
            bench.on_commit(lambda: fired.append("undone in a block of the view"))
        savepoint.undo()
        bench.on_commit(lambda: fired.append("after"))
        with bench.atomic():
            bench.on_commit(lambda: fired.append("after, in a block"))
        savepoint.forget()
        bench.on_commit(lambda: fired.append("last"))
        assert fired == []
    assert fired == ["before", "after", "after, in a block", "last"]


def test_hooks_fire_once_where_nothing_was_undone(bench):
    fired = []
    with bench.atomic():
        bench.on_commit(lambda: fired.append("before"))
        savepoint = bench.savepoint()
        bench.on_commit(lambda: fired.append("view"))
        savepoint.forget()
    assert fired == ["before", "view"]


def test_hooks_of_a_request_survive_what_the_next_one_in_the_same_test_undoes(bench):
    fired = []
    with bench.atomic():  # a TestCase's
        for number, undone in enumerate([False, True, False, True]):
            with bench.atomic():
                savepoint = bench.savepoint()
                bench.on_commit(lambda number=number: fired.append(number))
                if undone:
                    savepoint.undo()
                savepoint.forget()
    assert fired == [0, 2]


def test_the_bookkeeping_of_django_is_as_before(bench):
    with bench.atomic():
        savepoint = bench.savepoint()
        savepoint.undo()
        savepoint.forget()
        assert bench.connection.savepoint_ids == []
        savepoint.forget()
        assert bench.connection.savepoint_ids == []
        assert len(bench.connection.atomic_blocks) == 1
    assert not bench.connection.in_atomic_block
    assert bench.connection.run_on_commit == []


def test_a_savepoint_that_was_never_set_is_forgotten_without_harm(bench):
    with bench.atomic():
        bench.write("claim")
        bench.kind(bench.connection).forget()
    assert bench.words() == ["claim"]


def test_the_travelling_one_costs_no_statement_of_its_own(shared_lab):
    alias = shared_lab.session()
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        savepoint = TravellingSavepoint(connections[alias])
        cursor.execute(f"SELECT 1; {savepoint.statement}")
        with CaptureQueriesContext(connections[alias]) as sent:
            savepoint.began()
            savepoint.forget()
    assert len(sent) == 0


def test_its_text_is_the_same_for_each_request_so_that_the_driver_can_keep_it(shared_lab):
    alias = shared_lab.session()
    texts = set()
    for _ in range(5):
        with transaction.atomic(using=alias):
            savepoint = TravellingSavepoint(connections[alias])
            texts.add(savepoint.statement)
            transaction.on_commit(lambda: None, using=alias)
    assert len(texts) == 1


# --- BEGIN, savepoint and claim in one go ---


def claim_at_the_start(keys, claim):
    """As an ATOMIC request does: nothing was sent in this transaction yet."""
    savepoint = TravellingSavepoint(connections[keys.alias])
    answer = keys.store.claim(claim, limit_silence=False, savepoint=savepoint.statement)
    if answer.verdict is Verdict.CLAIMED:
        savepoint.began()
    return savepoint, answer


def status_of(alias):
    return connections[alias].connection.info.transaction_status


@pytest.mark.parametrize("kept", [True, False])
def test_a_transaction_that_began_with_the_claim_ends_like_any_other(shared_lab, kept):
    keys, claim = Keys(shared_lab.session()), new_claim()
    keys.store.find(claim.id)  # connected
    with keys.atomic() if kept else keys.undone():
        assert awaits_begin(connections[keys.alias])
        savepoint, _ = claim_at_the_start(keys, claim)
        assert status_of(keys.alias) == TransactionStatus.INTRANS
        assert not awaits_begin(connections[keys.alias])
        savepoint.undo()
        savepoint.forget()
    assert status_of(keys.alias) == TransactionStatus.IDLE
    assert connections[keys.alias].connection.autocommit
    assert (keys.store.find(claim.id) is not None) is kept


def test_no_second_begin_is_sent_where_the_transaction_is_under_way(shared_lab):
    keys = Keys(shared_lab.session())
    keys.store.find(new_claim().id)
    notices = []
    connections[keys.alias].connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    with keys.atomic():
        keys.store.find(new_claim().id)
        claim_at_the_start(keys, new_claim())[0].forget()
    with keys.atomic():
        claim_at_the_start(keys, new_claim())[0].forget()
    assert notices == []


def test_a_claim_that_fails_with_the_begin_leaves_a_usable_session(lab):
    keys, administrator = Keys(lab.session()), lab.session()
    keys.own(new_claim())
    lab.do("BEGIN", "LOCK TABLE idempotency_key_in_flight IN SHARE MODE", alias=administrator)
    with pytest.raises(Error), keys.atomic():
        claim_at_the_start(keys, new_claim(max_wait=0.05))
    assert status_of(keys.alias) == TransactionStatus.IDLE
    assert connections[keys.alias].connection.autocommit
    lab.do("ROLLBACK", alias=administrator)
    keys.own(new_claim())


def test_a_claim_that_waited_in_vain_with_the_begin_leaves_a_usable_session(shared_lab):
    owner, rival, claim = Keys(shared_lab.session()), Keys(shared_lab.session()), new_claim()
    rival.store.find(claim.id)
    with owner.atomic():
        owner.own(claim)
        with rival.undone():
            _, answer = claim_at_the_start(rival, rival_of(claim, max_wait=0.02))
            assert answer.verdict is Verdict.WAITED
            rival.own(new_claim())
    assert status_of(rival.alias) == TransactionStatus.IDLE


def test_a_session_that_ended_before_the_begin_is_an_error_and_the_next_one_works(lab):
    keys = Keys(lab.session())
    pid = lab.ask("SELECT pg_backend_pid()", alias=keys.alias)
    lab.do(f"SELECT pg_terminate_backend({pid}, 5000)")
    with pytest.raises(Error), keys.atomic():
        claim_at_the_start(keys, new_claim())
    connections[keys.alias].close_if_unusable_or_obsolete()
    with keys.atomic():
        claim_at_the_start(keys, new_claim())[0].forget()


@pytest.mark.parametrize(
    "options",
    [{"isolation_level": IsolationLevel.READ_COMMITTED}, {"isolation_level": IsolationLevel.SERIALIZABLE}],
)
def test_a_begin_that_says_more_is_left_to_the_driver(shared_lab, options):
    keys = Keys(shared_lab.session(options=options))
    keys.store.find(new_claim().id)
    with keys.undone():
        assert not awaits_begin(connections[keys.alias])
        _, answer = claim_at_the_start(keys, new_claim())
    committed = options["isolation_level"] is IsolationLevel.READ_COMMITTED
    assert answer.verdict is (Verdict.CLAIMED if committed else Verdict.WRONG_ISOLATION)


def test_nothing_awaits_a_begin_outside_of_a_transaction_or_elsewhere(shared_lab, sqlite_file):
    file = LaboratoryFile(sqlite_file)
    for alias in (shared_lab.session(), file.session()):
        assert not awaits_begin(connections[alias]), "not even connected"
        connections[alias].ensure_connection()
        assert not awaits_begin(connections[alias])
    file.close()


# --- which one ---


def connected(alias):
    connections[alias].ensure_connection()
    return connections[alias]


def test_it_travels_where_several_statements_can_share_a_round_trip(shared_lab):
    assert isinstance(savepoint_on(connected(shared_lab.session())), TravellingSavepoint)


def test_it_is_nested_elsewhere(shared_lab, sqlite_file):
    file = LaboratoryFile(sqlite_file)
    binding = shared_lab.session(options={"server_side_binding": True})
    assert isinstance(savepoint_on(connected(binding)), NestedSavepoint)
    assert isinstance(savepoint_on(connected(file.session())), NestedSavepoint)
    assert isinstance(savepoint_on(connected(shared_lab.session()), travelling=False), NestedSavepoint)
    watched = connected(shared_lab.session())
    with watched.execute_wrapper(lambda execute, *arguments: execute(*arguments)):
        assert isinstance(savepoint_on(watched), NestedSavepoint)
    assert isinstance(savepoint_on(watched), TravellingSavepoint)
    file.close()


@pytest.mark.parametrize("missing", ["run_on_commit", "savepoint_ids"])
def test_it_is_nested_where_django_keeps_other_books(missing):
    books = {"run_on_commit": [], "savepoint_ids": []}
    del books[missing]
    driver = SimpleNamespace(cursor_factory=ClientCursor)
    connection = SimpleNamespace(vendor="postgresql", connection=driver, execute_wrappers=[], **books)
    assert isinstance(savepoint_on(connection), NestedSavepoint)


def tells_the_database_who_asks(execute, sql, params, many, context):
    """A wrapper as audit packages install it: a statement in front, and then the answer of the last one."""
    if sql.startswith("SELECT"):
        sql, params = f"SELECT set_config('audit.who', %s, true); {sql}", ("ann", *(params or ()))
    result = execute(sql, params, many, context)
    while context["cursor"].nextset():
        pass
    return result


@pytest.mark.parametrize("ending", [201, 400])
def test_nothing_travels_through_a_wrapper_of_the_projects(lab, settings, ending):
    alias = lab.session()
    with connections[alias].execute_wrapper(tells_the_database_who_asks), owned_key(settings, alias) as execution:
        assert lab.ask("SELECT current_setting('audit.who')", alias=alias) == "ann"
        execution.undo()
        execution.finish(Outcome(ending, lambda: CREATED))
    assert lab.ask("SELECT count(*) FROM idempotency_key", alias=alias) == (1 if ending == 201 else 0)
    assert connections[alias].savepoint_ids == []


# --- what a transaction is in ---


def test_a_transaction_that_cannot_commit_is_recognised(bench):
    assert not cannot_commit(bench.connection)
    with bench.atomic():
        bench.write("a")
        assert not cannot_commit(bench.connection)
        transaction.set_rollback(True, using=bench.alias)
        assert cannot_commit(bench.connection)


def test_an_error_that_was_swallowed_is_recognised_by_the_state_of_the_transaction(shared_lab):
    alias = shared_lab.session()
    with transaction.atomic(using=alias):
        with pytest.raises(Error), connections[alias].cursor() as cursor:
            cursor.execute("SELECT 1/0")
        assert cannot_commit(connections[alias])
        assert not connections[alias].needs_rollback, "Django itself has not noticed"
        transaction.set_rollback(True, using=alias)


def test_a_lost_connection_is_recognised(shared_lab):
    alias = shared_lab.session()
    with transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor, pytest.raises(Error):
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        assert cannot_commit(connections[alias])
        transaction.set_rollback(True, using=alias)


def test_a_closed_connection_is_recognised(shared_lab):
    alias = shared_lab.session()
    with transaction.atomic(using=alias):
        connections[alias].close()
        assert cannot_commit(connections[alias])
    assert cannot_commit(connections[alias]) is (connections[alias].connection is None)


def test_the_block_of_a_test_case_is_recognised(bench):
    assert not within_test_case(bench.connection)
    block = bench.atomic()
    block._from_testcase = True
    with block:
        assert within_test_case(bench.connection)
        with bench.atomic():
            assert not within_test_case(bench.connection)
    assert not within_test_case(bench.connection)


def test_the_sqlstate_is_the_servers_or_none(shared_lab):
    alias = shared_lab.session()
    with pytest.raises(Error) as failed, connections[alias].cursor() as cursor:
        cursor.execute("SELECT 1/0")
    assert sqlstate(failed.value) == "22012"
    assert sqlstate(ValueError()) is None


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELECT 1/0", None),
        ("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$", "could not be serialized"),
        ("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$", "deadlock"),
        ("SET statement_timeout = '1ms'; SELECT pg_sleep(10)", "cancelled"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "its session was ended"),
    ],
)
def test_errors_that_a_repetition_gets_past_are_told_from_those_it_does_not(shared_lab, statement, reason):
    with pytest.raises(Error) as failed:
        shared_lab.do(statement)
    assert (passing(failed.value) is None) is (reason is None)
    assert reason is None or reason in passing(failed.value)
    assert passing(ValueError()) is None


# --- connections of our own ---


def test_a_connection_of_our_own_is_another_session_in_autocommit_and_ends(shared_lab):
    alias = shared_lab.session(options={"pool": {"min_size": 1}})
    connections[alias].settings_dict["OPTIONS"].pop("pool")
    with transaction.atomic(using=alias):
        with own_connection(alias) as connection:
            assert connection.get_autocommit()
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                (other,) = cursor.fetchone()
        assert connection.connection is None
        assert shared_lab.ask("SELECT pg_backend_pid()", alias=alias) != other


def test_a_connection_of_our_own_stays_out_of_the_projects_pool(shared_lab):
    alias = shared_lab.session(options={"pool": True})
    with own_connection(alias) as connection:
        assert "pool" not in connection.settings_dict["OPTIONS"]
    assert connections[alias].settings_dict["OPTIONS"]["pool"] is True, "the project's own settings stay"
    del connections[alias]  # its pool was never opened


@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_on_it_commits_or_leaves_nothing(bench, fails):
    with (
        own_connection(bench.alias) as connection,
        suppress(LookupError),
        transaction_on(connection),
        connection.cursor() as cursor,
    ):
        cursor.execute("INSERT INTO words VALUES ('one')")
        if fails:
            raise LookupError
    assert bench.words() == ([] if fails else ["one"])


# --- as a request meets it ---


@contextmanager
def owned_key(settings, alias):
    settings.IDEMPOTENCY = {"DATABASES": ["default", alias]}
    policy = current().resolve(IdempotencyPolicy(using=alias, mode=IdempotencyMode.ATOMIC))
    execution = Execution(RequestTransactions())
    content = Content(method="POST", principal="", body=EmptyBody())
    assert execution.claim(Intent("auth.user:5 charge:POST", f"key of {alias}", content), policy) is None
    yield execution


ENDINGS = ["answer 201", "answer 409", "answer 400", "abandon"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("binding", [False, True])
def test_a_request_whose_view_swallowed_an_error_leaves_a_usable_session(lab, settings, binding, ending):
    alias = lab.session(options={"server_side_binding": binding})
    with owned_key(settings, alias) as execution:
        with pytest.raises(Error):
            lab.do("SELECT 1/0", alias=alias)
        if ending == "abandon":
            execution.abandon()
        elif ending == "answer 201":
            with pytest.raises(BrokenTransaction):
                execution.finish(Outcome(201, lambda: CREATED))
        else:
            execution.finish(Outcome(int(ending[-3:]), lambda: CREATED))
    assert not connections[alias].in_atomic_block
    assert connections[alias].savepoint_ids == []
    sealed = lab.ask("SELECT count(*) FROM idempotency_key", alias=alias)
    assert sealed == (1 if ending == "answer 409" else 0)


@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("binding", [False, True])
def test_a_request_whose_session_was_ended_leaves_django_ready_for_the_next(lab, settings, binding, noticed):
    alias = lab.session(options={"server_side_binding": binding})
    with owned_key(settings, alias) as execution:
        pid = lab.ask("SELECT pg_backend_pid()", alias=alias)
        lab.do(f"SELECT pg_terminate_backend({pid}, 5000)")
        if noticed:
            with pytest.raises(Error):
                lab.do("SELECT 1", alias=alias)
        execution.abandon(ValueError())
    assert not connections[alias].in_atomic_block
    connections[alias].close_if_unusable_or_obsolete()
    assert lab.ask("SELECT count(*) FROM idempotency_key", alias=alias) == 0
