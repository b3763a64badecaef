"""The database that is measured on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def database() -> Iterator[None]:
    """Tables of the benchmark's own, gone when it ends."""
    from django.core.management import call_command
    from django.db import connection, connections

    from . import peer_views

    _drop_databases()
    with connection._nodb_cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{connection.settings_dict["NAME"]}"')
    try:
        call_command("migrate", run_syncdb=True, verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute(Path(__file__).with_name("floor.sql").read_text(encoding="utf-8"))
        peer_views.prepare()
        yield
    finally:
        connections.close_all()
        _drop_databases()


def _drop_databases() -> None:
    from django.db import connection, connections

    with connection._nodb_cursor() as cursor:
        for each in connections.all():
            cursor.execute(f'DROP DATABASE IF EXISTS "{each.settings_dict["NAME"]}"')
