"""What the databases say when they are asked: ``manage.py check --database default``, and ``migrate`` for its alias."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta

from django.core.checks import CheckMessage
from django.db import Error as DatabaseFailure, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader

from ..conf import current
from ..core.intervals import alarming_reach, needed_reach
from ..core.policy import ResolvedPolicy
from .health import health
from .ids import found
from .terms import Terms, aliases_of, isolation

_APP = "django_idempotency"


def database(alias: str, terms: Terms) -> Iterator[CheckMessage]:
    """One of IDEMPOTENCY['DATABASES'], asked."""
    connection = connections[alias]
    try:
        if connection.vendor == "postgresql":
            yield from _server(connection, terms)
        pending = _pending(connection)
        migrating = sys.argv[1:2] == ["migrate"]
        if pending and migrating:
            return  # it runs the checks first, and is about to apply them
        if pending:
            yield found(
                "W031",
                f"{', '.join(pending)} is not applied on {alias!r}: keys cannot be recorded there yet.",
                f"Run manage.py migrate {_APP} --database {alias}.",
            )
            return
        faults = list(_table(connection, terms)) if connection.vendor == "postgresql" else []
        yield from faults
        can_be_read = not any(str(fault.id).endswith(("E032", "E035")) for fault in faults)
        # How the store stands matters where it serves: where tests are to run, nobody sweeps.
        if can_be_read and sys.argv[1:2] not in (["migrate"], ["test"]):
            yield from health(connection)
    except DatabaseFailure as error:
        # The message of the driver's error may quote what it connected with.
        yield found(
            "E030",
            f"{alias!r} did not answer ({type(error.__cause__ or error).__name__}).",
            "Look at its entry in settings.DATABASES, and whether the server runs.",
        )


def _pending(connection: BaseDatabaseWrapper) -> list[str]:
    """Migrations of this app that the database lacks. A new release's are not an error: ``migrate`` runs the checks."""
    loader = MigrationLoader(connection)
    leaves = loader.graph.leaf_nodes(_APP)
    return [".".join(leaf) for leaf in leaves if leaf not in loader.applied_migrations]


def _server(connection: BaseDatabaseWrapper, terms: Terms) -> Iterator[CheckMessage]:
    from ..storage import inspection

    alias, server = connection.alias, inspection.server(connection)
    if server.read_only:
        yield found(
            "E033",
            f"{alias!r} is read-only: a replica, or a server that is set so.",
            "Point the alias at the primary. A key is claimed where its effect commits.",
        )
    yield from isolation("E034", alias, server.isolation, terms)
    longest = max((policy.max_wait for policy in _on(alias, terms)), default=timedelta(0))
    if longest >= 2 * server.deadlock_timeout:
        yield found(
            "W038",
            f"On {alias!r} a duplicate may wait {longest.total_seconds():g} s (max_wait), and deadlock_timeout is "
            f"{server.deadlock_timeout.total_seconds():g} s: where it holds a row that the view wants, the owner of "
            "the key can be the one that is cancelled.",
            "Keep max_wait below twice the deadlock_timeout of the server.",
        )
    if timedelta(0) < server.statement_timeout <= longest:
        yield found(
            "W039",
            f"On {alias!r} a duplicate may wait {longest.total_seconds():g} s (max_wait), and statement_timeout ends "
            f"that after {server.statement_timeout.total_seconds():g} s: it hears 503 store-unavailable, not 409.",
            "Keep max_wait below the statement_timeout of the role, the database and OPTIONS.",
        )


def _table(connection: BaseDatabaseWrapper, terms: Terms) -> Iterator[CheckMessage]:
    from ..storage import inspection

    alias, layout = connection.alias, inspection.layout(connection)
    if layout.missing:
        yield found(
            "E032",
            f"{alias!r} lacks what the migrations make: {', '.join(layout.missing)}.",
            "Make the table by its migrations, not by MIGRATION_MODULES; restore dumps with their functions.",
        )
        return
    if layout.denied:
        yield found(
            "E035",
            f"The role of {alias!r} needs {', '.join(layout.denied)}.",
            "As the owner of the tables: GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_key, "
            "idempotency_key_in_flight, idempotency_key_sealed, idempotency_outcome_count, "
            "idempotency_oldest_in_flight TO that role; with TOMBSTONES, SELECT ON idempotency_tombstone as well.",
        )
    yield from _cover(alias, inspection.cover(connection), layout.may_create, terms)


def _cover(alias: str, cover: timedelta, may_create: bool, terms: Terms) -> Iterator[CheckMessage]:
    longest = max((policy.retention for policy in _on(alias, terms)), default=current().RETENTION)
    if cover >= alarming_reach(longest):
        return
    left = cover - needed_reach(longest)
    short = left < timedelta(0)
    if may_create:
        then = "The next request has to make more."
    elif short:
        then = "Claims are refused with 503."
    else:
        then = f"Claims are refused with 503 in {left.total_seconds() / 86400:.1f} days, if nobody makes more."
    reach = f"end {cover.total_seconds() / 86400:.1f} days from now" if cover else "do not cover this moment"
    yield found(
        "E036" if short and not may_create else "W037",
        f"The partitions of {alias!r} {reach}, and records are kept for {longest}. {then}",
        f"Run manage.py idempotency partitions --database {alias} as the owner of the table, daily where the role "
        "that serves may not create tables.",
    )


def _on(alias: str, terms: Terms) -> Iterator[ResolvedPolicy]:
    return (policy for _, policy in terms if alias in aliases_of(policy))
