"""Follows a page of the documentation the way a reader would: writes its files, runs its commands, compares answers.

What a page needs for it is what a reader needs anyway:

- ``python`` blocks begin with the file that they are: ``# shop/urls.py``, or ``# shop/settings.py, at the end``.
- ``sh`` blocks are run as they stand, in one session. One that is ``runserver`` keeps running, for the second terminal,
  and so does one that is a single script with an address, as in ``python fake.py 127.0.0.1:8001``.
- a ``text`` block below one is part of what it printed: its lines in that order, with … for anything.

Only three things differ from a reader's machine. Packages are installed beforehand (a command that names one which is
not fails), servers have free ports, and runserver is started again where the reader's one notices that a file changed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CURL = Path(__file__).with_name("curl.py")

_FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<path>[\w/]+\.py)(?P<append>, at the end)?\n")
_ADDRESS, _OTHER_ADDRESS = "127.0.0.1:8000", "127.0.0.1:8001"
_SCRIPT = re.compile(rf"python \w+\.py {re.escape(_OTHER_ADDRESS)}\n")
# What the fixture has done already: a virtual environment, and packages in it.
_PREPARED = re.compile(r"(python3 -m venv|\. \.venv/bin/activate$|python -m pip install )")
_PATIENCE = 60.0


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks_of(markdown: str) -> list[Block]:
    return [Block(match["language"], match["text"]) for match in _FENCE.finditer(markdown)]


def section(markdown: str, title: str) -> str:
    """What stands under a heading of the second level."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", markdown, re.MULTILINE | re.DOTALL)
    assert match, f"There is no section {title!r}."
    return match[1]


class Walkthrough:
    """A reader's two terminals, in a folder outside the repository."""

    def __init__(
        self, folder: Path, site: Path, replacements: Mapping[str, str] | None = None, *, own_curl: bool = False
    ) -> None:
        """
        :param site: a folder that the package is installed into, in front of everything else.
        :param replacements: what a reader would write in place of an example's value, such as a database of theirs.
        :param own_curl: not the machine's curl, which may have none, but the little one that lies here.
        """
        self.folder = folder
        addresses = {address: f"127.0.0.1:{_free_port()}" for address in (_ADDRESS, _OTHER_ADDRESS)}
        self._replacements = {**addresses, **(replacements or {})}
        self._environment = _plain_environment(folder, site, own_curl or shutil.which("curl") is None)
        self._site = site
        self._server: subprocess.Popen[bytes] | None = None
        self._script: subprocess.Popen[bytes] | None = None
        self._serve = ""
        self._stale = False
        self.printed = ""

    def follow(self, markdown: str) -> None:
        blocks = blocks_of(markdown)
        assert blocks, "There is nothing to follow."
        for block in blocks:
            if block.language == "python":
                self._write(block.text)
            elif block.language == "sh":
                self.printed = self._run(block.text)
            elif block.language == "text":
                assert_printed(block.text, self.printed)

    def close(self) -> None:
        for process in (self._server, self._script):
            _end(process)
        self._server = self._script = None

    def _write(self, text: str) -> None:
        head = _FILE.match(text)
        assert head, f"A file that does not say which it is:\n{text}"
        path = Path(self._environment["PWD"], head["path"])
        assert path.exists(), f"{head['path']} is no file that the commands before have made."
        content = self._replaced(text[head.end() :])
        path.write_text(f"{path.read_text()}\n{content}" if head["append"] else content)
        self._stale = True

    def _run(self, text: str) -> str:
        if _SCRIPT.fullmatch(text):
            _end(self._script)
            self._script = self._started(self._replaced(text).strip(), self._replacements[_OTHER_ADDRESS])
            return ""
        if "runserver" in text:
            _end(self._server)
            self._server = None
            self._serve = text
        script = "".join(f"{line}\n" for line in self._as_here(text))
        if self._serve and (self._stale or self._server is None):
            self._start_server()
        if text == self._serve:
            return ""
        return self._shell(script)

    def _as_here(self, text: str) -> Iterator[str]:
        for line in self._replaced(text).replace("\\\n", " ").splitlines():
            if not _PREPARED.match(line):
                yield line
            elif "pip install" in line:
                _assert_installed(line, self._site)

    def _replaced(self, text: str) -> str:
        for old, new in self._replacements.items():
            text = text.replace(old, new)
        return text

    def _shell(self, script: str) -> str:
        """Run in the session so far: its folder and its exported variables last."""
        after = self.folder / "session"
        ending = f"\nenv -0 > {shlex.quote(str(after))}"
        result = subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", script + ending],
            env=self._environment, cwd=self._environment["PWD"], timeout=_PATIENCE,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 0, f"{script}\n{result.stdout}\n{result.stderr}\n{self._server_log()}"
        entries = after.read_text().split("\0")
        self._environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        return result.stdout.replace("\r\n", "\n")

    def _start_server(self) -> None:
        """Start it, or start it again with what has been written since: what the reloader does, without its delay."""
        _end(self._server)
        self._stale = False
        address = self._replacements[_ADDRESS]
        self._server = self._started(
            self._serve.strip().replace("runserver", f"runserver --noreload {address}"), address
        )

    def _started(self, command: str, address: str) -> subprocess.Popen[bytes]:
        with self._log_path.open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], env=self._environment, cwd=self._environment["PWD"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        host, port = address.split(":")
        deadline = time.monotonic() + _PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                return process
            time.sleep(0.05)
        _end(process)
        raise AssertionError(f"{command} does not answer.\n{self._server_log()}")

    @property
    def _log_path(self) -> Path:
        return self.folder / "server.log"

    def _server_log(self) -> str:
        return self._log_path.read_text(errors="replace")[-8000:] if self._log_path.exists() else ""


def assert_printed(expected: str, printed: str) -> None:
    """The lines of ``expected`` are lines of ``printed``, in that order."""
    lines = iter([line.strip() for line in printed.splitlines()])
    for wanted in filter(None, (line.strip() for line in expected.splitlines())):
        pattern = re.compile(".*".join(map(re.escape, wanted.split("…"))))
        assert any(pattern.fullmatch(line) for line in lines), f"Nowhere (or not there): {wanted}\nPrinted:\n{printed}"


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _plain_environment(folder: Path, site: Path, own_curl: bool) -> dict[str, str]:
    # Not this run's own variables: they would measure the reader's processes, and name this run's database.
    programs = folder / "bin"
    programs.mkdir()
    if own_curl:
        curl = programs / "curl"
        curl.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(CURL))} "$@"\n')
        curl.chmod(0o755)
    home = folder / "home"
    home.mkdir()
    return {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PWD": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(site),
    }


def _assert_installed(line: str, site: Path) -> None:
    for requirement in shlex.split(line)[4:]:
        name = requirement.partition("[")[0]
        found = any(distributions(name=name, path=[str(site), *sys.path]))
        assert found, f"{line}: {name} is not among what the tests install."


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
