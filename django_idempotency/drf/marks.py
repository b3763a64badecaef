"""What ``@idempotent`` leaves on a handler, and how it is known that the mixin obeys it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from rest_framework.request import Request

from ..core.policy import SAFE_METHODS, UNSAFE_METHODS, IdempotencyPolicy


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


def put_in_force(request: Request, mark: Mark) -> None:
    """The mixin: whatever this handler's decorator asks for is seen to."""
    setattr(request, _IN_FORCE, (*getattr(request, _IN_FORCE, ()), mark))


def require_in_force(arguments: tuple[Any, ...], mark: Mark, name: str) -> None:
    """The decorator, before the handler's body runs.

    :raises ImproperlyConfigured: nobody obeys the mark, so the handler would run unprotected.
    """
    if any(isinstance(argument, Request) and mark in getattr(argument, _IN_FORCE, ()) for argument in arguments[:2]):
        return
    raise ImproperlyConfigured(
        f"@idempotent on {name} is not in force, so the handler was not run. The view class needs IdempotencyMixin "
        "before its base classes; decorators above @idempotent must keep attributes (functools.wraps); "
        "on a function, @idempotent goes above @api_view."
    )


def check_marks(cls: type) -> None:
    """:raises TypeError: a mark stands where it can have no effect."""
    for name, attribute in vars(cls).items():
        if mark_of(attribute) is None:
            continue
        mapping = getattr(attribute, "mapping", None)
        methods = {method.upper() for method in mapping} if mapping else {name.upper()}
        if methods <= SAFE_METHODS or name in ("dispatch", "initial", "as_view"):
            raise TypeError(
                f"@idempotent on {cls.__qualname__}.{name}: a key has no effect there. "
                "Put it on a handler that acts (post, put, patch, delete, create, or an @action)."
            )
