"""What ``manage.py check --database`` says of how the store stands, and ``manage.py idempotency status`` with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.utils import timezone

from django_idempotency import sweeping
from django_idempotency.checks import HEALTH, IDS, check_databases, health as judged
from django_idempotency.core.operations import registry
from django_idempotency.core.states import IdempotencyMode
from django_idempotency.management.databases import FOR_A_PERSON
from django_idempotency.models import IdempotencyKey, OutcomeCount
from django_idempotency.signals import Counted, counted
from django_idempotency.storage.base import NEVER
from django_idempotency.storage.inspection import Upkeep
from django_idempotency.sweeping import Fate, discover
from tests.support.keys import Keys, new_claim
from tests.support.outside import held, lapse, takes_keys, takes_no_keys
from tests.support.servers import url_of_tests

ROUTE = "shop.charge:POST"


def status(*arguments):
    """What it prints, and what it ends with."""
    out = StringIO()
    try:
        call_command("idempotency", "status", *arguments, stdout=out)
    except CommandError as failure:
        return out.getvalue(), failure
    return out.getvalue(), None


def as_json(*arguments):
    out, failure = status("--json", *arguments)
    return json.loads(out), failure


def faults():
    """By both, which have to agree."""
    of_check = {
        message.id.rpartition(".")[2]: message.msg
        for message in check_databases(databases=["default"])
        if message.id.rpartition(".")[2] in HEALTH
    }
    document, failure = as_json()
    of_status = {each["id"].rpartition(".")[2]: each["message"] for each in document["databases"][0]["faults"]}
    assert of_check.keys() == of_status.keys()
    assert (failure.returncode if failure else 0) == (FOR_A_PERSON if of_status else 0)
    return of_status


def count(outcome, n=1, *, route=ROUTE, ago=timedelta(0)):
    minute = (timezone.now() - ago).replace(second=0, microsecond=0)
    OutcomeCount(minute=minute, route=route, outcome=outcome.value, n=n).save(force_insert=True)


@pytest.fixture
def swept(db):
    """Somebody sweeps, every minute."""
    count(Counted.SWEEP, route="default", ago=timedelta(minutes=1))


def wait(claim, **span):
    IdempotencyKey.objects.filter(pk=claim.pk).update(lease_expires_at=timezone.now() - timedelta(**span))


def test_all_is_well(swept):
    assert faults() == {}
    assert "nothing has to be done" in status()[0]


def test_what_is_health_is_a_check():
    assert set(IDS) >= HEALTH


# --- the sweeper ---


def test_no_sweep_is_known_of(db):
    assert "No sweep is known of on 'default'" in faults()["W050"]
    count(Counted.SWEEP, route="another", ago=timedelta(minutes=1))
    assert "W050" in faults(), "of another database"


@pytest.mark.parametrize("command", ["test", "migrate"])
def test_nobody_sweeps_where_tests_or_migrations_are_to_run(db, monkeypatch, command):
    monkeypatch.setattr(sys, "argv", ["manage.py", command])
    assert check_databases(databases=["default"]) == []


@pytest.mark.parametrize(("minutes", "said"), [(13, set()), (20, {"W050"})])
def test_the_last_sweep_was_long_ago(db, minutes, said):
    count(Counted.SWEEP, route="default", ago=timedelta(minutes=minutes))
    assert faults().keys() == said


def test_a_project_without_operations_needs_none(db, monkeypatch):
    discover()  # what is imported while they are hidden would be hidden for good
    monkeypatch.setattr(registry, "_definitions", {})
    assert faults() == {}


def test_without_counts_nobody_can_know(db, settings):
    settings.IDEMPOTENCY = {"COUNTS": False}
    assert faults() == {}


def test_each_sweep_is_told_of_also_where_nothing_is_stale(db):
    told = []

    def hear(sender, *, route, using, **_):
        told.append((route, using))

    counted.connect(hear, sender=Counted.SWEEP)
    call_command("idempotency", "sweep", stdout=StringIO())
    call_command("idempotency", "sweep", "--dry-run", stdout=StringIO())
    counted.disconnect(hear, sender=Counted.SWEEP)
    assert told == [("default", "default")]


@pytest.mark.parametrize(("minutes", "said"), [(14, set()), (16, {"W050"})])
def test_a_claim_that_nobody_takes_up(swept, minutes, said):
    """Whatever runs, it does not get through."""
    claim = IdempotencyKey.objects.get(pk=Keys("default").lapsed(new_claim()).id)
    wait(claim, minutes=minutes, seconds=21)
    found = faults()
    assert found.keys() == said
    assert not said or "Waiting for a sweeper on 'default': 1 claim, the longest for 16 min" in found["W050"]


def test_what_is_to_be_tried_again_later_waits_for_nobody(swept):
    claim = IdempotencyKey.objects.get(pk=Keys("default").lapsed(new_claim()).id)
    wait(claim, hours=5)
    for sweep_after, said in ((timezone.now() + timedelta(minutes=5), False), (NEVER, False),
                              (timezone.now() - timedelta(minutes=16), True)):  # fmt: skip
        IdempotencyKey.objects.update(sweep_after=sweep_after)
        assert ("W050" in faults()) is said, sweep_after
    IdempotencyKey.objects.update(sweep_after=None, stale_after=5 * 3600.0)
    assert faults() == {}, "its operation has a threshold of its own"


# --- the other side's memory ---


def started(key, **ago):
    steps = [each | {"started_at": (timezone.now() - timedelta(**ago)).timestamp()} for each in key.steps]
    IdempotencyKey.objects.filter(pk=key.pk).update(steps=steps, sweep_after=NEVER)


@pytest.mark.parametrize("called", [takes_keys, takes_no_keys])
def test_a_call_that_will_be_forgotten(swept, outside, called):
    key = held(called)
    remembered = called.definition.downstream_retention
    started(key, seconds=remembered.total_seconds() * 0.7)
    assert faults().keys() == {"W053"}
    started(key, seconds=remembered.total_seconds() - 2 * 3600 - 60)
    said = faults()["W051"]
    assert f"The first one is forgotten there in 2.0 h: {key.pk}." in said
    started(key, seconds=remembered.total_seconds() + 600)
    assert f"is forgotten there 10 min ago: {key.pk}." in faults()["W051"]


def test_the_first_to_be_forgotten_is_named(swept, outside):
    one, two = held(), held()
    started(one, hours=20)
    started(two, hours=22)
    said = faults()["W051"]
    assert "2 calls of operations" in said
    assert str(two.pk) in said


def test_an_operation_that_nobody_knows_here(swept, outside, monkeypatch):
    started(held(), hours=30)
    discover()
    monkeypatch.setattr(registry, "_definitions", {})
    assert faults().keys() == {"W053"}


def test_a_claim_that_cannot_be_read_hides_no_other(swept, outside, caplog):
    """Another release may have written it."""
    started(odd := held(), hours=22)
    IdempotencyKey.objects.filter(pk=odd.pk).update(steps=[{"what": "this"}])
    assert faults().keys() == {"W053"}
    assert f"{odd.pk} on 'default' cannot be read" in caplog.text
    started(held(), hours=22)
    assert faults().keys() == {"W051", "W053"}


# --- what no sweeper takes up again ---


def left(claim):
    assert Keys("default").store.hold(claim.id, claim.owner_token, "nobody can find out", sweep_after=None)
    return claim


def test_a_key_that_is_left_to_a_person(swept):
    """Whatever it is: with an operation or without, and from the first moment on."""
    first = left(Keys("default").lapsed(new_claim()))
    IdempotencyKey.objects.filter(pk=first.id).update(claimed_at=timezone.now() - timedelta(hours=3, minutes=1))
    oldest = f"The oldest has been in flight for 3.0 h: {first.id}."
    assert faults() == {"W053": f"Left to a person on 'default': 1 key. {oldest}"}
    left(Keys("default").lapsed(new_claim(mode=IdempotencyMode.ATOMIC)))
    assert faults() == {"W053": f"Left to a person on 'default': 2 keys. {oldest}"}
    out, failure = status()
    assert failure.returncode == FOR_A_PERSON
    assert f"manage.py idempotency show {first.id} " in out
    assert "  left to a person  2\n" in out
    assert as_json()[0]["databases"][0]["gauges"]["left_to_a_person"] == 2


def test_it_is_said_until_somebody_has_decided(swept, outside):
    key = held(takes_no_keys)
    assert faults() == {}
    assert [each.fate for each in sweeping.sweep("default", limit=10)] == [Fate.LEFT]
    assert faults().keys() == {"W053"}
    lapse(key)
    reason = ("--whatever-happened", "--reason", "Nothing arrived there.")
    call_command("idempotency", "release", str(key.pk), *reason, stdout=StringIO())
    assert faults() == {}


# --- vacuum ---


@pytest.mark.parametrize(
    ("dead", "vacuumed", "said"),
    [
        (249_999, timedelta(minutes=1), False),
        (250_000, timedelta(minutes=1), True),
        (9_999, None, False),
        (10_000, None, True),
        (10_000, timedelta(minutes=9), False),
        (10_000, timedelta(minutes=11), True),
    ],
)
def test_dead_rows(swept, monkeypatch, dead, vacuumed, said):
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has dead rows")
    monkeypatch.setattr("django_idempotency.storage.inspection.upkeep", lambda connection: Upkeep(dead, vacuumed))
    assert ("W052" in faults()) is said


def test_dead_rows_that_are_really_there(lab, monkeypatch, settings):
    """Autovacuum is off, and many claims come and go."""
    alias = lab.session()
    settings.IDEMPOTENCY = {"DATABASES": (alias,)}
    monkeypatch.setattr(judged, "_SOME_DEAD", 50)
    lab.do("ALTER TABLE idempotency_key_in_flight SET (autovacuum_enabled = off)", alias=alias)
    for _ in range(60):
        Keys(alias).sealed(new_claim())

    def said():
        # What a session has done is known to the others, and to itself, a while later, or now.
        lab.rows("SELECT pg_stat_force_next_flush()", alias=alias)
        return {message.id for message in check_databases(databases=[alias])}

    assert "django_idempotency.W052" in said()
    lab.do("VACUUM idempotency_key_in_flight", alias=alias)
    assert "django_idempotency.W052" not in said()


# --- the others, which were there before ---


def test_partitions_that_end_soon(swept):
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has partitions")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            DO $do$ DECLARE leaf regclass; BEGIN
                FOR leaf IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'idempotency_key_sealed'::regclass
                    AND (regexp_match(pg_get_expr((SELECT relpartbound FROM pg_class WHERE oid = inhrelid), inhrelid),
                        'FROM [(]''([^'']+)'))[1]::timestamptz > now() + interval '1 day'
                LOOP EXECUTE 'DROP TABLE ' || leaf; END LOOP;
            END $do$
            """
        )
    assert faults().keys() == {"W037"}
    assert "partitions        for " in status()[0]


