"""A database of its own for tests that change what others rely on: leaves, roles, locks, the server's defaults.

Each :class:`Laboratory` is a schema with the tables of the app in it. An alias of Django's is a session to it, so a
test that needs a rival asks for a second alias and stays in one thread, as long as nobody has to wait.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections
from psycopg import sql

from django_idempotency import retention
from django_idempotency.models import IdempotencyKey, OutcomeCount, Tombstone

from .waiting import eventually

_numbers = itertools.count(1)


class Laboratory:
    def __init__(self, database: str, schema: str) -> None:
        self.database = database
        self.schema = schema
        self.aliases: list[str] = []

    def session(self, *, options: dict[str, Any] | None = None, server: dict[str, str] | None = None, **changes) -> str:
        """The alias of a new session.

        :param options: of Django's backend, beside its own.
        :param server: settings of the server that the session begins with, as its database or role may set them.
        :param changes: of the database's entry in the settings: USER, TIME_ZONE and so on.
        """
        entry = copy.deepcopy(connections.settings["default"])
        given = {"search_path": self.schema, "statement_timeout": "30s"} | (server or {})
        escaped = {name: value.replace(" ", "\\ ") for name, value in given.items()}
        text = " ".join(f"-c {name}={value}" for name, value in escaped.items())
        entry["OPTIONS"] = entry["OPTIONS"] | {"options": text} | (options or {})
        return self._known_as(f"lab{next(_numbers)}", entry | {"NAME": self.database} | changes)

    def _known_as(self, alias: str, entry: dict[str, Any]) -> str:
        connections.settings[alias] = entry
        self.aliases.append(alias)
        return alias

    def end(self, alias: str) -> None:
        """Close a session of this thread, whatever it was in."""
        session = connections[alias]
        if session.connection is not None:
            session.connection.close()
        del connections[alias]

    def close(self) -> None:
        while self.aliases:
            alias = self.aliases.pop()
            self.end(alias)
            del connections.settings[alias]
            retention.forget_reach(alias)

    def ask(self, question: str, *arguments: Any, alias: str | None = None) -> Any:
        """The first column of the first row, or None."""
        rows = self.rows(question, *arguments, alias=alias)
        return rows[0][0] if rows else None

    def rows(self, question: str, *arguments: Any, alias: str | None = None) -> list[tuple[Any, ...]]:
        with connections[alias or self.aliases[0]].cursor() as cursor:
            cursor.execute(question, arguments or None)
            return cursor.fetchall() if cursor.description else []

    def do(self, *statements: str, alias: str | None = None) -> None:
        for statement in statements:
            self.rows(statement, alias=alias)

    def until_waiting(self, sessions: int = 1) -> None:
        """Return once so many sessions, of other threads, wait for a lock."""
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            " AND state = 'active' AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(**_server_parameters(self.database), autocommit=True) as observer:
            eventually(
                lambda: [count for (count,) in observer.execute(waiting) if count >= sessions],
                f"{sessions} session(s) wait",
            )


def _server_parameters(database: str) -> dict[str, Any]:
    return connection.get_connection_params() | {"dbname": database, "cursor_factory": None}


@pytest.fixture(scope="session")
def laboratory_database(django_db_blocker) -> Iterator[str]:
    if connection.vendor != "postgresql":
        pytest.skip("this is about PostgreSQL")
    # Each folder that takes this fixture in has one of its own.
    name = f"{connection.settings_dict['NAME'][:40]}_lab_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(**_server_parameters("postgres"), autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        yield name
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def laboratory_in(database: str) -> Iterator[Laboratory]:
    schema = f"lab{next(_numbers)}"
    with psycopg.connect(**_server_parameters(database), autocommit=True) as server:
        server.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        made = Laboratory(database, schema)
        try:
            call_command("migrate", "django_idempotency", database=made.session(), verbosity=0)
            yield made
        finally:
            made.close()
            server.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


@pytest.fixture
def lab(laboratory_database, django_db_blocker) -> Iterator[Laboratory]:
    """A schema that this test may do anything to."""
    with django_db_blocker.unblock(), laboratory_in(laboratory_database) as made:
        yield made


@pytest.fixture(scope="session")
def shared_schema(laboratory_database, django_db_blocker) -> Iterator[str]:
    """A schema for tests that only use the tables, each with keys of its own."""
    with django_db_blocker.unblock(), laboratory_in(laboratory_database) as made:
        yield made.schema


@pytest.fixture
def shared_lab(laboratory_database, shared_schema, django_db_blocker) -> Iterator[Laboratory]:
    with django_db_blocker.unblock():
        made = Laboratory(laboratory_database, shared_schema)
        made.session()
        yield made
        made.close()


@pytest.fixture(scope="session")
def sqlite_file(tmp_path_factory, django_db_blocker) -> str:
    """A file of SQLite's with the tables of the app, whatever database the other tests use."""
    path = str(tmp_path_factory.mktemp("sqlite") / "keys.sqlite3")
    with django_db_blocker.unblock():
        made = LaboratoryFile(path)
        call_command("migrate", "django_idempotency", database=made.session(), verbosity=0)
        made.close()
    return path


class LaboratoryFile(Laboratory):
    """The same on SQLite."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "main")

    def session(self, *, options: dict[str, Any] | None = None, **changes: Any) -> str:
        entry = copy.deepcopy(connections.settings["default"])
        entry |= {"ENGINE": "django.db.backends.sqlite3", "NAME": self.database} | changes
        entry["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 0.05} | (options or {})
        return self._known_as(f"lite{next(_numbers)}", entry)


def empty(alias: str) -> None:
    """Delete all that can be pruned: a file is used by many tests, and some leave counts or tombstones of long ago."""
    for model in (IdempotencyKey, Tombstone, OutcomeCount):
        model._default_manager.using(alias).all().delete()


def doctor(lab: Laboratory, function: str, old: str, new: str) -> None:
    """Replace a part of one of our SQL functions in this laboratory: what it is there for is seen without it."""
    text = resources.files("django_idempotency.storage").joinpath("sql", f"{function}.sql").read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{function} has not one {old!r}"
    lab.do(text.replace(old, new).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
