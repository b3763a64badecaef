"""How an operation is declared, and what may be done about one that stopped."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from django_idempotency import BodyCodec, IdempotencyMode, IdempotencyPolicy, OutcomeRules
from django_idempotency.core.errors import Explained, ForAPerson, OutcomeUnknown
from django_idempotency.core.operations import Registry, Strategy, may_send_again, overdue, registry
from django_idempotency.core.policy import PolicyError
from django_idempotency.core.progress import Step, StepKind
from django_idempotency.operations import (
    CallInTransaction,
    Declined,
    Happened,
    MayNotSendAgain,
    Misused,
    NotStorable,
    OperationChanged,
    Unknown,
    operation,
)
from django_idempotency.phasing import Unanswered, Unfinished, describe


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_definitions", {})


def declared(**how):
    def pay(op, **parameters):
        raise NotImplementedError

    return operation(how.pop("name", "tests.pay"), **how)(pay).definition


def ask(record):
    raise NotImplementedError


# --- strategies ---


@pytest.mark.parametrize(
    ("how", "strategy"),
    [
        ({}, Strategy.PERSON),
        ({"downstream_takes_keys": True}, Strategy.RESUME),
        ({"resolver": ask}, Strategy.LOOK_UP),
        ({"resolver": ask, "downstream_takes_keys": True}, Strategy.LOOK_UP),
        ({"void": ask}, Strategy.VOID),
        ({"void": ask, "downstream_takes_keys": True}, Strategy.VOID),
        ({"void": ask, "resolver": ask}, Strategy.LOOK_UP),
    ],
)
def test_what_is_known_of_the_other_side_decides_the_strategy(how, strategy):
    assert declared(**how).strategy is strategy


def call(started_at=1000.0):
    return Step("send", StepKind.CALL, started_at=started_at)


@pytest.mark.parametrize(("age", "again"), [(0, True), (74.9, True), (75, False), (1000, False)])
def test_a_call_is_sent_again_within_three_quarters_of_what_the_other_side_remembers(age, again):
    keys = declared(downstream_takes_keys=True, downstream_retention=timedelta(seconds=100))
    assert may_send_again(keys, call(), now=1000 + age) is again
    assert overdue(keys, call(), now=1000 + age) is not again


def test_a_call_is_not_sent_again_where_the_other_side_takes_no_keys():
    assert may_send_again(declared(), call(), now=1000) is False


def test_a_call_of_which_nobody_knows_when_it_was_sent_is_not_sent_again():
    assert may_send_again(declared(downstream_takes_keys=True), call(None), now=1000) is False


# --- declaring ---


def test_what_is_not_said_has_a_default():
    definition = declared()
    assert definition.call_timeout == timedelta(seconds=10)
    assert definition.stale_after == timedelta(seconds=20)
    assert definition.downstream_retention == timedelta(hours=24)
    assert definition.downstream_takes_keys is False
    assert definition.policy == IdempotencyPolicy(mode=IdempotencyMode.PHASED)


def test_fields_of_a_policy_are_the_operations():
    codec = BodyCodec(pack=bytes, unpack=bytes)
    policy = declared(
        lease=timedelta(seconds=60),
        retention=timedelta(days=3),
        max_response_bytes=5,
        body_codec=codec,
        using="other",
        max_wait=timedelta(seconds=1),
    ).policy
    assert (policy.lease, policy.retention) == (timedelta(seconds=60), timedelta(days=3))
    assert (policy.max_response_bytes, policy.body_codec, policy.using) == (5, codec, "other")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"required": False}, "required is for the policy of a view"),
        ({"mode": IdempotencyMode.ATOMIC}, "mode is for the policy of a view"),
        ({"scope": ask, "methods": ["POST"]}, "methods, scope is for the policy of a view"),
        ({"outcomes": OutcomeRules()}, "outcomes is for"),
        ({"replay_headers": ["ETag"]}, "replay_headers is for"),
        ({"operation": "x"}, "operation is for"),
        ({"leese": timedelta(seconds=60)}, "no field 'leese'. Did you mean 'lease'"),
        ({"lease": 30}, "lease must be a timedelta"),
        ({"name": ""}, "The name of an operation must be a non-empty printable string"),
        ({"name": "two\nlines"}, "The name of an operation must be"),
        ({"name": "x" * 256}, "must have at most 255 characters"),
        ({"downstream_takes_keys": "false"}, "downstream_takes_keys must be True or False, not 'false'"),
        ({"call_timeout": 10}, "call_timeout must be a timedelta"),
        ({"call_timeout": timedelta(0), "stale_after": timedelta(1)}, "call_timeout must be at least"),
        ({"downstream_retention": timedelta(0)}, "downstream_retention must be at least"),
        ({"stale_after": timedelta(seconds=-1)}, "stale_after must be at least"),
        ({"resolver": "look_up"}, "resolver must be a callable, not 'look_up'"),
        ({"void": Unknown()}, "void must be a callable"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(list(value)),
)
def test_a_mistake_is_found_where_it_is_written(how, message):
    with pytest.raises(PolicyError, match=message):
        declared(**how)
    assert registry.get("tests.pay") is None


def test_an_operation_is_declared_once():
    """The outer one would run the inner one's definition, without its own resolver, void and terms."""
    inner = operation("tests.pay")(lambda op: op.finish(lambda: None))
    with pytest.raises(PolicyError, match=r"'tests\.pay' is an operation already"):
        operation("tests.other")(inner)
    assert registry.get("tests.other") is None


