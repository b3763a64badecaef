"""The table that the migration makes: what the model says, in the layout that the stores need."""

from __future__ import annotations

import itertools
from io import StringIO

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import Error, connections, migrations
from django.db.migrations.state import ProjectState

from django_idempotency.core.states import Verdict
from django_idempotency.models import IdempotencyKey, OutcomeCount, Tombstone
from django_idempotency.storage.schema import FUNCTIONS, CreateKeyTable
from tests.support.keys import Keys, new_claim
from tests.support.laboratory import LaboratoryFile

COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)
FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
OBJECTS = """
SELECT relkind::text, relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relname LIKE 'idempotency%%'
UNION ALL SELECT 'function', proname FROM pg_proc WHERE pronamespace = %s::regnamespace
ORDER BY 1, 2
"""


def objects(lab):
    return lab.rows(OBJECTS, lab.schema, lab.schema)


def migrate(alias, target=None):
    call_command("migrate", "django_idempotency", *([target] if target else []), database=alias, verbosity=0)


def plain_table(lab, model=IdempotencyKey):
    """The table that Django itself would make of the model, under another name."""
    state = ProjectState.from_apps(apps)
    state.models["django_idempotency", model._meta.model_name].options["db_table"] = "plain"
    model = state.apps.get_model("django_idempotency", model.__name__)
    with connections[lab.aliases[0]].schema_editor() as editor:
        editor.create_model(model)
    return "plain"


# --- the catalog and the model ---


def test_columns_are_those_that_django_would_have_made(lab):
    made, expected = lab.rows(COLUMNS, "idempotency_key"), lab.rows(COLUMNS, plain_table(lab))
    assert made == expected
    assert [name for name, *_ in made] == [field.column for field in IdempotencyKey._meta.concrete_fields]
    leaves = lab.rows("SELECT relid::text FROM pg_partition_tree('idempotency_key') WHERE isleaf")
    assert len(leaves) > 2
    for (leaf,) in leaves:
        assert lab.rows(COLUMNS, leaf) == expected


def test_columns_of_tombstones_are_those_that_django_would_have_made(lab):
    made = lab.rows(COLUMNS, "idempotency_tombstone")
    assert made == lab.rows(COLUMNS, plain_table(lab, Tombstone))
    assert [name for name, *_ in made] == [field.column for field in Tombstone._meta.concrete_fields]


def test_the_check_allows_what_that_of_the_model_allows(lab):
    plain_table(lab)
    conditions = {
        table: lab.ask(
            "SELECT pg_get_expr(conbin, conrelid) FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'",
            table,
        )
        for table in ("idempotency_key", "plain")
    }
    nullable = ("lease_expires_at", "sealed_at", "expires_at", "response_status")
    rows = [
        f"('{state}'::varchar, {', '.join('1' if each else 'NULL' for each in filled)})"
        for state in ("in_flight", "sealed", "other")
        for filled in itertools.product([True, False], repeat=4)
    ]
    verdicts = lab.rows(
        f"SELECT ({conditions['idempotency_key']})::text, ({conditions['plain']})::text"
        f" FROM (VALUES {', '.join(rows)}) AS v (state, {', '.join(nullable)})"
    )
    assert len(verdicts) == 48
    assert all(ours == theirs for ours, theirs in verdicts)
    assert [ours for ours, _ in verdicts].count("true") == 3, "in flight with or without an expiry; sealed with all"


def test_the_constraint_has_the_name_of_the_model_on_every_leaf(lab):
    (constraint,) = IdempotencyKey._meta.constraints
    missing = lab.rows(
        "SELECT relname FROM pg_class AS c WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p')"
        " AND relname LIKE 'idempotency_key%%'"
        " AND NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid AND conname = %s)",
        lab.schema,
        constraint.name,
    )
    assert missing == []


def test_every_leaf_has_a_primary_key_so_that_publications_can_follow_updates(lab):
    leaves = lab.rows(
        "SELECT relname, relreplident::text, (SELECT pg_get_indexdef(indexrelid) FROM pg_index"
        "  WHERE indrelid = c.oid AND indisprimary)"
        " FROM pg_class AS c WHERE relispartition AND relkind = 'r' AND relnamespace = %s::regnamespace",
        lab.schema,
    )
    assert len(leaves) >= 11
    for name, identity, key in leaves:
        assert identity == "d", "the primary key"
        assert key.endswith("(id)"), name


def test_the_hot_leaf_is_vacuumed_by_dead_rows_alone_and_has_room_for_updates(lab):
    options = dict(
        option.split("=")
        for option in lab.ask("SELECT reloptions FROM pg_class WHERE relname = 'idempotency_key_in_flight'")
    )
    assert int(options["fillfactor"]) < 100
    assert options["autovacuum_vacuum_scale_factor"] == "0"


def test_a_renewal_stays_on_its_page_and_touches_no_index(lab):
    indexed = lab.rows("SELECT indkey::text FROM pg_index WHERE indrelid = 'idempotency_key_in_flight'::regclass")
    assert indexed == [("1",)], "the primary key alone"


