"""COMMIT: what hangs on it, what it may refuse, and an answer of it that never arrives."""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import StreamingHttpResponse

from django_idempotency import IdempotencyMode
from django_idempotency.http import idempotent_view
from django_idempotency.models import IdempotencyKey
from django_idempotency.storage import postgres
from example_project.payments.models import Transfer
from tests.support.modes import TRANSACTIONAL
from tests.support.waiting import eventually

from .site import Handling, assert_replays, effect, problem, records, rows
from .table import answers, api_exception
from .ways import WAYS, Reply, every_rest_way, every_way, viewset

committing = pytest.mark.usefixtures("committed")


class Hooks:
    """A handler that registers a hook, then does something; and how often the hooks ran."""

    def __init__(self, then=None):
        self.ran = 0
        self._then = then or answers()

    def __call__(self, call):
        transaction.on_commit(self.run)
        return self._then(call)

    def run(self):
        self.ran += 1


def declines(call):
    effect()
    raise api_exception(402)


@committing
class TestHooks:
    @pytest.mark.parametrize("atomic_requests", [True, False], ids=["ATOMIC_REQUESTS", ""])
    @every_way
    def test_once_for_the_success_and_never_for_a_replay(self, site, in_atomic_requests, way, mode, atomic_requests):
        in_atomic_requests(atomic_requests)
        hooks = Hooks()
        site.add(way(Handling(hooks), {"mode": mode}))
        first = site.send()
        assert hooks.ran == 1
        for _ in range(3):
            assert_replays(site.send(), first)
        assert hooks.ran == 1

    @every_way
    def test_for_a_decline_that_is_returned(self, site, way, mode):
        hooks = Hooks(answers(402))
        site.add(way(Handling(hooks), {"mode": mode}))
        assert site.send().status_code == 402
        assert hooks.ran == 1

    @pytest.mark.parametrize("atomic_requests", [True, False], ids=["ATOMIC_REQUESTS", ""])
    @every_rest_way
    def test_not_for_writes_that_were_undone(self, site, in_atomic_requests, way, mode, atomic_requests):
        in_atomic_requests(atomic_requests)
        hooks = Hooks(declines)
        site.add(way(Handling(hooks), {"mode": mode}))
        first = site.send()
        assert_replays(site.send(), first)
        assert (hooks.ran, rows()) == (0, 0)

    @pytest.mark.parametrize("atomic_requests", [True, False], ids=["ATOMIC_REQUESTS", ""])
    @pytest.mark.parametrize("status", [400, 500])
    @every_way
    def test_not_for_a_release(self, site, in_atomic_requests, way, mode, status, atomic_requests):
        in_atomic_requests(atomic_requests)
        hooks = Hooks(answers(status))
        site.add(way(Handling(hooks, answers()), {"mode": mode}))
        assert site.send().status_code == status
        assert site.send().status_code == 201
        assert hooks.ran == 0

    @every_way
    def test_those_of_an_inner_block_share_its_fate(self, site, way, mode):
        ran = []

        def handle(call):
            with transaction.atomic():
                transaction.on_commit(lambda: ran.append("kept"))
            with contextlib.suppress(LookupError), transaction.atomic():
                transaction.on_commit(lambda: ran.append("dropped"))
                raise LookupError
            return Reply(201, {"row": str(effect().pk)})

        site.add(way(Handling(handle), {"mode": mode}))
        assert site.send().status_code == 201
        assert ran == ["kept"]

    @every_way
    def test_one_that_raises_does_not_change_what_the_client_hears(self, site, way, mode, caplog):
        def handle(call):
            transaction.on_commit(lambda: 1 / 0)
            return answers()(call)

        handler = Handling(handle)
        site.add(way(handler, {"mode": mode}))
        first = site.send()
        assert first.status_code == 201
        assert_replays(site.send(), first)
        assert (handler.entered, rows()) == (1, 1)
        assert "division by zero" in caplog.text

    @every_way
    def test_one_that_ends_the_process_leaves_the_answer(self, site, way, mode):
        def leave():
            raise SystemExit

        def handle(call):
            transaction.on_commit(leave)
            return answers()(call)

        handler = Handling(handle)
        site.add(way(handler, {"mode": mode}))
        with pytest.raises(SystemExit):
            site.send()
        assert site.send().headers["Idempotent-Replayed"] == "true"
        assert (handler.entered, rows()) == (1, 1)


