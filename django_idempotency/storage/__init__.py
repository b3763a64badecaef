"""Where keys live. Only ``postgres`` and ``portable`` know the layout of the table."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from .base import Store


def store_for(alias: str) -> Store:
    """The store on a database.

    :raises ImproperlyConfigured: there is none for this kind of database.
    """
    vendor = connections[alias].vendor
    if vendor == "postgresql":
        from .postgres import PostgresStore

        return PostgresStore(alias)
    if vendor == "sqlite":
        from .portable import PortableStore

        return PortableStore(alias)
    raise ImproperlyConfigured(
        f"Idempotency keys cannot be kept in {vendor!r} (alias {alias!r}): PostgreSQL and SQLite are supported."
    )


__all__ = ["Store", "store_for"]
