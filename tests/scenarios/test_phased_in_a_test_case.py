"""Inside a project's own TestCase every phase is a savepoint, and all of it works, calls and sweeps too."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import TestCase

from django_idempotency import IdempotencyMode, sweeping
from django_idempotency.core.errors import OutcomeUnknown
from django_idempotency.operations import operation
from django_idempotency.sweeping import Fate

from .site import Site, assert_replays, effect, problem, records, rows
from .test_phased import Outside, lapse, payment, three_lines
from .ways import WAYS


class Operations(TestCase):
    def test_it_works_to_the_end_and_from_the_middle(self):
        site, outside = Site(), Outside()
        outside.answers = [TimeoutError()]
        with self.settings(ROOT_URLCONF=site):
            site.add(WAYS["viewset"](three_lines(payment(outside)), {"mode": IdempotencyMode.PHASED}))
            assert site.send().status_code == 503
            assert problem(site.send()) == "in-progress"
            lapse()
            first = site.send()
            assert first.status_code == 201
            assert_replays(site.send(), first)
            assert (rows(), len(outside.keys), len(set(outside.keys))) == (2, 2, 1)

    def test_run_works_and_leaves_the_transaction_as_it_was(self):
        outside = Outside()
        called = payment(outside)
        answer = called.run(scope="x", key="k", parameters={"amount": 1})
        assert called.run(scope="x", key="k", parameters={"amount": 1}).data == answer.data
        if connection.vendor != "postgresql":
            return  # there is no such limit to leave behind
        with connection.cursor() as cursor:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            assert cursor.fetchone()[0] == "0"

    def test_a_failed_phase_is_undone(self):
        called = operation("scenarios.undone")(lambda op: op.phase("x", lambda: effect() and 1 / 0))
        with pytest.raises(ZeroDivisionError):
            called.run(scope="x", key="k", parameters={})
        assert (rows(), records()) == (0, 0)

    def test_a_sweep_works(self):
        outside = Outside()
        outside.answers = [TimeoutError()]
        called = payment(outside)
        with pytest.raises(OutcomeUnknown):
            called.run(scope="x", key="k", parameters={"amount": 1})
        lapse()
        assert [swept.fate for swept in sweeping.sweep("default", limit=5)] == [Fate.FINISHED]
