"""RabbitMQ and Redis as tests use them: under names of this test's own, of which nothing is left behind.

``IDEMPOTENCY_TEST_BROKERS`` lists the URLs of those that have to answer. Without it the usual addresses are tried; a
broker that is not there is a reason to skip on a developer's machine, and a failure in CI.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from .waiting import eventually

_VISIBILITY_TIMEOUT = 1
_USUAL = ("amqp://guest:guest@127.0.0.1:5672//", "redis://127.0.0.1:6379/0")
KINDS = tuple(url.partition(":")[0] for url in _USUAL)


@dataclass
class Broker:
    """:param url: of a broker that answers."""

    url: str

    def __post_init__(self) -> None:
        self.queue = f"idempotency-test-{uuid4().hex}"
        # Redis has one name space for everybody, so all names get a prefix.
        named = {"global_keyprefix": f"{self.queue}:", "visibility_timeout": _VISIBILITY_TIMEOUT}
        self.options: dict[str, Any] = named if self._is_redis else {}

    @property
    def _is_redis(self) -> bool:
        return self.url.startswith("redis")

    @property
    def environment(self) -> dict[str, str]:
        return {
            "CELERY_BROKER_URL": self.url,
            "CELERY_BROKER_TRANSPORT_OPTIONS": json.dumps(self.options),
            "CELERY_TASK_DEFAULT_QUEUE": self.queue,
        }

    def send(self, task: str, *, times: int = 1) -> None:
        with Celery(set_as_current=False) as app:
            app.conf.update(broker_url=self.url, broker_transport_options=self.options, task_default_queue=self.queue)
            for _ in range(times):
                app.send_task(task)

    def until_given_up(self) -> None:
        """Return when a message that a killed worker had taken is due again. A worker looks for those as it starts.

        RabbitMQ knows as soon as the connection is gone; on Redis it is a matter of time, usually of an hour.
        """
        if self._is_redis:
            with redis.Redis.from_url(self.url) as server:
                taken = f"{self.queue}:unacked_index"
                eventually(
                    lambda: server.zcount(taken, 0, time.time() - _VISIBILITY_TIMEOUT), "the message is due again"
                )

    def purge(self) -> None:
        if self._is_redis:
            with redis.Redis.from_url(self.url) as server:
                if names := list(server.scan_iter(f"{self.queue}*")):
                    server.delete(*names)
            return
        with Connection(self.url) as connection:
            connection.default_channel.queue_delete(self.queue)
            connection.default_channel.exchange_delete(self.queue)


def broker_of(kind: str) -> Broker:
    """A broker of this kind, or the end of the test."""
    wanted = os.environ.get("IDEMPOTENCY_TEST_BROKERS", "").split()
    url = next((url for url in wanted or _USUAL if url.partition(":")[0] == kind), None)
    if url is None:
        pytest.skip(f"IDEMPOTENCY_TEST_BROKERS names no {kind} broker")
    try:
        with Connection(url, connect_timeout=5) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)
    except OperationalError as error:
        reason = f"the broker {url} does not answer: {error}"
        if wanted or os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return Broker(url)