def test_what_is_attached_to_a_function_is_not_its_definition():
    def pay(op):
        raise NotImplementedError

    pay.definition = "of a business term"
    assert operation("tests.pay")(pay).definition is registry.get("tests.pay")


def test_an_operation_is_found_by_its_name():
    definition = declared()
    assert registry.get("tests.pay") is definition
    assert registry.get("tests.other") is None


def test_a_module_may_be_loaded_again():
    first, second = declared(), declared()
    assert registry.get("tests.pay") is second is not first


def test_two_operations_cannot_share_a_name():
    def other(op):
        raise NotImplementedError

    declared()
    with pytest.raises(ValueError, match=r"Two operations are named 'tests.pay': .*\.pay and .*\.other"):
        operation("tests.pay")(other)
    assert Registry().get("tests.pay") is None


# --- errors ---


@pytest.mark.parametrize(
    "error", [Declined({"code": "no"}), Misused("text"), OperationChanged("text"), NotStorable("x")]
)
def test_errors_travel_to_another_process(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args) == (type(error), error.args)
    assert getattr(again, "result", None) == getattr(error, "result", None)


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("card 4242"), "ValueError"),
        (caused(ValueError("card"), KeyError("4242")), "KeyError"),
        (Declined("card 4242"), "Declined"),
        (Misused("our own words"), "our own words"),
        (CallInTransaction("words of ours"), "words of ours"),
        (Unfinished(), "the operation has begun and was not finished"),
        (Unanswered("send", TimeoutError("card 4242")), "the call 'send' ended in TimeoutError"),
        (Unanswered("send", NotStorable("our own words")), "the call 'send' ended in our own words"),
        (caused(OutcomeUnknown(), Unanswered("send", OSError())), "the call 'send' ended in OSError"),
        (caused(OutcomeUnknown(), OSError("card 4242")), "OSError"),
        (OutcomeUnknown(), "OutcomeUnknown"),
    ],
    ids=str,
)
def test_operators_read_our_words_and_of_others_no_more_than_the_kind(error, said):
    assert describe(error) == said


def test_what_only_a_person_can_end_is_said_by_its_type():
    assert issubclass(MayNotSendAgain, ForAPerson)
    assert issubclass(OperationChanged, ForAPerson)
    assert issubclass(ForAPerson, Explained)
    assert not issubclass(Misused, ForAPerson)


def test_answers_of_a_resolver_say_what_they_mean():
    assert (Happened(5).result, Happened(5).declined) == (5, False)
    assert Unknown().reason == "the other side does not know yet"
