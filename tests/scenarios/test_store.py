"""The database of the keys cannot be used: a clear answer, nothing runs, and nothing of ours is told to the client."""

from __future__ import annotations

import os
import select
import socket
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from rest_framework.permissions import AllowAny

from django_idempotency.storage.transactions import own_connection
from tests.support.waiting import eventually

from .site import Handling, effect, problem, records, rows
from .table import answers
from .ways import PLAIN, WAYS, Reply, every_way, every_way_and_mode

pytestmark = pytest.mark.usefixtures("committed")
postgres_only = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="speaks PostgreSQL")


def assert_unavailable(response):
    assert (response.status_code, problem(response)) == (503, "store-unavailable")
    assert int(response.headers["Retry-After"]) >= 1
    text = response.content.decode() + str(dict(response.items()))
    settings = connection.settings_dict
    for secret in ("SELECT", "idempotency_", "127.0.0.1", "secret", "psycopg", str(settings["NAME"]), "a-key", "port"):
        assert secret not in text, secret


@pytest.fixture
def away(monkeypatch, settings):
    """An alias whose database does not answer."""
    database = {
        **connections["default"].settings_dict,
        "ENGINE": "django.db.backends.postgresql",
        "HOST": "127.0.0.1",
        "PORT": "1",
        "PASSWORD": "a secret of the project",
        "ATOMIC_REQUESTS": False,
    }
    monkeypatch.setitem(settings.DATABASES, "away", database)
    settings.IDEMPOTENCY = {"DATABASES": ("default", "away")}
    yield "away"
    connections["away"].close()
    del connections["away"]


class TestOutOfReach:
    @every_way_and_mode
    def test_nothing_answers(self, site, away, way, mode):
        handler = Handling(answers())
        site.add(way(handler, {"mode": mode, "using": away}))
        assert_unavailable(site.send())
        assert (handler.entered, rows()) == (0, 0)

    @every_way
    def test_requests_without_a_key_do_not_need_it(self, site, away, way):
        site.add(way(Handling(answers()), {"required": False, "using": away}))
        assert site.send(None).status_code == 201
        assert site.send(method="GET").status_code == 201

    @every_way
    def test_what_is_refused_without_it_is_refused_so(self, site, away, way):
        site.add(way(Handling(answers()), {"using": away}))
        assert problem(site.send("")) == "malformed-key"

    @every_way_and_mode
    def test_with_atomic_requests_on_it(self, site, away, in_atomic_requests, way, mode):
        in_atomic_requests(True, "away")
        handler = Handling(answers())
        site.add(way(handler, {"mode": mode, "using": away}))
        assert_unavailable(site.send())
        assert handler.entered == 0

    @postgres_only  # closing it ends a database in memory
    @pytest.mark.parametrize("way", ["viewset", "function"])
    def test_the_only_database_there_is(self, site, monkeypatch, mode, way):
        handler = Handling(answers())
        site.add(anonymous(way, handler, mode=mode))
        site.client(None)
        connection.close()

        def refuse(self):
            raise OperationalError("connection to server at 127.0.0.1, port 5432 failed, secret")

        with monkeypatch.context() as patched:
            patched.setattr(BaseDatabaseWrapper, "connect", refuse)
            assert_unavailable(site.send(user=None))
        assert handler.entered == 0
        assert site.send(user=None).status_code == 201


def anonymous(way, handler, **policy):
    """A view that asks no database who its caller is."""
    members = {} if way in PLAIN else {"permission_classes": [AllowAny], "authentication_classes": []}
    return WAYS[way](handler, {"scope": lambda request: "everybody here", **policy}, **members)


@contextmanager
def changed(forth, back):
    with connection.cursor() as cursor:
        cursor.execute(forth)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(back)


