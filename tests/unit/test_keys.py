"""What counts as a key, and which record it leads to."""

from __future__ import annotations

import time
import uuid

import pytest
from hypothesis import example, given, strategies as st

from django_idempotency.core.errors import MalformedKey
from django_idempotency.core.keys import MAX_FIELD_LENGTH, MAX_KEY_LENGTH, parse_key, record_id

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
BARE = "".join(char for char in PRINTABLE if char not in ' ",;\\')


def quoted(key: str) -> str:
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ('"8e03978e-40d5-43dd-bc93-6894a57f9324"', "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ('  "abc"  ', "abc"),
        ('"a b"', "a b"),
        ('" abc "', " abc "),
        ('"a,b; c"', "a,b; c"),
        (r'"say \"hi\" \\ bye"', r'say "hi" \ bye'),
        ('"abc";version=1;note="x,y"', "abc"),
    ],
)
def test_a_structured_string_is_a_key_in_either_mode(raw, key, strict):
    assert parse_key(raw, strict=strict) == key


@pytest.mark.parametrize("raw", ["abc", "  abc ", "\tabc\t", '\t"abc" ', '"abc"', '"abc";a=1'])
def test_bare_and_quoted_spellings_are_one_key(raw):
    assert parse_key(raw) == "abc"


@pytest.mark.parametrize(
    "raw", ["8e03978e-40d5-43dd", "123", "1.5", "?1", ":YWJj:", "@1700000000", "a=b", "'abc'", BARE]
)
def test_the_bare_form_is_taken_as_it_stands(raw):
    assert parse_key(raw) == raw
    with pytest.raises(MalformedKey, match="not a String in double quotes"):
        parse_key(raw, strict=True)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", "empty"),
        (" ", "empty"),
        ("\t \t", "empty"),
        ('""', "empty"),
        ('"   "', "empty"),
        ("key\x00", "outside printable ASCII"),
        ('"a\x00b"', "outside printable ASCII"),
        ('"a\tb"', "outside printable ASCII"),
        ('"a\r\nb"', "outside printable ASCII"),
        ("caf\xc3\xa9", "outside printable ASCII"),
        ('"caf\xe9"', "outside printable ASCII"),
        ("\x7f", "outside printable ASCII"),
        # Never from WSGI, but nothing stops a test client.
        ("\N{SNOWMAN}", "outside printable ASCII"),
        ("\ud800", "outside printable ASCII"),
        ("abc,abc", "sent more than once"),
        ("abc, abc", "sent more than once"),
        ('"abc","abc"', "sent more than once"),
        ('"abc", "def"', "sent more than once"),
        ("abc,", "comma outside double quotes"),
        (",", "comma outside double quotes"),
        ('"abc', "String in double quotes"),
        ('abc"', "String in double quotes"),
        ('"abc"def', "String in double quotes"),
        (r'"a\bc"', "String in double quotes"),
        ("abc;v=1", "String in double quotes"),
        ("a b", "String in double quotes"),
        ("a\\b", "String in double quotes"),
        ('%"abc"', "String in double quotes"),
        ('("abc")', "String in double quotes"),
        pytest.param("x" * (MAX_FIELD_LENGTH + 1), "too long", id="long field"),
        pytest.param(quoted("x" * (MAX_KEY_LENGTH + 1)), "too long", id="long key"),
        pytest.param(quoted('"' * (MAX_KEY_LENGTH + 1)), "too long", id="long escaped key"),
    ],
)
def test_anything_else_is_refused_with_its_reason_and_the_rule(raw, reason, strict):
    with pytest.raises(MalformedKey) as caught:
        parse_key(raw, strict=strict)
    assert reason in caught.value.reason
    assert "1 to 255 printable ASCII characters" in caught.value.reason


@pytest.mark.parametrize("form", [str, quoted])
def test_the_limit_is_on_the_key_and_not_on_its_spelling(form):
    longest = "k" * MAX_KEY_LENGTH
    assert parse_key(form(longest)) == longest
    # Equal in the first 255 characters: cut short, it would be the key above.
    with pytest.raises(MalformedKey, match="too long"):
        parse_key(form(longest + "k"))


@pytest.mark.parametrize("strict", [True, False])
def test_the_longest_key_fits_with_each_character_escaped_and_parameters(strict):
    key = '"' * MAX_KEY_LENGTH
    assert parse_key(quoted(key) + ";a=1", strict=strict) == key


@pytest.mark.parametrize("raw", ["SECRET-2,SECRET-2", '"SECRET', "SECRET\x00", "SECRET" * 1000, '"SECRET";@'])
def test_a_refusal_never_repeats_the_key(raw):
    with pytest.raises(MalformedKey) as caught:
        parse_key(raw)
    assert "SECRET" not in caught.value.detail
    # Nor do the errors that a report would show as its cause.
    assert caught.value.__context__ is None


@pytest.mark.parametrize("text", ["x", '"', ";", '"a";a', " ", "a,", "\x00"])
def test_a_megabyte_is_refused_at_once(text):
    raw = text * 2**20
    started = time.process_time()
    with pytest.raises(MalformedKey, match="too long"):
        parse_key(raw)
    assert time.process_time() - started < 0.1


@given(st.text(alphabet=PRINTABLE, min_size=1, max_size=MAX_KEY_LENGTH).filter(str.strip))
@example(PRINTABLE)
def test_every_printable_text_is_a_key_when_quoted(key):
    assert parse_key(quoted(key), strict=True) == key
    assert parse_key(quoted(key)) == key


@given(st.text(alphabet=BARE, min_size=1, max_size=MAX_KEY_LENGTH))
def test_the_bare_form_and_the_quoted_one_are_one_key(key):
    assert parse_key(key) == parse_key(quoted(key)) == key


@given(
    st.one_of(
        st.text(max_size=300),
        st.text(alphabet=PRINTABLE + "\x00\t\xff"),
        st.text(alphabet='"\\;,=@%:?*()a1. -').map(lambda text: '"k";a=' + text),
    ),
    st.booleans(),
)
def test_any_text_is_a_key_or_malformed(raw, strict):
    try:
        key = parse_key(raw, strict=strict)
    except MalformedKey:
        return
    assert 0 < len(key) <= MAX_KEY_LENGTH
    assert key.strip()
    assert set(key) <= set(PRINTABLE)


def test_the_record_id_is_the_same_in_every_release():
    # Stored records are found by it: a change here makes every running retry a new request.
    assert record_id("user:5 shop.views.ChargeViewSet:create:POST", "abc") == uuid.UUID(
        "f06638ad-eab0-12c4-77c8-eec421df7367"
    )


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 40))
def test_no_two_divisions_of_a_text_share_a_record(left, right, at):
    whole = left + right
    other = (whole[:at], whole[at:])
    assert (record_id(left, right) == record_id(*other)) == ((left, right) == other)


def test_a_record_id_takes_any_text_of_a_scope():
    assert record_id("user:\N{SNOWMAN}", "k") != record_id("user:\N{CLOUD}", "k")
