"""Fixtures that integration tests share."""

from tests.support.backends import backend, keys, rival
from tests.support.fixtures import committed, crowd, quick_flush, two_aliases
from tests.support.laboratory import lab, laboratory_database, shared_lab, shared_schema, sqlite_file
from tests.support.outside import outside
from tests.support.packaging import installed_wheel
from tests.support.processors import control, processor, shared_processor
from tests.support.workshops import workshop

__all__ = [
    "backend",
    "committed",
    "control",
    "crowd",
    "installed_wheel",
    "keys",
    "lab",
    "laboratory_database",
    "outside",
    "processor",
    "quick_flush",
    "rival",
    "shared_lab",
    "shared_processor",
    "shared_schema",
    "sqlite_file",
    "two_aliases",
    "workshop",
]
