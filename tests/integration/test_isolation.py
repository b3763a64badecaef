"""Projects that run in another isolation level than READ COMMITTED, through the service."""

from __future__ import annotations

import logging
from datetime import timedelta

import psycopg
import pytest
from django.db import connections

from django_idempotency import IdempotencyMode, IdempotencyPolicy, renewal
from django_idempotency.conf import current
from django_idempotency.core.errors import InProgress, LeaseLost, StoreUnavailable
from django_idempotency.core.fingerprint import Content, EmptyBody
from django_idempotency.core.keys import record_id
from django_idempotency.core.states import State
from django_idempotency.ownership import Outcome
from django_idempotency.request_transactions import RequestTransactions
from django_idempotency.service import Execution, Intent
from tests.support.crowds import Crowd
from tests.support.keys import CREATED, Keys, new_claim, rival_of
from tests.support.waiting import eventually
from tests.support.wire import Wire

SCOPE = "auth.user:5 charge:POST"
LEVELS = ["repeatable read", "serializable"]
# Without the transaction's isolation in Django's options, the claim says first that it needs another one.
SEEN_BY_THE_CLAIM_ALONE = [(level, "server") for level in LEVELS]


@pytest.fixture
def request_on(settings):
    """Begin a keyed request; the execution is at its handler, or the record to replay is returned."""

    def begin(alias, key="k", mode=IdempotencyMode.LEASED, **policy):
        settings.IDEMPOTENCY = {"DATABASES": ["default", alias]}
        execution = Execution(RequestTransactions())
        intent = Intent(SCOPE, key, Content(method="POST", principal="", body=EmptyBody()))
        resolved = current().resolve(IdempotencyPolicy(using=alias, mode=mode, **policy))
        return execution.claim(intent, resolved) or execution

    return begin


def strict_session(lab, level, where):
    """A session in this isolation level, by the server's default or by Django's option."""
    if where == "server":
        return lab.session(server={"default_transaction_isolation": level})
    return lab.session(options={"isolation_level": psycopg.IsolationLevel[level.upper().replace(" ", "_")]})


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("where", ["server", "options"])
def test_atomic_refuses_before_the_handler_and_names_the_way_out(lab, request_on, level, where):
    alias = strict_session(lab, level, where)
    with pytest.raises(StoreUnavailable, match=r"READ COMMITTED; use IdempotencyMode\.LEASED"):
        request_on(alias, mode=IdempotencyMode.ATOMIC)
    assert not connections[alias].in_atomic_block
    assert lab.ask("SELECT count(*) FROM idempotency_key") == 0


@pytest.mark.parametrize("level", LEVELS)
def test_leased_runs_and_the_effect_keeps_the_level_of_the_project(lab, request_on, level):
    alias = lab.session(server={"default_transaction_isolation": level})
    execution = request_on(alias)
    assert lab.ask("SHOW transaction_isolation", alias=alias) == level
    execution.finish(Outcome(201, lambda: CREATED))
    assert request_on(alias).response == CREATED


@pytest.mark.parametrize("level", LEVELS)
def test_a_duplicate_of_a_leased_request_is_told_so(lab, request_on, level):
    alias, rival = (lab.session(server={"default_transaction_isolation": level}) for _ in range(2))
    execution = request_on(alias)
    with pytest.raises(InProgress):
        request_on(rival)
    execution.finish(Outcome(201, lambda: CREATED))
    assert request_on(rival).response == CREATED


@pytest.mark.parametrize("level", LEVELS)
def test_an_owner_that_was_taken_over_loses_all_it_wrote(lab, request_on, level):
    lab.do("CREATE TABLE effect (n int)")
    alias = lab.session(server={"default_transaction_isolation": level})
    execution = request_on(alias, lease=timedelta(seconds=30))
    lab.do("INSERT INTO effect VALUES (1)", alias=alias)
    lab.do("UPDATE idempotency_key_in_flight SET lease_expires_at = clock_timestamp()")
    keys = Keys(lab.session())
    ours = new_claim(scope=SCOPE, key="k", owner_token=keys.store.find(record_id(SCOPE, "k")).owner_token)
    assert keys.take_over(ours, rival_of(ours))
    with pytest.raises(LeaseLost):
        execution.finish(Outcome(201, lambda: CREATED))
    assert lab.ask("SELECT count(*) FROM effect") == 0
    assert keys.store.find(ours.id).state is State.IN_FLIGHT


@pytest.mark.parametrize("where", ["server", "options"])
@pytest.mark.parametrize("level", ["read committed", *LEVELS])
def test_a_renewal_never_costs_its_own_owner_the_seal(lab, request_on, caplog, level, where):
    alias = strict_session(lab, level, where)
    execution = request_on(alias, lease=timedelta(seconds=30))
    lab.do("SELECT count(*) FROM pg_class", alias=alias)  # the snapshot of the effect is taken
    before = Keys(lab.aliases[0]).store.find(record_id(SCOPE, "k")).lease_left
    (each,) = (held for held in renewal._renewer._renewals if held.alias == alias)
    each.lease = 300.0
    renewal._renewer._renew(alias, [each])
    after = Keys(lab.aliases[0]).store.find(record_id(SCOPE, "k")).lease_left
    assert (after > before) is (level == "read committed")
    assert ("not renewed" in caplog.text) is (level != "read committed")
    assert (each in renewal._renewer._renewals) is (level == "read committed"), "it is said once a request"
    execution.finish(Outcome(201, lambda: CREATED))
    assert request_on(alias).response == CREATED


@pytest.mark.parametrize("level", ["read committed", *LEVELS])
@pytest.mark.parametrize("where", ["server", "options"])
def test_a_session_is_asked_once_whether_a_claim_may_begin_the_next_transaction(lab, request_on, level, where):
    alias = strict_session(lab, level, where)
    request_on(alias, key="first").finish(Outcome(201, lambda: CREATED))
    with Wire(connections[alias]) as wire:
        execution = request_on(alias)
    execution.abandon()
    travelled = any({"claim", "COMMIT"} <= set(trip) for trip in wire.round_trips)
    assert travelled is (level == "read committed")
    assert sum("claim" in trip for trip in wire.round_trips) == (2 if (level, where) in SEEN_BY_THE_CLAIM_ALONE else 1)


@pytest.mark.parametrize("level", LEVELS)
def test_many_at_once_enter_once_in_stricter_isolation(lab, request_on, caplog, level):
    lab.do("CREATE TABLE effect (n int)")
    aliases = [lab.session(server={"default_transaction_isolation": level}) for _ in range(6)]
    entered = []

    def attempt(alias):
        try:
            begun = request_on(alias, max_wait=timedelta(seconds=5))
        except InProgress:
            return
        if isinstance(begun, Execution):
            entered.append(alias)
            lab.do("INSERT INTO effect VALUES (1)", alias=alias)
            begun.finish(Outcome(201, lambda: CREATED))

    with Crowd(8) as crowd, caplog.at_level(logging.ERROR, "django_idempotency"):
        crowd.all_at_once([lambda alias=alias: attempt(alias) for alias in aliases])
    assert len(entered) == 1
    assert caplog.text == ""
    eventually(lambda: lab.ask("SELECT count(*) FROM effect") == 1, "one effect")
