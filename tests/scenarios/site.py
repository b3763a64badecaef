"""A site that a test puts together, and the clients that walk it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.urls import path

from django_idempotency.models import IdempotencyKey
from example_project.payments.models import Transfer

from .ways import Call

KEY = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"

BODY = {"amount": "1.10", "currency": "EUR"}


class Handling:
    """A handler that does one thing after the other, and remembers its calls; the last thing repeats."""

    def __init__(self, *does: Callable[[Call], Any]) -> None:
        self._does = does
        self.calls: list[Call] = []

    def __call__(self, call: Call) -> Any:
        self.calls.append(call)
        return self._does[min(len(self.calls), len(self._does)) - 1](call)

    @property
    def entered(self) -> int:
        return len(self.calls)


class Site:
    """URL patterns for ROOT_URLCONF. Each view is at ``/name/`` and at ``/name/<thing>/``."""

    def __init__(self) -> None:
        self.urlpatterns: list[Any] = []
        self._clients: dict[str, Client] = {}

    def add(self, view: Any, name: str = "things") -> None:
        self.urlpatterns += [path(f"{name}/", view), path(f"{name}/<str:thing>/", view)]

    def client(self, user: str | None) -> Client:
        """The client of a user, who exists from now on; None: of nobody."""
        name = user or ""
        if name not in self._clients:
            self._clients[name] = Client(raise_request_exception=False)
            if user is not None:
                self._clients[name].force_login(User.objects.get_or_create(username=user)[0])
        return self._clients[name]

    def send(
        self,
        key: str | None = "a-key",
        body: Any = BODY,
        *,
        method: str = "POST",
        to: str = "/things/",
        user: str | None = "ann",
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Send a request. ``body`` goes out as it is where it is bytes, and as JSON otherwise."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = dict(headers or {}) | ({} if key is None else {KEY: key})
        response = self.client(user).generic(method, to, raw, content_type=content_type, headers=sent)
        # Without a connection the mark means nothing: the next connect() takes it away.
        assert connection.connection is None or not connection.needs_rollback, "left in a transaction to roll back"
        return response


def rows() -> int:
    """How many effects there are: each that a handler here has is one transfer."""
    return Transfer.objects.count()


def effect(memo: str = "an effect") -> Transfer:
    return Transfer.objects.create(kind=Transfer.Kind.DEPOSIT, memo=memo)


def records(state: str | None = None) -> int:
    keys = IdempotencyKey.objects.all()
    return keys.count() if state is None else keys.filter(state=state).count()


def problem(response: Any) -> str:
    """The slug of a problem document."""
    assert response.headers["Content-Type"] == "application/problem+json", response.content
    document = response.json()
    assert document["status"] == response.status_code
    return str(document["type"]).rpartition("#")[2]


def assert_replays(again: Any, first: Any) -> None:
    """``again`` is ``first``, byte for byte, and says that it is a replay."""
    assert again.headers.get(REPLAYED) == "true", (again.status_code, again.content)
    assert REPLAYED not in first.headers
    assert (again.status_code, again.content) == (first.status_code, first.content)
    described = {name: value for name, value in again.items() if name != REPLAYED}
    assert described == dict(first.items())
