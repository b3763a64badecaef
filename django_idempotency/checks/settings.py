"""What the settings and the routers say, with nothing opened and nothing asked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import connections, router

from ..conf import current
from ..core.policy import IdempotencyPolicy
from ..models import IdempotencyKey
from .ids import found
from .terms import Terms, aliases_of, isolation


def observing() -> Iterator[CheckMessage]:
    if current().OBSERVE_ONLY:
        yield found(
            "W012",
            "IDEMPOTENCY['OBSERVE_ONLY'] is on: keys are counted, and no request is protected.",
            "Remove it once the counts have shown what clients send; a retry has its effect twice until then.",
        )


def database(alias: str) -> Iterator[CheckMessage]:
    """One of IDEMPOTENCY['DATABASES']."""
    vendor = connections[alias].vendor
    if vendor == "postgresql":
        yield from _driver(alias)
    elif vendor == "sqlite":
        yield from _sqlite(alias)
    else:
        yield found(
            "E002", f"Keys cannot be kept in {vendor!r} ({alias!r}).", "Use PostgreSQL, or SQLite to try it out."
        )
    if not connections.settings[alias]["AUTOCOMMIT"]:
        yield found(
            "E011",
            f"AUTOCOMMIT is off on {alias!r}: Django's blocks end there without a COMMIT.",
            "Leave AUTOCOMMIT on. Where a project commits by itself, what is answered and what is kept can differ.",
        )
    if not router.allow_migrate_model(alias, IdempotencyKey):
        yield found(
            "E005",
            f"No migration will make the table of keys on {alias!r}.",
            "Let allow_migrate of the router answer None or True there for the app 'django_idempotency', "
            "or take the alias out of IDEMPOTENCY['DATABASES'].",
        )


def _driver(alias: str) -> Iterator[CheckMessage]:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    if not is_psycopg3:
        yield found("E003", f"{alias!r} is reached through psycopg2.", 'Install psycopg 3, such as "psycopg[binary]".')


def _sqlite(alias: str) -> Iterator[CheckMessage]:
    options = connections.settings[alias]["OPTIONS"]
    if str(options.get("transaction_mode")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield found(
            "W008",
            f"Transactions on {alias!r} begin as readers: of two requests that claim at once, one is refused with 503.",
            "Set OPTIONS['transaction_mode'] to 'IMMEDIATE', so that they take turns.",
        )
    wait = timedelta(seconds=options.get("timeout", 5))
    if wait >= current().LEASE:
        yield found(
            "W009",
            f"A request may wait {wait.total_seconds():g} s for the lock of {alias!r}, and its lease of "
            f"{current().LEASE.total_seconds():g} s ends meanwhile. Nothing renews leases on SQLite.",
            "Raise IDEMPOTENCY['LEASE'] above OPTIONS['timeout'].",
        )


def routing() -> Iterator[CheckMessage]:
    """Where keys go unless a policy says otherwise, and whether any effect goes there."""
    if callable(current().USING):
        return
    (alias,) = aliases_of(current().resolve(IdempotencyPolicy()))
    yield from listed(alias, "By IDEMPOTENCY['USING'] or the router, keys")
    ours = set(apps.get_app_config("django_idempotency").get_models())
    written = {router.db_for_write(model) for model in apps.get_models() if model not in ours}
    if written and alias not in written:
        yield found(
            "E006",
            f"Keys go to {alias!r}, where no other model is written: no effect commits together with its key.",
            "Let db_for_write of the router send IdempotencyKey where your models go, or set IDEMPOTENCY['USING'].",
        )


def listed(alias: str, who: str, obj: object = None) -> Iterator[CheckMessage]:
    """Judge where keys go."""
    if alias not in current().DATABASES:
        yield found(
            "E004",
            f"{who} go to {alias!r}, which IDEMPOTENCY['DATABASES'] does not list: such claims fail.",
            f"Add {alias!r} to IDEMPOTENCY['DATABASES'] and migrate it, or use {' or '.join(current().DATABASES)}.",
            obj,
        )


# psycopg's own numbers.
_LEVELS = {1: "read uncommitted", 2: "read committed", 3: "repeatable read", 4: "serializable"}


def isolation_level(alias: str, terms: Terms) -> Iterator[CheckMessage]:
    """What Django is asked to ask for. What the server does unasked is seen by ``databases`` only."""
    level = connections.settings[alias]["OPTIONS"].get("isolation_level")
    if connections[alias].vendor == "postgresql" and level in _LEVELS:
        yield from isolation("E007", alias, _LEVELS[level], terms)
