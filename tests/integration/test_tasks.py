"""The Celery tasks as functions, and when they are due. What brokers do to them is in tests/celery."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery.schedules import maybe_schedule
from django.db import connection

from django_idempotency import retention, tasks
from django_idempotency.models import IdempotencyKey
from django_idempotency.schedules import beat_schedule
from django_idempotency.storage import pruning
from django_idempotency.storage.transactions import own_connection
from tests.support.keys import Keys, new_claim
from tests.support.laboratory import empty
from tests.support.leaves import is_there, make_past
from tests.support.outside import held, takes_no_keys


@pytest.mark.django_db
def test_a_sweep_counts_what_became_of_each(outside):
    held(), held(), held(takes_no_keys)
    assert tasks.sweep() == {"default": {"finished": 2, "left": 1}}
    assert tasks.sweep() == {"default": {}}


@pytest.mark.django_db
def test_called_without_a_broker_it_runs_here(outside):
    held()
    assert tasks.sweep.delay().get() == {"default": {"finished": 1}}


@pytest.mark.django_db
def test_it_takes_no_more_than_it_is_allowed_to(outside):
    for number in range(3):
        held(number=number)
    assert tasks.sweep(limit=2) == {"default": {"finished": 2}}


@pytest.mark.django_db
def test_it_takes_no_more_when_its_time_is_over(outside, monkeypatch):
    """Between two claims, and not in the middle of one."""
    held(), held()
    monkeypatch.setattr(tasks, "_TAKE_NO_MORE_AFTER", 0.0)
    assert tasks.sweep() == {"default": {"finished": 1}}


class TestDatabases:
    @pytest.fixture
    def two(self, lab, settings):
        """One that nobody has migrated, and one with a stale claim."""
        bare, migrated = lab.session(NAME="postgres"), lab.session()
        settings.IDEMPOTENCY = {"DATABASES": (bare, migrated)}
        Keys(migrated).own(new_claim())
        lab.do("UPDATE idempotency_key SET lease_expires_at = now() - interval '1 hour'", alias=migrated)
        return bare, migrated

    def test_one_that_fails_is_named_when_the_others_are_swept(self, two):
        bare, migrated = two
        with pytest.raises(RuntimeError, match=bare) as failure:
            tasks.sweep()
        assert migrated not in str(failure.value)
        assert not IdempotencyKey.objects.using(migrated).exists()

    def test_partitions_are_made_on_the_others_too(self, two, lab):
        bare, migrated = two
        last = (
            "SELECT max(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'idempotency_key_sealed'::regclass"
        )
        lab.do(f"DROP TABLE {lab.ask(last, alias=migrated)}", alias=migrated)
        retention.ensure_leaf(migrated, timedelta(hours=1))
        with pytest.raises(RuntimeError, match=bare):
            tasks.make_partitions()
        assert migrated not in retention._reaches
        assert retention.make_ahead(migrated).intervals == []


def test_partitions_are_made_where_there_are_any(lab, settings, sqlite_file):
    partitioned, plain = lab.session(), lab._known_as("plain", sqlite_entry(sqlite_file))
    settings.IDEMPOTENCY = {"DATABASES": (plain, partitioned)}
    assert tasks.make_partitions() == {partitioned: 0}


class TestPruning:
    def test_it_counts_what_became_of_each(self, lab, settings, sqlite_file):
        partitioned, plain = lab.session(), lab._known_as("plain", sqlite_entry(sqlite_file))
        settings.IDEMPOTENCY = {"DATABASES": (plain, partitioned)}
        make_past(lab, 2, 5)
        empty(plain)
        for _ in range(3):
            Keys(plain).sealed(new_claim(), retention=-7200.0)
        counted = tasks.prune()
        kept = counted[partitioned].pop("kept")
        assert kept >= 10
        assert counted == {plain: {"deleted": 3}, partitioned: {"dropped": 2}}
        assert tasks.prune()[plain] == {}, "nothing had expired"

    def test_the_others_are_pruned_where_one_fails(self, lab, settings):
        bare, migrated = lab.session(NAME="postgres"), lab.session()
        settings.IDEMPOTENCY = {"DATABASES": (bare, migrated)}
        (name,) = make_past(lab, 2)
        with pytest.raises(RuntimeError, match=bare):
            tasks.prune()
        assert not is_there(lab, name)

    def test_where_another_pruner_is_at_work_there_is_nothing_to_do(self, lab, settings):
        settings.IDEMPOTENCY = {"DATABASES": lab.aliases[:1]}
        make_past(lab, 2)
        with own_connection(lab.session()) as connection:
            assert pruning.begin(connection, patience=timedelta(seconds=1))
            assert tasks.prune() == {lab.aliases[0]: {}}


def sqlite_entry(path):
    return connection.settings_dict | {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": {}}


@pytest.mark.parametrize("task", [tasks.sweep, tasks.make_partitions, tasks.prune])
def test_a_message_is_kept_until_its_work_is_done_and_a_hanging_one_ends(task):
    assert task.acks_late
    assert task.reject_on_worker_lost
    assert timedelta(minutes=15).total_seconds() < task.time_limit < timedelta(hours=1).total_seconds()


class TestSchedule:
    def test_it_names_tasks_that_there_are(self):
        due = {entry["task"]: maybe_schedule(entry["schedule"]).run_every for entry in beat_schedule().values()}
        assert due == {
            tasks.sweep.name: timedelta(minutes=1),
            tasks.make_partitions.name: timedelta(hours=6),
            tasks.prune.name: timedelta(hours=1),
        }

    def test_a_project_says_how_often_and_how_they_are_sent(self):
        schedule = beat_schedule(
            sweep_every=timedelta(seconds=5), make_partitions_every=None, prune_every=None, queue="low"
        )
        assert schedule == {
            "idempotency-sweep": {
                "task": "django_idempotency.tasks.sweep",
                "schedule": timedelta(seconds=5),
                "options": {"expires": 600.0, "queue": "low"},
            }
        }

    def test_messages_that_nobody_took_do_not_pile_up(self):
        for entry in beat_schedule(sweep_every=timedelta(hours=1)).values():
            assert timedelta(seconds=entry["options"]["expires"]) >= entry["schedule"]
