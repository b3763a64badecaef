"""Exact JSON: one text for one value, whatever its spelling, and no body that can break the reader."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
import time
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from django_idempotency.core.canonical import (
    MAX_DEPTH,
    Number,
    canonical_json,
    canonical_json_of_parsed,
    parse_json,
)
from django_idempotency.core.errors import MalformedBody


def canonical(text: str | bytes) -> str:
    value = parse_json(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    written = canonical_json(value)
    assert canonical_json_of_parsed(value) == written
    return written


def one_number(lexeme: str) -> str:
    """The canonical text, after checking that it is stable and does not depend on where the number stands."""
    text = canonical(lexeme)
    assert canonical(text) == text
    assert canonical(f' {{"a": [ {lexeme} ]}} ') == f'{{"a":[{text}]}}'
    return text


def short(text: str | bytes) -> str:
    """A test id that stays readable where the text is a megabyte."""
    return f"{text[:10]!a}..{text[-4:]!a}({len(text)})"


# --- numbers


@pytest.mark.parametrize(
    "spellings",
    [
        ["0", "-0"],
        ["1.0", "1.00", "1e0", "1E0", "1e+0", "1e-0", "10e-1", "0.1e1", "0.10E+1", "1.0e00"],
        ["0.0", "0e0", "0.000", "0e99", "0E-99", "0.0e" + "9" * 700],
        ["-0.0", "-0e0", "-0.00e5"],
        ["1.10", "1.1", "11e-1", "0.11e1"],
        ["100.0", "1e2", "1E+2", "10e1"],
        ["1e" + "0" * 2000 + "5", "1e5", "100000.0"],
        ["123456789012345678901234567890.5", "1234567890123456789012345678905e-1"],
        ["1e400", "10e399"],
        ["1e1" + "0" * 18, "10e" + "9" * 18],
        ["-1.5e-7", "-15E-8"],
    ],
)
def test_spellings_of_one_value_are_one_text(spellings):
    assert len({one_number(spelling) for spelling in spellings}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("9007199254740992", "9007199254740993"),
        ("1", "1.0"),
        ("0", "0.0"),
        ("0.0", "-0.0"),
        ("1", "-1"),
        ("1.5", "-1.5"),
        ("1e5", "1e-5"),
        ("100", "1e2"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("1e400", "1e401"),
        ("1e400", "-1e400"),
        ("1e-400", "0.0"),
        ("1" + "0" * 5000, "1" + "0" * 4999 + "1"),
        ("0." + "1" * 5000, "0." + "1" * 4999 + "2"),
        ("1e" + "9" * 700, "1e" + "9" * 699 + "8"),
        ("1e" + "9" * 700, "1e-" + "9" * 700),
        ("1e" + "9" * 18, "1e" + "9" * 19),
        ("1", '"1"'),
        ("1", "true"),
        ("0", "false"),
        ("0", "null"),
        ("1e0", '"1e0"'),
    ],
    ids=short,
)
def test_values_that_a_view_can_tell_apart_stay_apart(one, other):
    assert canonical(one) != canonical(other)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 5))
def test_a_decimal_keeps_its_value_and_loses_its_spelling(value, zeros):
    plain = f"{value.copy_abs():f}"
    plain = plain if "." in plain else f"{plain}.0"
    sign = "-" if value.is_signed() else ""
    text = one_number(f"{sign}{plain}{'0' * zeros}")
    assert Decimal(text) == value
    sign_of_result = "-" if text.startswith("-") else ""
    assert sign_of_result == sign


@given(st.integers())
def test_an_integer_is_written_as_it_is(value):
    assert one_number(str(value)) == str(value)
    assert parse_json(str(value).encode()) == value


def test_the_longest_int_and_the_first_text():
    assert parse_json(b"9" * 640) == int("9" * 640)
    assert parse_json(b"9" * 641) == Number("9" * 641)
    assert one_number("-" + "9" * 5000) == "-" + "9" * 5000


def test_integers_survive_the_strictest_limit_on_their_digits():
    code = (
        "from django_idempotency.core.canonical import canonical_json as c, parse_json as p\n"
        "for n in (639, 640, 641, 5000):\n"
        "    for sign in ('', '-'):\n"
        "        text = sign + '9' * n\n"
        "        assert c(p(text.encode())) == text\n"
        "assert c(p(b'1e' + b'9' * 640)) == '1e' + '9' * 640\n"
        "assert c(p(b'1e' + b'9' * 641)) == '1e' + '9' * 641\n"
    )
    subprocess.run([sys.executable, "-X", "int_max_str_digits=640", "-c", code], check=True)


# --- strings and members


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('"\\u0061\\/"', '"a/"'),
        ('"\\b\\t\\n\\f\\r\\"\\\\"', '"\\b\\t\\n\\f\\r\\"\\\\"'),
        ('"\\u0000\\u001f\\u007f\\u00e9\\u20ac"', '"\\u0000\\u001f\x7fé€"'),
        ('"\\ud83d\\ude02"', '"😂"'),
        ('"\\uD800"', '"\\ud800"'),
        ('"é\\udc00é"', '"é\\udc00é"'),
        ('"\\ude02\\ud83d"', '"\\ude02\\ud83d"'),
        ('"\\\\ud800"', '"\\\\ud800"'),
        (' {"b" : 1 , "a":\t[ ] , "": {}}\r\n', '{"":{},"a":[],"b":1}'),
        ('{"\\ufb33":1,"\\ud83d\\ude02":2}', '{"😂":2,"\ufb33":1}'),
        ('{"\\ud800":1,"a":2}', '{"a":2,"\\ud800":1}'),
        ("[[],[[]],{}]", "[[],[[]],{}]"),
        ("[null,true,false]", "[null,true,false]"),
    ],
)
def test_the_canonical_text(text, written):
    assert canonical(text) == written
    assert canonical(written) == written
    written.encode()


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.text(alphabet=st.characters(categories=["Cs"]), max_size=1)
    | st.integers(-99999, 99999).map(lambda digits: Number("0e0") if not digits else parse_json(b"%de-2" % digits))
)
VALUES = st.recursive(
    LEAVES,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=4), values, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_the_canonical_text_reads_back_as_the_same_value(value):
    text = canonical_json(value)
    again = parse_json(text.encode())
    assert canonical_json(again) == text
    # Python holds True equal to 1; repr does not.
    assert repr(ordered(again)) == repr(ordered(value))


@given(VALUES)
def test_the_fast_way_writes_the_same_text(value):
    assert canonical_json_of_parsed(value) == canonical_json(value)


@pytest.mark.parametrize("names", ["ab", "éa", "\uffff\U00010000", "\ue000\U0001f600", "\ud800\uffff", "ż\ud7ff"])
def test_the_fast_way_sorts_names_by_their_utf_16(names):
    value = dict.fromkeys([*names, names], 1)
    assert canonical_json_of_parsed(value) == canonical_json(value)


def ordered(value):
    if isinstance(value, dict):
        return {name: ordered(value[name]) for name in sorted(value)}
    return [ordered(element) for element in value] if isinstance(value, list) else value


@given(VALUES, VALUES)
def test_two_values_share_a_text_only_if_they_are_one(one, other):
    same = repr(ordered(one)) == repr(ordered(other))
    assert (canonical_json(one) == canonical_json(other)) == same


@given(st.dictionaries(st.text(max_size=4), LEAVES, min_size=2, max_size=6), st.data())
def test_the_order_of_members_makes_no_difference(value, data):
    names = data.draw(st.permutations(list(value)))
    assert canonical_json({name: value[name] for name in names}) == canonical_json(value)


@pytest.mark.parametrize("value", [1.5, float("nan"), b"x", ("a",), {1, 2}, Decimal(1)])
def test_a_value_without_an_exact_form_is_not_guessed(value):
    with pytest.raises(TypeError, match="no exact JSON form"):
        canonical_json([value])


def test_a_number_travels_between_processes():
    assert pickle.loads(pickle.dumps(Number("1e0"))) == Number("1e0")


# --- refusals


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not valid JSON (line 1, column 1)"),
        (b"  \n ", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a":1,}', "not valid JSON"),
        (b"[1,]", "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
        (b"{a:1}", "not valid JSON"),
        (b'{"a":1} x', "not valid JSON (line 1, column 9)"),
        (b"1 2", "not valid JSON"),
        (b"[]\n[]", "not valid JSON (line 2, column 1)"),
        (b"01", "not valid JSON"),
        (b"1.", "not valid JSON"),
        (b".5", "not valid JSON"),
        (b"+1", "not valid JSON"),
        (b"1e", "not valid JSON"),
        (b"0x10", "not valid JSON"),
        (b"1_000", "not valid JSON"),
        ("\u0661".encode(), "not valid JSON"),
        (b"nul", "not valid JSON"),
        (b"True", "not valid JSON"),
        (b'"a', "not valid JSON"),
        (b'"a\nb"', "not valid JSON"),
        (b'"a\x00b"', "not valid JSON"),
        (b'"\\x41"', "not valid JSON"),
        (b'"\\u12"', "not valid JSON"),
        (b'"\\u-123"', "not valid JSON"),
        (b"\xa0[]", "not UTF-8 (byte 0)"),
        (b"\x0b1", "not valid JSON"),
        (b"//x\n1", "not valid JSON"),
        (b"amount=5", "not valid JSON"),
        (b"NaN", "NaN or Infinity"),
        (b"[Infinity]", "NaN or Infinity"),
        (b'{"a":-Infinity}', "NaN or Infinity"),
        (b'{"a":1,"a":1}', "two members of the same name"),
        (b'{"a":1,"\\u0061":2}', "two members of the same name"),
        (b'[{"x":{"a":1,"b":2,"a":3}}]', "two members of the same name"),
        (b'"\xff"', "not UTF-8 (byte 1)"),
        (b'"\xed\xa0\x80"', "not UTF-8 (byte 1)"),
        (b'"\xc0\x80"', "not UTF-8 (byte 1)"),
        ('{"a":"é"}'.encode("latin-1"), "not UTF-8"),
        ("\ufeff{}".encode(), "byte order mark"),
        ("{}".encode("utf-16"), "not UTF-8"),
        ("{}".encode("utf-16-le"), "not valid JSON"),
        ("{}".encode("utf-32-be"), "not valid JSON"),
        (b"[" * 201 + b"]" * 201, "nested more than 200 levels"),
    ],
)
def test_a_body_that_two_readers_could_read_differently_is_refused(raw, reason):
    with pytest.raises(MalformedBody) as caught:
        parse_json(raw)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    "raw",
    [
        b'{"SECRET":1,"SECRET":2}',
        b'{"a":SECRET}',
        b'"SECRET\xff"',
        b'{"a":NaN,"b":"SECRET"}',
        b'["\\SECRET"]',
    ],
)
def test_a_refusal_shows_nothing_of_the_body(raw):
    with pytest.raises(MalformedBody) as caught:
        parse_json(raw)
    assert "SECRET" not in caught.value.detail
    # The decoder's errors carry the whole document, and an error report follows this chain.
    assert caught.value.__context__ is None


# --- depth and time: quadratic work would take minutes here, and processor time knows no busy neighbours


def nested(depth: int, opening: str = "[", closing: str = "]", inner: str = "") -> bytes:
    return (opening * depth + inner + closing * depth).encode()


@pytest.mark.parametrize("form", [("[", "]", ""), ('{"a":', "}", "1"), ('[{"a":', "}]", "1")])
def test_the_depth_limit_is_exact(form):
    per_form = form[0].count("[") + form[0].count("{")
    deepest = MAX_DEPTH // per_form
    assert canonical(nested(deepest, *form)) == nested(deepest, *form).decode()
    with pytest.raises(MalformedBody, match="nested more than 200 levels deep"):
        parse_json(nested(deepest + 1, *form))


def test_width_is_not_depth():
    wide = "[" + ",".join(["[]", '{"a":[{}]}'] * 300) + "]"
    assert canonical(wide) == wide


def test_brackets_in_strings_are_text():
    text = json.dumps(["[{" * 500, '\\"[', {"}]" * 500: "]"}], separators=(",", ":"))
    assert canonical(text) == text


@pytest.mark.parametrize(
    "raw",
    [
        nested(10_000),
        nested(1_000_000),
        b"[" * 2**20,
        b'{"a":' * 200_000,
        b'[{"":' * 200_000,
        b"]" * 1000 + b"[" * 2**20,
        b'"' + b"[" * 2**20,
        b'"' + b'\\"' * 2**19,
        b"[" * 150 + b'"' + b'\\"[' * 2**18,
        b'"' * 2**20,
        b"\\" * 2**20,
        b"[" + b"[]," * 2**16,
        b" " * 2**20,
        b"-" * 2**20,
        b"0" * 2**20,
        b"1e" + b"e" * 2**20,
        b"\n" * 2**20 + b"x",
    ],
    ids=short,
)
def test_much_nonsense_is_refused_in_time(raw):
    started = time.process_time()
    with pytest.raises(MalformedBody):
        parse_json(raw)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "text",
    [
        "1" * 2**20,
        "-" + "1" * 2**20,
        "0." + "1" * 2**20,
        "1." + "0" * 2**20,
        "0." + "0" * 2**20 + "1",
        "1e" + "1" * 2**20,
        "1e-" + "0" * 2**20 + "1",
        "1" * 2**20 + ".0e1",
        "[" + ",".join(["1"] * 2**16) + "]",
        "[" + ",".join(["[]"] * 2**16) + "]",
        '"' + "\\ud800" * 2**17 + '"',
        "{" + ",".join(f'"{number}":1.5' for number in range(2**14)) + "}",
    ],
    ids=short,
)
def test_much_sense_is_read_in_time(text):
    started = time.process_time()
    written = canonical(text)
    assert time.process_time() - started < 2
    assert canonical(written) == written


def test_no_depth_of_the_callers_stack_lets_a_recursion_error_out():
    deepest = nested(MAX_DEPTH)
    too_deep = nested(10_000)
    # Room for the frames of the call itself: one short of those, no function can be called at all.
    spare = 12

    def called_from(frames: int) -> set[str]:
        if frames:
            return called_from(frames - 1)
        outcomes = set()
        for raw in (deepest, too_deep, b'{"a":[1.5,{"b":2}]}'):
            try:
                parse_json(raw)
            except MalformedBody as error:
                outcomes.add(error.reason)
            else:
                outcomes.add("read")
        return outcomes

    used = frames_in_use()
    for remaining in range(spare, spare + 300, 7):
        outcomes = called_from(sys.getrecursionlimit() - used - remaining)
        assert outcomes <= {"read", f"it is nested more than {MAX_DEPTH} levels deep"}


def frames_in_use() -> int:
    frame, count = sys._getframe(), 0
    while frame:
        frame, count = frame.f_back, count + 1
    return count


def test_the_deepest_body_fits_into_a_small_stack():
    # Threads of servers and of musl's libc have far less than the main thread.
    written = []
    previous = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: written.append(canonical(nested(MAX_DEPTH))))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(previous)
    assert written == [nested(MAX_DEPTH).decode()]
