"""What can be known of the project's views without a request. Facts for the system checks, which judge them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

from ..core.policy import UNSAFE_METHODS, IdempotencyPolicy
from .atomic_requests import TakenOut
from .layers import beneath, dotted, own_attribute


@dataclass(frozen=True)
class ViewInUse:
    """A view that the URLconf leads to.

    :param callback: what Django calls: the view, or what a decorator made of it.
    :param view: the protected or class-based view in it; ``callback`` where there is none.
    """

    callback: Any
    view: Any

    @property
    def name(self) -> str:
        return dotted(self.cls or self.view)

    @property
    def cls(self) -> Any:
        return own_attribute(self.view, "cls") or own_attribute(self.view, "view_class")

    @property
    def arguments(self) -> frozenset[tuple[str, str]]:
        """The arguments of ``as_view()`` that may make another operation of a class, as far as they can be compared."""
        given = own_attribute(self.view, "initkwargs") or own_attribute(self.view, "view_initkwargs") or {}
        return frozenset(
            (name, dotted(value) if isinstance(value, type) else repr(value))
            for name, value in given.items()
            if name not in _OF_ROUTES and isinstance(value, str | int | type | None)
        )

    @property
    def is_taken_out(self) -> bool:
        """Whether the view opens the transactions of ATOMIC_REQUESTS itself."""
        name = "_non_atomic_requests"
        return any(isinstance(own, TakenOut) for own in (own_attribute(self.view, name), _of_dispatch(self.cls, name)))


@dataclass(frozen=True)
class Protection:
    """The terms of handlers that are protected alike.

    :param operations: the names that tell its keys from those of others, with the method, as far as they are derived.
    :param identity: what these names should be unique to.
    :param arguments: what ``as_view()`` was told that another route of the same class may be told otherwise.
    :param own_scope: a hook of the view answers whose keys they are.
    :param asks_middleware: its callers are those that a middleware found.
    :param anonymous: why callers may be nobody in particular, where that is certain.
    :param models: what the view says that it works on.
    """

    view: str
    policy: Any
    operations: frozenset[tuple[str, str]]
    identity: int
    arguments: frozenset[tuple[str, str]] = frozenset()
    own_scope: bool = False
    asks_middleware: bool = False
    anonymous: str | None = None
    models: frozenset[Any] = frozenset()


# What routers add, and what makes another form of the same answer.
_OF_ROUTES = frozenset(
    {"suffix", "basename", "detail", "name", "description", "template_name", "template_engine", "content_type"}
)


def views_in_use(urlconf: Any = None) -> list[ViewInUse]:
    """The views of a URLconf, by default that of the settings, each callback once."""
    found = {id(callback): callback for callback in _callbacks(get_resolver(urlconf))}
    return [ViewInUse(callback, _view_in(callback)) for callback in found.values()]


def protection(view: ViewInUse) -> Protection | None:
    """What ``idempotent_view`` promises for a view."""
    policy = own_attribute(view.view, "idempotency_policy") or _of_dispatch(view.cls, "idempotency_policy")
    if not isinstance(policy, IdempotencyPolicy):
        return None
    origin = view.cls or own_attribute(view.view, "idempotency_origin")
    name = dotted(origin)
    operations = frozenset((policy.operation or name, method) for method in policy.methods or UNSAFE_METHODS)
    models = {getattr(view.cls, "model", None), getattr(getattr(view.cls, "queryset", None), "model", None)} - {None}
    return Protection(
        name, policy, operations, id(origin), view.arguments, asks_middleware=True, models=frozenset(models)
    )


def _callbacks(resolver: Any) -> Iterator[Any]:
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLResolver):
            yield from _callbacks(pattern)
        elif isinstance(pattern, URLPattern):
            yield pattern.callback


def _view_in(callback: Any) -> Any:
    for layer in beneath(callback):
        if any(own_attribute(layer, name) for name in ("idempotency_policy", "cls", "view_class")):
            return layer
    return callback


def _of_dispatch(cls: Any, name: str) -> Any:
    """What a decorator left on ``dispatch``, also where a subclass has one that calls it."""
    for base in getattr(cls, "__mro__", ()):
        value = own_attribute(vars(base).get("dispatch"), name)
        if value is not None:
            return value
    return None
