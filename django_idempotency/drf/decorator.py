"""``@idempotent``: a mark for the mixin on one handler, and a guard that the mixin is there."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper, wraps
from typing import Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction
from rest_framework.views import APIView

from ..core.policy import IdempotencyPolicy, declared
from ..http.atomic_requests import take_out
from .marks import Mark, put_mark, require_in_force
from .mixin import IdempotencyMixin

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@overload
def idempotent(target: Decorated, /) -> Decorated: ...


@overload
def idempotent(target: IdempotencyPolicy | None = None, /, **fields: Any) -> Callable[[Decorated], Decorated]: ...


def idempotent(target: Any = None, /, **fields: Any) -> Any:
    """Set the terms of one handler, or make an ``@api_view`` function safe to retry.

    :param target: an :class:`IdempotencyPolicy`, or the handler where the decorator is used bare.
    :param fields: fields of the policy. They win over the policy, and both over ``idempotency_policy`` of the view.
    :raises TypeError: the target cannot be protected this way.

    On a method of a view with :class:`IdempotencyMixin`, above or below ``@action``. On a function, above
    ``@api_view``. Anywhere else the handler raises ``ImproperlyConfigured`` before its body runs.
    """
    if target is not None and not isinstance(target, IdempotencyPolicy):
        return _marked(target, Mark(declared(None, fields)))
    mark = Mark(declared(target, fields))
    return lambda handler: _marked(handler, mark)


def _marked(handler: Any, mark: Mark) -> Any:
    if isinstance(handler, type):
        raise TypeError(
            f"@idempotent is for handlers, not for the class {handler.__qualname__}: "
            "inherit IdempotencyMixin and set idempotency_policy."
        )
    if not callable(handler):
        raise TypeError(f"@idempotent protects handlers; {handler!r} is not callable.")
    if iscoroutinefunction(handler):
        raise TypeError("@idempotent does not protect asynchronous handlers; the handler would run unprotected.")
    cls = getattr(handler, "cls", None)
    if isinstance(cls, type) and issubclass(cls, APIView):
        return _protected_view(handler, cls, mark)

    @wraps(handler)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        require_in_force(args, mark, getattr(handler, "__qualname__", repr(handler)))
        return handler(*args, **kwargs)

    put_mark(guarded, mark)
    return guarded


def _protected_view(view: Any, cls: type[APIView], mark: Mark) -> Any:
    if issubclass(cls, IdempotencyMixin):
        raise TypeError(f"{cls.__qualname__} has IdempotencyMixin: set its idempotency_policy instead.")
    if hasattr(view, "actions"):
        raise TypeError(f"{cls.__qualname__} is a viewset: inherit IdempotencyMixin instead.")
    if _layers(view) != _layers(cls.as_view(**view.initkwargs)):
        # Made anew from its class, the view would silently lose what was put around it: a login_required, say.
        raise TypeError(f"@idempotent goes directly above @api_view: move it below what decorates {cls.__name__}.")
    names = {"__module__": cls.__module__, "__qualname__": cls.__name__, "__doc__": cls.__doc__}
    policy = mark.over(None)
    protected_class: Any = type(cls.__name__, (IdempotencyMixin, cls), {**names, "idempotency_policy": policy})
    protected = protected_class.as_view(**view.initkwargs)
    own = dict(protected.__dict__)
    update_wrapper(protected, view)
    protected.__dict__.update(own)
    take_out(protected, like=view)
    return protected


def _layers(view: Any) -> list[Any]:
    """The code of a view and of everything that it wraps: equal for two views that are wrapped alike."""
    layers = []
    while view is not None:
        layers.append(getattr(view, "__code__", None))
        view = getattr(view, "__wrapped__", None)
    return layers
