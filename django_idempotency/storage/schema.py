"""The operation that creates the table: partitioned where the database can, plain elsewhere, one state for both."""

from __future__ import annotations

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


class CreateKeyTable(CreateModel):
    """``CreateModel`` whose table has the two-level layout on PostgreSQL.

    ``makemigrations`` sees an ordinary model. The first leaves are made along with it, so that a role without the right
    to create tables can serve at once.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not _is_ours(self, app_label, schema_editor, to_state):
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        for statement in (_sql("tables"), *map(_sql, FUNCTIONS), *create_leaf_statements()):
            schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not _is_ours(self, app_label, schema_editor, from_state):
            super().database_backwards(app_label, schema_editor, from_state, to_state)
            return
        for function in FUNCTIONS:
            schema_editor.execute(f"DROP FUNCTION idempotency_{function}", params=None)
        schema_editor.execute("DROP TABLE idempotency_key", params=None)


def _is_ours(operation: CreateKeyTable, app_label: str, schema_editor: Any, state: Any) -> bool:
    model = state.apps.get_model(app_label, operation.name)
    return schema_editor.connection.vendor == "postgresql" and operation.allow_migrate_model(
        schema_editor.connection.alias, model
    )


def _sql(name: str) -> str:
    return resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
