"""What a record remembers of an operation, and what follows from it."""

from __future__ import annotations

import json

import pytest

from django_idempotency.core.progress import Progress, Step, StepKind

RESERVED = Step("reserve", StepKind.PHASE, done=True, result={"b": 1, "a": [{"d": 1, "c": 2}]})
STARTED = Step("authorise", StepKind.CALL, key="a-key", started_at=12.5, sends=1)
ANSWERED = Step("authorise", StepKind.CALL, done=True, result=7, key="a-key", started_at=12.5, sends=2)
VOIDED = Step("void", StepKind.CALL, done=True, compensating=True)


def progress(*steps):
    return Progress("payments.card_payment", {"amount": 5}, steps)


def test_an_operation_that_has_begun_nothing_has_neither_a_recovery_point_nor_an_open_call():
    assert progress().recovery_point is None
    assert progress().open_call is None
    assert progress().compensating is False
    assert progress().step("reserve") is None


def test_the_recovery_point_is_the_last_finished_step():
    assert progress(RESERVED).recovery_point == "reserve"
    assert progress(RESERVED, STARTED).recovery_point == "reserve"
    assert progress(RESERVED, ANSWERED).recovery_point == "authorise"


def test_a_call_is_open_from_its_start_to_its_answer():
    assert progress(RESERVED).open_call is None
    assert progress(RESERVED, STARTED).open_call is STARTED
    assert progress(RESERVED, ANSWERED).open_call is None


def test_a_reversal_that_has_begun_is_known_by_any_of_its_steps():
    assert progress(RESERVED, STARTED, VOIDED).compensating is True
    assert progress(RESERVED, STARTED).compensating is False


def test_a_step_is_found_by_its_name():
    assert progress(RESERVED, STARTED).step("authorise") is STARTED
    assert progress(RESERVED).step("authorise") is None


def test_a_new_step_comes_last_and_a_known_one_stays_in_its_place():
    begun = progress(RESERVED).with_step(STARTED)
    assert begun.steps == (RESERVED, STARTED)
    after = begun.with_step(VOIDED).with_step(ANSWERED)
    assert after.steps == (RESERVED, ANSWERED, VOIDED)
    assert begun.steps == (RESERVED, STARTED), "a progress never changes"


@pytest.mark.parametrize("steps", [(), (RESERVED,), (RESERVED, STARTED), (RESERVED, ANSWERED, VOIDED)])
def test_it_is_the_same_after_being_stored(steps):
    before = progress(*steps)
    read = json.loads(json.dumps(before.steps_document()))
    assert Progress.from_documents(before.operation, before.parameters, read) == before


def test_members_are_read_in_the_order_of_their_names_whatever_the_database_made_of_it():
    read = Progress.from_documents("x", {"z": 1, "a": {"c": 1, "b": 2}}, progress(RESERVED).steps_document())
    assert json.dumps(read.parameters) == '{"a": {"b": 2, "c": 1}, "z": 1}'
    assert json.dumps(read.steps[0].result) == '{"a": [{"c": 2, "d": 1}], "b": 1}'
