"""Where keys live. Nothing outside knows the layout of the table."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from .base import Store


def store_for(alias: str) -> Store:
    """The store on a database.

    :raises ImproperlyConfigured: there is none for this kind of database.
    """
    vendor = connections[alias].vendor
    store = _store_class(vendor)
    if store is None:
        raise ImproperlyConfigured(
            f"Idempotency keys cannot be kept in {vendor!r} (alias {alias!r}): PostgreSQL and SQLite are supported."
        )
    return store(alias)


@cache
def _store_class(vendor: str) -> Callable[[str], Store] | None:
    # Each brings in what only its own kind of database needs.
    if vendor == "postgresql":
        from .postgres import PostgresStore

        return PostgresStore
    if vendor == "sqlite":
        from .portable import PortableStore

        return PortableStore
    return None


__all__ = ["Store", "store_for"]
