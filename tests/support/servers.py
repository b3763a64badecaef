"""The example under gunicorn, on the database of the tests."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
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


def url_of_tests() -> str:
    """The DATABASE_URL of a process that is to work on the database of the tests."""
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
    return urlunsplit(url)


def workers_of(api: ApiServer) -> list[int]:
    """The processes that serve, by what their master says of them. Those that ended are left out: their numbers may
    belong to somebody else by now."""
    booted, ended = re.compile(r"Booting worker with pid: (\d+)"), re.compile(r"Worker (?:exiting )?\(pid: ?(\d+)\)")
    workers: set[int] = set()
    for line in api.log().splitlines():
        workers |= {int(pid) for pid in booted.findall(line)}
        workers -= {int(pid) for pid in ended.findall(line)}
    return sorted(workers)
