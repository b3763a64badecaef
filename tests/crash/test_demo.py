"""The demo is a promise of the README: it ends by itself, says what was not seen, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest
from django.db import connection

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="the demo races on PostgreSQL"),
]


@pytest.fixture
def start():
    """Start the demo on a database of its own; whatever a test leaves running is ended."""
    name = f"demo_{uuid4().hex}"
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    url = urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))
    started = []

    def start(*arguments, **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "example_project.demo", *arguments],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": url, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def read_until(process, text):
    """Read the demo's output up to a line with ``text``; fail where it ends before."""
    read = []
    for line in process.stdout:
        read.append(line)
        if text in line:
            return line
    raise AssertionError(f"{text!r} is not in:\n{''.join(read)}")


def listening(line):
    return int(line.rsplit(":", 1)[1].split("/")[0])


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def falls_silent(port, within=20.0):
    """A server whose owner was killed sees that for itself, so nobody says when it has ended."""
    deadline = time.monotonic() + within
    while answers(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not answers(port)


def test_everything_it_claims_is_seen(start):
    output, _ = (process := start()).communicate(timeout=100)
    assert process.returncode == 0, output
    assert "NOT SEEN" not in output


def test_what_is_not_seen_is_said_and_is_an_error(start):
    # Without this the library lets a request without a key through, and the demo claims that it is refused.
    output, _ = (process := start(IDEMPOTENCY_REQUIRED="false")).communicate(timeout=100)
    assert process.returncode == 1, output
    assert "[NOT SEEN] no key: 400 missing-key" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_it_takes_its_servers_with_it(start, number):
    process = start()
    ports = [listening(read_until(process, f"The {server} listens on")) for server in ("card processor", "API")]
    read_until(process, "[ok]")
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in output
    assert all(falls_silent(port) for port in ports)


def test_serve_leaves_the_api_and_the_admin_running_until_ctrl_c(start):
    process = start("--serve")
    port = listening(read_until(process, "API    "))
    assert answers(port)
    # What it says is all that another terminal has.
    told = dict(each.split("=", 1) for each in shlex.split(read_until(process, "export "))[1:])
    status = subprocess.run(
        shlex.split(read_until(process, "idempotency status")),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **told},
        capture_output=True,
        check=False,  # by then no process may have written that a sweep took place
        text=True,
        timeout=60,
    )
    assert re.search(r"^  sealed +about \d", status.stdout, re.MULTILINE), status
    assert "W031" not in status.stdout
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert falls_silent(port)


def test_a_database_that_does_not_answer_is_said(start):
    output, _ = (process := start(DATABASE_URL="postgres://me:secret@127.0.0.1:1/mine")).communicate(timeout=30)
    assert process.returncode == 1
    assert "does not answer" in output
    assert "Traceback" not in output
    assert "secret" not in output
