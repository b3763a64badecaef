"""Connections beside the request's own, for work that must stay whatever becomes of the request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


@contextmanager
def own_connection(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """A new connection to ``alias``, in autocommit, closed at the end."""
    connection = connections[alias].copy()
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def transaction_on(connection: BaseDatabaseWrapper) -> Iterator[None]:
    connection.set_autocommit(False)
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
