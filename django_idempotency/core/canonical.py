"""JSON that is compared exactly: what a view can tell apart stays apart, what only differs in form does not.

The form is that of RFC 8785 (JCS), numbers excepted: JCS rounds them to doubles, which would merge 2^53 and
2^53+1. Nothing here recurses in Python, and the depth is bounded before the standard library's decoder sees
the text, so no body can exhaust the stack.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from .errors import MalformedBody

# Far above what people write and far below what the decoder's own recursion reaches on any Python.
MAX_DEPTH = 200

# Longer digit strings stay text: Python refuses to convert them, by a limit that can be configured down to
# this (sys.int_info.str_digits_check_threshold), and the conversion takes quadratic time.
_MAX_INT_DIGITS = 640

# The same for exponents, where even Decimal ends (decimal.MAX_EMAX).
_MAX_EXPONENT_DIGITS = 18


@dataclass(frozen=True)
class Number:
    """A number that Python's int or float would refuse or round, as the one text of its value."""

    text: str


JsonValue: TypeAlias = "bool | int | Number | str | list[JsonValue] | dict[str, JsonValue] | None"


def parse_json(raw: bytes) -> JsonValue:
    """The value of a JSON text (RFC 8259), numbers exact; ``MalformedBody`` where two readers could differ.

    Refused beside syntax errors: NaN and the infinities, duplicate member names (RFC 8259, section 4:
    unpredictable), more than ``MAX_DEPTH`` levels, anything but UTF-8, and a byte order mark, which a sender
    must not add (section 8.1) and DRF's parser refuses as well. A lone surrogate (``"\\ud800"``) is legal and
    kept.
    """
    try:
        return _decoded(raw)
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 (byte {error.start})"
    except json.JSONDecodeError as error:
        reason = f"it is not valid JSON (line {error.lineno}, column {error.colno})"
    except RecursionError:
        # The body is within bounds, but the caller was near the end of the stack.
        reason = _TOO_DEEP
    # Raised out here, not in the handlers: the errors above carry the whole body, and a report of the chain
    # would show it.
    raise MalformedBody(reason)


def _decoded(raw: bytes) -> JsonValue:
    text = raw.decode()
    if text.startswith("\ufeff"):
        raise MalformedBody("it starts with a byte order mark")
    _check_depth(text)
    value: JsonValue = _DECODER.decode(text)
    return value


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"

# A string (ended or not: a failing match would make the search quadratic) or a bracket.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        found = match.group()
        if found in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise MalformedBody(_TOO_DEEP)
        elif found in "]}":
            depth -= 1


def _integer(lexeme: str) -> int | Number:
    # JSON allows no leading zeros, so a long integer's text is canonical as it stands.
    return int(lexeme) if len(lexeme) <= _MAX_INT_DIGITS else Number(lexeme)


def _decimal(lexeme: str) -> Number:
    """Significant digits and a power of ten: ``1.0``, ``1.00`` and ``1e0`` become ``1e0``, never ``1``.

    With an exponent in every case, since a view can tell the integer 1 from 1.0. The sign of zero is kept for
    the same reason.
    """
    mantissa, _, exponent = lexeme.lower().partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return Number(f"{sign}0e0")
    power = exponent.lstrip("+-").lstrip("0")
    if len(power) > _MAX_EXPONENT_DIGITS:
        # The spelling itself names the value, so this cannot merge two of them. It keeps two spellings apart,
        # which errs on the safe side for numbers that nothing can compute with.
        return Number(lexeme.lower())
    significant = digits.rstrip("0")
    shift = len(digits) - len(significant) - len(fraction)
    return Number(f"{sign}{significant}e{_signed(exponent, power) + shift}")


def _signed(exponent: str, power: str) -> int:
    return -int(power or 0) if exponent.startswith("-") else int(power or 0)


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MalformedBody("an object in it has two members of the same name")
    return members


def _refuse_constant(_: str) -> NoReturn:
    raise MalformedBody("it contains NaN or Infinity, which JSON has not")


_DECODER = json.JSONDecoder(
    parse_int=_integer, parse_float=_decimal, parse_constant=_refuse_constant, object_pairs_hook=_object
)
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_SURROGATE = re.compile("[\ud800-\udfff]")


_PLAIN_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":"))
_FIRST_SURROGATE = "\ud800"


def canonical_json_of_parsed(value: JsonValue) -> str:
    """The same text for what :func:`parse_json` made, by the standard library's encoder wherever it writes that text.

    Several times as fast. It would also write floats and tuples, which are no exact values and which no parser made.
    """
    try:
        text = _PLAIN_ENCODER.encode(value)
    except (TypeError, RecursionError):
        # A Number, or a caller near the end of the stack.
        return canonical_json(value)
    # Below the surrogates names sort alike by code points and by UTF-16.
    return text if text.isascii() or max(text) < _FIRST_SURROGATE else canonical_json(value)


class _Ready(str):
    """Output, as opposed to a value that is still to be written."""

    __slots__ = ()


def canonical_json(value: JsonValue) -> str:
    """The one text of ``value``: RFC 8785, but numbers keep every digit. Always encodable as UTF-8."""
    written: list[str] = []
    pending: list[JsonValue] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, _Ready):
            written.append(item)
        elif isinstance(item, dict):
            pending.extend(reversed(_members(item)))
        elif isinstance(item, list):
            pending.extend(reversed(_elements(item)))
        else:
            written.append(_scalar(item))
    return "".join(written)


def _members(value: dict[str, JsonValue]) -> list[JsonValue]:
    parts: list[JsonValue] = []
    before = "{"
    for name in sorted(value, key=_utf16):
        parts += _after(f"{before}{_quoted(name)}:", value[name])
        before = ","
    parts.append(_Ready("}" if value else "{}"))
    return parts


def _elements(value: list[JsonValue]) -> list[JsonValue]:
    parts: list[JsonValue] = []
    before = "["
    for element in value:
        parts += _after(before, element)
        before = ","
    parts.append(_Ready("]" if value else "[]"))
    return parts


def _after(text: str, value: JsonValue) -> tuple[JsonValue, ...]:
    # Most values have no parts of their own and are written at once.
    return (_Ready(text), value) if isinstance(value, (dict, list)) else (_Ready(text + _scalar(value)),)


def _utf16(name: str) -> bytes:
    # RFC 8785, section 3.2.3: by UTF-16 code units, which is not the order of code points above U+D7FF.
    return name.encode("utf-16-be", "surrogatepass")


def _quoted(text: str) -> str:
    quoted = _ENCODER.encode(text)
    if quoted.isascii():
        return quoted
    # A lone surrogate has no UTF-8. Its escape cannot collide: the text's own backslashes are written twice.
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", quoted)


def _scalar(value: JsonValue) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number):
        return value.text
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no exact JSON form.")