@postgres_only
class TestNotAsMigrated:
    MISSING = {  # noqa: RUF012
        "table": (
            "ALTER TABLE idempotency_key RENAME TO scenario_key",
            "ALTER TABLE scenario_key RENAME TO idempotency_key",
        ),
        "leaf of the claims": (
            "ALTER TABLE idempotency_key_in_flight RENAME TO scenario_in_flight",
            "ALTER TABLE scenario_in_flight RENAME TO idempotency_key_in_flight",
        ),
        "function that claims": (
            "ALTER FUNCTION idempotency_claim_v1 RENAME TO scenario_claim",
            "ALTER FUNCTION scenario_claim RENAME TO idempotency_claim_v1",
        ),
        "function that seals": (
            "ALTER FUNCTION idempotency_seal_v1 RENAME TO scenario_seal",
            "ALTER FUNCTION scenario_seal RENAME TO idempotency_seal_v1",
        ),
    }

    @pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING)
    @every_way_and_mode
    def test_without_a(self, site, way, mode, missing):
        site.add(way(Handling(answers()), {"mode": mode}))
        with changed(*missing):
            assert_unavailable(site.send())
            assert rows() == 0
        assert records() == 0
        assert site.send().status_code == 201

    @pytest.mark.parametrize("right", ["SELECT", "INSERT, UPDATE, DELETE", "ALL"])
    @pytest.mark.parametrize("way", ["viewset", "function"])
    def test_without_rights(self, site, mode, way, right):
        handler = Handling(lambda call: Reply(201, {"done": True}))
        site.add(anonymous(way, handler, mode=mode))
        assert site.send("warm", user=None).status_code == 201
        tables = "idempotency_key, idempotency_key_in_flight"
        with ExitStack() as stack:
            stack.enter_context(changed("CREATE ROLE scenario_nobody", "DROP ROLE scenario_nobody"))
            stack.enter_context(
                changed(f"GRANT ALL ON {tables} TO scenario_nobody", f"REVOKE ALL ON {tables} FROM scenario_nobody")
            )
            with connection.cursor() as cursor:
                cursor.execute(f"REVOKE {right} ON {tables} FROM scenario_nobody")
            stack.enter_context(changed("SET ROLE scenario_nobody", "RESET ROLE"))
            assert_unavailable(site.send(user=None))
        assert (handler.entered, records()) == (1, 1)
        assert site.send(user=None).status_code == 201

    @every_way_and_mode
    def test_locked_by_a_migration_it_is_an_outage_and_no_rival(self, site, way, mode):
        handler = Handling(answers())
        site.add(way(handler, {"mode": mode, "max_wait": timedelta(milliseconds=50)}))
        with own_connection("default") as migration:
            migration.set_autocommit(False)
            migration.cursor().execute("LOCK TABLE idempotency_key IN ACCESS EXCLUSIVE MODE")
            assert_unavailable(site.send())
            migration.rollback()
        assert handler.entered == 0
        assert site.send().status_code == 201

    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    @every_way_and_mode
    def test_an_isolation_under_which_a_claim_can_be_doubled(self, site, way, mode, level):
        handler = Handling(answers())
        site.add(way(handler, {"mode": mode}))
        with changed(f"SET default_transaction_isolation = '{level}'", "RESET default_transaction_isolation"):
            if mode.name == "ATOMIC":
                assert_unavailable(site.send())
                assert (handler.entered, rows()) == (0, 0)
            else:
                assert site.send().status_code == 201


def hang_up(pid=None):
    """The server ends the session of the request, as an administrator or a fail-over does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    with own_connection("default") as administrator, administrator.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


def fall_silent():
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '20ms'")
    eventually(lambda: ended(connection.connection), "the server has ended the session")


def ended(driver):
    """Whether the server has said something that nobody has read."""
    return select.select([driver.fileno()], [], [], 0)[0]


def cut_off():
    end = socket.socket(fileno=os.dup(connection.connection.fileno()))
    end.shutdown(socket.SHUT_RDWR)
    end.close()


@postgres_only
class TestGoneMeanwhile:
    @every_way
    def test_under_the_handler_which_fails(self, site, way, mode):
        def handle(call):
            effect()
            hang_up()
            return Reply(201, {"row": str(effect().pk)})

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        assert site.send().status_code in (500, 503)
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @every_way
    def test_behind_the_back_of_a_handler_that_succeeds(self, site, way, mode):
        def handle(call):
            row = effect()
            hang_up()
            return Reply(201, {"row": str(row.pk)})

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        response = site.send()
        assert (response.status_code, problem(response)) == (503, "transaction-conflict")
        assert int(response.headers["Retry-After"]) >= 1
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @pytest.mark.parametrize("how", ["silent for too long", "cut off"])
    @every_way
    def test_so_it_is_where_the_server_was_not_asked_to(self, site, way, mode, how, caplog):
        def handle(call):
            row = effect()
            fall_silent() if how == "silent for too long" else cut_off()
            return Reply(201, {"row": str(row.pk)})

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        with caplog.at_level("INFO", "django_idempotency"):
            response = site.send()
        assert (response.status_code, problem(response)) == (503, "transaction-conflict")
        assert "is released." in caplog.text
        assert "was rolled back by the database" in caplog.text
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @every_way
    def test_a_handler_that_closes_its_connection(self, site, way, mode):
        """``close_old_connections`` and friends, called where they should not be."""

        def handle(call):
            effect()
            connection.close()
            return Reply(201, {"done": True})

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        response = site.send()
        assert (response.status_code, problem(response)) == (500, "broken-transaction")
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @every_way
    def test_a_handler_whose_statement_finds_it_closed(self, site, way, mode):
        def handle(call):
            effect()
            connection.close()
            return Reply(201, {"row": str(effect().pk)})

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        assert site.send().status_code in (500, 503)
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201


def test_the_connection_is_usable_after_an_outage(site, away):
    site.add(WAYS["viewset"](Handling(answers()), {"using": away}))
    for _ in range(3):
        assert_unavailable(site.send())
    with transaction.atomic():
        assert rows() == 0
