"""Numbers in sentences that are said in English alone: those of commands and of checks."""

from __future__ import annotations


def number_of(n: int, one: str, more: str = "") -> str:
    """``1 record``, ``2,000 records``.

    :param more: where that is not ``one`` with an s.
    """
    return f"{n:,} {one if n == 1 else more or f'{one}s'}"