def test_a_connection_to_a_replica(swept):
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has replicas")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL transaction_read_only = on")
    assert faults().keys() == {"E033"}


def test_a_database_that_does_not_answer(lab, settings, monkeypatch):
    """The others are told of all the same."""
    here, gone = lab.session(), lab.session(HOST="127.0.0.1", PORT="1")
    settings.IDEMPOTENCY = {"DATABASES": (here, gone)}
    document, failure = as_json()
    assert failure.returncode == 1
    sound, silent = document["databases"]
    assert (sound["gauges"]["in_flight"], sound["error"]) == (0, None)
    assert [each["id"] for each in silent["faults"]] == ["django_idempotency.E030"]
    assert (silent["gauges"], bool(silent["error"])) == (None, True)
    assert f"{gone}:\n  E030" in status()[0]


def test_where_the_database_of_the_counts_does_not_answer_the_others_are_sound(lab, settings):
    """It is asked for the last sweep of each of them."""
    here, gone = lab.session(), lab.session(HOST="127.0.0.1", PORT="1")
    settings.IDEMPOTENCY = {"DATABASES": (gone, here)}
    document, failure = as_json()
    assert failure.returncode == 1
    silent, sound = document["databases"]
    assert (sound["database"], sound["error"], sound["faults"]) == (here, None, [])
    assert sound["gauges"]["in_flight"] == 0
    assert [each["id"] for each in silent["faults"]] == ["django_idempotency.E030"]


