"""What ``@idempotent`` leaves on a handler, and how it is known that the mixin obeys it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from rest_framework.request import Request

from ..core.policy import UNSAFE_METHODS, IdempotencyPolicy


@dataclass(frozen=True, eq=False)
class Mark:
    """One use of the decorator. Compared by identity: the guard and the mixin must speak of the same one."""

    policy: IdempotencyPolicy

    @lru_cache(maxsize=256)  # noqa: B019 - marks live as long as their handlers
    def over(self, base: IdempotencyPolicy | None) -> IdempotencyPolicy:
        """The policy of the marked handler: the fields that the mark names over those of the view.

        A mark means the handler that it stands on, so it covers every unsafe method unless it names some.
        """
        methods = self.policy.methods or UNSAFE_METHODS
        combined = (base or IdempotencyPolicy()).overridden(self.policy)
        return combined.overridden(IdempotencyPolicy(methods=methods))


_ATTRIBUTE = "idempotency_mark"
_IN_FORCE = "_idempotency_marks_in_force"


def put_mark(handler: Callable[..., Any], mark: Mark) -> None:
    setattr(handler, _ATTRIBUTE, mark)


def mark_of(handler: Any) -> Mark | None:
    mark = getattr(handler, _ATTRIBUTE, None)
    return mark if isinstance(mark, Mark) else None


# How the REST framework's own handlers pass a request on to what does the work.
_PASSED_ON = {
    "post": "create", "put": "update", "patch": "partial_update", "partial_update": "update", "delete": "destroy",
}  # fmt: skip
_FRAMEWORK = ("rest_framework.generics", "rest_framework.mixins")


@lru_cache(maxsize=1024)
def marks_on(cls: type, name: str) -> tuple[Mark, ...]:
    """The marks that a request to the handler ``name`` comes past; empty where it is not marked.

    The terms of the first hold. The others are on what it overrides and calls by ``super()``, or passes the request on
    to: a mark on ``update`` stands for the framework's ``partial_update`` too, which calls it.
    """
    handler = getattr(cls, name, None)
    behind = marks_on(cls, _PASSED_ON[name]) if name in _PASSED_ON else ()
    if mark_of(handler) is None:
        return behind if getattr(handler, "__module__", None) in _FRAMEWORK else ()
    own = (mark_of(vars(base).get(name)) for base in cls.__mro__)
    return (*(mark for mark in own if mark is not None), *behind)


def put_in_force(request: Request, marks: Iterable[Mark]) -> None:
    """The mixin: what the first of these asks for is seen to, and it stands for the others."""
    setattr(request, _IN_FORCE, (*getattr(request, _IN_FORCE, ()), *marks))


def require_in_force(arguments: tuple[Any, ...], mark: Mark, name: str) -> None:
    """The decorator, before the handler's body runs.

    :raises ImproperlyConfigured: nobody obeys the mark, so the handler would run unprotected.
    """
    if any(isinstance(argument, Request) and mark in getattr(argument, _IN_FORCE, ()) for argument in arguments[:2]):
        return
    raise ImproperlyConfigured(
        f"@idempotent on {name} is not in force, so the handler was not run. The view class needs IdempotencyMixin "
        "before its base classes; decorators above @idempotent must keep attributes (functools.wraps); "
        "on a function, @idempotent goes above @api_view; a method that calls a marked one needs a mark of its own."
    )
