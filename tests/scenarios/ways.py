"""The ways in: each makes a protected view out of one handler that knows nothing of frameworks.

What a scenario says holds for all of them, so the mixin and the decorators cannot come to differ by accident.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views import View
from rest_framework.decorators import action, api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency import IdempotencyMode, IdempotencyPolicy
from django_idempotency.drf import IdempotencyMixin, idempotent
from django_idempotency.http import idempotent_view

METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True)
class Reply:
    """An answer of a handler: JSON data, or None for no body at all."""

    status: int = 201
    data: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """One entry into a handler."""

    request: Any
    arguments: Mapping[str, Any]

    @property
    def django_request(self) -> HttpRequest:
        return self.request._request if isinstance(self.request, Request) else self.request

    @property
    def data(self) -> Any:
        """The body as the framework's own parsers give it."""
        if isinstance(self.request, Request):
            return self.request.data
        if self.request.content_type == "application/json":
            return json.loads(self.request.body or b"null")
        return self.request.POST

    @property
    def files(self) -> Any:
        return self.request.FILES


Handler = Callable[[Call], "Reply | HttpResponseBase"]
Way = Callable[..., Any]


def _rest(handler: Handler, request: Any, arguments: Mapping[str, Any]) -> Any:
    answer = handler(Call(request, arguments))
    if isinstance(answer, Reply):
        return Response(answer.data, status=answer.status, headers=dict(answer.headers))
    return answer


def _plain(handler: Handler, request: Any, arguments: Mapping[str, Any]) -> Any:
    answer = handler(Call(request, arguments))
    if isinstance(answer, Reply):
        body = b"" if answer.data is None else json.dumps(answer.data).encode()
        return HttpResponse(body, status=answer.status, headers=dict(answer.headers), content_type="application/json")
    return answer


def _class(name: str, bases: tuple[type, ...], **members: Any) -> Any:
    return type(name, bases, {"__module__": __name__, "__qualname__": name, **members})


def viewset(handler: Handler, policy: dict[str, Any], name: str = "Things", **members: Any) -> Any:
    """IdempotencyMixin on a viewset."""

    def act(self, request, **arguments):
        return _rest(handler, request, arguments)

    names = {"get": "list", "post": "create", "put": "update", "patch": "partial_update", "delete": "destroy"}
    members = dict.fromkeys(names.values(), act) | {"idempotency_policy": IdempotencyPolicy(**policy)} | members
    return _class(name, (IdempotencyMixin, ViewSet), **members).as_view(names)


def api_class(handler: Handler, policy: dict[str, Any], name: str = "Things", **members: Any) -> Any:
    """IdempotencyMixin on an APIView."""

    def act(self, request, **arguments):
        return _rest(handler, request, arguments)

    members = dict.fromkeys(METHODS, act) | {"idempotency_policy": IdempotencyPolicy(**policy)} | members
    return _class(name, (IdempotencyMixin, APIView), **members).as_view()


def marked_action(handler: Handler, policy: dict[str, Any], name: str = "Things", **members: Any) -> Any:
    """@idempotent on an @action, in a viewset without a policy of its own."""

    def act(self, request, **arguments):
        return _rest(handler, request, arguments)

    marked = action(detail=False, methods=["post", "put", "patch", "delete"])(idempotent(**policy)(act))
    members = {"idempotency_policy": None, "act": marked, "list": act} | members
    cls = _class(name, (IdempotencyMixin, ViewSet), **members)
    return cls.as_view({"get": "list"} | {method: "act" for method in METHODS if method != "get"})


def marked_api_view(handler: Handler, policy: dict[str, Any], name: str = "things", **attributes: Any) -> Any:
    """@idempotent above @api_view."""

    def view(request, /, **arguments):
        return _rest(handler, request, arguments)

    view.__name__ = view.__qualname__ = name
    for attribute, value in attributes.items():
        setattr(view, attribute, value)
    return idempotent(**policy)(api_view([method.upper() for method in METHODS])(view))


def function(handler: Handler, policy: dict[str, Any], name: str = "things") -> Any:
    """@idempotent_view on a function."""

    def view(request, **arguments):
        return _plain(handler, request, arguments)

    view.__name__ = view.__qualname__ = name
    return idempotent_view(**policy)(view)


def view_class(handler: Handler, policy: dict[str, Any], name: str = "Things") -> Any:
    """@idempotent_view on a View class."""

    def act(self, request, **arguments):
        return _plain(handler, request, arguments)

    return idempotent_view(**policy)(_class(name, (View,), **dict.fromkeys(METHODS, act))).as_view()


def bare(handler: Handler, policy: dict[str, Any], name: str = "things") -> Any:
    """No protection: what a scenario must notice."""

    def view(request, **arguments):
        return _plain(handler, request, arguments)

    return view


REST: dict[str, Way] = {
    "viewset": viewset,
    "api_class": api_class,
    "action": marked_action,
    "api_view": marked_api_view,
}
PLAIN: dict[str, Way] = {"function": function, "view_class": view_class}
WAYS = REST | PLAIN

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
every_rest_way = pytest.mark.parametrize("way", REST.values(), ids=REST)
# Where the mode is not what a test is about, one way of each framework is enough for the second.
every_way_and_mode = pytest.mark.parametrize(
    ("way", "mode"),
    [pytest.param(way, IdempotencyMode.ATOMIC, id=f"{name}-ATOMIC") for name, way in WAYS.items()]
    + [pytest.param(WAYS[name], IdempotencyMode.LEASED, id=f"{name}-LEASED") for name in ("viewset", "function")],
)
