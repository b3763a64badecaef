"""The lease of a slow owner lives as long as the owner works, and no longer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.db import connection

from django_idempotency import renewal
from django_idempotency.models import IdempotencyKey
from django_idempotency.storage.transactions import own_connection, transaction_on
from example_project.payments import services
from tests.support.calls import ask
from tests.support.leases import states
from tests.support.modes import LEASED, TRANSACTIONAL
from tests.support.payer import Payer, effects
from tests.support.waiting import eventually, sessions, until_waiting

pytestmark = [pytest.mark.urls("tests.support.charges_urls"), pytest.mark.usefixtures("short_leases")]

RENEWAL = "lease (id, owner_token, seconds)"
"""What tells the renewer's statement from all others."""


def seconds_since_claim_of_lease_end():
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM lease_expires_at - claimed_at) FROM idempotency_key_in_flight")
        (row,) = cursor.fetchall()
        return float(row[0])


def until_leased_for(seconds):
    eventually(lambda: seconds_since_claim_of_lease_end() > seconds, f"the lease ends {seconds:g} s after the claim")


def until_renewed():
    until_leased_for(seconds_since_claim_of_lease_end())


def renewal_threads():
    return [thread for thread in threading.enumerate() if thread.name == "idempotency-renewal"]


@pytest.fixture
def slow(crowd, payer, pausing):
    """A request whose view takes until the test lets it go on."""
    request = payer.deposit(LEASED)
    with pausing.armed("after_effect") as pause:
        answer = crowd.start(ask, request, token=payer.token)
        pause.wait()
        yield Slow(request, answer, pause)


class Slow:
    def __init__(self, request, answer, pause):
        self.request, self._answer, self._pause = request, answer, pause

    def end(self):
        self._pause.go()
        return self._answer.result(30)


@pytest.fixture
def longer_leases(configure):
    """Of two seconds, where a renewal that comes late would change who owns the key."""
    configure(LEASE=timedelta(seconds=2))


def test_a_view_may_take_several_leases(longer_leases, slow, payer):
    for seconds in (3, 5):
        until_leased_for(seconds)
        answer = ask(slow.request, token=payer.token)
        assert (answer.status, answer.problem) == (409, "in-progress")
        assert 1 <= answer.retry_after <= 2
    made = slow.end()
    assert (made.status, made.replayed) == (201, False)
    assert (effects(slow.request), states()) == (1, ["sealed"])
    assert not renewal._renewer._renewals


@pytest.fixture
def capped(configure):
    configure(RENEWAL_CAP=timedelta(seconds=1))


def test_a_view_that_hangs_does_not_hold_its_key_for_ever(capped, slow, payer):
    second = eventually(lambda: _not_in_progress(slow.request, payer), "the lease lapses")
    assert (second.status, second.replayed) == (201, False)
    late = slow.end()
    # It hears of the fence, or before that of its transaction, which may not be silent for longer either.
    assert (late.status, late.problem) in [(409, "lease-lost"), (503, "transaction-conflict")]
    assert effects(slow.request) == 1


def _not_in_progress(request, payer):
    answer = ask(request, token=payer.token)
    return None if answer.problem == "in-progress" else answer


def test_a_lease_that_was_lost_is_let_go(slow):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE idempotency_key_in_flight SET owner_token = gen_random_uuid()")
    eventually(lambda: not renewal._renewer._renewals, "the renewer lets go")
    assert slow.end().problem == "lease-lost"
    assert effects(slow.request) == 0


def test_a_failure_of_the_database_is_got_over(slow, caplog):
    """The renewer's session is ended while it waits; the next one makes up for it."""
    with own_connection("default") as other, transaction_on(other), other.cursor() as cursor:
        cursor.execute("LOCK TABLE idempotency_key_in_flight IN SHARE MODE")
        (session,) = until_waiting(containing=RENEWAL)
        cursor.execute("SELECT pg_terminate_backend(%s)", (session,))
        eventually(lambda: "could not be renewed" in caplog.text, "the renewer notices")
    until_renewed()
    assert slow.end().status == 201
    assert effects(slow.request) == 1


def test_between_renewals_no_connection_is_held(slow):
    until_renewed()
    eventually(lambda: not sessions(RENEWAL), "the connection is closed")
    until_renewed()
    eventually(lambda: not sessions(RENEWAL), "the connection is closed")
    assert slow.end().status == 201


