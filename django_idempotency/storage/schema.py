"""The operation that creates the table: partitioned where the database can, plain elsewhere, one state for both."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from typing import Any

from django.db.migrations import CreateModel

from .partitions import create_leaf_statements

FUNCTIONS = (
    "milliseconds_v1",
    "limit_silence_v1",
    "record_v1",
    "claim_v1",
    "seal_v1",
    "take_over_v1",
    "advance_v1",
)


class _CreatePartitioned(CreateModel):
    """``CreateModel`` whose table has a layout of its own on PostgreSQL. ``makemigrations`` sees an ordinary model."""

    def _forwards(self) -> Iterable[str]:
        raise NotImplementedError

    def _backwards(self) -> Iterable[str]:
        raise NotImplementedError

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not self._is_ours(app_label, schema_editor, to_state):
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        for statement in self._forwards():
            schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not self._is_ours(app_label, schema_editor, from_state):
            super().database_backwards(app_label, schema_editor, from_state, to_state)
            return
        for statement in self._backwards():
            schema_editor.execute(statement, params=None)

    def _is_ours(self, app_label: str, schema_editor: Any, state: Any) -> bool:
        model = state.apps.get_model(app_label, self.name)
        return schema_editor.connection.vendor == "postgresql" and self.allow_migrate_model(
            schema_editor.connection.alias, model
        )


class CreateKeyTable(_CreatePartitioned):
    """Two levels of partitions. The first leaves are made along with it, so that a role without the right to create
    tables can serve at once."""

    def _forwards(self) -> Iterable[str]:
        return (_sql("tables"), *map(_sql, FUNCTIONS), *create_leaf_statements())

    def _backwards(self) -> Iterable[str]:
        return (*(f"DROP FUNCTION idempotency_{function}" for function in FUNCTIONS), "DROP TABLE idempotency_key")


class CreateTombstoneTable(_CreatePartitioned):
    """Partitioned by the time at which tombstones may be forgotten."""

    def _forwards(self) -> Iterable[str]:
        return (_sql("tombstones"),)

    def _backwards(self) -> Iterable[str]:
        return ("DROP TABLE idempotency_tombstone",)


def _sql(name: str) -> str:
    return resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
