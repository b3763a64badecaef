"""What is told of operations, sweeps and decisions of persons: once each, with the route of the record."""

from __future__ import annotations

import pytest
from django.utils import timezone

from django_idempotency import resolving
from django_idempotency.core.errors import InProgress, KeyReused, LeaseLost, OutcomeUnknown
from django_idempotency.core.states import IdempotencyMode, Seen
from django_idempotency.operations import Unknown
from tests.support.listening import heard
from tests.support.workshops import on_both_stores

__all__ = ["heard"]

pytestmark = on_both_stores


@pytest.fixture
def route(called):
    return f"{called.definition.name}:RUN"


@pytest.fixture
def answers():
    return [TimeoutError(), "yes"]


@pytest.fixture
def called(workshop, answers):
    def pay(op, *, amount):
        charge = op.call("authorise", workshop.send("authorise", lambda: _given(answers)))
        return op.finish(lambda: workshop.effect("recorded", {"charge": charge, "amount": amount}))

    return workshop.declare(pay, downstream_takes_keys=True)


def _given(answers):
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    if isinstance(answer, BaseException):
        raise answer
    return answer


def held(workshop, called):
    with pytest.raises(OutcomeUnknown):
        workshop.run(called, amount=5)


def seen(workshop):
    row = workshop.row()
    return Seen(row.id, row.owner_token, row.lease_expires_at)


def test_an_operation_that_is_held_and_then_finished_by_a_sweeper(workshop, called, route, heard):
    held(workshop, called)
    told = heard.all[0]
    assert (told["route"], told["record_id"], told["using"]) == (route, workshop.row().id, workshop.alias)
    assert heard.take() == ["new", "held"]
    with pytest.raises(InProgress):
        workshop.run(called, amount=5)
    with pytest.raises(KeyReused):
        workshop.run(called, amount=6)
    assert heard.take() == ["conflict", "mismatch"]
    workshop.lapse()
    workshop.swept()
    assert {each["route"] for each in heard.all} == {workshop.alias, route}
    assert heard.take() == ["sweep", "swept_finished"]
    workshop.run(called, amount=5)
    assert heard.take() == ["replayed"]


def test_an_operation_that_its_client_goes_on_with(workshop, called, heard):
    held(workshop, called)
    heard.take()
    workshop.lapse()
    workshop.run(called, amount=5)
    assert heard.take() == ["takeover"]


def test_an_owner_that_a_rival_took_over_from_is_fenced(workshop, heard):
    def pay(op):
        op.phase("first", lambda: workshop.effect("first"))
        workshop.lapse()
        workshop.change(owner_token="00000000-0000-4000-8000-000000000000")
        op.phase("second", lambda: workshop.effect("second"))
        return op.finish(lambda: None)

    with pytest.raises(LeaseLost):
        workshop.run(workshop.declare(pay))
    assert heard.take() == ["new", "fenced"]
    assert workshop.effects == ["first"]


def test_a_claim_without_an_operation_is_swept_by_release(workshop, called, heard):
    workshop.abandoned(called, mode=IdempotencyMode.LEASED)
    workshop.swept()
    assert heard.take() == ["sweep", "swept_released"]


def test_what_is_not_known_yet_is_postponed(workshop, heard):
    def pay(op):
        op.call("authorise", workshop.send("authorise", TimeoutError()))
        return op.finish(lambda: None)

    called = workshop.declare(pay, resolver=lambda record: Unknown("not yet"))
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    heard.take()
    workshop.lapse()
    workshop.swept()
    assert heard.take() == ["sweep", "swept_postponed"]


def test_what_no_guess_can_end_is_left_to_a_person(workshop, heard):
    def pay(op):
        op.call("authorise", workshop.send("authorise", TimeoutError()))
        return op.finish(lambda: None)

    with pytest.raises(OutcomeUnknown):
        workshop.run(workshop.declare(pay))
    heard.take()
    workshop.lapse()
    workshop.swept()
    assert heard.take() == ["sweep", "swept_left"]


def test_a_person_releases(workshop, called, route, heard):
    held(workshop, called)
    workshop.lapse()
    heard.take()
    with pytest.raises(resolving.Refused):
        resolving.release_by_person(workshop.alias, seen(workshop), lambda: None)
    assert heard.take() == []
    resolving.release_by_person(workshop.alias, seen(workshop), lambda: None, whatever_happened=True)
    assert heard.all[0]["route"] == route
    assert heard.take() == ["released"]


def test_a_person_resolves(workshop, called, route, heard):
    held(workshop, called)
    workshop.lapse()
    heard.take()
    resolving.resolve_by_person(
        workshop.alias, seen(workshop), lambda: None, status=201, data={"at": str(timezone.now())}
    )
    assert heard.all[0]["route"] == route
    assert heard.take() == ["resolved"]


def test_a_person_has_it_swept(workshop, called, heard):
    held(workshop, called)
    workshop.lapse()
    heard.take()
    resolving.sweep_taken(resolving.take_up_by_person(workshop.alias, seen(workshop), lambda: None))
    assert heard.take() == ["swept_finished"]
