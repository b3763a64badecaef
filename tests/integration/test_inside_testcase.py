"""In a project's own TestCase every mode works, and nothing of ours outlives the request."""

from __future__ import annotations

import logging

from django.db import connection, connections, transaction
from django.test import TestCase

from django_idempotency import IdempotencyMode, IdempotencyPolicy, renewal
from django_idempotency.conf import current
from django_idempotency.core.fingerprint import Content, EmptyBody
from django_idempotency.core.keys import record_id
from django_idempotency.core.states import State
from django_idempotency.models import IdempotencyKey
from django_idempotency.ownership import Outcome
from django_idempotency.request_transactions import RequestTransactions
from django_idempotency.service import Execution, Intent
from django_idempotency.storage import store_for
from tests.support.keys import CREATED
from tests.support.modes import TRANSACTIONAL

SCOPE = "auth.user:5 charge:POST"
WATCHED = ("lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit", "enable_seqscan")


def begin(mode, key="k"):
    """A keyed request: at its handler, or the record to replay."""
    execution = Execution(RequestTransactions())
    intent = Intent(SCOPE, key, Content(method="POST", principal="", body=EmptyBody()))
    return execution.claim(intent, current().resolve(IdempotencyPolicy(mode=mode))) or execution


def session_settings():
    if connection.vendor != "postgresql":
        return {}
    with connection.cursor() as cursor:
        values = {}
        for name in WATCHED:
            cursor.execute(f"SHOW {name}")
            (values[name],) = cursor.fetchone()
        return values


class InsideTestCase(TestCase):
    """Django's own, as projects use it."""

    def test_a_request_is_recorded_and_replayed(self):
        for mode in TRANSACTIONAL:
            with self.subTest(mode):
                begin(mode, mode.value).finish(Outcome(201, lambda: CREATED))
                record = begin(mode, mode.value)
                assert record.response == CREATED
        assert IdempotencyKey.objects.filter(state=State.SEALED.value).count() == 2

    def test_a_released_request_leaves_the_key_free_and_no_writes(self):
        for mode in TRANSACTIONAL:
            with self.subTest(mode):
                execution = begin(mode)
                IdempotencyKey.objects.filter(key="k").update(attempts=7)
                execution.finish(Outcome(400, lambda: CREATED))
                assert IdempotencyKey.objects.count() == 0
                begin(mode).abandon()
                assert IdempotencyKey.objects.count() == 0

    def test_settings_of_the_transaction_are_put_back(self):
        """They would outlive the savepoint that a request is here, and reach the next one."""
        before = session_settings()
        for mode in TRANSACTIONAL:
            for ending in (201, 400):
                with self.subTest(mode, ending=ending):
                    execution = begin(mode, f"{mode.value} {ending}")
                    assert session_settings() == before
                    execution.finish(Outcome(ending, lambda: CREATED))
                    assert session_settings() == before
                    if ending == 201:
                        begin(mode, f"{mode.value} {ending}")
                        assert session_settings() == before

    def test_no_hook_of_ours_shows_up_in_the_projects_own(self):
        for mode in TRANSACTIONAL:
            with self.subTest(mode), self.captureOnCommitCallbacks() as callbacks:
                execution = begin(mode, mode.value)
                transaction.on_commit(len)
                execution.finish(Outcome(201, lambda: CREATED))
            assert callbacks == [len]

    def test_hooks_of_a_released_request_are_gone(self):
        for mode in TRANSACTIONAL:
            with self.subTest(mode), self.captureOnCommitCallbacks() as callbacks:
                execution = begin(mode, mode.value)
                transaction.on_commit(len)
                execution.finish(Outcome(400, lambda: CREATED))
            assert callbacks == []

    def test_no_lease_is_renewed_on_a_connection_that_could_not_see_the_claim(self):
        before = set(renewal._renewer._renewals)
        execution = begin(IdempotencyMode.LEASED)
        assert set(renewal._renewer._renewals) == before
        execution.abandon()

    def test_the_tests_own_transaction_is_as_before(self):
        depth = len(connection.savepoint_ids), len(connection.atomic_blocks)
        for mode in TRANSACTIONAL:
            begin(mode, mode.value).finish(Outcome(201, lambda: CREATED))
            begin(mode, f"{mode.value} again").finish(Outcome(400, lambda: CREATED))
            execution = begin(mode, f"{mode.value} raised")
            execution.undo()
            execution.finish(Outcome(402, lambda: CREATED))
            assert (len(connection.savepoint_ids), len(connection.atomic_blocks)) == depth
        assert connections["default"].in_atomic_block

    def test_the_tests_own_data_is_there_before_and_after(self):
        with self.assertLogs("django_idempotency", logging.INFO):
            execution = begin(IdempotencyMode.ATOMIC)
        assert store_for("default").find(record_id(SCOPE, "k")).state is State.IN_FLIGHT
        execution.finish(Outcome(201, lambda: CREATED))
        assert IdempotencyKey.objects.get().response_status == 201
