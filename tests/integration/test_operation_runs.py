"""One operation from its first step to its answer, and again from wherever it stopped, on both kinds of store."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from contextvars import copy_context
from datetime import date, timedelta
from functools import partial

import pytest
from django.db import IntegrityError, connections, transaction
from django.utils import timezone

from django_idempotency import BodyCodec, FingerprintRules
from django_idempotency.core.errors import (
    Held,
    InProgress,
    KeyReused,
    LeaseLost,
    MalformedKey,
    OutcomeUnknown,
    ResponseNotStored,
)
from django_idempotency.core.operations import registry
from django_idempotency.core.progress import StepKind
from django_idempotency.core.states import State
from django_idempotency.models import IdempotencyKey
from django_idempotency.operations import (
    CallInTransaction,
    Declined,
    MayNotSendAgain,
    Misused,
    NotStorable,
    OperationChanged,
)
from django_idempotency.phasing import current_key
from django_idempotency.storage.base import NEVER
from tests.support.workshops import on_both_stores, taken_over

pytestmark = on_both_stores


@pytest.fixture(autouse=True)
def nobody_owns_a_key_in_the_end(workshop):
    yield
    assert current_key.get() is None


@pytest.fixture
def pay(workshop):
    """Reserve, authorise, record, against a system that takes keys."""

    def pay(op, *, amount):
        reserved = op.phase("reserve", lambda: workshop.effect(f"reserved {amount}", {"amount": amount}))
        charge = op.call("authorise", workshop.send("authorise", {"charge": 1}))
        return op.finish(lambda: workshop.effect("recorded", {**reserved, **charge}))

    return workshop.declare(pay, downstream_takes_keys=True)


def held_because(workshop):
    return workshop.row().held_reason


def is_for_a_person(workshop):
    return workshop.row().sweep_after == NEVER


# --- once ---


def test_it_runs_once_and_a_repetition_gets_its_answer(workshop, pay):
    first = workshop.run(pay, amount=5)
    assert (first.status, first.data, first.replayed) == (201, {"amount": 5, "charge": 1}, False)
    again = workshop.run(pay, amount=5)
    assert (again.status, again.data, again.replayed) == (201, {"amount": 5, "charge": 1}, True)
    assert workshop.effects == ["recorded", "reserved 5"]
    assert workshop.sent == [("authorise", workshop.derived_key(pay, "authorise"))]


def test_the_same_key_with_other_parameters_is_refused(workshop, pay):
    workshop.run(pay, amount=5)
    with pytest.raises(KeyReused):
        workshop.run(pay, amount=6)
    assert workshop.effects == ["recorded", "reserved 5"]


def test_parameters_are_compared_as_the_operation_says(workshop):
    note = workshop.declare(
        lambda op, **ignored: op.finish(lambda: None), name="tests.note", fingerprint=FingerprintRules(exclude=["at"])
    )
    workshop.run(note, text="a", at=1)
    assert workshop.run(note, at=2, text="a").replayed
    with pytest.raises(KeyReused):
        workshop.run(note, text="b", at=1)


def test_an_operation_may_have_no_steps_but_its_end(workshop):
    only = workshop.declare(lambda op: op.finish(lambda: workshop.effect("only"), status=200), name="tests.only")
    assert workshop.run(only).status == 200
    assert workshop.run(only).replayed
    assert workshop.effects == ["only"]


def test_keys_belong_to_their_scope_and_their_operation(workshop, pay):
    workshop.run(pay, amount=5)
    assert not pay.run(scope="other", key=workshop.key, parameters={"amount": 5}).replayed
    twin = workshop.declare(pay.definition.function, name="tests.twin", downstream_takes_keys=True)
    assert not workshop.run(twin, amount=5).replayed
    assert len(set(workshop.sent)) == 3


@pytest.mark.parametrize("key", ["", " ", "k" * 256, "new\nline", "ключ"])
def test_a_key_that_is_none_is_refused(workshop, pay, key):
    with pytest.raises(MalformedKey):
        pay.run(scope="a", key=key, parameters={"amount": 5})
    assert workshop.sent == []


@pytest.mark.parametrize("key", [None, 5, b"key"])
def test_a_key_that_is_no_text_is_a_mistake(workshop, pay, key):
    with pytest.raises(TypeError, match="must be a str"):
        pay.run(scope="a", key=key, parameters={"amount": 5})


@pytest.mark.parametrize("key", ['with "quotes" and \\', "invoice 4711, December", "k" * 255])
def test_any_printable_text_is_a_key(workshop, pay, key):
    pay.run(scope="a", key=key, parameters={"amount": 5})
    assert pay.run(scope="a", key=key, parameters={"amount": 5}).replayed


def test_it_is_still_a_function_with_a_name(pay):
    assert pay.__name__ == "pay"


# --- phases ---


def test_a_phase_commits_with_its_result_before_the_next_step_begins(workshop, rival):
    def two(op):
        op.phase("first", lambda: workshop.effect("first", {"b": (1, 2), "a": 1}))
        assert rival.store.find(workshop.record(called).id).progress.step("first").result == {"a": 1, "b": [1, 2]}
        assert workshop.row().recovery_point == "first"
        return op.finish(lambda: None)

    called = workshop.declare(two)
    workshop.run(called)


def test_a_result_is_what_a_resumed_run_will_get(workshop):
    seen = []

    def two(op):
        seen.append(json.dumps(op.phase("first", lambda: {"zebra": 1e22, "a": (1, -0.0)})))
        return op.finish(lambda: 1 / (len(seen) - 1))

    called = workshop.declare(two)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    workshop.lapse()
    workshop.run(called)
    assert seen == ['{"a": [1, 0.0], "zebra": 10000000000000000000000}'] * 2


def test_what_happens_to_a_result_is_not_recorded_with_the_next_step(workshop):
    def careless(op, *, order):
        result = op.phase("first", lambda: {"items": [1]})
        result["items"].append(2)
        order["lines"].append("mine")
        answer = op.call("second", workshop.send("second", {"a": {}}))
        answer["a"]["b"] = 1
        op.phase("third", lambda: None)
        progress = workshop.record(called).progress
        assert progress.parameters == {"order": {"lines": []}}
        assert [step.result for step in progress.steps] == [{"items": [1]}, {"a": {}}, None]
        return op.finish(lambda: None)

    called = workshop.declare(careless)
    workshop.run(called, order={"lines": []})


def test_a_first_phase_that_fails_leaves_nothing_and_frees_the_key(workshop):
    def failing(op):
        return op.phase("first", lambda: (workshop.effect("first"), 1 / 0))

    called = workshop.declare(failing)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            workshop.run(called)
        assert workshop.record(called) is None
    assert workshop.effects == []


def test_a_later_phase_that_fails_is_held_and_gone_on_with(workshop, caplog):
    fails = [True]

    def two(op):
        op.phase("first", lambda: workshop.effect("first"))
        op.phase("second", lambda: (workshop.effect("second"), 1 / (not fails)))
        return op.finish(lambda: "done")

    called = workshop.declare(two)
    with pytest.raises(OutcomeUnknown) as caught:
        workshop.run(called)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert workshop.effects == ["first"]
    assert held_because(workshop) == "ZeroDivisionError"
    (line,) = [each for each in caplog.records if "is held" in each.message]
    assert line.exc_info[1] is caught.value.__cause__, "the developer needs the traceback"
    fails.clear()
    workshop.lapse()
    assert workshop.run(called).data == "done"
    assert workshop.effects == ["first", "second"]


def test_a_phase_that_failed_may_be_tried_again_in_the_same_run(workshop):
    tries = []

    def unique():
        tries.append(1)
        workshop.effect(f"try {len(tries)}")
        if len(tries) < 3:
            raise IntegrityError
        return len(tries)

    def persistent(op):
        op.phase("before", lambda: None)
        for _ in range(3):
            try:
                op.phase("number", unique)
                break
            except IntegrityError:
                assert workshop.record(called).progress.step("number") is None
        return op.finish(lambda: len(tries))

    called = workshop.declare(persistent)
    assert workshop.run(called).data == 3
    assert workshop.effects == ["try 3"]


def test_a_phase_that_failed_is_not_recorded_with_the_step_after_it(workshop):
    def branching(op):
        try:
            op.phase("reserve", lambda: (workshop.effect("reserved"), 1 / 0))
        except ZeroDivisionError:
            op.phase("apologise", lambda: workshop.effect("sorry"))
        steps = [step.name for step in workshop.record(called).progress.steps]
        return op.finish(lambda: steps)

    called = workshop.declare(branching)
    assert workshop.run(called).data == ["apologise"]
    assert workshop.effects == ["sorry"]


def test_steps_in_a_phase_are_refused_and_undo_it(workshop):
    def nested(op):
        return op.phase("outer", lambda: (workshop.effect("outer"), op.phase("inner", lambda: None)))

    called = workshop.declare(nested)
    with pytest.raises(RuntimeError, match="durable"):
        workshop.run(called)
    assert workshop.record(called) is None
    assert workshop.effects == []


# --- calls ---


def test_a_call_is_recorded_before_it_is_sent_and_again_with_its_answer(workshop, rival):
    def one(op):
        def look(key):
            seen = rival.store.find(workshop.record(called).id)
            (step,) = seen.progress.steps
            assert (step.name, step.kind, step.done, step.sends) == ("send", StepKind.CALL, False, 1)
            assert step.key == key == op.derived_key("send") == workshop.derived_key(called, "send")
            assert abs(step.started_at - workshop.store.now()) < 10
            assert seen.progress.parameters == {"amount": 5}
            return {"ok": True}

        assert op.call("send", look) == {"ok": True}
        (step,) = workshop.record(called).progress.steps
        assert (step.done, step.result, step.sends) == (True, {"ok": True}, 1)
        return op.finish(lambda: None)

    called = workshop.declare(lambda op, amount: one(op), name="tests.one")
    workshop.run(called, amount=5)


def test_the_time_limit_of_a_call_is_told_to_it(workshop):
    called = workshop.declare(
        lambda op: op.finish(lambda: op.call_timeout), name="tests.limit", call_timeout=timedelta(seconds=2.5)
    )
    assert workshop.run(called).data == 2.5


def silent(workshop, *, error=None, times=1, **how):
    """An operation whose call has no answer, at first."""
    answers = [error or TimeoutError("card 4242 did not answer")] * times + ["yes"]

    def ask(op, *, amount=5):
        op.phase("reserve", lambda: workshop.effect("reserved"))
        answer = op.call("authorise", workshop.send("authorise", lambda: _raised(answers.pop(0))))
        return op.finish(lambda: workshop.effect("recorded", {"answer": answer, "amount": amount}))

    return workshop.declare(ask, **how)


def _raised(answer):
    if isinstance(answer, BaseException):
        raise answer
    return answer


def test_a_call_without_an_answer_is_held_and_says_no_more_than_its_kind(workshop):
    called = silent(workshop)
    with pytest.raises(OutcomeUnknown) as caught:
        workshop.run(called)
    assert 1 <= caught.value.retry_after <= 30
    assert held_because(workshop) == "the call 'authorise' ended in TimeoutError"
    record = workshop.record(called)
    assert (record.state, record.progress.open_call.name) == (State.IN_FLIGHT, "authorise")
    assert workshop.effects == ["reserved"]


def test_while_it_is_leased_a_retry_hears_how_long(workshop):
    called = silent(workshop, downstream_takes_keys=True)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    with pytest.raises(InProgress) as caught:
        workshop.run(called)
    assert 0 < caught.value.retry_after <= 30
    with pytest.raises(KeyReused):
        workshop.run(called, amount=6)
    assert len(workshop.sent) == 1


def test_then_it_is_sent_again_under_the_same_key_where_the_other_side_takes_keys(workshop):
    called = silent(workshop, downstream_takes_keys=True, times=2)
    since = []
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            workshop.run(called)
        since.append(workshop.row().held_at)
        workshop.lapse()
    assert since[0] == since[1], "held since the first time"
    assert workshop.record(called).progress.open_call.sends == 2
    assert workshop.run(called).data == {"answer": "yes", "amount": 5}
    assert workshop.sent == [("authorise", workshop.derived_key(called, "authorise"))] * 3
    assert workshop.effects == ["recorded", "reserved"]
    assert workshop.run(called).replayed


def test_and_never_where_it_takes_none(workshop):
    called = silent(workshop)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    workshop.lapse()
    for _ in range(2):
        with pytest.raises(Held):
            workshop.run(called)
    assert len(workshop.sent) == 1
    assert held_because(workshop) == "the call 'authorise' ended in TimeoutError"


def test_a_first_step_that_is_a_call_keeps_its_key_from_another_amount(workshop):
    """Released, the next request would send another amount under the same derived key."""

    def ask(op, *, amount):
        op.call("authorise", workshop.send("authorise", TimeoutError()))

    called = workshop.declare(ask, downstream_takes_keys=True)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called, amount=5)
    for _ in range(2):
        with pytest.raises(KeyReused):
            workshop.run(called, amount=6)
        workshop.lapse()
    assert workshop.record(called).progress.parameters == {"amount": 5}
    assert len(workshop.sent) == 1


def test_nor_once_the_other_side_may_have_forgotten_the_key(workshop):
    called = silent(workshop, downstream_takes_keys=True, downstream_retention=timedelta(milliseconds=1))
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    workshop.lapse()
    with pytest.raises(Held):
        workshop.run(called)
    assert len(workshop.sent) == 1


def test_a_run_may_send_again_by_itself_where_the_other_side_takes_keys(workshop):
    def patient(op):
        for _ in range(2):
            with suppress(OutcomeUnknown):
                op.call("send", workshop.send("send", TimeoutError()))
        op.call("send", workshop.send("send"))
        return op.finish(lambda: None)

    called = workshop.declare(patient, downstream_takes_keys=True)
    workshop.run(called)
    assert workshop.sent == [("send", workshop.derived_key(called, "send"))] * 3
    impatient = workshop.declare(patient)
    with pytest.raises(OutcomeUnknown) as caught:
        workshop.run(impatient)
    assert isinstance(caught.value.__cause__, MayNotSendAgain)
    assert len(workshop.sent) == 4
    assert "may not be sent again: the other side takes no keys" in caught.value.__cause__.args[0]


def test_an_operation_that_swallows_it_cannot_finish_and_begin_nothing_else(workshop):
    """Sealed as failed, an effect that came about would be told to nobody."""
    attempts = []

    def careless(op):
        try:
            op.call("authorise", workshop.send("authorise", TimeoutError()))
        except Exception:  # noqa: BLE001 - as careless as it is meant to be
            for attempt in (
                lambda: op.finish(lambda: {"status": "failed"}, status=402),
                lambda: op.phase("give up", lambda: workshop.effect("gave up")),
                lambda: op.call("other", workshop.send("other")),
            ):
                with pytest.raises(OutcomeUnknown):
                    attempt()
                attempts.append(attempt)
        return op.finish(lambda: None)

    called = workshop.declare(careless)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    assert len(attempts) == 3
    assert (workshop.effects, len(workshop.sent)) == ([], 1)
    assert held_because(workshop) == "the call 'authorise' ended in TimeoutError"


def test_a_process_that_is_told_to_end_in_a_call_ends_and_the_key_is_held(workshop):
    called = silent(workshop, error=SystemExit(1))
    with pytest.raises(SystemExit):
        workshop.run(called)
    assert held_because(workshop) == "SystemExit"
    assert workshop.record(called).progress.open_call.name == "authorise"


def test_a_decline_is_recorded_and_every_later_run_takes_the_same_way(workshop):
    fails = [True]

    def ask(op):
        try:
            op.call("authorise", workshop.send("authorise", Declined({"code": "no_funds"})))
        except Declined as declined:
            result = declined.result
        op.phase("give back", lambda: 1 / (not fails))
        return op.finish(lambda: result, status=402)

    called = workshop.declare(ask)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    step = workshop.record(called).progress.step("authorise")
    assert (step.done, step.declined, step.result) == (True, True, {"code": "no_funds"})
    fails.clear()
    workshop.lapse()
    answer = workshop.run(called)
    assert (answer.status, answer.data) == (402, {"code": "no_funds"})
    assert len(workshop.sent) == 1
    assert workshop.run(called).status == 402


def test_a_decline_that_nobody_catches_is_held(workshop):
    called = silent(workshop, error=Declined("no"))
    with pytest.raises(OutcomeUnknown) as caught:
        workshop.run(called)
    assert isinstance(caught.value.__cause__, Declined)
    assert held_because(workshop) == "Declined"


def test_a_call_in_a_phase_is_refused_and_undoes_it(workshop):
    def nested(op):
        return op.phase("outer", lambda: op.call("inner", workshop.send("inner")))

    called = workshop.declare(nested)
    with pytest.raises(CallInTransaction, match=r"op.call\('inner'\) inside a transaction on 'l"):
        workshop.run(called)
    assert workshop.sent == []
    assert workshop.record(called) is None


def test_a_call_in_a_transaction_of_any_alias_is_refused(workshop, rival):
    def around(op):
        op.phase("first", lambda: None)
        with transaction.atomic(using=rival.alias):
            return op.call("send", workshop.send("send"))

    called = workshop.declare(around)
    with pytest.raises(OutcomeUnknown) as caught:
        workshop.run(called)
    assert isinstance(caught.value.__cause__, CallInTransaction)
    assert workshop.sent == []
    assert rival.alias in held_because(workshop)
    assert workshop.record(called).progress.open_call is None


def test_a_call_on_a_connection_without_autocommit_is_refused(workshop, rival):
    connections[rival.alias].ensure_connection()
    connections[rival.alias].set_autocommit(False)
    called = workshop.declare(lambda op: op.call("send", workshop.send("send")), name="tests.manual")
    try:
        with pytest.raises(CallInTransaction):
            workshop.run(called)
    finally:
        connections[rival.alias].rollback()
        connections[rival.alias].set_autocommit(True)
    assert workshop.sent == []


# --- what is not JSON ---


def test_parameters_that_are_not_json_are_refused_before_anything_begins(workshop, pay):
    with pytest.raises(NotStorable, match=r"^parameters\.order\.placed\[0\] is a date"):
        workshop.run(pay, order={"placed": [date(2026, 12, 1)]})
    assert not IdempotencyKey.objects.using(workshop.alias).filter(state="in_flight").exists()


def test_a_phase_whose_result_is_not_json_is_undone(workshop):
    called = workshop.declare(
        lambda op: op.phase("reserve", lambda: (workshop.effect("reserved"), {"at": date(2026, 12, 1)})[1]),
        name="tests.dates",
    )
    with pytest.raises(NotStorable, match=r"^the result of the phase 'reserve'\.at is a date"):
        workshop.run(called)
    assert workshop.effects == []
    assert workshop.record(called) is None


def test_a_call_whose_result_is_not_json_has_happened_and_is_held(workshop):
    def ask(op):
        try:
            return op.call("send", workshop.send("send", {"id": 1, "at": [date(2026, 12, 1)]}))
        except NotStorable:
            return op.finish(lambda: "never mind", status=409)

    called = workshop.declare(ask, downstream_takes_keys=True)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    assert held_because(workshop) == (
        "the result of the call 'send'.at[0] is a date, which is not JSON: convert it, to a str for example."
    )
    assert workshop.record(called).progress.open_call.name == "send"

    def corrected(op):
        answer = op.call("send", workshop.send("send", {"id": 1}))
        return op.finish(lambda: answer)

    corrected = workshop.redeclare(called, corrected, downstream_takes_keys=True)
    workshop.lapse()
    assert workshop.run(corrected).data == {"id": 1}
    assert len(set(workshop.sent)) == 1


def test_an_answer_that_is_not_json_undoes_the_end(workshop):
    def ending(op):
        op.phase("first", lambda: workshop.effect("first"))
        return op.finish(lambda: (workshop.effect("last"), {"at": date(2026, 12, 1)}))

    called = workshop.declare(ending)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    assert workshop.effects == ["first"]
    assert held_because(workshop).startswith("the result of finish[1].at is a date")


# --- names ---


def test_loops_and_branches_are_possible_with_a_name_for_each_turn(workshop):
    stops_at = [2]

    def book(number):
        workshop.effect(f"booked {number}")
        if number in stops_at:
            raise ValueError

    def each(op, *, orders):
        for number, order in enumerate(orders):
            if order["by_card"]:
                op.call(f"charge {number}", workshop.send(f"charge {number}"))
            op.phase(f"book {number}", partial(book, number))
        return op.finish(lambda: len(orders))

    called = workshop.declare(each)
    orders = [{"by_card": number % 2 == 1} for number in range(4)]
    with pytest.raises(OutcomeUnknown):
        workshop.run(called, orders=orders)
    stops_at.clear()
    workshop.lapse()
    assert workshop.run(called, orders=orders).data == 4
    assert workshop.effects == ["booked 0", "booked 1", "booked 2", "booked 3"]
    assert [step for step, _ in workshop.sent] == ["charge 1", "charge 3"]


@pytest.mark.parametrize("second", ["phase", "call"])
def test_a_name_that_is_used_twice_is_held_for_a_person(workshop, second):
    def twice(op):
        op.phase("step", lambda: workshop.effect("first"))
        getattr(op, second)("step", lambda *key: workshop.effect("second"))

    called = workshop.declare(twice)
    with pytest.raises(OutcomeUnknown) as caught:
        workshop.run(called)
    assert isinstance(caught.value.__cause__, OperationChanged)
    assert held_because(workshop) == "The step 'step' was reached twice; in a loop, give each turn a name of its own."
    assert is_for_a_person(workshop)
    assert workshop.effects == ["first"]


@pytest.mark.parametrize("name", ["", "x" * 256, "line\nbreak", "nul\0"])
def test_a_name_that_cannot_be_stored_is_a_mistake(workshop, name):
    called = workshop.declare(lambda op: op.phase(name, lambda: workshop.effect("done")), name="tests.names")
    with pytest.raises(Misused, match="The name of a step must have 1 to 255 printable characters"):
        workshop.run(called)
    assert workshop.effects == []
    assert workshop.record(called) is None


# --- code that changed meanwhile ---


def after_a_deployment(workshop, change, **how):
    """One phase and one call are recorded, and the next step failed. What the new code makes of it."""

    def old(op, *, amount):
        op.phase("reserve", lambda: workshop.effect("reserved"))
        op.call("authorise", workshop.send("authorise"))
        op.phase("record", lambda: 1 / 0)

    called = workshop.declare(old, downstream_takes_keys=True)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called, amount=5)
    workshop.lapse()
    return workshop.redeclare(called, change, downstream_takes_keys=True, **how)


CHANGES = {
    "a step is gone": (
        lambda workshop: lambda op, *, amount: (op.phase("reserve", lambda: 0), op.phase("book", lambda: 0)),
        "Recorded, and not reached any more by .* before the step 'book': authorise",
    ),
    "all are gone": (
        lambda workshop: lambda op, *, amount: op.finish(lambda: workshop.effect("recorded")),
        "not reached any more by .* before op.finish: reserve, authorise",
    ),
    "a new step in front": (
        lambda workshop: lambda op, *, amount: op.phase("check", lambda: workshop.effect("checked")),
        "before the step 'check': reserve, authorise",
    ),
    "another kind": (
        lambda workshop: lambda op, *, amount: op.call("reserve", workshop.send("reserve")),
        "The step 'reserve' was recorded as a phase",
    ),
    "another name for a parameter": (
        lambda workshop: lambda op, *, total: op.phase("reserve", lambda: 0),
        "What was recorded does not fit .* any more: .*'total'|'amount'",
    ),
    "one more parameter": (
        lambda workshop: lambda op, *, amount, currency: op.phase("reserve", lambda: 0),
        "does not fit .* any more: missing a required .*argument: 'currency'",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_code_does_not_know_any_more_is_for_a_person_and_not_guessed(workshop, change):
    make, message = CHANGES[change]
    changed = after_a_deployment(workshop, make(workshop))
    with pytest.raises(OutcomeUnknown) as caught:
        workshop.run(changed, amount=5)
    assert isinstance(caught.value.__cause__, OperationChanged)
    with pytest.raises(OperationChanged, match=message):
        raise caught.value.__cause__
    assert held_because(workshop) == str(caught.value.__cause__)
    assert is_for_a_person(workshop)
    assert workshop.effects == ["reserved"]
    assert [step for step, _ in workshop.sent] == ["authorise"]


def test_a_deployment_that_is_taken_back_lets_it_go_on(workshop):
    changed = after_a_deployment(workshop, lambda op, *, amount: op.finish(lambda: 0))
    with pytest.raises(OutcomeUnknown):
        workshop.run(changed, amount=5)

    def old(op, *, amount):
        op.phase("reserve", lambda: workshop.effect("again"))
        op.call("authorise", workshop.send("again"))
        op.phase("record", lambda: workshop.effect("recorded"))
        return op.finish(lambda: "done")

    workshop.lapse()
    assert workshop.run(workshop.redeclare(changed, old), amount=5).data == "done"
    assert workshop.effects == ["recorded", "reserved"]


def test_new_steps_at_the_end_are_no_change(workshop):
    def longer(op, *, amount):
        op.phase("reserve", lambda: workshop.effect("again"))
        op.call("authorise", workshop.send("again"))
        op.phase("thank", lambda: workshop.effect("thanked"))
        return op.finish(lambda: amount)

    assert workshop.run(after_a_deployment(workshop, longer), amount=5).data == 5
    assert workshop.effects == ["reserved", "thanked"]


def test_an_operation_that_nobody_declares_any_more_is_held(workshop):
    changed = after_a_deployment(workshop, lambda op, *, amount: None)
    registry._definitions.pop(changed.definition.name)
    with pytest.raises(Held):
        workshop.run(changed, amount=5)


# --- the end ---


def test_an_operation_that_does_not_finish_is_held_and_says_so(workshop):
    def endless(op):
        op.phase("first", lambda: None)
        return "done"

    called = workshop.declare(endless)
    with pytest.raises(OutcomeUnknown) as caught:
        workshop.run(called)
    assert isinstance(caught.value.__cause__, Misused)
    assert "must return op.finish(...)" in held_because(workshop)


def test_an_operation_without_a_step_or_an_end_frees_the_key(workshop):
    called = workshop.declare(lambda op: None, name="tests.nothing")
    with pytest.raises(Misused, match=r"The operation 'tests.nothing' must return op.finish\(...\)"):
        workshop.run(called)
    assert workshop.record(called) is None


def test_what_follows_the_end_is_refused_and_the_answer_stands(workshop):
    refused = []

    def talkative(op):
        answer = op.finish(lambda: "done")
        for more in (
            lambda: op.phase("more", lambda: workshop.effect("more")),
            lambda: op.call("more", workshop.send("more")),
            lambda: op.finish(lambda: "again"),
        ):
            with pytest.raises(Misused, match=r"after op\.finish"):
                more()
            refused.append(more)
        return answer

    called = workshop.declare(talkative)
    assert workshop.run(called).data == "done"
    assert len(refused) == 3
    assert workshop.run(called).data == "done"
    assert (workshop.effects, workshop.sent) == ([], [])


def test_an_operation_that_fails_after_its_end_is_loud_and_its_answer_stands(workshop):
    called = workshop.declare(lambda op: (op.finish(lambda: "done"), 1 / 0), name="tests.late")
    with pytest.raises(ZeroDivisionError):
        workshop.run(called)
    assert workshop.run(called).data == "done"


@pytest.mark.parametrize("status", [100, 199, 500, 503])
def test_an_answer_that_is_none_is_refused(workshop, status):
    called = workshop.declare(
        lambda op: op.finish(lambda: workshop.effect("done"), status=status), name="tests.statuses"
    )
    with pytest.raises(Misused, match=f"status={status}"):
        workshop.run(called)
    assert workshop.effects == []
    assert workshop.record(called) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Location": "/payments/7"},
        ["Location"],
        [("Location", None)],
        [("X-Count", 5)],
        [("Location", "/7", "/8")],
        [("", "/7")],
        [("Lo cation", "/7")],
        [("Location", "/7\r\nSet-Cookie: a=b")],
        [("Location", "/7\0")],
        [("X-Name", "\ud83d")],
        [("Set-Cookie", "session=1")],
        [("content-length", "7")],
        [("RateLimit-Limit", "7")],
    ],
)
def test_headers_that_no_retry_could_be_sent_are_refused_before_they_are_sealed(workshop, headers):
    called = workshop.declare(
        lambda op: op.finish(lambda: workshop.effect("done"), headers=headers), name="tests.headers"
    )
    with pytest.raises(Misused, match="headers="):
        workshop.run(called)
    assert (workshop.effects, workshop.record(called)) == ([], None)


def test_an_answer_keeps_the_order_of_its_members_and_its_headers(workshop):
    called = workshop.declare(
        lambda op: op.finish(lambda: {"id": 7, "amount": 1.0}, headers=[("Location", "/payments/7"), ("X-Z", "ü")]),
        name="tests.order",
    )
    assert list(workshop.run(called).data) == ["id", "amount"]
    response = workshop.record(called).response
    assert response.body == b'{"id":7,"amount":1.0}'
    assert response.headers == (("Content-Type", "application/json"), ("Location", "/payments/7"), ("X-Z", "ü"))


def test_an_answer_without_content_has_none(workshop):
    called = workshop.declare(lambda op: op.finish(lambda: None, status=204), name="tests.empty")
    assert workshop.run(called).data is None
    assert workshop.record(called).response.body == b""
    assert (workshop.run(called).status, workshop.run(called).data) == (204, None)


def test_an_answer_over_the_limit_is_given_once_and_not_kept(workshop):
    called = workshop.declare(
        lambda op: op.finish(lambda: workshop.effect("done", "x" * 100)), name="tests.long", max_response_bytes=50
    )
    assert workshop.run(called).data == "x" * 100
    with pytest.raises(ResponseNotStored) as caught:
        workshop.run(called)
    assert caught.value.original_status == 201
    assert workshop.effects == ["done"]


def test_an_answer_is_stored_by_the_codec_of_the_operation(workshop):
    codec = BodyCodec(pack=lambda body: body[::-1], unpack=lambda stored: stored[::-1])
    called = workshop.declare(lambda op: op.finish(lambda: {"a": 1}), name="tests.codec", body_codec=codec)
    assert workshop.run(called).data == {"a": 1}
    assert workshop.record(called).response.body == b'}1:"a"{'
    assert workshop.run(called).data == {"a": 1}


def test_it_is_kept_for_as_long_as_the_operation_says(workshop):
    called = workshop.declare(lambda op: op.finish(lambda: 1), name="tests.kept", retention=timedelta(days=3))
    workshop.run(called)
    row = IdempotencyKey.objects.using(workshop.alias).get(id=workshop.record(called).id)
    assert timedelta(days=2, hours=23) < row.expires_at - timezone.now() <= timedelta(days=3)


def test_the_lease_and_the_threshold_of_the_operation_hold_from_its_first_step(workshop):
    def leased(op):
        op.phase("first", lambda: None)
        assert 89 < workshop.record(called).lease_left <= 90
        assert workshop.row().stale_after == 7.5
        return op.finish(lambda: None)

    called = workshop.declare(leased, lease=timedelta(seconds=90), stale_after=timedelta(seconds=7.5))
    workshop.run(called)


def test_a_sweeper_waits_twice_as_long_as_a_call_may_take_unless_told_otherwise(workshop):
    called = workshop.declare(lambda op: None, name="tests.default", call_timeout=timedelta(seconds=4))
    assert called.definition.stale_after == timedelta(seconds=8)


# --- in the wrong place ---


def test_inside_an_open_transaction_it_is_refused_with_the_way_out(workshop, pay):
    with transaction.atomic(using=workshop.alias):
        with pytest.raises(Exception, match=f"atomic.. block on '{workshop.alias}' is open around"):
            workshop.run(pay, amount=5)
        assert not connections[workshop.alias].needs_rollback, "the project's transaction is usable"
    assert workshop.record(pay) is None
    assert workshop.sent == []


def test_called_like_a_function_outside_a_view_it_names_the_way(workshop, pay):
    with pytest.raises(Misused, match=r"'tests.pay.\d+' was called outside a view in PHASED mode.*pay.run\(scope="):
        pay(amount=5)


def test_a_step_in_another_thread_is_refused(workshop):
    caught = []

    def threaded(op):
        def beside():
            for step in (
                lambda: op.phase("beside", lambda: None),
                lambda: op.call("beside", lambda key: None),
                lambda: op.finish(lambda: None),
            ):
                try:
                    step()
                except Misused as error:
                    caught.append(str(error))

        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        return op.finish(lambda: None)

    workshop.run(workshop.declare(threaded))
    assert len(caught) == 3
    assert all("in another thread" in message for message in caught)


def test_an_operation_does_not_go_on_over_another_that_it_began_under_its_key(workshop):
    """It would seal over a call that has no answer."""

    def inner(op):
        op.call("charge", workshop.send("charge", TimeoutError()))
        return op.finish(lambda: "charged")

    inner = workshop.declare(inner)

    def outer(op):
        with suppress(OutcomeUnknown):
            return inner()
        return op.finish(lambda: "nothing happened", status=409)

    called = workshop.declare(outer)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    assert workshop.record(called).progress.open_call.name == "charge"


def test_an_operation_in_another_thread_is_refused_too(workshop):
    """It knows the key where it was started with a copy of the context, as asgiref does. Two of them would both own
    it."""
    refused = []

    def inner(op):
        op.phase("reserve", partial(workshop.effect, "reserved"))
        return op.finish(lambda: None)

    inner = workshop.declare(inner)

    def attempt():
        try:
            inner()
        except Misused as error:
            refused.append(str(error))

    def outer(op):
        thread = threading.Thread(target=copy_context().run, args=(attempt,))
        thread.start()
        thread.join()
        return op.finish(lambda: "alone")

    assert workshop.run(workshop.declare(outer)).data == "alone"
    assert ["in another thread" in text for text in refused] == [True]
    assert workshop.effects == []


def test_an_operation_in_an_operation_has_a_key_of_its_own(workshop):
    inner = workshop.declare(lambda op: op.finish(lambda: workshop.effect("inner", "inner")), name="tests.inner")

    def outer(op):
        mine = current_key.get()
        data = inner.run(scope="x", key=workshop.key, parameters={}).data
        assert current_key.get() is mine
        return op.finish(lambda: [data, "outer"])

    called = workshop.declare(outer, name="tests.outer")
    assert workshop.run(called).data == ["inner", "outer"]


def test_an_owner_that_was_overtaken_before_it_began_learns_it(workshop, rival):
    def late(op):
        taken_over(workshop, rival)
        op.call("send", workshop.send("send"))

    called = workshop.declare(late)
    with pytest.raises(LeaseLost):
        workshop.run(called)
    assert workshop.sent == [], "it must not even send"