@pytest.mark.django_db
class TestHooksInsideATestCase:
    @every_way
    def test_a_project_sees_its_own_hooks_only(self, site, django_capture_on_commit_callbacks, way, mode):
        hooks = Hooks()
        site.add(way(Handling(hooks), {"mode": mode}))
        with django_capture_on_commit_callbacks(execute=True) as callbacks:
            first = site.send()
            assert_replays(site.send(), first)
        assert callbacks == [hooks.run]
        assert hooks.ran == 1

    @every_rest_way
    def test_those_of_undone_writes_are_gone(self, site, django_capture_on_commit_callbacks, way, mode):
        site.add(way(Handling(Hooks(declines), Hooks(answers(400))), {"mode": mode}))
        with django_capture_on_commit_callbacks() as callbacks:
            assert site.send().status_code == 402
            assert site.send("another").status_code == 400
        assert callbacks == []


@committing
class TestRefusals:
    """The database says no at COMMIT: nothing is kept, and the project hears its own error."""

    @every_way
    def test_a_deferred_constraint(self, site, way, mode):
        def handle(call):
            Transfer.objects.create(kind=Transfer.Kind.DEPOSIT, charge_id="00000000-0000-0000-0000-000000000000")
            return Reply(201, {"done": True})

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        site.client("ann").raise_request_exception = True
        with pytest.raises(Exception, match=r"(?i)foreign key"):
            site.send()
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @pytest.mark.parametrize("code", ["P0001", "22012", "23514", "40001", "40P01", "55P03", "57014"])
    @pytest.mark.parametrize("way", ["viewset", "function"])
    def test_a_trigger_that_raises(self, site, refusing_trigger, way, mode, code):
        refusing_trigger(code)
        site.add(WAYS[way](Handling(answers()), {"mode": mode}))
        response = site.send()
        assert response.status_code >= 500 or problem(response)
        assert (rows(), records()) == (0, 0), "the key is not free"


@pytest.fixture
def refusing_trigger(committed):
    """A constraint trigger of the project's that fails, with a SQLSTATE, when the transaction commits."""
    if connection.vendor != "postgresql":
        pytest.skip("speaks PostgreSQL")

    def refuse_with(code):
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE FUNCTION scenario_refuse() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION 'no, of the trigger' USING ERRCODE = '{code}'; END $$"
            )
            cursor.execute(
                "CREATE CONSTRAINT TRIGGER scenario_refuse AFTER INSERT ON payments_transfer "
                "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION scenario_refuse()"
            )

    yield refuse_with
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION IF EXISTS scenario_refuse CASCADE")


@pytest.fixture
def cut_commit(monkeypatch):
    """The connection breaks at the next COMMIT of a handler's transaction: before it arrives, or after it is done."""

    def cut(*, done):
        commit, execute = BaseDatabaseWrapper._commit, psycopg.ClientCursor.execute

        def heal():
            monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit)
            monkeypatch.setattr(psycopg.ClientCursor, "execute", execute)

        def commit_and_break(self):
            heal()
            if done:
                commit(self)
            self.connection.close()
            raise OperationalError("server closed the connection unexpectedly")

        def execute_and_break(self, query, *arguments, **named):
            if not str(query).endswith("; COMMIT"):
                return execute(self, query, *arguments, **named)
            heal()
            if done:
                execute(self, query, *arguments, **named)
            self.connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit_and_break)
        # Where it travels with the seal.
        monkeypatch.setattr(psycopg.ClientCursor, "execute", execute_and_break)

    return cut


def breaks_commit(cut_commit, *, done, then=None):
    def handle(call):
        cut_commit(done=done)
        return (then or answers())(call)

    return handle


@pytest.fixture
def interrupt_commit(monkeypatch):
    """Something is raised while the message that ends with COMMIT is under way: by a signal, or a time-out of a hub."""

    def interrupt(error):
        execute = psycopg.ClientCursor.execute

        def send_and_raise(self, query, arguments=None, **named):
            if not str(query).endswith("; COMMIT"):
                return execute(self, query, arguments, **named)
            monkeypatch.setattr(psycopg.ClientCursor, "execute", execute)
            self.connection.pgconn.send_query(self.mogrify(query, arguments).encode())
            raise error

        monkeypatch.setattr(psycopg.ClientCursor, "execute", send_and_raise)

    return interrupt


class Interrupted(BaseException):
    pass


needs_a_server = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="closing it ends a database in memory")


