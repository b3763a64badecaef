"""What every test can use, and what a run says of itself.

The settings choose the database, on their first use: DATABASE_URL, else a PostgreSQL of this run's own
(example_project/postgres.py). Nothing here skips a test because a server is missing: one that was asked for
and does not answer ends the run before the first test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from django.utils import translation

DATABASE = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[DATABASE] = describe_database()


def pytest_report_header(config: pytest.Config) -> str:
    return f"database: {config.stash[DATABASE]}"


def describe_database() -> str:
    """Name the server that the suite runs on, without credentials; raise UsageError if it does not answer."""
    if connection.vendor == "sqlite":
        return f"SQLite in {_beside_the_file()}"
    # Not the database of the settings: the tests make their own next to it, so it need not exist.
    parameters = connection.get_connection_params() | {"dbname": "postgres", "connect_timeout": 10}
    try:
        with psycopg.connect(**parameters) as server:
            version = server.info.parameter_status("server_version")
            return f"PostgreSQL {version} on {server.info.host}:{server.info.port}"
    except psycopg.OperationalError as error:
        raise pytest.UsageError(f"The database that the settings name does not answer: {error}") from error


def _beside_the_file() -> str:
    """Where the tables of the tests are: a file beside the one of the settings, as on a server.

    Django's own choice would be the memory, where connections lock each other out in another way.
    """
    path = Path(connection.settings_dict["NAME"])
    if not path.is_absolute():
        return "memory"
    connection.settings_dict["TEST"]["NAME"] = str(path.with_name(f"test_{path.name}"))
    return str(connection.settings_dict["TEST"]["NAME"])


@pytest.fixture(autouse=True)
def own_language() -> Iterator[None]:
    """What LocaleMiddleware activates for a request stays with the thread of the test client."""
    yield
    translation.deactivate()


@pytest.fixture(scope="session")
def conformance_data() -> Path:
    """The folder of CONFORMANCE_DATA: cases that were made elsewhere. A developer may lack it, CI may not."""
    folder = os.environ.get("CONFORMANCE_DATA")
    if folder:
        path = Path(folder)
        if not path.is_dir():
            pytest.fail(f"CONFORMANCE_DATA={folder} is not a folder")
        return path
    if os.environ.get("CI") == "true":
        pytest.fail("CONFORMANCE_DATA must be set in CI")
    pytest.skip("CONFORMANCE_DATA is not set")