def test_all_owners_share_one_thread(crowd, payer, pausing):
    """It stays when they are gone, and is there for the next ones."""
    for _ in range(2):
        together = [payer.deposit(LEASED) for _ in range(20)]
        answers = crowd.all_at_once([lambda request=request: ask(request, token=payer.token) for request in together])
        assert {answer.status for answer in answers} == {201}
        assert len(renewal_threads()) == 1
    assert not renewal._renewer._renewals


@pytest.mark.parametrize("mode", TRANSACTIONAL, ids=lambda mode: mode.value)
def test_nothing_is_renewed_after_the_seal_and_nothing_in_atomic_mode(crowd, payer, pausing, mode):
    with pausing.armed("after_seal") as pause:
        answer = crowd.start(ask, payer.deposit(mode), token=payer.token)
        pause.wait()
        assert not renewal._renewer._renewals
        pause.go()
        assert answer.result(30).status == 201


def test_a_row_that_somebody_holds_keeps_no_other_lease_from_being_renewed(slow, crowd, payer, pausing):
    other = payer.deposit(LEASED)
    with pausing.armed("before_seal") as pause:
        answer = crowd.start(ask, other, token=payer.token)
        eventually(lambda: len(renewal._renewer._renewals) == 2, "both are under renewal")
        with own_connection("default") as rival, transaction_on(rival), rival.cursor() as cursor:
            cursor.execute("SELECT id FROM idempotency_key_in_flight ORDER BY claimed_at LIMIT 1 FOR UPDATE")
            (held,) = cursor.fetchone()
            end = lambda: IdempotencyKey.objects.exclude(pk=held).get().lease_expires_at  # noqa: E731
            for _ in range(2):
                before = end()
                eventually(lambda before=before: end() > before, "the other lease is renewed")
        until_renewed = IdempotencyKey.objects.get(pk=held).lease_expires_at
        eventually(
            lambda: IdempotencyKey.objects.get(pk=held).lease_expires_at > until_renewed,
            "what was held is renewed again",
        )
        pause.go()
        assert answer.result(30).status == 201
    assert slow.end().status == 201


def run(script, **environment):
    """A Python of its own, on the tests' database unless the environment names another."""
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
    settings = {"DATABASE_URL": urlunsplit(url), "DJANGO_SETTINGS_MODULE": "tests.support.served_settings"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ | settings | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


FORKING = """
import os, threading
import django
django.setup()
from django.db import connections
from django_idempotency import renewal
from django_idempotency.models import IdempotencyKey
from tests.support.keys import Keys, new_claim
from tests.support.waiting import eventually

def threads():
    return sum(thread.name == "idempotency-renewal" for thread in threading.enumerate())

def renews():
    keys, claim = Keys("default"), new_claim(lease=1.0)
    keys.own(claim)
    end = lambda: IdempotencyKey.objects.get(pk=claim.id).lease_expires_at
    before = end()
    renewal.start("default", claim.id, claim.owner_token, claim.lease)
    eventually(lambda: end() > before, "the lease is renewed")

renews()
connections.close_all()
child = os.fork()
if child == 0:
    assert threads() == 0
    renews()
    os._exit(0 if threads() == 1 else 1)
renews()
assert threads() == 1
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_process_that_was_forked_off_renews_its_own_leases(committed):
    run(FORKING)


SQLITE = """
import threading
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_idempotency import IdempotencyMode
from example_project.payments import services
from tests.support.calls import ask
from tests.support.payer import Payer
payer = Payer()
answer = ask(payer.charge(IdempotencyMode.LEASED), token=payer.token)
assert answer.status == 201, answer
assert "idempotency-renewal" not in [thread.name for thread in threading.enumerate()]
"""


def test_where_one_writer_excludes_all_others_nothing_is_renewed(committed, tmp_path):
    run(SQLITE, DATABASE_URL=f"sqlite:///{tmp_path / 'example.sqlite3'}", ALLOWED_HOSTS="testserver")


@pytest.mark.django_db
def test_within_a_test_case_nothing_is_renewed(monkeypatch):
    """Another connection would see neither the claim nor its lease."""
    seen, payer, deposit = [], Payer(), services.deposit

    def look(*arguments, **named):
        seen.append(set(renewal._renewer._renewals))
        return deposit(*arguments, **named)

    monkeypatch.setattr(services, "deposit", look)
    assert ask(payer.deposit(LEASED), token=payer.token).status == 201
    assert seen == [set()]
