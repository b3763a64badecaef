"""The view of the benchmark behind other packages. They do less; what is compared is what it costs.

Each is used as its documentation says, on the database of the effect, which is in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import connection
from django.urls import URLPattern, path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from .peers import INSTALLED
from .views import Unprotected


def prepare() -> None:
    """What they need in the database beside their migrations."""
    if "drf-idempotencykey" in INSTALLED:
        User.objects.create(pk=USER.pk, username="caller")
    if "idemkit" in INSTALLED:
        from idemkit.backends.postgres import init_pg

        async_to_sync(init_pg)(_url())


USER = User(pk=5)
"""As in views.Caller: no query, though one of them needs a row to refer to."""


class Authentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Any, None]:
        return USER, None


def urls() -> Iterator[URLPattern]:
    makers = {"drf-idempotency": _drf_idempotency, "drf-idempotencykey": _drf_idempotencykey, "idemkit": _idemkit}
    for name in INSTALLED:
        yield path(f"{name}/", makers[name]())


class Peer(Unprotected):
    authentication_classes = (Authentication,)  # type: ignore[assignment]


def _drf_idempotency() -> Any:
    # Not its decorator, which renders a response that the REST framework has not made ready.
    from drf_idempotency.middleware import IdempotencyMiddleware

    return csrf_exempt(IdempotencyMiddleware(Peer.as_view()).__call__)


def _drf_idempotencykey() -> Any:
    from drf_idempotencykey.mixins import DrfIdempotencyKeyMixin

    protected: Any = type("Protected", (DrfIdempotencyKeyMixin, Peer), {})
    return protected.as_view()


def _idemkit() -> Any:
    from idemkit import HttpConfig, PostgresBackend
    from idemkit.contrib.drf import idempotent_view

    backend = PostgresBackend.from_url(_url())
    mixin = idempotent_view(backend=backend, config=HttpConfig(scope=lambda request: str(request.user.pk)))
    protected: Any = type("Protected", (mixin, Peer), {})
    return protected.as_view()


def _url() -> str:
    parameters = connection.get_connection_params()
    names = {"host": "host", "port": "port", "user": "user", "password": "password"}
    query = "&".join(f"{name}={parameters[key]}" for key, name in names.items() if parameters.get(key))
    return f"postgresql:///{connection.settings_dict['NAME']}?{query}"
