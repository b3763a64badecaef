"""What an operation may hand over: JSON that a database gives back as it was, or an error that names the place."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum
from uuid import UUID

import pytest
from django.utils.safestring import mark_safe
from hypothesis import given, strategies as st

from django_idempotency.core.documents import NotStorable, as_document, sorted_by_name


class Colour(str, Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Weight(float):
    pass


def test_json_is_taken_as_it_is():
    value = {"a": [1, -2, 1.5, True, False, None, "text ✓ \x01", {}], "b": {"c": []}}
    assert as_document(value, "it") == value


def test_the_copy_is_a_copy():
    value = {"list": [{"a": 1}]}
    document = as_document(value, "it")
    value["list"][0]["a"] = 2
    assert document == {"list": [{"a": 1}]}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2,)), [1, [2]]),
        (Colour.RED, "red"),
        (Size.SMALL, 1),
        (Weight(2.5), 2.5),
        (mark_safe("<b>"), "<b>"),
        ({Colour.RED: 1}, {"red": 1}),
    ],
    ids=repr,
)
def test_relatives_of_json_become_json(value, plain):
    document = as_document(value, "it")
    assert document == plain
    assert type(document) is type(plain)
    assert not isinstance(document, dict) or all(type(name) is str for name in document)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (1.0, 1.0),
        (-0.0, 0.0),
        (1e-320, 1e-320),
        (9999999999999998.0, 9999999999999998.0),
        (1e16, 10**16),
        (1e22, 10**22),
        (1e23, 10**23),  # int(1e23) is another number
        (-1.2345678901234568e17, -123456789012345680),
        (1.7976931348623157e308, 17976931348623157 * 10**292),
        (2**64, 2**64),
        (-(10**3900), -(10**3900)),
    ],
    ids=lambda value: str(value)[:25],
)
def test_numbers_take_the_form_that_they_are_read_back_in(value, kept):
    document = as_document(value, "it")
    assert (type(document), str(document)) == (type(kept), str(kept))
    assert float(document) == value if isinstance(value, float) else document == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"sent": [date(2026, 12, 1)]}, r"it\.sent\[0\] is a date, which is not JSON: convert it"),
        ({"price": Decimal("1.10")}, r"it\.price is a Decimal"),
        ({"id": UUID(int=1)}, r"it\.id is a UUID"),
        ([1, {2}], r"it\[1\] is a set"),
        (b"bytes", r"it is a bytes"),
        (object(), r"it is a object"),
        (float("nan"), r"it is nan, which JSON cannot hold"),
        ({"a": {"b": float("-inf")}}, r"it\.a\.b is -inf"),
        ("a\0b", r"it holds a NUL or a lone surrogate"),
        ({"a": ["\ud800"]}, r"it\.a\[0\] holds a NUL or a lone surrogate"),
        ({"a": {"\0": 1}}, r"a key of it\.a holds a NUL"),
        ({"a": {5: 1}}, r"it\.a has a key that is a int: JSON has only strings"),
        ({None: 1}, r"it has a key that is a NoneType"),
        ({"big": 10**5000}, r"it\.big has thousands of digits"),
    ],
    ids=lambda value: None if isinstance(value, str) else "value",
)
def test_what_would_not_come_back_is_refused_with_its_path(value, message):
    with pytest.raises(NotStorable, match=f"^{message}"):
        as_document(value, "it")


def test_what_is_nested_without_end_is_refused():
    value = []
    value.append(value)
    with pytest.raises(NotStorable, match="nested more than 100 deep, or holds itself"):
        as_document(value, "it")


def test_what_is_nested_reasonably_is_taken():
    value = 0
    for _ in range(100):
        value = [value]
    assert as_document(value, "it") == value
    with pytest.raises(NotStorable):
        as_document([value], "it")


def test_the_message_quotes_no_values():
    with pytest.raises(NotStorable) as caught:
        as_document({"card": b"4242424242424242"}, "parameters")
    assert "4242" not in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_members_are_sorted_so_that_a_resumed_run_meets_them_in_the_same_order():
    value = {"zebra": 1, "b": {"y": 1, "x": [{"d": 1, "c": 2}]}}
    assert json.dumps(as_document(value, "it")) == '{"b": {"x": [{"c": 2, "d": 1}], "y": 1}, "zebra": 1}'
    assert json.dumps(sorted_by_name(value)) == json.dumps(as_document(value, "it"))


def test_an_answer_keeps_the_order_that_it_was_written_in():
    assert list(as_document({"id": 7, "amount": 1}, "it", in_order=False)) == ["id", "amount"]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_float_is_changed_by_more_than_its_form(value):
    assert float(as_document(value, "it")) == value


text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e15, 1e15) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_a_document_is_equal_to_what_it_was_made_of_and_is_its_own_document(value):
    document = as_document(value, "it")
    assert document == value
    assert json.dumps(as_document(document, "it")) == json.dumps(document)
    assert json.dumps(json.loads(json.dumps(document))) == json.dumps(document)
