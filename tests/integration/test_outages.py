"""A store that cannot keep keys: refused before the handler, with nothing open and nothing run."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connections

from django_idempotency import IdempotencyMode, IdempotencyPolicy, retention
from django_idempotency.conf import current
from django_idempotency.core.errors import StoreUnavailable
from django_idempotency.core.fingerprint import Content, EmptyBody
from django_idempotency.ownership import Outcome
from django_idempotency.request_transactions import RequestTransactions
from django_idempotency.service import Execution, Intent
from django_idempotency.storage.postgres import PostgresStore
from tests.support.keys import CREATED
from tests.support.modes import TRANSACTIONAL

UNREACHABLE = {"PORT": "1"}
READ_ONLY = {"server": {"default_transaction_read_only": "on"}}


@pytest.fixture
def begin(settings):
    """Begin a keyed request; the execution is at its handler, or the record to replay is returned."""

    def begin(alias, mode=IdempotencyMode.ATOMIC, key="k"):
        settings.IDEMPOTENCY = {"DATABASES": ["default", alias]}
        execution = Execution(RequestTransactions())
        intent = Intent("auth.user:5 charge:POST", key, Content(method="POST", principal="", body=EmptyBody()))
        policy = IdempotencyPolicy(using=alias, mode=mode, max_wait=timedelta(seconds=0.1))
        return execution.claim(intent, current().resolve(policy)) or execution

    return begin


@pytest.fixture(params=["in use", "new process"])
def alias_of(request, lab):
    """The alias of a session, of which this process knows that the leaves reach far enough, or knows nothing."""

    def alias_of(**how):
        alias = lab.session(**how)
        if request.param == "in use":
            reach = retention.make_ahead(lab.aliases[0]).until
            retention._reaches[alias] = retention._Reach(reach, float("inf"))
        return alias

    return alias_of


@pytest.mark.parametrize("mode", TRANSACTIONAL)
@pytest.mark.parametrize(
    ("how", "kind"), [(UNREACHABLE, "OperationalError|ConnectionTimeout"), (READ_ONLY, "ReadOnly")]
)
def test_a_database_that_is_down_or_read_only(lab, alias_of, begin, caplog, mode, how, kind):
    alias = alias_of(**how)
    with pytest.raises(StoreUnavailable, match=kind) as refused:
        begin(alias, mode)
    assert refused.value.retry_after >= 1
    assert not connections[alias].in_atomic_block
    assert f"The keys on {alias!r} cannot be reached" in caplog.text
    assert lab.ask("SELECT count(*) FROM idempotency_key") == 0


def test_while_a_claim_waits_no_other_database_is_held_up(lab, begin, monkeypatch):
    """One of ATOMIC_REQUESTS may be a file that has one writer at a time."""
    alias, other = lab.session(), lab.session(ATOMIC_REQUESTS=True)
    claim_and_begin, open_meanwhile = PostgresStore.claim_and_begin, []

    def watched(*arguments, **named):
        open_meanwhile.append({each for each in (alias, other) if connections[each].in_atomic_block})
        return claim_and_begin(*arguments, **named)

    monkeypatch.setattr(PostgresStore, "claim_and_begin", watched)
    execution = begin(alias, IdempotencyMode.LEASED)
    assert open_meanwhile == [{alias}]
    assert connections[other].in_atomic_block
    execution.abandon()


def test_a_wait_that_the_server_ends_before_max_wait_does(lab, begin):
    owner = begin(lab.aliases[0])
    alias = lab.session(server={"statement_timeout": "20ms"})
    retention._reaches[alias] = retention._reaches[lab.aliases[0]]
    with pytest.raises(StoreUnavailable, match="QueryCanceled"):
        begin(alias)
    owner.abandon()


@pytest.mark.parametrize("mode", TRANSACTIONAL)
def test_a_table_that_was_never_migrated(lab, alias_of, begin, mode, monkeypatch):
    monkeypatch.setattr(retention, "PAUSE_SECONDS", 0.0)
    alias = alias_of()
    call_command("migrate", "django_idempotency", "zero", database=lab.aliases[0], verbosity=0)
    with pytest.raises(StoreUnavailable, match="Undefined"):
        begin(alias, mode)
    assert not connections[alias].in_atomic_block
    assert lab.ask("SELECT 1", alias=alias) == 1, "the session is usable"
    call_command("migrate", "django_idempotency", database=lab.aliases[0], verbosity=0)
    begin(alias, mode).finish(Outcome(201, lambda: CREATED))


@pytest.mark.parametrize("mode", TRANSACTIONAL)
@pytest.mark.parametrize("lock", ["SHARE", "ACCESS EXCLUSIVE"])
def test_a_table_that_is_locked_by_ddl(lab, begin, mode, lock):
    alias, administrator = lab.session(), lab.session()
    begin(alias, mode).abandon()
    lab.do("BEGIN", f"LOCK TABLE idempotency_key IN {lock} MODE", alias=administrator)
    with pytest.raises(StoreUnavailable, match="LockNotAvailable"):
        begin(alias, mode)
    assert not connections[alias].in_atomic_block
    lab.do("ROLLBACK", alias=administrator)
    begin(alias, mode).finish(Outcome(201, lambda: CREATED))


def test_a_table_that_is_locked_by_ddl_when_a_process_starts(lab, begin):
    alias, administrator = lab.session(), lab.session()
    lab.do("BEGIN", "LOCK TABLE idempotency_key IN ACCESS EXCLUSIVE MODE", alias=administrator)
    with pytest.raises(StoreUnavailable, match="LockNotAvailable"):
        begin(alias)
    assert not connections[alias].in_atomic_block


def test_the_reason_for_the_log_quotes_no_value_of_a_row(lab, begin, caplog):
    alias = lab.session(**READ_ONLY)
    with pytest.raises(StoreUnavailable) as refused:
        begin(alias, key="a-secret-key")
    told = f"{caplog.text} {refused.value} {refused.value.detail}"
    assert "a-secret-key" not in told
    assert "auth.user:5" not in told
