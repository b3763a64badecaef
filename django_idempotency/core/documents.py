"""Values that survive being stored as JSON and read again, found out before they are stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from .errors import Explained


class NotStorable(Explained, TypeError):
    """A value that would be lost or changed by being stored. The message names its path, and never the value."""


def as_document(value: object, path: str, *, in_order: bool = True) -> Any:
    """A copy of ``value`` as it will be read back: a run and its resumption see the same.

    Tuples become lists, and what only differs in form takes the form that PostgreSQL gives it: a float of 10^16 and
    more becomes an int, negative zero loses its sign. Dates, decimals and models are refused rather than guessed:
    convert them where they arise.

    :param path: what to call the value itself in an error, such as ``parameters``.
    :param in_order: sort members by name, since PostgreSQL does not keep their order either.
    :raises NotStorable: something in it is not JSON, or PostgreSQL could not store it.
    """
    return _copy(value, path, sorted if in_order else list, _DEEPEST)


def sorted_by_name(document: Any) -> Any:
    """What was read, with members in the order that :func:`as_document` gave them."""
    if isinstance(document, dict):
        return {name: sorted_by_name(document[name]) for name in sorted(document)}
    if isinstance(document, list):
        return [sorted_by_name(member) for member in document]
    return document


def _copy(value: object, path: str, order: Callable[[Iterable[str]], Iterable[str]], room: int) -> Any:
    if isinstance(value, dict | list | tuple) and not room:
        raise NotStorable(f"{path} is nested more than {_DEEPEST} deep, or holds itself.")
    if isinstance(value, dict):
        for name in value:
            _check_name(name, path)
        return {str.__str__(name): _copy(value[name], f"{path}.{name}", order, room - 1) for name in order(value)}
    if isinstance(value, list | tuple):
        return [_copy(member, f"{path}[{position}]", order, room - 1) for position, member in enumerate(value)]
    return _copy_leaf(value, path)


def _check_name(name: object, path: str) -> None:
    if not isinstance(name, str):
        raise NotStorable(f"{path} has a key that is a {type(name).__name__}: JSON has only strings.")
    _copy_text(name, f"a key of {path}")


def _copy_leaf(value: object, path: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _copy_text(value, path)
    if isinstance(value, int):
        return _copy_integer(value, path)
    if isinstance(value, float):
        return _copy_float(value, path)
    raise NotStorable(f"{path} is a {type(value).__name__}, which is not JSON: convert it, to a str for example.")


def _copy_text(value: str, path: str) -> str:
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise NotStorable(f"{path} holds a NUL or a lone surrogate, which PostgreSQL cannot store.")
    return str.__str__(value)


def _copy_integer(value: int, path: str) -> int:
    if value.bit_length() > _WIDEST:
        raise NotStorable(f"{path} has thousands of digits, which Python does not read back.")
    return int(value)


def _copy_float(value: float, path: str) -> float | int:
    if not math.isfinite(value):
        raise NotStorable(f"{path} is {float(value)!r}, which JSON cannot hold.")
    if abs(value) >= _WHOLE:
        # By its digits and not by its bits: those are what is written, and the database knows nothing of bits.
        return int(Decimal(repr(float(value))))
    return float(value) or 0.0


# From here on Python writes an exponent, PostgreSQL writes it out, and what is read has no fraction any more.
_WHOLE = 1e16
# Far from where Python's recursion ends, which depends on who asks.
_DEEPEST = 100
# Some 4,000 digits; Python converts 4,300 at most (sys.int_info.default_max_str_digits).
_WIDEST = 13_000