def test_a_check_that_is_silenced_is_silenced_here_too(db, settings):
    settings.SILENCED_SYSTEM_CHECKS = ["django_idempotency.W050"]
    assert as_json()[0]["databases"][0]["faults"] == []
    assert status()[1] is None


# --- what status says besides ---


def test_what_is_in_flight_and_what_was_counted(swept, outside):
    held()
    count(Counted.NEW, 7, ago=timedelta(minutes=2))
    count(Counted.NEW, 5, ago=timedelta(hours=3))
    count(Counted.REPLAYED, 2, ago=timedelta(hours=3))
    count(Counted.NEW, 100, ago=timedelta(days=2))
    out, _ = status()
    assert "  in flight         1, the oldest for " in out
    assert "  held              1\n" in out
    assert "  stuck             1\n" in out
    assert "  left to a person  0\n" in out
    assert "  last sweep        " in out
    assert out.endswith(f"{ROUTE}:\n  last hour   new 7\n  last day    new 12, replayed 2\n")
    document, _ = as_json()
    assert document["routes"] == {"hour": {ROUTE: {"new": 7}}, "day": {ROUTE: {"new": 12, "replayed": 2}}}
    (database,) = document["databases"]
    assert (database["gauges"]["held"], database["gauges"]["in_flight"]) == (1, 1)
    assert 30 <= database["last_sweep"] <= 180


