"""Taking a view out of ATOMIC_REQUESTS without losing what it gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

from ..request_transactions import RequestTransactions

_ATTRIBUTE = "_non_atomic_requests"  # Django's, read by its request handler


class TakenOut(set[str]):
    """The ``_non_atomic_requests`` of a protected view.

    Django asks it whether it contains an alias, and hears yes for each: the transactions are ours to open. What the
    project itself adds, before or after, is kept apart and respected. A fresh one for each view: Django's own decorator
    changes the set in place, and views may share it.
    """

    def __contains__(self, alias: object) -> bool:
        return True

    @property
    def by_project(self) -> frozenset[str]:
        return frozenset(self)


def take_out(view: Any, like: Any = None) -> None:
    """Let Django open no transaction around ``view``: :func:`transactions_of` opens them.

    :param like: a view that this one stands for; what the project took that one out of holds for it too.
    """
    setattr(view, _ATTRIBUTE, TakenOut((*getattr(view, _ATTRIBUTE, ()), *getattr(like, _ATTRIBUTE, ()))))


def transactions_of(request: HttpRequest, reopened: Callable[[], None] = lambda: None) -> RequestTransactions:
    """The transactions for a request to a view that was taken out."""
    match = getattr(request, "resolver_match", None)
    marked = getattr(getattr(match, "func", None), _ATTRIBUTE, None)
    return RequestTransactions(marked.by_project if isinstance(marked, TakenOut) else (), reopened)
