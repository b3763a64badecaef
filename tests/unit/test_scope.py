"""Whose key it is: never everyone's, and never two callers' by accident."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from django_idempotency.core.errors import AnonymousScope
from django_idempotency.core.scope import operation_name, scope

VIEW = "shop.views.ChargeViewSet"


def test_an_operator_can_read_a_scope():
    operation = operation_name(VIEW, "create", "POST")
    assert scope("user:5", operation) == "user:5 shop.views.ChargeViewSet:create:POST"


@pytest.mark.parametrize("principal", [None, "", " ", "\t\n"])
def test_nobody_is_not_everybody(principal):
    with pytest.raises(AnonymousScope):
        scope(principal, "shop.views.charge:POST")


@pytest.mark.parametrize("principal", [5, 0, b"user:5", True, ("user", 5)])
def test_a_scope_callable_that_answers_with_something_else_hears_it(principal):
    with pytest.raises(TypeError, match="must be a str or None, not"):
        scope(principal, "shop.views.charge:POST")


def test_a_scope_needs_an_operation():
    with pytest.raises(ValueError, match="must have a name"):
        scope("user:5", "")


@pytest.mark.parametrize(
    ("principal", "written"),
    [
        ("acme corp/7", "acme%20corp/7"),
        ("100%", "100%25"),
        ("a%20b", "a%2520b"),
        ("søren@例え.jp", "søren@例え.jp"),
        ("no\N{NO-BREAK SPACE}break", "no\N{NO-BREAK SPACE}break"),
        ("nul\x00", "nul%00"),
        ("line\nbreak", "line%0Abreak"),
        ("c1\x85", "c1%C2%85"),
        ("line\u2028separator", "line%E2%80%A8separator"),
        ("lone\ud800", "lone%ED%A0%80"),
    ],
)
def test_a_principal_stays_readable_and_storable(principal, written):
    text = scope(principal, "charge:POST")
    assert text == f"{written} charge:POST"
    text.encode()


@given(st.text(max_size=12), st.text(max_size=12), st.integers(0, 24))
@example("a|b", "c", 1)
@example("a b", "c", 1)
@example("a%20", "b", 1)
def test_no_two_pairs_share_a_scope(left, right, at):
    whole = left + right
    pairs = {(left, right), (whole[:at], whole[at:]), (f"{left} {right}", right), (left, f"{right} {right}")}
    written = set()
    allowed = set()
    for principal, operation in pairs:
        try:
            written.add(scope(principal, operation))
        except (AnonymousScope, ValueError):
            continue
        allowed.add((principal, operation))
    assert len(written) == len(allowed)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((VIEW, "create", "POST"), "shop.views.ChargeViewSet:create:POST"),
        ((VIEW, "create", "post"), "shop.views.ChargeViewSet:create:POST"),
        (("shop.views.webhook", None, "POST"), "shop.views.webhook:POST"),
        (("shop.views.webhook", "", "POST"), "shop.views.webhook:POST"),
        (("shop.views.factory.<locals>.view", None, "POST"), "shop.views.factory.<locals>.view:POST"),
        ((VIEW, "create", "POST", "charges"), "charges:create:POST"),
        ((VIEW, None, "PATCH", "create charge"), "create charge:PATCH"),
        ((VIEW, None, "POST", "shop:charge"), "shop%3Acharge:POST"),
    ],
)
def test_an_operation_is_named_after_its_view_unless_it_has_a_name(arguments, name):
    assert operation_name(*arguments) == name


def test_a_named_operation_survives_a_move_of_its_view():
    assert operation_name("old.Place", "create", "POST", "charges") == operation_name(
        "new.Home", "create", "POST", "charges"
    )


def test_actions_and_methods_are_operations_of_their_own():
    names = {
        operation_name(VIEW, "create", "POST"),
        operation_name(VIEW, "capture", "POST"),
        operation_name(VIEW, "create", "PATCH"),
        operation_name(VIEW, None, "POST"),
        operation_name(VIEW + ":create", None, "POST"),
        operation_name(VIEW + "%3Acreate", None, "POST"),
    }
    assert len(names) == 6


@pytest.mark.parametrize(
    "arguments",
    [("", "create", "POST"), (VIEW, "create", "POST", ""), (VIEW, "create", "")],
)
def test_an_operation_has_a_name_and_a_method(arguments):
    with pytest.raises(ValueError, match="must have a"):
        operation_name(*arguments)


@pytest.mark.parametrize("bad", ["a\x00b", "a\nb", "a\x7fb", "a\x85b", "a\u2028b", "a\ud800b"])
def test_an_operation_with_a_control_character_is_refused(bad):
    for arguments in [(bad, None, "POST"), (VIEW, bad, "POST"), (VIEW, None, bad), (VIEW, None, "POST", bad)]:
        with pytest.raises(ValueError, match="control characters"):
            operation_name(*arguments)
    with pytest.raises(ValueError, match="control characters"):
        scope("user:5", bad)
