"""A hot standby of PostgreSQL, as somebody's settings may name it in the place of its primary."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from example_project.postgres import (
    DEFAULT_VERSION,
    FAST_SETTINGS,
    SETTINGS,
    PostgresServer,
    _as_server_user,
    _binaries,
    _end,
    _nobody,
    _serve,
    _shared_tmp,
)

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture
def primary():
    with PostgresServer(os.environ.get("IDEMPOTENCY_POSTGRES", DEFAULT_VERSION)) as server:
        manage(server.url, "migrate", "--verbosity", "0").check_returncode()
        yield server.url


@pytest.fixture
def standby(primary, monkeypatch, tmp_path):
    """The URL of a server that follows the primary and can be read."""
    home = Path(tempfile.mkdtemp(prefix="idempotency-standby-", dir=_shared_tmp()))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    if os.geteuid() == 0:
        shutil.chown(home, _nobody().pw_uid, _nobody().pw_gid)
    binaries = _binaries(os.environ.get("IDEMPOTENCY_POSTGRES", DEFAULT_VERSION), home)
    subprocess.run(
        [binaries / "pg_basebackup", f"--dbname={primary}", f"--pgdata={home / 'data'}", "--write-recovery-conf",
         "--checkpoint=fast", "--no-sync"],
        check=True, capture_output=True, timeout=60, **_as_server_user(home),
    )  # fmt: skip
    port, server = _serve(home, binaries, SETTINGS | FAST_SETTINGS)
    try:
        yield f"{primary.rpartition(':')[0]}:{port}/postgres"
    finally:
        _end(server)
        shutil.rmtree(home, ignore_errors=True)


def manage(url, *arguments):
    """A command of the example, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        env=os.environ | {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "example_project.settings"},
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_it_is_told_from_its_primary_and_what_would_write_there_says_so(primary, standby):
    manage(primary, "idempotency", "sweep").check_returncode()
    assert manage(primary, "check", "--database", "default").returncode == 0
    checked = manage(standby, "check", "--database", "default")
    assert (checked.returncode, "django_idempotency.E033" in checked.stderr) == (1, True), checked.stderr
    status = manage(standby, "idempotency", "status")
    assert (status.returncode, "E033" in status.stdout) == (3, True), status
    for command in ("sweep", "prune"):
        refused = manage(standby, "idempotency", command)
        assert (refused.returncode, "Traceback" in refused.stderr) == (1, False), refused
        assert "read-only" in refused.stderr.lower().replace("readonly", "read-only"), refused