def run(*arguments):
    """A command in a process of its own, on the database of the tests."""
    environment = os.environ | {"DATABASE_URL": url_of_tests(), "DJANGO_SETTINGS_MODULE": "example_project.settings"}
    return subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_check_says_by_its_exit_status_how_the_store_stands_and_stops_nothing_else(committed):
    checked = run("check", "--database", "default")
    assert (checked.returncode, "django_idempotency.W050" in checked.stderr) == (1, True), checked.stderr
    assert run("check").returncode == 0
    assert run("migrate", "--database", "default", "--verbosity", "0").returncode == 0
    assert run("idempotency", "sweep").returncode == 0
    assert run("check", "--database", "default").returncode == 0
    left(Keys("default").lapsed(new_claim()))
    checked = run("check", "--database", "default")
    assert (checked.returncode, "django_idempotency.W053" in checked.stderr) == (1, True), checked.stderr


def test_a_process_that_sweeps_is_known_to_one_that_asks(committed):
    """Through the table: the one counts as it ends, the other reads."""
    before = run("idempotency", "status", "--json")
    assert before.returncode == FOR_A_PERSON
    assert [each["id"] for each in json.loads(before.stdout)["databases"][0]["faults"]] == ["django_idempotency.W050"]
    assert run("idempotency", "sweep").returncode == 0
    after = run("idempotency", "status", "--json")
    assert (after.returncode, after.stderr) == (0, "")
    assert json.loads(after.stdout)["databases"][0]["last_sweep"] < 120
    assert json.loads(after.stdout)["routes"] == {"hour": {}, "day": {}}
