"""Fixtures that integration tests share."""

from tests.support.laboratory import lab, laboratory_database, shared_lab, shared_schema, sqlite_file
from tests.support.packaging import installed_wheel

__all__ = ["installed_wheel", "lab", "laboratory_database", "shared_lab", "shared_schema", "sqlite_file"]
