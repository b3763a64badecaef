"""What the views in the URLconf say. Nothing is called; only what is certain is reported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage
from django.db import connections, router
from django.utils.module_loading import import_string

from ..core.policy import ResolvedPolicy
from ..http.inspection import Protection, ViewInUse
from ..http.layers import dotted
from .ids import found
from .settings import listed
from .terms import aliases_of, drf_inspection, resolved

_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


def not_in_force(views: Iterable[ViewInUse]) -> Iterator[CheckMessage]:
    drf = drf_inspection()
    if drf is not None:
        faults = {fault for view in views for fault in drf.faults(view)}
        for fault in sorted(faults, key=str):
            yield found("E020", f"It {fault.what}, which has no effect there.", fault.way_out, fault.handler)


def wrapped_by_atomic_requests(views: Iterable[ViewInUse]) -> Iterator[CheckMessage]:
    aliases = [alias for alias, database in connections.settings.items() if database["ATOMIC_REQUESTS"]]
    for view in views:
        # Asked as Django asks when it decides.
        opted_out = getattr(view.callback, "_non_atomic_requests", ())
        wrapped = [alias for alias in aliases if alias not in opted_out]
        if wrapped and view.is_taken_out:
            yield found(
                "E022",
                f"ATOMIC_REQUESTS on {', '.join(wrapped)} opens a transaction around a view whose own must be the "
                "outermost: whatever the mode, each request fails.",
                "A decorator above it, or a dispatch that overrides a decorated one, lost the view's attributes. "
                "Use functools.wraps there.",
                view.name,
            )


def terms(protection: Protection) -> Iterator[CheckMessage]:
    """One protected view."""
    policy = resolved(protection)
    if isinstance(policy, str):
        yield found("E021", policy, "Correct the policy, or the setting that it names.", protection.view)
        return
    aliases = aliases_of(policy)
    for alias in aliases:
        yield from listed(alias, "Its keys", protection.view)
    if not callable(policy.using):
        yield from _together(protection, aliases[0])
    if policy.scope is None and not protection.own_scope:
        yield from _anonymous(protection)
    if released := policy.outcomes.released_successes:
        yield found(
            "W029",
            f"A {' or '.join(map(str, released))} leaves its key free: the client hears a success, and what the view "
            "wrote is rolled back.",
            "Take successes out of release and by_status of its OutcomeRules. Where nothing was done yet, say so by an "
            "error such as 409 or 503.",
            protection.view,
        )


def _together(protection: Protection, alias: str) -> Iterator[CheckMessage]:
    for model in sorted(protection.models, key=str):
        written = router.db_for_write(model)
        if written != alias:
            yield found(
                "E006",
                f"{dotted(model)} is written to {written!r}, while the keys of the view go to {alias!r}: "
                "they do not commit together.",
                f"Set using={written!r} in its policy.",
                protection.view,
            )


def _anonymous(protection: Protection) -> Iterator[CheckMessage]:
    why = protection.anonymous
    if protection.asks_middleware and not any(_sets_user(each) for each in _middleware()):
        why = "takes its caller from request.user, and no AuthenticationMiddleware sets one"
    if why is not None:
        yield found(
            "W023",
            f"It {why}. A key of nobody is refused: such a caller hears 403 anonymous-scope.",
            "Name a scope in the policy, callable(request) -> str, that tells callers apart; or admit authenticated "
            "callers only.",
            protection.view,
        )


def _sets_user(middleware: Any) -> bool:
    # By name: where django.contrib.auth is not installed, its middleware cannot be imported.
    return any(dotted(cls) == _AUTHENTICATION for cls in getattr(middleware, "__mro__", ()))


def _middleware() -> Iterator[Any]:
    for path in django_settings.MIDDLEWARE:
        try:
            yield import_string(path)
        except ImportError:  # Django says so when the server starts
            continue


def tenants(protections: Sequence[Protection]) -> Iterator[CheckMessage]:
    """Schemas of one database: the users of two tenants have the same numbers."""
    engines = {database["ENGINE"].partition(".")[0] for database in connections.settings.values()}
    if not (engines & {"django_tenants", "tenant_schemas"} or getattr(django_settings, "TENANT_MODEL", None)):
        return
    for protection in protections:
        policy = resolved(protection)
        if isinstance(policy, ResolvedPolicy) and policy.scope is None and not protection.own_scope:
            yield found(
                "E024",
                "Users of two tenants can have the same number, and would share their keys and answers.",
                "Set IDEMPOTENCY['SCOPE'] to callable(request) -> str that names tenant and user.",
                protection.view,
            )


def shared_names(protections: Sequence[Protection]) -> Iterator[CheckMessage]:
    """One key on two views must be two keys."""
    bearers: dict[tuple[str, str], list[Protection]] = defaultdict(list)
    for protection in protections:
        for operation in sorted(protection.operations):
            bearers[operation].append(protection)
    for (name, method), sharing in bearers.items():
        views, arguments = ({getattr(each, of) for each in sharing} for of in ("identity", "arguments"))
        named = any(getattr(each.policy, "operation", None) for each in sharing)
        message = f"views are the operation {name!r} for {method}: one answers with what another recorded."
        if len(views) > 1 and named:
            hint = "Unless they are to be one, give each its own operation in its policy."
            yield found("W026", f"{len(views)} {message}", hint, name)
        elif len(views) > 1:
            hint = "Use functools.wraps in the decorators below the protection, or set operation in each policy."
            yield found("E025", f"{len(views)} {message}", hint, name)
        elif len(arguments) > 1:
            differing = ", ".join(sorted({argument for argument, _ in frozenset().union(*arguments)}))
            yield found(
                "W028",
                f"Routes that differ in {differing} are the operation {name!r} for {method}: one answers with what "
                "another recorded.",
                "Unless they are to be one, give each its own operation: as_view(idempotency_policy=...), or a policy "
                "for each idempotent_view.",
                name,
            )


def template_response_middleware(protections: Sequence[Protection]) -> Iterator[CheckMessage]:
    for middleware in _middleware() if protections else ():
        if hasattr(middleware, "process_template_response"):
            yield found(
                "W027",
                "Responses of protected views are rendered and recorded before it is called, and replays have no "
                "template: what it changes is not sent.",
                "Make the change in the view, or in process_response, which sees replays too.",
                dotted(middleware),
            )
