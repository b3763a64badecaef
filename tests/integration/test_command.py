"""``manage.py idempotency partitions``: for a person who watches, and for a job that nobody watches."""

from __future__ import annotations

import copy
import json
from datetime import datetime, timedelta, timezone
from io import StringIO

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections

from django_idempotency import retention
from django_idempotency.core.intervals import Interval
from django_idempotency.storage.partitions import TOMBSTONES, create_leaves, creating
from django_idempotency.storage.transactions import own_connection


def partitions(*arguments):
    """What it prints, and what it fails with."""
    out, error = StringIO(), ""
    try:
        call_command("idempotency", "partitions", *arguments, stdout=out)
    except CommandError as failure:
        error = str(failure)
    return out.getvalue(), error


def as_json(*arguments):
    out, error = partitions("--json", *arguments)
    return json.loads(out), error


@pytest.fixture
def server(django_db_setup, django_db_blocker):
    """A session of its own on the database of the tests. The command commits, on a connection of its own too."""
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has partitions")
    with django_db_blocker.unblock():
        connection.ensure_connection()
        with psycopg.connect(**connection.get_connection_params(), autocommit=True) as session:
            yield session
            call_command("idempotency", "partitions", stdout=StringIO())
        connection.close()


def leaves(server):
    """Name and lower bound of each partition, in order of time."""
    return server.execute(
        r"""
        SELECT c.oid::regclass::text,
            (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)'))[1]::timestamptz AT TIME ZONE 'UTC'
        FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid WHERE inhparent = 'idempotency_key_sealed'::regclass
        ORDER BY 2
        """
    ).fetchall()


@pytest.fixture
def short(server):
    """Two days are missing at the end of the cover, and one in its middle."""
    names = leaves(server)
    dropped = [names[4], *names[-2:]]
    for name, _ in dropped:
        server.execute(f"DROP TABLE {name}")
    return [lower for _, lower in dropped]


def midnight(days):
    return (datetime.now(timezone.utc) + timedelta(days=days)).replace(hour=0, minute=0, second=0, microsecond=0)


def test_it_fills_every_gap_and_says_so(short, server):
    out, error = partitions()
    assert error == ""
    assert out.count("default: made ") == 3
    for lower in short:
        assert f"made {lower:%Y-%m-%d} 00:00 UTC to {lower + timedelta(days=1):%Y-%m-%d} 00:00 UTC" in out
    assert out.splitlines()[-1].startswith("default: partitions reach until ")
    assert set(short) <= {lower for _, lower in leaves(server)}


def test_run_again_it_makes_nothing(short):
    partitions()
    document, error = as_json()
    assert error == ""
    assert document["databases"][0]["made"] == []
    assert datetime.fromisoformat(document["databases"][0]["reaches"]) >= midnight(days=9)


def test_a_dry_run_says_the_same_and_makes_nothing(short, server):
    before = leaves(server)
    out, _ = partitions("--dry-run")
    assert out.count("default: would make ") == 3
    assert "would reach until" in out
    assert leaves(server) == before
    dry, wet = as_json("--dry-run")[0], as_json()[0]
    assert (dry.pop("dry_run"), wet.pop("dry_run")) == (True, False)
    assert dry == wet


def test_json_is_one_document_with_times_that_name_their_zone(short):
    document, _ = as_json()
    (report,) = document["databases"]
    assert (report["database"], report["note"], report["error"]) == ("default", None, None)
    for made in report["made"]:
        lower, upper = (datetime.fromisoformat(made[end]) for end in ("from", "to"))
        assert lower.utcoffset() == timedelta(0)
        assert upper - lower == timedelta(days=1)


@pytest.fixture
def graves(server):
    """Two partitions of tombstones, as pruning makes them."""
    made = [Interval(midnight(days), midnight(days + 12)) for days in (0, 12)]
    with own_connection("default") as session, creating(session):
        create_leaves(session, made, TOMBSTONES)
    yield made
    for each in made:
        server.execute(f"DROP TABLE idempotency_tombstone_{each.lower:%Y%m%d}")


def test_it_says_how_many_partitions_of_tombstones_there_are(graves):
    last = graves[-1].upper
    assert f"default: tombstones lie in 2 partitions, the last until {last:%Y-%m-%d} 00:00 UTC" in partitions()[0]
    (report,) = as_json()[0]["databases"]
    assert [datetime.fromisoformat(each["to"]) for each in report["tombstones"]] == [each.upper for each in graves]


def test_without_tombstones_it_says_nothing_of_them(server):
    assert "tombstones" not in partitions()[0]
    assert as_json()[0]["databases"][0]["tombstones"] == []


def test_the_process_that_ran_it_looks_again_at_its_next_claim(short, settings):
    retention.ensure_leaf("default", timedelta(hours=1))
    partitions()
    assert "default" not in retention._reaches


def test_a_session_in_another_time_zone_cuts_at_the_same_moments(short, server, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "TIME_ZONE", "Pacific/Auckland")
    partitions()
    assert {lower.hour for _, lower in leaves(server)} == {0}


