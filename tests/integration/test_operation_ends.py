"""What the database knows when somebody else does not: lost COMMITs, lost connections, lost leases."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from unittest.mock import Mock

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction

from django_idempotency import BodyCodec
from django_idempotency.core.errors import InProgress, LeaseLost, OutcomeUnknown, StoreUnavailable, TransactionConflict
from django_idempotency.core.states import Sealing, State
from django_idempotency.operations import Misused
from django_idempotency.ownership import Outcome
from django_idempotency.phasing import current_key
from tests.support.keys import CREATED
from tests.support.workshops import break_connection, commits, on_both_stores, on_postgres, taken_over

# --- the COMMIT of a phase ---


def two_phases(workshop, around, which):
    """The COMMIT of one of two phases and an end goes through ``around``."""

    def step(op, name):
        with around() if name == which else Mock(__enter__=Mock(), __exit__=Mock(return_value=False)):
            if name == "end":
                return op.finish(partial(workshop.effect, name, "done"))
            return op.phase(name, partial(workshop.effect, name, name))

    def two(op):
        return [step(op, name) for name in ("first", "second", "end")][-1]

    return workshop.declare(two)


@on_both_stores
@pytest.mark.parametrize("which", ["first", "second", "end"])
def test_a_commit_whose_answer_was_lost_is_no_failure(workshop, which):
    called = two_phases(workshop, lambda: commits(workshop.alias, really=True), which)
    assert workshop.run(called).data == "done"
    assert workshop.effects == ["end", "first", "second"]
    assert workshop.run(called).replayed


@on_both_stores
@pytest.mark.parametrize("which", ["first", "second", "end"])
def test_a_hook_that_fails_behind_the_commit_is_no_failure(workshop, which, caplog):
    def hook():
        raise ZeroDivisionError

    def step(op, name):
        def act():
            if name == which:
                transaction.on_commit(hook, using=workshop.alias)
            return workshop.effect(name, "done")

        return op.finish(act) if name == "end" else op.phase(name, act)

    called = workshop.declare(
        lambda op: [step(op, name) for name in ("first", "second", "end")][-1], name="tests.hooks"
    )
    assert workshop.run(called).data == "done"
    assert workshop.effects == ["end", "first", "second"]
    assert "is committed; what follows the COMMIT failed" in caplog.text


@on_both_stores
def test_a_first_phase_that_was_not_committed_frees_the_key(workshop):
    called = two_phases(workshop, lambda: commits(workshop.alias, really=False), "first")
    with pytest.raises(OperationalError):
        workshop.run(called)
    assert workshop.record(called) is None
    assert workshop.effects == []


@on_both_stores
@pytest.mark.parametrize("which", ["second", "end"])
def test_a_later_step_that_was_not_committed_is_held_and_gone_on_with(workshop, which):
    broken = [partial(commits, workshop.alias, really=False)]
    called = two_phases(
        workshop, lambda: broken.pop()() if broken else commits(workshop.alias, on=9, really=True), which
    )
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    assert workshop.effects == ["first", "second"][: 1 if which == "second" else 2]
    workshop.lapse()
    assert workshop.run(called).data == "done"
    assert workshop.effects == ["end", "first", "second"]


@on_both_stores
def test_a_commit_that_the_database_refuses_does_not_count_as_done(workshop):
    """The operation goes on after the error; the phase must not be recorded with its next step."""

    def branching(op):
        try:
            with commits(workshop.alias, really=False, error=IntegrityError("a deferred constraint")):
                op.phase("reserve", partial(workshop.effect, "reserved"))
        except IntegrityError:
            op.phase("apologise", partial(workshop.effect, "sorry"))
        names = [step.name for step in workshop.record(called).progress.steps]
        return op.finish(lambda: names)

    called = workshop.declare(branching)
    assert workshop.run(called).data == ["apologise"]
    assert workshop.effects == ["sorry"]


@on_both_stores
@pytest.mark.parametrize("which", ["first", "end"])
def test_a_lost_answer_is_held_while_the_database_cannot_be_asked(workshop, which, monkeypatch):
    def lost():
        monkeypatch.setattr(type(workshop.store), "find", Mock(side_effect=OperationalError))
        monkeypatch.setattr(type(workshop.store), "release", Mock(side_effect=OperationalError))
        monkeypatch.setattr(type(workshop.store), "hold", Mock(side_effect=OperationalError))
        return commits(workshop.alias, really=True)

    called = two_phases(workshop, lost, which)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    monkeypatch.undo()
    if which == "end":
        assert workshop.run(called).data == "done"
    else:
        assert workshop.record(called).progress.recovery_point == "first"


@contextmanager
def unanswerable(workshop, monkeypatch):
    """A COMMIT succeeds and its answer is lost, while the database cannot be asked."""
    with commits(workshop.alias, really=True), monkeypatch.context() as patched:
        patched.setattr(type(workshop.store), "find", Mock(side_effect=OperationalError))
        yield


def in_progress(workshop, _monkeypatch):
    """A connection breaks while its COMMIT goes on: at the look-up it is not done yet."""
    return commits(workshop.alias, really=False)


def interrupted(workshop, _monkeypatch):
    """The process is told to end between a COMMIT and what follows it."""
    return commits(workshop.alias, really=True, error=KeyboardInterrupt())


@on_both_stores
@pytest.mark.parametrize("lost", [unanswerable, in_progress, interrupted])
@pytest.mark.parametrize("then", ["again", "another", "end"])
def test_nothing_is_built_on_a_commit_that_nobody_knows_the_end_of(workshop, monkeypatch, lost, then):
    """The operation swallows that error. Going on as if nothing were committed, it would do the phase a second time, or
    answer that it was not done."""

    def swallowing(op):
        with suppress(Exception, KeyboardInterrupt), lost(workshop, monkeypatch):
            op.phase("reserve", partial(workshop.effect, "reserved"))
        if then == "again":
            op.phase("reserve", partial(workshop.effect, "reserved"))
        if then == "another":
            op.phase("apologise", partial(workshop.effect, "sorry"))
        return op.finish(lambda: "nothing happened", status=409)

    called = workshop.declare(swallowing)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    if lost is in_progress:
        # Nothing was committed after all, and nothing stands where that was found out: by the write that waits for it.
        assert (workshop.effects, workshop.record(called)) == ([], None)
    else:
        assert workshop.effects == ["reserved"]
        assert workshop.record(called).progress.recovery_point == "reserve"
        assert "the COMMIT of the phase 'reserve' has no known end" in workshop.row().held_reason


@on_both_stores
def test_nor_by_a_second_run_of_it(workshop, monkeypatch):
    lost = [unanswerable]

    def pay(op):
        with lost.pop()(workshop, monkeypatch) if lost else nullcontext():
            op.phase("reserve", partial(workshop.effect, "reserved"))
        return op.finish(lambda: "done")

    pay = workshop.declare(pay)

    def again(_op):
        with suppress(OutcomeUnknown):
            return pay()
        return pay()

    called = workshop.declare(again)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    assert workshop.effects == ["reserved"]


@on_both_stores
def test_a_step_in_a_hook_behind_the_commit_is_refused(workshop, caplog):
    """The phase is committed, and not yet among the steps that the next one is recorded with."""

    def reserve(op):
        transaction.on_commit(lambda: op.call("notify", workshop.send("notify")), using=workshop.alias)
        return workshop.effect("reserved")

    def pay(op):
        op.phase("reserve", partial(reserve, op))
        op.call("authorise", workshop.send("authorise"))
        names = [step.name for step in workshop.record(called).progress.steps]
        return op.finish(lambda: names)

    called = workshop.declare(pay)
    assert workshop.run(called).data == ["reserve", "authorise"]
    assert [step for step, _ in workshop.sent] == ["authorise"]
    assert "what follows the COMMIT failed" in caplog.text


@on_both_stores
@pytest.mark.parametrize("which", ["phase", "end"])
def test_without_autocommit_nothing_is_taken_for_committed(workshop, which):
    def careless(op):
        connections[workshop.alias].set_autocommit(False)
        if which == "phase":
            op.phase("reserve", partial(workshop.effect, "reserved"))
        return op.finish(partial(workshop.effect, "done"))

    called = workshop.declare(careless)
    try:
        with pytest.raises(Misused, match="Autocommit was switched off"):
            workshop.run(called)
    finally:
        connections[workshop.alias].rollback()
        connections[workshop.alias].set_autocommit(True)
    assert workshop.effects == []


@on_both_stores
def test_an_answer_that_was_sealed_without_anybody_knowing_is_found_at_the_end(workshop, monkeypatch):
    """The look-up fails right after the COMMIT, and works when the view ends: what is sent is the answer."""
    codec = BodyCodec(pack=lambda body: body[::-1], unpack=lambda stored: stored[::-1])
    keys = []

    def only(op):
        keys.append(current_key.get())
        with monkeypatch.context() as patched:
            patched.setattr(type(workshop.store), "find", Mock(side_effect=OperationalError))
            with commits(workshop.alias, really=True):
                return op.finish(lambda: {"a": 1})

    called = workshop.declare(only, body_codec=codec)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    (key,) = keys
    assert key.finish(Outcome(503, Mock(), OutcomeUnknown())).body == b'{"a":1}'
    assert workshop.run(called).data == {"a": 1}


# --- a connection that breaks while a call lasts ---


@on_postgres
def test_an_answer_is_not_lost_with_the_connection_that_broke_meanwhile(workshop):
    called = workshop.declare(
        lambda op: op.finish(partial(workshop.effect, op.call("send", workshop.send("send", breaking(workshop))))),
        name="tests.breaking",
    )
    assert workshop.run(called).status == 201
    assert workshop.effects == ["answer"]
    assert len(workshop.sent) == 1


def breaking(workshop):
    def answer():
        break_connection(workshop.alias)
        return "answer"

    return answer


@on_postgres
def test_nothing_is_sent_where_the_connection_broke_before(workshop):
    breaks = [True]

    def idle(op):
        op.phase("first", lambda: None)
        if breaks:
            break_connection(workshop.alias)
        answer = op.call("send", workshop.send("send"))
        return op.finish(lambda: answer)

    called = workshop.declare(idle)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    assert workshop.sent == []
    assert workshop.record(called).progress.open_call is None
    breaks.clear()
    workshop.lapse()
    assert workshop.run(called).data == "yes"


@on_postgres
def test_a_key_is_freed_over_a_connection_that_broke_before(workshop):
    def failing(op):
        break_connection(workshop.alias)
        raise ZeroDivisionError

    called = workshop.declare(failing)
    with pytest.raises(ZeroDivisionError):
        workshop.run(called)
    assert workshop.record(called) is None


@on_both_stores
def test_an_answer_that_cannot_be_recorded_is_held(workshop, monkeypatch):
    def ask(op):
        def answer():
            monkeypatch.setattr(type(workshop.store), "advance", Mock(side_effect=OperationalError))
            return "yes"

        return op.call("send", workshop.send("send", answer))

    called = workshop.declare(ask, downstream_takes_keys=True)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    monkeypatch.undo()
    assert workshop.record(called).progress.open_call.name == "send"
    assert workshop.row().held_reason == "OperationalError"


@on_both_stores
def test_nothing_is_sent_where_it_cannot_be_announced(workshop, monkeypatch):
    called = workshop.declare(lambda op: op.call("send", workshop.send("send")), name="tests.mute")
    monkeypatch.setattr(type(workshop.store), "advance", Mock(side_effect=OperationalError))
    with pytest.raises(OperationalError):
        workshop.run(called)
    assert workshop.sent == []
    assert workshop.record(called) is None


@on_both_stores
def test_a_database_that_is_gone_leaves_the_key_to_its_lease(workshop, monkeypatch):
    def ask(op):
        op.phase("first", lambda: None)
        for method in ("advance", "find", "release", "hold"):
            monkeypatch.setattr(type(workshop.store), method, Mock(side_effect=OperationalError))
        return op.call("send", workshop.send("send"))

    called = workshop.declare(ask)
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    monkeypatch.undo()
    assert workshop.record(called).state is State.IN_FLIGHT
    assert workshop.row().held_reason is None
    with pytest.raises(InProgress):
        workshop.run(called)


@on_both_stores
def test_that_a_key_cannot_be_marked_as_held_is_no_other_answer(workshop, monkeypatch, caplog):
    monkeypatch.setattr(type(workshop.store), "hold", Mock(side_effect=OperationalError))
    called = workshop.declare(lambda op: op.call("send", workshop.send("send", TimeoutError())), name="tests.unmarked")
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    assert "could not be marked as held; its lease ends by itself" in caplog.text


@on_both_stores
def test_a_key_that_cannot_be_freed_though_nothing_began_is_held(workshop, monkeypatch):
    def failing(op):
        raise ZeroDivisionError

    called = workshop.declare(failing)
    monkeypatch.setattr(type(workshop.store), "release", Mock(side_effect=OperationalError))
    with pytest.raises(OutcomeUnknown):
        workshop.run(called)
    monkeypatch.undo()
    workshop.lapse()
    with pytest.raises(ZeroDivisionError):
        workshop.run(called)
    assert workshop.record(called) is None


# --- errors of the database in a phase ---


@on_postgres
def test_a_rival_in_the_first_phase_is_worth_a_repetition(workshop):
    def wait():
        workshop._ask("SET LOCAL statement_timeout = '20ms'")
        workshop._ask("SELECT pg_sleep(9)")

    called = workshop.declare(lambda op: op.phase("first", wait), name="tests.slow")
    with pytest.raises(TransactionConflict):
        workshop.run(called)
    assert workshop.record(called) is None


@on_postgres
def test_a_swallowed_database_error_in_a_phase_undoes_it(workshop):
    def swallowing(op):
        def act():
            workshop.effect("before")
            try:
                workshop._ask("SELECT 1 / 0")
            except DatabaseError:
                return "fine"

        return op.phase("first", act)

    called = workshop.declare(swallowing)
    with pytest.raises(DatabaseError):
        workshop.run(called)
    assert workshop.effects == []
    assert workshop.record(called) is None


@on_postgres
def test_a_constraint_that_speaks_at_the_commit_is_the_operations_own_error(workshop):
    workshop._ask("CREATE TABLE IF NOT EXISTS parent (id int PRIMARY KEY)")
    workshop._ask("CREATE TABLE IF NOT EXISTS child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    called = workshop.declare(
        lambda op: op.phase("first", lambda: workshop._ask("INSERT INTO child VALUES (1)")), name="tests.deferred"
    )
    with pytest.raises(IntegrityError):
        workshop.run(called)
    assert workshop.record(called) is None


@on_postgres
def test_no_partition_for_the_answer_is_held_until_there_is_one(workshop, monkeypatch):
    def two(op):
        op.phase("first", partial(workshop.effect, "first"))
        return op.finish(partial(workshop.effect, "end"))

    called = workshop.declare(two)
    monkeypatch.setattr(type(workshop.store), "seal", lambda *args, **kwargs: Sealing.NO_PARTITION)
    with pytest.raises(OutcomeUnknown) as caught:
        workshop.run(called)
    assert isinstance(caught.value.__cause__, StoreUnavailable)
    monkeypatch.undo()
    assert workshop.effects == ["first"]
    workshop.lapse()
    workshop.run(called)
    assert workshop.effects == ["end", "first"]


# --- an owner that lost its lease writes nothing, wherever it wakes up ---

MOMENTS = [
    "in the first phase",
    "before the call is announced",
    "in the call",
    "in a later phase",
    "in the end",
]


@on_postgres
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_owner_that_was_overtaken_writes_nothing_more(workshop, rival, moment):
    taken = []

    def at(here):
        if here == moment and not taken:
            taken.append(taken_over(workshop, rival))

    def operation(op):
        op.phase("first", lambda: (workshop.effect("first"), at("in the first phase"))[0])
        at("before the call is announced")
        op.call("send", workshop.send("send", lambda: at("in the call")))
        op.phase("second", lambda: (workshop.effect("second"), at("in a later phase"))[0])
        return op.finish(lambda: (workshop.effect("end"), at("in the end"))[0])

    called = workshop.declare(operation, downstream_takes_keys=True)
    before = {
        "in the first phase": [],
        "before the call is announced": ["first"],
        "in the call": ["first"],
        "in a later phase": ["first"],
        "in the end": ["first", "second"],
    }
    with pytest.raises(LeaseLost):
        workshop.run(called)
    assert workshop.effects == before[moment]
    (record,) = taken
    left = workshop.record(called)
    assert (left.owner_token, left.progress, left.held_reason) == (record.owner_token, record.progress, None)
    assert len(workshop.sent) == (0 if MOMENTS.index(moment) < 2 else 1)
    # And whoever took it over, ends it.
    workshop.lapse()
    workshop.run(called)
    assert workshop.effects == ["end", "first", "second"]
    assert len(set(workshop.sent)) == 1


@on_postgres
@pytest.mark.parametrize("moment", ["in a later phase", "in the end"])
def test_an_owner_that_swallows_it_writes_nothing_either(workshop, rival, moment):
    """Every later write is fenced as well: there is nothing to swallow one's way past."""

    def operation(op):
        op.phase("first", partial(workshop.effect, "first"))
        taken_over(workshop, rival)
        for step in (
            lambda: op.phase("second", partial(workshop.effect, "second")),
            lambda: op.call("send", workshop.send("send")),
            lambda: op.finish(partial(workshop.effect, "end")),
        ):
            with pytest.raises(LeaseLost):
                step()
        raise ZeroDivisionError

    called = workshop.declare(operation)
    with pytest.raises(LeaseLost):
        workshop.run(called)
    assert workshop.effects == ["first"]
    assert workshop.sent == []


@on_postgres
def test_an_owner_that_comes_back_to_a_sealed_key_hears_of_it(workshop, rival):
    def act():
        taken = taken_over(workshop, rival)
        with rival.atomic():
            rival.store.seal(taken.id, taken.owner_token, CREATED, retention=60.0, lease=30.0, durable=True)
        return workshop.effect("first")

    called = workshop.declare(lambda op: op.phase("first", act), name="tests.overtaken")
    with pytest.raises(LeaseLost):
        workshop.run(called)
    assert workshop.effects == []
    assert workshop.run(called).data == {"id": 7}


@on_both_stores
def test_a_fault_after_a_take_over_is_told_as_such_and_holds_nothing(workshop, rival, caplog):
    def operation(op):
        op.phase("first", lambda: None)
        taken_over(workshop, rival)
        raise ZeroDivisionError

    called = workshop.declare(operation)
    with pytest.raises(LeaseLost):
        workshop.run(called)
    assert "was taken over while this attempt ran" in caplog.text
    assert workshop.row().held_reason is None
