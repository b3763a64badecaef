"""What ``manage.py check`` finds out before a request does; ``IDS`` lists it all.

Without a database it reads settings, routers and the URLconf; with ``--database default`` it asks the server too.
Facts come from the rooms that know them (``http``, ``drf`` and ``storage.inspection``) and are judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Tags, register

from ..conf import current, problems
from . import databases as asked, settings as configured, views as written
from .health import HEALTH, weighed
from .ids import IDS, found
from .operations import operations
from .terms import protections_of, terms_of, views_in_use

TAG = "idempotency"

__all__ = [
    "HEALTH",
    "IDS",
    "TAG",
    "check_databases",
    "check_deployment",
    "check_operations",
    "check_settings",
    "check_views",
]


@register(TAG)
def check_settings(**_: Any) -> list[CheckMessage]:
    """IDEMPOTENCY, and the databases and routers that it relies on."""
    faults = [found("E001", message, hint) for message, hint in problems()]
    if faults:
        # The other checks stay away from settings that cannot be read.
        return faults
    return [
        *configured.observing(),
        *(fault for alias in current().DATABASES for fault in configured.database(alias)),
        *configured.routing(),
    ]


@register(TAG)
def check_views(**_: Any) -> list[CheckMessage]:
    if problems():
        return []
    views = views_in_use()
    protections = protections_of(views)
    terms = terms_of(protections)
    return [
        *written.not_in_force(views),
        *written.wrapped_by_atomic_requests(views),
        *(fault for protection in protections for fault in written.terms(protection)),
        *(fault for alias in current().DATABASES for fault in configured.isolation_level(alias, terms)),
        *written.tenants(protections),
        *written.shared_names(protections),
        *written.template_response_middleware(protections),
    ]


@register(TAG)
def check_operations(**_: Any) -> list[CheckMessage]:
    return [] if problems() else list(operations())


@register(TAG, deploy=True)
def check_deployment(**_: Any) -> list[CheckMessage]:
    if problems() or django_settings.DEBUG or not current().FAILPOINTS_ENABLED:
        return []
    hint = "Enable FAILPOINTS_ENABLED in tests only."
    return [found("W010", "An environment variable can make this process kill or stop itself.", hint)]


@register(Tags.database, TAG)
def check_databases(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Only those that were named: asking a server is more than reading code."""
    if problems():
        return []
    aliases = [alias for alias in databases or () if alias in current().DATABASES]
    terms = terms_of(protections_of(views_in_use())) if aliases else []
    return [weighed(fault) for alias in aliases for fault in asked.database(alias, terms)]
