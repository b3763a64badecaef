"""Cleaning up after tests that commit, in a twentieth of the time that Django's flush takes."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction

# Made by migrate, once, and expected by everybody.
_KEPT = (ContentType, Permission)


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


def _abandon_connection() -> None:
    # Django's own close() waits for the end of the block that the connection is in.
    connection.in_atomic_block = False
    connection.closed_in_transaction = False
    connection.close()


@classmethod  # type: ignore[misc]
def validate_databases(test_case: Any) -> None:
    """In place of ``TransactionTestCase._add_databases_failures``, without the failures."""
    test_case.databases = test_case._validate_databases()
