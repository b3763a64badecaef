"""``manage.py idempotency prune``: for a person who watches, and for a job that nobody watches."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone as timezones

from django_idempotency.management import prune as command
from django_idempotency.models import Tombstone
from django_idempotency.storage import counts, pruning as steps
from django_idempotency.storage.transactions import own_connection
from tests.support.keys import Keys, new_claim
from tests.support.laboratory import LaboratoryFile, empty
from tests.support.leaves import expire_in, is_there, make_past, past


def prune(*arguments):
    """What it prints, what it prints beside that, and what it fails with."""
    out, beside, failure = StringIO(), StringIO(), None
    try:
        call_command("idempotency", "prune", *arguments, stdout=out, stderr=beside)
    except CommandError as error:
        failure = error
    return out.getvalue().splitlines(), beside.getvalue(), failure


def as_json(*arguments):
    lines, beside, failure = prune("--json", *arguments)
    return [json.loads(line) for line in lines], beside, failure


@pytest.fixture
def alias(lab, settings):
    settings.IDEMPOTENCY = {"DATABASES": lab.aliases[:1]}
    return lab.aliases[0]


def test_it_says_what_went_and_how_much_of_it(lab, alias):
    (name,) = make_past(lab, 2)
    expire_in(lab, 2, 12)
    lab.do(f"ANALYZE {name}")
    (line, summary), beside, failure = prune()
    assert line.startswith(f"{alias}: {name} to {past(2).upper:%Y-%m-%d} 00:00 UTC: dropped, about 12 records, ")
    assert "kB: everything in it expired " in line
    tomorrow = f"{datetime.now(timezone.utc) + timedelta(days=1):%Y-%m-%d}"
    assert summary.startswith(f"{alias}: 1 dropped, ")
    assert summary.endswith(f" in use, the first until {tomorrow} 00:00 UTC")
    assert (beside, failure) == ("", None)
    assert not is_there(lab, name)


def test_a_dry_run_says_what_would_go_and_what_would_stay_and_why(lab, alias):
    due, foreign = make_past(lab, 2, 5)
    lab.do(f"COMMENT ON TABLE {foreign} IS 'mine'")
    lines, _, failure = prune("--dry-run")
    told = "\n".join(lines)
    assert f"{due} to {past(2).upper:%Y-%m-%d} 00:00 UTC: would go" in told
    assert f"{foreign} to {past(5).upper:%Y-%m-%d} 00:00 UTC: kept" in told
    assert "it was not made by this app" in told
    assert lines[-1].startswith(f"{alias}: 1 would go, 1 kept, ")
    assert failure is None
    assert is_there(lab, due)


def test_as_json_there_is_a_document_for_each_and_one_for_all(lab, alias):
    (name,) = make_past(lab, 2)
    expire_in(lab, 2, 3)
    (*each, summary), _, _ = as_json()
    (gone,) = (document for document in each if document["fate"] == "dropped")
    assert (gone["database"], gone["name"], gone["buried"]) == (alias, name, 0)
    assert gone["bytes"] > 0
    assert gone["reason"].startswith("everything")
    assert (datetime.fromisoformat(gone["from"]), datetime.fromisoformat(gone["to"])) == (past(2).lower, past(2).upper)
    (database,) = summary["databases"]
    assert (summary["dry_run"], database["dropped"], database["error"]) == (False, 1, None)
    assert database["kept"] == len(each) - 1


def test_with_nothing_to_do_it_is_one_line(alias):
    (line,), _, failure = prune()
    assert " in use, the first until " in line
    assert failure is None


def test_what_is_left_to_a_person_has_a_status_of_its_own(lab, alias):
    (name,) = make_past(lab, 2)
    lab.do(f"CREATE VIEW somebodys AS SELECT id FROM {name}")
    lines, _, failure = prune()
    assert failure.returncode == 3
    assert name in str(failure)
    assert "left to a person" in lines[0]
    assert "somebodys" in lines[0]


def test_a_role_without_the_right_is_told_the_way_out(lab, alias, settings):
    (name,) = make_past(lab, 2)
    role = f"{lab.schema}_server"
    lab.do(
        f"CREATE ROLE {role} NOLOGIN",
        f"GRANT USAGE ON SCHEMA {lab.schema} TO {role}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {lab.schema} TO {role}",
    )
    server = lab.session(server={"role": role})
    settings.IDEMPOTENCY = {"DATABASES": (server, alias)}
    try:
        lines, _, failure = prune()
        assert str(failure) == f"{server}: {command._REASONS['42501']}"
        assert failure.returncode == 1
        assert lines[-1].startswith(f"{alias}: 1 dropped"), "the others are pruned all the same"
    finally:
        lab.end(server)
        lab.do(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert not is_there(lab, name)


def test_beside_another_pruner_it_says_so_and_that_is_no_failure(lab, alias):
    (name,) = make_past(lab, 2)
    with own_connection(lab.session()) as connection:
        assert steps.begin(connection, patience=timedelta(seconds=1))
        (line,), _, failure = prune()
    assert (line, failure) == (f"{alias}: another pruner is at work", None)
    assert is_there(lab, name)


def test_long_work_shows_how_far_it_is_beside_what_is_printed(lab, alias, settings, monkeypatch):
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"TOMBSTONES": timedelta(days=30)}
    monkeypatch.setattr(command, "_SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(steps, "_PAGES", 1)
    (name,) = make_past(lab, 2)
    expire_in(lab, 2, 60)
    lab.do(f"ANALYZE {name}")
    documents, beside, _ = as_json()
    assert beside.splitlines()[-1] == f"{alias}: burying {name}, 60 of about 60"
    assert len(beside.splitlines()) > 1
    assert next(document["buried"] for document in documents if document.get("fate") == "dropped") == 60


@pytest.fixture
def plain(sqlite_file, settings, django_db_blocker):
    """A database without partitions, and without anything in it."""
    with django_db_blocker.unblock():
        file = LaboratoryFile(sqlite_file)
        alias = file.session()
        settings.IDEMPOTENCY = {"DATABASES": (alias,)}
        empty(alias)
        yield alias
        empty(alias)
        file.close()


def test_on_sqlite_rows_are_deleted(plain):
    for _ in range(2):
        Keys(plain).sealed(new_claim(), retention=-7200.0)
    Tombstone.objects.using(plain).create(
        id=new_claim().id, fingerprint=b"f", fingerprint_scheme=1, forget_at=timezones.now() - timedelta(hours=2)
    )
    dry = as_json("--dry-run")[0][-1]["databases"][0]
    assert (dry["due"], dry["due_rows"], dry["deleted"]) == (0, 3, 0)
    assert prune("--dry-run")[0] == [
        f"{plain}: idempotency_key: would go, 2 rows",
        f"{plain}: idempotency_tombstone: would go, 1 row",
        f"{plain}: 3 rows would go",
    ]
    assert prune()[0] == [
        f"{plain}: idempotency_key: deleted, 2 rows",
        f"{plain}: idempotency_tombstone: deleted, 1 row",
        f"{plain}: 3 rows deleted",
    ]


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_where_nothing_has_expired_no_table_seems_to_be_gone(plain, how):
    Keys(plain).sealed(new_claim())
    assert prune(*how)[0] == [f"{plain}: nothing has expired"]
    ((summary,), _, _) = as_json(*how)
    assert (summary["databases"][0]["deleted"], summary["databases"][0]["due_rows"]) == (0, 0)


def test_old_counts_go_too(lab, alias):
    with own_connection(alias) as connection:
        this_minute = int(datetime.now(timezone.utc).timestamp() // 60)
        counts.add(connection, {(this_minute - 15 * 24 * 60, "a", "new"): 3, (this_minute, "a", "new"): 5})
    dry, _, _ = as_json("--dry-run")
    (due,) = (document for document in dry if document.get("name") == "idempotency_outcome_count")
    assert (due["fate"], due["rows"]) == ("due", 1)
    done, _, _ = as_json()
    (gone,) = (document for document in done if document.get("name") == "idempotency_outcome_count")
    assert (gone["fate"], gone["rows"]) == ("deleted", 1)
    assert lab.rows("SELECT n FROM idempotency_outcome_count") == [(5,)]


def test_partitions_and_rows_are_not_added_together(lab, alias):
    make_past(lab, 2)
    with own_connection(alias) as connection:
        long_ago = int(datetime.now(timezone.utc).timestamp() // 60) - 15 * 24 * 60
        counts.add(connection, {(long_ago + n, "a", "new"): 1 for n in range(3)})
    dry = as_json("--dry-run")[0][-1]["databases"][0]
    assert (dry["due"], dry["due_rows"]) == (1, 3)
    *_, summary = prune()[0]
    assert summary.startswith(f"{alias}: 1 dropped, 3 rows deleted, ")
