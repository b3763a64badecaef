"""The tutorials, word for word: what they tell readers to write and run is written and run, and answers as they say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from tests.support.walkthrough import REPOSITORY, Walkthrough

TUTORIAL = REPOSITORY / "docs/tutorial/index.md"
CARD_PAYMENTS = REPOSITORY / "docs/tutorial/card-payments.md"
ON_POSTGRESQL = "\n## 6. "
EXAMPLE_URL = "postgres://shop:password@127.0.0.1:5432/shop"


@pytest.fixture
def empty_database() -> Iterator[str]:
    """The URL of a new database next to the one of the settings."""
    parameters = connection.get_connection_params()
    name = f"tutorial_{uuid4().hex[:12]}"
    server = {key: parameters[key] for key in ("host", "port", "user", "password") if parameters.get(key)}
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        info = admin.info
        word = f":{info.password}" if info.password else ""
        try:
            yield f"postgres://{info.user}{word}@{info.host}:{info.port}/{name}"
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.timeout(240)
def test_the_tutorial_works_as_it_says(tmp_path: Path, installed_wheel: Path, request: pytest.FixtureRequest) -> None:
    on_sqlite, heading, on_postgresql = TUTORIAL.read_text(encoding="utf-8").partition(ON_POSTGRESQL)
    assert heading, "The tutorial has lost its part on PostgreSQL."
    replacements = {}
    if connection.vendor == "postgresql":
        replacements[EXAMPLE_URL] = request.getfixturevalue("empty_database")
    reader = Walkthrough(tmp_path, installed_wheel, replacements)
    try:
        reader.follow(on_sqlite)
        if connection.vendor == "postgresql":
            reader.follow(on_postgresql)
    finally:
        reader.close()


@pytest.mark.timeout(240)
def test_the_tutorial_of_card_payments_works_as_it_says(tmp_path: Path, installed_wheel: Path) -> None:
    reader = Walkthrough(tmp_path, installed_wheel)
    try:
        reader.follow(CARD_PAYMENTS.read_text(encoding="utf-8"))
    finally:
        reader.close()
