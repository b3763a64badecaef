"""The vocabulary of states is one, and what the table allows is what it says."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from uuid import uuid4

import pytest

from django_idempotency.core.progress import Progress, Step, StepKind
from django_idempotency.core.states import (
    Claim,
    ClaimAnswer,
    IdempotencyMode,
    Record,
    RecordedResponse,
    Sealing,
    State,
    Verdict,
)
from django_idempotency.models import IdempotencyKey


def test_states_modes_and_verdicts_are_the_words_that_the_database_stores():
    assert [each.value for each in State] == ["in_flight", "sealed"]
    assert [each.value for each in IdempotencyMode] == ["atomic", "leased", "phased"]
    assert {each.value for each in Verdict} == {"claimed", "found", "waited", "expired", "wrong_isolation"}
    assert {each.value for each in Sealing} == {"sealed", "lost", "no_partition"}


@pytest.mark.parametrize("enum", [State, IdempotencyMode])
def test_they_fit_into_their_column(enum):
    column = IdempotencyKey._meta.get_field("state" if enum is State else "mode")
    assert all(len(each.value) <= column.max_length for each in enum)


def test_the_check_of_the_table_knows_every_state():
    (constraint,) = IdempotencyKey._meta.constraints
    assert all(repr(state.value) in repr(constraint.condition) for state in State)


def test_a_row_is_named_by_its_id_alone_in_logs_and_lists():
    row = IdempotencyKey(id=uuid4(), scope="user:5 charge", key="secret")
    assert str(row) == str(row.id)


def values():
    response = RecordedResponse(201, (("Location", "/7"),), b"{}")
    record = Record(uuid4(), "s", "k", State.SEALED, IdempotencyMode.ATOMIC, b"f", 1, uuid4(), 1, None, response)
    claim = Claim(uuid4(), "s", "k", b"f", 1, uuid4(), IdempotencyMode.LEASED, 30.0, 1.5)
    return [response, record, claim, ClaimAnswer(Verdict.FOUND, record)]


@pytest.mark.parametrize("position", range(4))
def test_what_storage_hands_out_is_frozen_and_travels(position):
    value = values()[position]
    assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(FrozenInstanceError):
        value.key = "other"


@pytest.mark.parametrize(
    ("changes", "vacant"),
    [
        ({}, True),
        ({"mode": IdempotencyMode.PHASED}, True),
        ({"lease_left": 0.001}, False),
        ({"progress": Progress("pay", {}, (Step("charge", StepKind.CALL),))}, False),
        ({"mode": IdempotencyMode.ATOMIC}, False),
        ({"state": State.SEALED, "lease_left": None}, False),
    ],
)
def test_a_claim_is_vacant_if_nothing_can_have_taken_effect_under_it(changes, vacant):
    lapsed = Record(uuid4(), "s", "k", State.IN_FLIGHT, IdempotencyMode.LEASED, b"f", 1, uuid4(), 1, lease_left=0.0)
    assert replace(lapsed, **changes).is_vacant is vacant


def test_an_answer_without_a_record_has_to_say_what_it_means():
    with pytest.raises(TypeError):
        ClaimAnswer()
    assert ClaimAnswer(Verdict.CLAIMED).record is None
