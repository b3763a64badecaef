"""Cleaning up after tests that commit, in a twentieth of the time that Django's flush takes."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction

# Made by migrate, once, and expected by everybody.
_KEPT = (ContentType, Permission)

_to_vacuum = False


def vacuum_at_the_end() -> None:
    """Where autovacuum is off, what a test leaves dead is read by every test after it."""
    global _to_vacuum  # noqa: PLW0603 - said by one test at a time, before its end
    _to_vacuum = True


def delete_everything(test_case: Any = None) -> None:
    """In place of ``TransactionTestCase._fixture_teardown``, which truncates each table and migrates anew."""
    if connection.in_atomic_block or not connection.is_usable():
        # Said by the test that left it so; the next one starts afresh.
        _abandon_connection()
    tables = [model._meta.db_table for model in apps.get_models(include_auto_created=True) if model not in _KEPT]
    statements = [f"DELETE FROM {connection.ops.quote_name(table)}" for table in tables]
    # One transaction: foreign keys are looked at when it commits, so the order does not matter.
    with transaction.atomic(), connection.cursor() as cursor:
        # psycopg takes several at once, SQLite one at a time.
        for statement in ["; ".join(statements)] if connection.vendor == "postgresql" else statements:
            cursor.execute(statement)
    _vacuum()


def _vacuum() -> None:
    global _to_vacuum  # noqa: PLW0603
    if _to_vacuum and connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM idempotency_key")
    _to_vacuum = False


def _abandon_connection() -> None:
    # Django's own close() waits for the end of the block that the connection is in.
    connection.in_atomic_block = False
    connection.closed_in_transaction = False
    connection.close()


@classmethod  # type: ignore[misc]
def validate_databases(test_case: Any) -> None:
    """In place of ``TransactionTestCase._add_databases_failures``, without the failures."""
    test_case.databases = test_case._validate_databases()
