"""Workers and a beat as processes, on a broker that is running already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.brokers import KINDS, Broker, broker_of
from tests.support.fixtures import committed, quick_flush
from tests.support.processors import control, processor, shared_processor
from tests.support.servers import url_of_tests

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["committed", "control", "processor", "quick_flush", "shared_processor"]


class CeleryProcess:
    """``celery -A example_project …`` with all that it forks, from ``with`` to its end."""

    def __init__(self, *arguments: str, environment: dict[str, str]) -> None:
        self._arguments = arguments
        self._environment = os.environ | environment

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("a+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "example_project", *self._arguments],
            cwd=Path(__file__).resolve().parents[2],
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        print(self.log())
        self._log.close()

    def kill(self) -> None:
        """SIGKILL for it and for its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


@pytest.fixture(params=KINDS)
def broker(request) -> Iterator[Broker]:
    broker = broker_of(request.param)
    yield broker
    broker.purge()


@pytest.fixture
def start(committed, broker, processor, tmp_path) -> Iterator[Callable[..., CeleryProcess]]:
    """Start ``worker`` or ``beat``, on this test's queue and database."""
    usual = {
        "DATABASE_URL": url_of_tests(),
        "DJANGO_SETTINGS_MODULE": "tests.support.celery_settings",
        "PROCESSOR_URL": processor.url,
        # A lease that ends soon, and a sweeper that takes over soon after: twice the time that a call has.
        "IDEMPOTENCY_LEASE": "1",
        "PROCESSOR_TIMEOUT": "0.5",
        "IDEMPOTENCY_SWEEP_EVERY": "0.5",
        "IDEMPOTENCY_FAILPOINTS_ENABLED": "true",
    } | broker.environment
    arguments = {
        "worker": ("--concurrency=2", "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO"),
        "beat": (f"--schedule={tmp_path / 'beat'}", "--pidfile=", "--loglevel=INFO"),
    }
    with ExitStack() as running:
        yield lambda kind, **environment: running.enter_context(
            CeleryProcess(kind, *arguments[kind], environment=usual | environment)
        )