def test_one_function_a_statement_and_each_is_there(lab):
    names = {name for kind, name in objects(lab) if kind == "function"}
    assert names == {f"idempotency_{name}" for name in FUNCTIONS}
    pinned = lab.rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace AND 'enable_seqscan=off' = ANY (proconfig)",
        lab.schema,
    )
    assert {name for (name,) in pinned} == {
        f"idempotency_{name}_v1" for name in ("advance", "claim", "seal", "take_over")
    }


def test_counts_are_one_row_for_a_minute_a_route_and_an_outcome(lab):
    columns = [name for name, *_ in lab.rows(COLUMNS, "idempotency_outcome_count")]
    assert columns == ["minute", "route", "outcome", "n"]
    (key,) = lab.rows(
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %s::regclass", OutcomeCount._meta.db_table
    )
    assert key[0].endswith("(minute, route, outcome)"), "to add to, and to read and forget by minute"


# --- the migration ---


def test_it_reverses_and_applies_again(lab):
    before = objects(lab)
    keys = Keys(lab.aliases[0])
    keys.sealed(new_claim())
    migrate(lab.aliases[0], "zero")
    assert objects(lab) == []
    migrate(lab.aliases[0])
    assert objects(lab) == before
    assert keys.claim(new_claim()).verdict is Verdict.CLAIMED


def test_it_reverses_on_sqlite_as_well(tmp_path, django_db_blocker):
    with django_db_blocker.unblock():
        file = LaboratoryFile(str(tmp_path / "keys.sqlite3"))
        alias = file.session()
        for _ in range(2):
            migrate(alias)
            assert Keys(alias).claim(new_claim()).verdict is Verdict.CLAIMED
            migrate(alias, "zero")
            assert "idempotency_key" not in connections[alias].introspection.table_names()
        file.close()


def test_on_sqlite_the_check_of_the_model_holds(sqlite_file, django_db_blocker):
    with django_db_blocker.unblock():
        file = LaboratoryFile(sqlite_file)
        keys = Keys(file.session())
        claim = keys.own(new_claim())
        with pytest.raises(Error, match="idempotency_key_state"):
            IdempotencyKey.objects.using(keys.alias).filter(id=claim.id).update(state="sealed")
        file.close()


def test_what_sqlmigrate_prints_makes_the_same_when_it_is_run_by_hand(lab):
    before = objects(lab)
    output = StringIO()
    call_command("sqlmigrate", "django_idempotency", "0001", database=lab.aliases[0], stdout=output)
    forwards = output.getvalue()
    migrate(lab.aliases[0], "zero")
    lab.do(forwards)
    assert objects(lab) == before
    assert Keys(lab.aliases[0]).claim(new_claim()).verdict is Verdict.CLAIMED
    # As those who run it by hand do next.
    call_command("migrate", "django_idempotency", database=lab.aliases[0], fake=True, verbosity=0)
    output = StringIO()
    call_command("sqlmigrate", "django_idempotency", "0001", database=lab.aliases[0], backwards=True, stdout=output)
    lab.do(output.getvalue())
    assert objects(lab) == []


@pytest.mark.parametrize("backwards", [False, True])
def test_sqlmigrate_prints_an_ordinary_table_for_sqlite(sqlite_file, django_db_blocker, backwards):
    output = StringIO()
    with django_db_blocker.unblock():
        file = LaboratoryFile(sqlite_file)
        call_command(
            "sqlmigrate", "django_idempotency", "0001", database=file.session(), backwards=backwards, stdout=output
        )
        file.close()
    assert ('DROP TABLE "idempotency_key"' if backwards else 'CREATE TABLE "idempotency_key"') in output.getvalue()
    assert "PARTITION" not in output.getvalue()


def test_the_model_and_the_migration_agree(db):
    output = StringIO()
    call_command("makemigrations", "django_idempotency", check=True, dry_run=True, stdout=output)
    assert "No changes detected" in output.getvalue()


def test_to_every_other_migration_ours_is_an_ordinary_create_model():
    field = IdempotencyKey._meta.get_field("id").clone()
    operation = CreateKeyTable("X", [("id", field)])
    assert isinstance(operation, migrations.CreateModel)
    assert operation.deconstruct() == ("CreateKeyTable", [], {"name": "X", "fields": [("id", field)]})


class Elsewhere:
    """A router that keeps the app out of every database."""

    def allow_migrate(self, db, app_label, **hints):
        return app_label != "django_idempotency"


def test_a_router_that_keeps_the_app_out_is_obeyed_both_ways(lab, settings):
    migrate(lab.aliases[0], "zero")
    settings.DATABASE_ROUTERS = [Elsewhere()]
    migrate(lab.aliases[0])
    assert objects(lab) == []
    migrate(lab.aliases[0], "zero")
    assert objects(lab) == []
