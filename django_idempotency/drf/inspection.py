"""What can be known of the project's REST framework views without a request. Facts for the system checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rest_framework.permissions import AND, OR, AllowAny, BasePermission, OperandHolder
from rest_framework.views import APIView

from ..core.policy import UNSAFE_METHODS, IdempotencyPolicy
from ..http import inspection as plain
from ..http.inspection import Protection, ViewInUse
from ..http.layers import beneath, dotted, own_attribute
from .marks import Mark, mark_of, marks_on
from .mixin import IdempotencyMixin


@dataclass(frozen=True)
class Fault:
    """Something on a handler that nobody obeys, and what to do about it."""

    handler: str
    what: str
    way_out: str


_NEEDS_MIXIN = "Let {view} inherit IdempotencyMixin, named before its other base classes."
_KEEP_ATTRIBUTES = "Use functools.wraps in the decorators above @idempotent, or move @idempotent above them."
_ABOVE_API_VIEW = "Put @idempotent above @api_view."
_FOR_PLAIN_VIEWS = "Use idempotent_view from django_idempotency.http: this is not a REST framework view."
_FOR_API_VIEWS = (
    "Use IdempotencyMixin or idempotent from django_idempotency.drf: the caller is known to its dispatch only."
)


def faults(view: ViewInUse) -> Iterator[Fault]:
    """Where a decorator or a policy stands and is not in force."""
    cls = view.cls
    if not _is_api_view(cls):
        handlers = [view.callback, *(getattr(cls, method.lower(), None) for method in UNSAFE_METHODS)]
        if any(_mark_beneath(handler) for handler in handlers):
            yield Fault(view.name, "is marked by @idempotent", _FOR_PLAIN_VIEWS)
        return
    if plain.protection(view) is not None:
        yield Fault(view.name, "is decorated with idempotent_view", _FOR_API_VIEWS)
    protected = issubclass(cls, IdempotencyMixin)
    for _, name, handler in _handlers(view):
        if _mark_beneath(handler) and not (protected and mark_of(handler)):
            way_out = _KEEP_ATTRIBUTES if protected else _NEEDS_MIXIN.format(view=cls.__name__)
            of_function = getattr(handler, "__module__", None) == "rest_framework.decorators"
            yield Fault(f"{view.name}.{name}", "is marked by @idempotent", _ABOVE_API_VIEW if of_function else way_out)
    if not protected and isinstance(getattr(cls, "idempotency_policy", None), IdempotencyPolicy):
        yield Fault(view.name, "has an idempotency_policy", _NEEDS_MIXIN.format(view=cls.__name__))


def protections(view: ViewInUse) -> list[Protection]:
    """What the mixin promises for the handlers of a view, those under the same terms together."""
    cls = view.cls
    if not (_is_api_view(cls) and issubclass(cls, IdempotencyMixin)):
        return []
    base = _attribute(view, "idempotency_policy")
    decided_by_hook = _overrides(cls, "get_idempotency_policy")
    alike: dict[int, tuple[Any, list[tuple[str, str]]]] = {}
    for method, name, _handler in _handlers(view):
        mark = next(iter(marks_on(cls, name)), None)
        if mark is None and (decided_by_hook or base is None):
            continue
        policy = base if mark is None else mark.over(base if isinstance(base, IdempotencyPolicy) else None)
        # mark.over() makes a new policy each time: handlers under one mark are told by the mark.
        alike.setdefault(id(mark or base), (policy, []))[1].append((method, name))
    return [_protection(view, policy, handlers) for policy, handlers in alike.values()]


def _protection(view: ViewInUse, policy: Any, handlers: list[tuple[str, str]]) -> Protection:
    cls = view.cls
    methods = getattr(policy, "methods", None) or UNSAFE_METHODS
    operation = getattr(policy, "operation", None) or dotted(cls)
    actions = hasattr(cls, "as_view") and own_attribute(view.view, "actions") is not None
    names = (f"{operation}:{name}" if actions else operation for _, name in handlers)
    return Protection(
        view=f"{view.name} ({', '.join(sorted({name for _, name in handlers}))})",
        policy=policy,
        operations=frozenset(
            (name, method) for name, (method, _) in zip(names, handlers, strict=True) if method in methods
        ),
        identity=id(cls),
        arguments=view.arguments,
        own_scope=_overrides(cls, "get_idempotency_scope"),
        anonymous=_why_anonymous(view),
        models=_models(view),
    )


def _handlers(view: ViewInUse) -> Iterator[tuple[str, str, Any]]:
    """Method, name and function of every handler that acts."""
    actions = own_attribute(view.view, "actions")
    pairs = actions if isinstance(actions, dict) else {method: method for method in view.cls.http_method_names}
    for method, name in pairs.items():
        handler = getattr(view.cls, name, None)
        if method.upper() in UNSAFE_METHODS and handler is not None:
            yield method.upper(), name, handler


def _mark_beneath(handler: Any) -> bool:
    return any(isinstance(own_attribute(layer, "idempotency_mark"), Mark) for layer in beneath(handler))


def _is_api_view(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, APIView)


def _attribute(view: ViewInUse, name: str) -> Any:
    """An attribute of the view, which a route may have set (``@action(..., permission_classes=...)``)."""
    initkwargs = own_attribute(view.view, "initkwargs") or {}
    return initkwargs[name] if name in initkwargs else getattr(view.cls, name, None)


def _overrides(cls: type, name: str) -> bool:
    ours = getattr(IdempotencyMixin, name, None) or getattr(APIView, name)
    return getattr(cls, name) is not ours


def _why_anonymous(view: ViewInUse) -> str | None:
    authentication, permissions = (_attribute(view, f"{kind}_classes") for kind in ("authentication", "permission"))
    if not isinstance(permissions, list | tuple):  # a property, say
        return None
    if not authentication and not _overrides(view.cls, "get_authenticators"):
        return "has no authentication classes"
    if all(_admits_anonymous(each) for each in permissions or ()) and not _overrides(view.cls, "get_permissions"):
        return "admits anonymous callers by its permission classes"
    return None


def _admits_anonymous(permission: Any) -> bool:
    """Whether a permission lets anybody call an unsafe method. No, where that depends on code of its own."""
    if isinstance(permission, OperandHolder):
        operator: Any = permission.operator_class
        admitted = [_admits_anonymous(each) for each in (permission.op1_class, permission.op2_class)]
        return any(admitted) if operator is OR else operator is AND and all(admitted)
    decides = getattr(permission, "has_permission", None)
    return decides is AllowAny.has_permission or decides is BasePermission.has_permission


def _models(view: ViewInUse) -> frozenset[Any]:
    declared = getattr(_attribute(view, "queryset"), "model", None)
    meta = getattr(_attribute(view, "serializer_class"), "Meta", None)
    return frozenset(model for model in (declared, getattr(meta, "model", None)) if model is not None)
