"""Values that survive being stored as JSON and read again, found out before they are stored."""

from __future__ import annotations

import json
import math
from typing import Any


class NotStorable(TypeError):
    """A value that would be lost or changed by being stored. The message names its path."""


def as_document(value: object, path: str) -> Any:
    """``value`` as it will be read back: a run and its resumption see the same.

    Tuples become lists. Dates, decimals and models are refused rather than guessed: convert them where they arise.

    :param path: what to call the value itself in an error, such as ``parameters``.
    :raises NotStorable: something in it is not JSON, or PostgreSQL could not store it.
    """
    _check(value, path)
    return json.loads(json.dumps(value))


def _check(value: object, path: str) -> None:
    if isinstance(value, dict):
        for name, member in value.items():
            if not isinstance(name, str):
                raise NotStorable(f"{path} has the key {name!r}, which is not a string.")
            _check_leaf(name, f"a key of {path}")
            _check(member, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for position, member in enumerate(value):
            _check(member, f"{path}[{position}]")
    else:
        _check_leaf(value, path)


def _check_leaf(value: object, path: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotStorable(f"{path} is {value!r}, which JSON cannot hold.")
    elif isinstance(value, str):
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise NotStorable(f"{path} holds a NUL or a lone surrogate, which PostgreSQL cannot store.")
    elif value is not None and not isinstance(value, bool | int):
        raise NotStorable(f"{path} is a {type(value).__name__}, which is not JSON: convert it, to a str for example.")
