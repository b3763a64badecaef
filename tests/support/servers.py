"""The example under gunicorn, on the database of the tests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from django.db import connection

from example_project.serving import ApiServer

ONE_REQUEST_A_PROCESS = {"GUNICORN_CMD_ARGS": "--worker-class sync"}
"""With ``threads=1``: what happens to a process then happens to one request."""


def served(environment: Mapping[str, str] | None = None, *, workers: int = 2, threads: int = 8) -> ApiServer:
    """:param environment: added to what makes a server work for tests."""
    defaults = {
        "DATABASE_URL": url_of_tests(),
        "DJANGO_SETTINGS_MODULE": "tests.support.served_settings",
        "IDEMPOTENCY_FAILPOINTS_ENABLED": "true",
    }
    return ApiServer(defaults | dict(environment or {}), workers=workers, threads=threads)


def url_of_tests(*, role: str = "") -> str:
    """The DATABASE_URL of a process that is to work on the database of the tests.

    :param role: in place of the owner; its password is its name.
    """
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
    if role:
        url = url._replace(netloc=f"{role}:{role}@{url.netloc.rpartition('@')[2]}")
    return urlunsplit(url)


@contextmanager
def serving_role() -> Iterator[str]:
    """A role that may use all tables and make none, as a careful deployment has it."""
    role = f"serving_{connection.settings_dict['NAME'][:40]}"
    with connection.cursor() as cursor:
        # A run that was killed left it behind, and its database was made anew since.
        cursor.execute(f"DROP ROLE IF EXISTS {role}")
        cursor.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
        cursor.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}")
    try:
        yield role
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP OWNED BY {role}")
            cursor.execute(f"DROP ROLE {role}")


def workers_of(api: ApiServer) -> list[int]:
    """The processes that serve, by what their master says of them. Those that ended are left out: their numbers may
    belong to somebody else by now."""
    booted, ended = re.compile(r"Booting worker with pid: (\d+)"), re.compile(r"Worker (?:exiting )?\(pid: ?(\d+)\)")
    workers: set[int] = set()
    for line in api.log().splitlines():
        workers |= {int(pid) for pid in booted.findall(line)}
        workers -= {int(pid) for pid in ended.findall(line)}
    return sorted(workers)