@committing
@needs_a_server
class TestLostAnswers:
    @pytest.mark.parametrize("atomic_requests", [True, False], ids=["ATOMIC_REQUESTS", ""])
    @every_way
    def test_done_and_not_heard_of_the_client_gets_its_answer(
        self, site, cut_commit, in_atomic_requests, way, mode, atomic_requests
    ):
        in_atomic_requests(atomic_requests)
        handler = Handling(breaks_commit(cut_commit, done=True))
        site.add(way(handler, {"mode": mode}))
        first = site.send()
        assert first.status_code == 201
        assert_replays(site.send(), first)
        assert (handler.entered, rows()) == (1, 1)

    @every_rest_way
    def test_the_same_for_a_decline_that_was_raised(self, site, cut_commit, way, mode):
        handler = Handling(breaks_commit(cut_commit, done=True, then=declines))
        site.add(way(handler, {"mode": mode}))
        first = site.send()
        assert first.status_code == 402
        assert_replays(site.send(), first)
        assert (handler.entered, rows()) == (1, 0)

    @pytest.mark.parametrize("error", [Interrupted(), LookupError()], ids=["BaseException", "Exception"])
    @every_way
    def test_interrupted_it_leaves_nothing_open_and_is_found_out(
        self, site, interrupt_commit, way, mode, error, caplog
    ):
        def handle(call):
            interrupt_commit(error)
            return answers()(call)

        handler = Handling(handle)
        site.add(way(handler, {"mode": mode}))
        if isinstance(error, Interrupted):
            with pytest.raises(Interrupted):
                site.send()
            assert "was interrupted at its COMMIT" in caplog.text
        else:
            response = site.send()
            assert response.status_code == 201 or problem(response) == "outcome-unknown"
        assert not connection.in_atomic_block
        assert connection.savepoint_ids == []
        eventually(lambda: records("sealed"), "the server has done what it was sent")
        again = site.send()
        assert (again.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
        assert (handler.entered, rows()) == (1, 1)

    @pytest.mark.parametrize("same_name", [True, False])
    @pytest.mark.parametrize("mode", TRANSACTIONAL)
    def test_a_stream_that_breaks_the_transaction_is_not_answered(self, site, mode, same_name):
        """Nor is it brought back by a savepoint of ours, let alone by one of the project's."""

        def chunks():
            yield b"a"
            with contextlib.suppress(DatabaseError), connection.cursor() as cursor:
                cursor.execute("SELECT 1/0")
            yield b"b"

        def view(request):
            if same_name:
                with connection.cursor() as cursor:
                    cursor.execute(f"SAVEPOINT {postgres._BEFORE_SEAL}")
            effect()
            return StreamingHttpResponse(chunks(), status=201)

        site.add(idempotent_view(mode=mode)(view))
        response = site.send()
        assert (response.status_code, problem(response)) == (503, "store-unavailable")
        assert (rows(), records()) == (0, 0)

    @every_way
    def test_not_done_the_client_is_told_that_nobody_knows(self, site, cut_commit, way, mode):
        handler = Handling(breaks_commit(cut_commit, done=False), answers())
        site.add(way(handler, {"mode": mode}))
        response = site.send()
        assert (response.status_code, problem(response)) == (503, "outcome-unknown")
        assert int(response.headers["Retry-After"]) >= 1
        assert rows() == 0
        again = site.send()
        if mode is IdempotencyMode.ATOMIC:
            assert again.status_code == 201
        else:
            # The claim stands until its lease has lapsed, as after a crash.
            assert (again.status_code, problem(again)) == (409, "in-progress")
            assert 1 <= int(again.headers["Retry-After"]) <= 30
            lapse()
            assert site.send().status_code == 201
        assert (handler.entered, rows(), records("sealed")) == (2, 1, 1)

    @every_way
    def test_where_the_database_stays_away_nobody_knows(self, site, monkeypatch, cut_commit, way, mode):
        def stay_away(self):
            raise OperationalError("connection refused")

        def handle(call):
            cut_commit(done=True)
            monkeypatch.setattr(BaseDatabaseWrapper, "connect", stay_away)
            return answers()(call)

        site.add(way(Handling(handle), {"mode": mode}))
        site.client("ann").session  # noqa: B018 - the session is read before the database goes away
        response = site.send()
        monkeypatch.undo()
        assert (response.status_code, problem(response)) == (503, "outcome-unknown")
        assert site.send().headers["Idempotent-Replayed"] == "true"
        assert rows() == 1

    def test_without_a_key_django_is_heard(self, site, cut_commit, in_atomic_requests):
        in_atomic_requests()
        site.add(viewset(Handling(breaks_commit(cut_commit, done=True)), {"required": False}))
        assert site.send(None).status_code == 500


def lapse():
    """Let the lease of every claim have ended, as time would."""
    assert IdempotencyKey.objects.filter(state="in_flight").update(lease_expires_at="2000-01-01T00:00:00Z") == 1
