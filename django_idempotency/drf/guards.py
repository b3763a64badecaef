"""A guard in front of the handlers of a view, for the length of one request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.views import APIView

from ..core.policy import UNSAFE_METHODS

Handler = Callable[..., HttpResponseBase]

_ACTING = tuple(method.lower() for method in sorted(UNSAFE_METHODS))


class _Guarded:
    """A handler with the guard in front. Whoever looks at it, such as a permission class, sees the handler."""

    # functools.wraps would copy its attributes for each request, which costs several times as much.
    __slots__ = ("_guard", "_handler")

    def __init__(self, handler: Handler, guard: Handler) -> None:
        self._handler = handler
        self._guard = guard

    def __call__(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        return self._guard(request, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)


class _Chosen(list[str]):
    """The accepted methods of a view. Dispatch asks them for one right before it takes the handler."""

    def __init__(self, methods: Iterable[str], before: Callable[[], None]) -> None:
        super().__init__(methods)
        self._before = before

    def __contains__(self, method: object) -> bool:
        self._before()
        return super().__contains__(method)


def guard_handlers(view: APIView, present: str, guard: Callable[..., HttpResponseBase]) -> None:
    """Put a guard in front of each handler that the view may choose.

    :param present: the method of the request.
    :param guard: called in the place of a handler: with its method, the handler, and what that would be called with.
    """
    accepted = view.http_method_names

    def stand() -> None:
        # All that act: a view may choose another method than the present one, such as that which a header names.
        for method in {*_ACTING, present.lower()}:
            handler = getattr(view, method, None) if method in accepted else None
            if handler is not None and not isinstance(handler, _Guarded):
                setattr(view, method, _Guarded(handler, partial(guard, method, handler)))

    stand()
    # Once more when dispatch chooses, since initial() may have put another handler there.
    view.http_method_names = _Chosen(accepted, stand)
