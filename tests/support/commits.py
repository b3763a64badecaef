"""Tests that commit: what a transaction leaves behind is seen as a client's next request would see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections, transaction

# Made by migrate, once; every test expects them.
_KEPT = (ContentType, Permission)


@contextmanager
def committing() -> Iterator[None]:
    """Run what is inside on committed data, and delete it afterwards.

    In place of TransactionTestCase: its flush truncates every table and makes permissions anew, which takes twenty
    times as long as most of the tests here.
    """
    try:
        yield
    finally:
        for alias in connections:
            if alias != "default":
                connections[alias].close()
        if connection.in_atomic_block or not connection.is_usable():
            # Said by the test that left it so; the next one starts afresh.
            connection.close()
        _delete_everything()


def _delete_everything() -> None:
    tables = [model._meta.db_table for model in apps.get_models(include_auto_created=True) if model not in _KEPT]
    # One transaction: foreign keys are looked at when it commits, so the order does not matter.
    with transaction.atomic(), connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")
