"""``@idempotent_view`` for plain Django views: functions, classes, and what ``as_view()`` returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from django.views import View

from ..conf import current
from ..core.errors import IdempotencyError
from ..core.fingerprint import Content
from ..core.policy import IdempotencyPolicy, ResolvedPolicy, declared
from ..core.scope import operation_name
from .atomic_requests import take_out, transactions_of
from .exchange import Asking, Exchange
from .layers import beneath, dotted, own_attribute
from .problems import problem_response
from .requests import counted_headers, principal_of, read_body, read_key, text_kwargs

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@overload
def idempotent_view(target: Decorated, /) -> Decorated: ...


@overload
def idempotent_view(target: IdempotencyPolicy | None = None, /, **fields: Any) -> Callable[[Decorated], Decorated]: ...


def idempotent_view(target: Any = None, /, **fields: Any) -> Any:
    """Make a Django view safe to retry.

    :param target: an :class:`IdempotencyPolicy`, or the view where the decorator is used bare.
    :param fields: fields of the policy, such as ``scope=by_api_key``. They win over the policy.
    :raises TypeError: the view is of a kind that this decorator cannot protect.

    Authentication belongs in front of it, that is in decorators above this one: on a replay the view does not run.
    Works on a function, on the result of ``as_view()``, on a ``View`` class, and through
    ``method_decorator(idempotent_view(...), name="dispatch")``.
    """
    if target is not None and not isinstance(target, IdempotencyPolicy):
        return _protected(target, declared(None, fields))
    policy = declared(target, fields)
    return lambda view: _protected(view, policy)


def _protected(view: Any, policy: IdempotencyPolicy) -> Any:
    if isinstance(view, type) and issubclass(view, View):
        _refuse_foreign(view, view)
        return method_decorator(lambda dispatch: _protected(dispatch, policy), name="dispatch")(view)
    cls = None
    for layer in beneath(view):
        cls = cls or _class_of(layer)
        _refuse_foreign(view, layer)
    name = dotted(cls or view)

    @wraps(view)
    def protected(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        exchange = Exchange(request, transactions_of(request))
        try:
            exchange.open()
            try:
                return _answer(exchange, request, args, kwargs)
            except BaseException as error:
                exchange.abandon(error)
                raise
        except IdempotencyError as error:
            return problem_response(error, html=_wants_html(request))

    def _answer(exchange: Exchange, request: HttpRequest, args: Any, kwargs: Any) -> HttpResponseBase:
        resolved = current().resolve(policy)
        if request.method in resolved.methods:
            asking = Asking(
                key=lambda: read_key(request),
                principal=lambda: (resolved.scope or _user)(request),
                operation=operation_name(name, None, request.method, resolved.operation),
                content=lambda: _content(request, resolved, args, kwargs),
            )
            replayed = exchange.admit(resolved, asking)
            if replayed is not None:
                return replayed
        return exchange.conclude(view(request, *args, **kwargs))

    take_out(protected)
    # For the system checks, which also want to know two views apart that a decorator gave one name.
    protected.idempotency_policy = policy  # type: ignore[attr-defined]
    protected.idempotency_origin = view  # type: ignore[attr-defined]
    return protected


def _refuse_foreign(view: Any, layer: Any) -> None:
    cls = layer if isinstance(layer, type) else _class_of(layer)
    if not callable(view):
        raise TypeError(f"idempotent_view protects views; {view!r} is not callable.")
    if iscoroutinefunction(view) or getattr(cls, "view_is_async", False):
        raise TypeError("idempotent_view does not protect asynchronous views yet; the view would run unprotected.")
    if hasattr(cls, "authentication_classes"):
        raise TypeError(
            "This is a REST framework view, whose caller is not known before its own dispatch. "
            "Use IdempotencyMixin or idempotent from django_idempotency.drf."
        )
    if _wraps_dispatch(layer) and (guard := _access_mixin(cls)):
        raise TypeError(
            f"{guard} decides inside dispatch who may ask, which is behind idempotent_view: it would not be asked on a "
            "replay. Put its decorator in front instead, as in login_required(idempotent_view(OrderView.as_view()))."
        )


def _wraps_dispatch(layer: Any) -> bool:
    return not isinstance(layer, MethodType) or layer.__name__ == "dispatch"


def _access_mixin(cls: Any) -> str | None:
    """By name: to import it would load the models of users, which a project may not have."""
    mro = cls.__mro__ if isinstance(cls, type) else ()
    if any((base.__module__, base.__name__) == ("django.contrib.auth.mixins", "AccessMixin") for base in mro):
        return next((base.__name__ for base in mro if base.__module__ == "django.contrib.auth.mixins"), None)
    return None


def _class_of(layer: Any) -> Any:
    """The class of a class-based view: it names the operation, since all classes share one ``dispatch``."""
    if isinstance(layer, MethodType) and isinstance(layer.__self__, View):
        return type(layer.__self__)
    return own_attribute(layer, "view_class") or own_attribute(layer, "cls")


def _user(request: HttpRequest) -> str | None:
    return principal_of(getattr(request, "user", None))


def _content(request: HttpRequest, policy: ResolvedPolicy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Content:
    positional = {str(position): str(value) for position, value in enumerate(args)}
    return Content(
        method=request.method or "",
        principal=_user(request) or "",
        body=read_body(request),
        url_kwargs=positional | text_kwargs(kwargs),
        query=request.META.get("QUERY_STRING", ""),
        headers=counted_headers(request, policy.fingerprint.headers),
    )


def _wants_html(request: HttpRequest) -> bool:
    offered = ["application/problem+json", "application/json", "text/html"]
    return request.get_preferred_type(offered) == "text/html"
