"""``manage.py idempotency sweep``: what it prints, when, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from django_idempotency.core.errors import OutcomeUnknown
from django_idempotency.management.databases import FOR_A_PERSON
from django_idempotency.models import IdempotencyKey
from django_idempotency.operations import Answer, Op, operation
from example_project.processor import Fault
from tests.support.card_payments import CardPayer, let_time_pass
from tests.support.keys import Keys, new_claim
from tests.support.outside import held, lapse, takes_no_keys
from tests.support.servers import url_of_tests
from tests.support.waiting import eventually, sessions


@operation("tests.out_of_order", downstream_takes_keys=True)
def out_of_order(op: Op) -> Answer:
    op.call("send", lambda key: "done")
    raise ZeroDivisionError


def sweep(*arguments, stdout=None):
    """What it prints, and the error that it ends with."""
    out = stdout or StringIO()
    try:
        call_command("idempotency", "sweep", *arguments, stdout=out)
    except CommandError as failure:
        return out.getvalue(), failure
    return out.getvalue(), None


def documents(*arguments):
    out, failure = sweep("--json", *arguments)
    *records, summary = (json.loads(line) for line in out.splitlines())
    return records, summary, failure


def state(key):
    return IdempotencyKey.objects.filter(pk=key.pk).values_list("state", flat=True).first()


@pytest.mark.django_db
class TestOutcomes:
    def test_there_is_nothing_to_do(self):
        assert sweep() == ("default: nothing is stale\n", None)

    def test_an_operation_that_can_go_on_comes_to_its_end(self, outside):
        key = held(number=7)
        out, failure = sweep()
        assert failure is None
        assert out.splitlines() == [f"default: {key.pk} tests.takes_keys: finished", "default: 1 finished"]
        assert state(key) == "sealed"
        assert len(outside.sent) == 2
        assert len(set(outside.sent)) == 1

    def test_a_claim_under_which_nothing_happened_is_released(self):
        claim = Keys("default").lapsed(new_claim())
        lapse(IdempotencyKey.objects.get(pk=claim.id))
        out, failure = sweep()
        assert (out.splitlines(), failure) == ([f"default: {claim.id}: released", "default: 1 released"], None)
        assert not IdempotencyKey.objects.exists()

    def test_nobody_knows_yet(self, outside):
        """No failure: it is tried again, and not at once."""
        key = held()
        outside.is_silent()
        out, failure = sweep()
        assert failure is None
        assert out.splitlines() == [
            f"default: {key.pk} tests.takes_keys: to be tried again: the call 'send' ended in TimeoutError",
            "default: 1 to be tried again",
        ]
        assert "4111" not in out
        assert sweep()[0] == "default: nothing is stale\n"

    def test_what_is_left_to_a_person_is_a_status_of_its_own(self, outside):
        key = held(takes_no_keys)
        out, failure = sweep()
        assert f"default: {key.pk} tests.takes_no_keys: left to a person: " in out
        assert (failure.returncode, str(failure)) == (FOR_A_PERSON, "Left to a person: 1. The admin shows why.")
        assert len(outside.sent) == 1
        # Said once. It stays in flight, for a person, whatever time passes.
        let_time_pass()
        assert sweep() == ("default: nothing is stale\n", None)
        assert state(key) == "in_flight"

    def test_one_that_fails_does_not_stop_the_others(self, outside):
        with pytest.raises(OutcomeUnknown):
            out_of_order.run(scope="tests", key="broken", parameters={})
        broken = lapse(IdempotencyKey.objects.get(key="broken"))
        key = held()
        out, failure = sweep()
        assert failure is None
        assert f"{broken.pk} tests.out_of_order: to be tried again: ZeroDivisionError" in out
        assert f"{key.pk} tests.takes_keys: finished" in out
        assert out.splitlines()[-1] == "default: 1 finished, 1 to be tried again"

    def test_each_is_told_as_it_is_done(self, outside):
        """Not at the end: somebody may be waiting for the first of a thousand."""
        held(), held()
        out, told = Flushed(), []
        outside.answer = lambda key: told.append(out.flushed.count("finished"))
        sweep(stdout=out)
        assert told == [0, 1]


class Flushed(StringIO):
    flushed = ""

    def flush(self):
        self.flushed = self.getvalue()


@pytest.mark.django_db
class TestHowMuch:
    def test_a_limit_takes_the_longest_lapsed(self, outside):
        keys = [held(number=number) for number in range(3)]
        out, _ = sweep("--limit", "2")
        assert [key.pk for key in keys if str(key.pk) in out] == [key.pk for key in keys[:2]]
        assert state(keys[2]) == "in_flight"

    @pytest.mark.parametrize(
        "arguments", [("--limit", "0"), ("--limit", "many"), ("--interval", "-1"), ("--limit=nan",)]
    )
    def test_numbers_that_are_none(self, arguments):
        assert "number" in str(sweep(*arguments)[1])

    def test_a_dry_run_says_what_would_be_taken_up_and_changes_nothing(self, outside):
        asked, idle = held(), Keys("default").lapsed(new_claim())
        lapse(IdempotencyKey.objects.get(pk=idle.id))
        before = list(IdempotencyKey.objects.order_by("pk").values())
        out, failure = sweep("--dry-run")
        assert failure is None
        ago = r"lapsed 36\d\d s ago"
        assert re.search(f"default: {asked.pk} tests.takes_keys: the call 'send' has no answer, {ago}", out)
        assert re.search(f"default: {idle.id}: {ago}", out)
        assert out.splitlines()[-1] == "default: 2 would be taken up"
        assert list(IdempotencyKey.objects.order_by("pk").values()) == before
        assert len(outside.sent) == 1

    def test_a_dry_run_tells_how_often_it_was_tried(self, outside):
        held()
        outside.is_silent()
        sweep()
        let_time_pass()
        assert "tried 1 times" in sweep("--dry-run")[0]

    def test_a_dry_run_is_not_repeated(self):
        assert "--forever" in str(sweep("--dry-run", "--forever")[1])


@pytest.mark.django_db
class TestJson:
    def test_a_document_a_claim_and_one_in_sum(self, outside):
        done, left = held(number=7), held(takes_no_keys)
        records, summary, failure = documents()
        assert records[0] == {
            "database": "default", "id": str(done.pk), "operation": "tests.takes_keys",
            "fate": "finished", "reason": "",
        }  # fmt: skip
        assert (records[1]["id"], records[1]["fate"]) == (str(left.pk), "left")
        assert records[1]["reason"]
        assert summary == {
            "dry_run": False,
            "databases": [
                {"database": "default", "released": 0, "finished": 1, "postponed": 0, "left": 1, "error": None}
            ],
        }
        assert failure.returncode == FOR_A_PERSON

    def test_of_a_dry_run(self, outside):
        key = held()
        (told,), summary, _ = documents("--dry-run")
        assert told.pop("lapsed") == pytest.approx(3600, abs=60)
        assert told == {
            "database": "default", "id": str(key.pk), "operation": "tests.takes_keys", "open_call": "send", "sweeps": 0,
            "held": "the call 'send' ended in TimeoutError",
        }  # fmt: skip
        assert summary == {"dry_run": True, "databases": [{"database": "default", "stale": 1, "error": None}]}

    def test_of_nothing(self):
        assert documents()[0] == []


class TestDatabases:
    @pytest.fixture
    def two(self, lab, settings):
        """One that nobody has migrated, and one with a stale claim."""
        bare, migrated = lab.session(NAME="postgres"), lab.session()
        settings.IDEMPOTENCY = {"DATABASES": (bare, migrated)}
        Keys(migrated).own(new_claim())
        lab.do("UPDATE idempotency_key SET lease_expires_at = now() - interval '1 hour'", alias=migrated)
        return bare, migrated

    def test_one_that_fails_does_not_keep_the_others_from_being_swept(self, two):
        bare, migrated = two
        records, summary, failure = documents()
        assert [(record["database"], record["fate"]) for record in records] == [(migrated, "released")]
        failed, swept = summary["databases"]
        assert "run manage.py migrate django_idempotency first" in failed["error"]
        assert (swept["released"], swept["error"]) == (1, None)
        assert failure.returncode == 1
        assert str(failure).startswith(f"{bare}: ")

    def test_those_that_are_named(self, two):
        _, migrated = two
        out, failure = sweep("--database", migrated, "--database", migrated)
        assert failure is None
        assert out.splitlines()[-1] == f"{migrated}: 1 released"

    def test_one_that_holds_no_keys_is_refused(self):
        assert "not in IDEMPOTENCY['DATABASES']" in str(sweep("--database", "nowhere")[1])


class TestForever:
    """As a process: what a supervisor starts, watches and stops."""

    @pytest.fixture
    def sweeper(self, committed, processor):
        started = []

        def start(**environment):
            started.append(Sweeper(processor, environment))
            return started[-1]

        yield start
        for each in started:
            each.process.kill()
            each.process.communicate()

    @pytest.fixture
    def stuck(self, control):
        """A card payment that had no answer, and is stale."""

        def make():
            payer = CardPayer()
            control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
            assert payer.pay().status_code == 503
            let_time_pass()
            return payer

        return make

    def test_it_goes_on_until_it_is_told_to_stop(self, sweeper, stuck, control):
        first = stuck()
        process = sweeper()
        assert process.next()["fate"] == "finished"
        assert process.next()["databases"][0]["finished"] == 1
        second = stuck()
        assert process.next()["fate"] == "finished"
        assert process.stop(signal.SIGTERM) == 0
        for payer in (first, second):
            assert payer.pay().status_code == 201
            assert control.charges_by_reference()[str(payer.payment.pk)] == 1

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_the_claim_at_hand_is_finished_and_no_other_is_begun(self, sweeper, stuck, tmp_path, number):
        stuck(), stuck()
        process = sweeper(IDEMPOTENCY_FAILPOINTS=f"before_seal:wait@{tmp_path / 'seal'}")
        eventually((tmp_path / "seal.reached").exists, "it is about to finish")
        process.signal(number)
        (tmp_path / "seal.go").touch()
        assert process.next()["fate"] == "finished"
        assert process.end() == 0
        assert IdempotencyKey.objects.filter(state="in_flight").count() == 1

    def test_a_second_signal_does_not_wait(self, sweeper, stuck, tmp_path):
        payer = stuck()
        process = sweeper(IDEMPOTENCY_FAILPOINTS=f"before_seal:wait@{tmp_path / 'seal'}")
        eventually((tmp_path / "seal.reached").exists, "it is about to finish")
        eventually(lambda: process.signal(signal.SIGTERM) or process.process.poll() is not None, "it ends")
        assert process.end() == -signal.SIGTERM
        let_time_pass()
        assert payer.pay().status_code == 201

    def test_it_outlives_a_database_that_goes_away(self, sweeper, stuck):
        process = sweeper()
        eventually(lambda: sessions("idempotency_record_v1"), "it sweeps")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ANY(%s)",
                [sessions("idempotency_record_v1")],
            )
        stuck()
        documents = iter(process.next, None)
        assert any(document.get("fate") == "finished" for document in documents)
        assert process.stop(signal.SIGTERM) == 0


class Sweeper:
    def __init__(self, processor, environment):
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "example_project.manage",
                "idempotency", "sweep", "--forever", "--interval", "0.2", "--json",
            ],
            cwd=Path(__file__).resolve().parents[2],
            env=os.environ
            | {
                "DATABASE_URL": url_of_tests(),
                "PROCESSOR_URL": processor.url,
                "IDEMPOTENCY_FAILPOINTS_ENABLED": "true",
                "CONN_MAX_AGE": "60",
            }
            | environment,
            stdout=subprocess.PIPE,
        )  # fmt: skip

    def next(self):
        """The next document that it prints."""
        return json.loads(self.process.stdout.readline())

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        return self.process.wait(20)

    def stop(self, number):
        self.signal(number)
        return self.end()