@pytest.fixture
def connecting(server):
    """Change how the command will connect. Changed back before the partitions that a test dropped are made again."""
    with pytest.MonkeyPatch.context() as patch:
        yield lambda name, value: patch.setitem(connections["default"].settings_dict, name, value)


@pytest.fixture
def acting_as(server, connecting):
    """The command as another role: made here, and gone with everything it may do."""
    server.execute("CREATE ROLE idempotency_command_visitor")

    def act(*grants):
        for grant in grants:
            server.execute(f"GRANT {grant} TO idempotency_command_visitor")
        connecting("OPTIONS", {"options": "-c role=idempotency_command_visitor"})

    yield act
    server.execute("DROP OWNED BY idempotency_command_visitor; DROP ROLE idempotency_command_visitor")


def test_a_role_that_may_not_make_tables_is_told_who_may(short, acting_as):
    acting_as()
    out, error = partitions()
    assert out == "default: failed\n"
    assert error == "default: this role may not create partitions; run it as the owner of idempotency_key"


def test_a_role_that_may_make_tables_and_does_not_own_the_table(short, acting_as, server):
    """The new table must not be left behind when it cannot be attached: it would block its interval."""
    acting_as("CREATE ON SCHEMA public")
    document, error = as_json()
    assert "may not create partitions" in error
    assert "may not create partitions" in document["databases"][0]["error"]
    orphans = server.execute(
        "SELECT relname FROM pg_class WHERE relowner::regrole::text = 'idempotency_command_visitor'"
    )
    assert orphans.fetchall() == []


def test_a_dry_run_needs_no_rights(short, acting_as):
    acting_as()
    out, error = partitions("--dry-run")
    assert error == ""
    assert out.count("would make") == 3


def test_a_database_that_is_not_migrated(connecting):
    connecting("NAME", "postgres")
    _, error = partitions()
    assert error == "default: the table of keys is missing; run manage.py migrate django_idempotency first"


def test_a_table_that_is_locked_is_not_waited_for_for_long(short, server):
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("LOCK TABLE idempotency_key_sealed IN SHARE UPDATE EXCLUSIVE MODE")
        _, error = partitions()
    assert error == "default: the table is locked by something else; try again when that has ended"
    assert partitions()[1] == ""


def test_a_read_only_database(short, connecting):
    connecting("OPTIONS", {"options": "-c default_transaction_read_only=on"})
    _, error = partitions()
    assert "read-only" in error


def test_a_server_that_does_not_answer(connecting):
    connecting("PORT", "1")
    connecting("PASSWORD", "hush-hush")
    _, error = partitions()
    assert error.startswith("default: ")
    assert "hush" not in error


class TestDatabases:
    @pytest.fixture
    def sqlite(self, settings, monkeypatch):
        """A second database, that has no partitions."""
        entry = copy.deepcopy(settings.DATABASES["default"])
        entry |= {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}
        monkeypatch.setitem(settings.DATABASES, "lite", entry)
        settings.IDEMPOTENCY = {"DATABASES": ("default", "lite")}
        connections["lite"].close()
        yield
        del connections["lite"]

    def test_there_is_nothing_to_do_elsewhere_than_on_postgresql(self, sqlite):
        """Not a failure: one job can look after all databases of a project."""
        assert partitions("--database", "lite") == ("lite: nothing to do: sqlite keeps all keys in one table\n", "")
        document, error = as_json("--database=lite", "--dry-run")
        assert error == ""
        assert document["databases"][0]["note"].startswith("nothing to do")

    def test_all_that_hold_keys_unless_some_are_named(self, short, sqlite):
        out, error = partitions()
        assert error == ""
        assert [line.partition(":")[0] for line in out.splitlines()] == ["default"] * 4 + ["lite"], out
        out, _ = partitions("--database", "lite", "--database", "default", "--database", "lite")
        assert [line.partition(":")[0] for line in out.splitlines()] == ["lite", "default"]

    def test_one_that_fails_does_not_keep_the_others_from_being_looked_after(self, short, sqlite, acting_as):
        acting_as()
        document, error = as_json()
        assert [bool(report["error"]) for report in document["databases"]] == [True, False]
        assert error.count("\n") == 0

    def test_one_that_holds_no_keys_is_refused(self, sqlite):
        out, error = partitions("--database", "default", "--database", "nowhere")
        assert out == ""
        assert error == "'nowhere': not in IDEMPOTENCY['DATABASES'], which lists default, lite."

    def test_one_of_a_kind_that_holds_no_keys(self, sqlite, monkeypatch):
        monkeypatch.setattr(connections["lite"], "vendor", "oracle")
        _, error = partitions("--database", "lite")
        assert "PostgreSQL and SQLite are supported" in error


def test_wrong_settings_are_named(settings):
    settings.IDEMPOTENCY = {"RETENTON": timedelta(days=1)}
    _, error = partitions()
    assert "Did you mean 'RETENTION'?" in error


def test_without_a_subcommand_it_says_which_there_are(capsys):
    with pytest.raises(CommandError, match="subcommand"):
        call_command("idempotency")
