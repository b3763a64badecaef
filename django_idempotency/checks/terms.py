"""Which views are protected on which terms: what several checks ask."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType

from django.conf import settings as django_settings
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.db import router

from ..conf import current
from ..core.policy import IdempotencyPolicy, ResolvedPolicy
from ..core.states import IdempotencyMode
from ..http import inspection as http_inspection
from ..http.inspection import Protection, ViewInUse
from ..models import IdempotencyKey
from .ids import found

Terms = Sequence[tuple[str, ResolvedPolicy]]


def views_in_use() -> list[ViewInUse]:
    """The views that ROOT_URLCONF leads to. Other URLconfs (``request.urlconf``) are not looked at."""
    return http_inspection.views_in_use() if getattr(django_settings, "ROOT_URLCONF", None) else []


def protections_of(views: Iterable[ViewInUse]) -> list[Protection]:
    drf = drf_inspection()
    protections: dict[tuple[object, ...], Protection] = {}
    for view in views:
        plain = http_inspection.protection(view)
        for each in [*([plain] if plain else []), *(drf.protections(view) if drf else [])]:
            # Once, though a view has a route for its list and another one for an object.
            protections.setdefault((each.view, each.identity, each.arguments), each)
    return list(protections.values())


def drf_inspection() -> ModuleType | None:
    """None where no URLconf has imported REST framework: none of its views is in use, and it need not be loaded."""
    if "rest_framework.views" not in sys.modules:
        return None
    from ..drf import inspection

    return inspection


def resolved(protection: Protection) -> ResolvedPolicy | str:
    """The policy with the settings filled in, or what is wrong with it."""
    if not isinstance(protection.policy, IdempotencyPolicy):
        return f"idempotency_policy must be an IdempotencyPolicy or None, not {protection.policy!r}."
    try:
        return current().resolve(protection.policy)
    except ImproperlyConfigured as error:
        return str(error)


def terms_of(protections: Sequence[Protection]) -> Terms:
    """Who asks for what. The settings alone, where no view is protected yet."""
    named = [(protection.view, resolved(protection)) for protection in protections]
    sound = [(view, policy) for view, policy in named if isinstance(policy, ResolvedPolicy)]
    return sound or [("the settings", current().resolve(IdempotencyPolicy()))]


def aliases_of(policy: ResolvedPolicy) -> tuple[str, ...]:
    """The databases that keys under a policy may go to."""
    if callable(policy.using):
        return tuple(current().DATABASES)
    return (policy.using or router.db_for_write(IdempotencyKey),)


def isolation(id: str, alias: str, level: str, terms: Terms) -> Iterator[CheckMessage]:
    """Judge an isolation level, wherever it was found."""
    atomic = [who for who, policy in terms if policy.mode is IdempotencyMode.ATOMIC and alias in aliases_of(policy)]
    if atomic and level != "read committed":
        some = ", ".join(atomic[:3]) + (f" and {len(atomic) - 3} more" if len(atomic) > 3 else "")
        yield found(
            id,
            f"Transactions on {alias!r} are {level.upper()}, where one key can be claimed twice; claims in ATOMIC mode "
            f"are refused with 503. ATOMIC by {some}.",
            "Use READ COMMITTED on this alias, or IdempotencyMode.LEASED, whose claims bring their own level.",
        )
