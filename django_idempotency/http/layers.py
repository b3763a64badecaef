"""Looking through what decorators put around a view, also through those that forget ``functools.wraps``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

# Decorators are stacked by hand. More than this is somebody's web of objects, and not worth following.
_MOST = 64


def beneath(view: Any) -> Iterator[Any]:
    """``view`` and the callables that it holds, outermost first. Runs no code of theirs."""
    waiting: deque[Any] = deque([view])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        layer = waiting.popleft()
        if id(layer) not in seen:
            seen.add(id(layer))
            yield layer
            waiting.extend(each for each in _held_by(layer) if _may_be_view(each))


def own_attribute(layer: Any, name: str) -> Any:
    """What was put on this very object, without asking a ``__getattr__`` that may answer to anything."""
    return _attributes(layer).get(name)


def _attributes(layer: Any) -> Mapping[str, Any]:
    try:
        found = vars(layer)
    except Exception:  # noqa: BLE001 - it has none, or stands for something that is not there now
        return {}
    return found if isinstance(found, Mapping) else {}


def dotted(named: Any) -> str:
    """``shop.views.pay``, of whatever may stand for a view."""
    module = getattr(named, "__module__", "")
    return f"{module}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def _held_by(layer: Any) -> list[Any]:
    if isinstance(layer, partial):
        return [layer.func]
    if isinstance(layer, MethodType):
        return [layer.__func__]
    if isinstance(layer, FunctionType):
        return [own_attribute(layer, "__wrapped__"), *_enclosed(layer)]
    if isinstance(layer, type):
        return []
    return list(_attributes(layer).values())


def _enclosed(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _may_be_view(held: Any) -> bool:
    return callable(held) and not isinstance(held, (type, BuiltinFunctionType))
