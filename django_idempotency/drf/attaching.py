"""What is refused when a view class is made, because it would run unprotected."""

from __future__ import annotations

from collections.abc import Mapping

from asgiref.sync import iscoroutinefunction
from django.views import View
from rest_framework.views import APIView

from ..core.policy import SAFE_METHODS, UNSAFE_METHODS
from .marks import mark_of


def check_order(cls: type, mixin: type) -> None:
    """:raises TypeError: the base classes stand so that requests would pass the ``mixin`` by."""
    before = cls.__mro__[: cls.__mro__.index(mixin)]
    for base in before:
        if not issubclass(base, mixin) and (issubclass(base, View) or "as_view" in vars(base)):
            raise TypeError(
                f"{cls.__qualname__}: {mixin.__name__} must come before {base.__qualname__} among the base classes, "
                "or requests would run unprotected."
            )
    if issubclass(cls, View) and not issubclass(cls, APIView):
        raise TypeError(
            f"{cls.__qualname__} is not a REST framework view: use idempotent_view from django_idempotency.http."
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


def check_synchronous(cls: type, actions: Mapping[str, str] | None) -> None:
    """:raises TypeError: what the guard would get of a handler is a coroutine, which has not run yet."""
    for name in {"get", *(method.lower() for method in UNSAFE_METHODS), *(actions or {}).values()}:
        if iscoroutinefunction(getattr(cls, name, None)):
            raise TypeError(
                f"IdempotencyMixin does not protect asynchronous handlers, such as {cls.__qualname__}.{name}, yet."
            )
