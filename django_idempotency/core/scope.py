"""Who and what a key belongs to: a principal and an operation, as one readable line."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from urllib.parse import quote

from .errors import AnonymousScope

# Control, surrogate, line separator and paragraph separator: what a database refuses (NUL, lone surrogates)
# or what would forge a line in a log.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def scope(principal: str | None, operation: str) -> str:
    """``user:5 shop.views.ChargeViewSet:create:POST``: the principal, a space, the operation.

    The first space ends the principal, whose own spaces are percent-encoded, so that no two pairs read the
    same. An empty principal is ``AnonymousScope`` and never stands for "everyone": two strangers would share
    their answers.
    """
    caller: object = principal
    if caller is None or caller == "":
        raise AnonymousScope
    if not isinstance(caller, str):
        raise TypeError(f"A scope must be a str or None, not {type(caller).__name__}.")
    if not caller.strip():
        raise AnonymousScope
    if not operation:
        raise ValueError("An operation must have a name.")
    _refuse_unsafe(operation)
    return f"{_escaped(caller, also=' ')} {operation}"


def operation_of(scope: str) -> str:
    """The operation in a scope."""
    return scope.partition(" ")[2]


@lru_cache(maxsize=1024)
def operation_name(view_path: str, action: str | None, method: str, named: str | None = None) -> str:
    """``shop.views.ChargeViewSet:create:POST``: the view, the action where there is one, and the method.

    The path is not part of it: ``/charges.json`` and ``/fr/charges`` are the same operation, and the
    arguments in it belong to the fingerprint. ``named`` takes the place of the view, so that the view can be
    renamed or moved while retries are under way.
    """
    view = view_path if named is None else named
    if not view:
        raise ValueError("An operation must have a name.")
    if not method:
        raise ValueError("An operation must have a method.")
    parts = [view, action, method.upper()] if action else [view, method.upper()]
    for part in parts:
        _refuse_unsafe(part)
    # Two parts or three, so a colon inside one of them must not look like another part.
    return ":".join(_escaped(part, also=":") for part in parts)


def _refuse_unsafe(name: str) -> None:
    # Names come from the project's code, where such a character is a mistake to be seen, not to be encoded.
    if _is_unsafe(name):
        raise ValueError("The name of an operation must not have control characters.")


def _is_unsafe(text: str) -> bool:
    # isprintable() is one pass in C and true of nearly every text; what it doubts is looked at by category,
    # since it refuses harmless characters too (a no-break space, a zero-width joiner).
    return not text.isprintable() and any(unicodedata.category(char) in _UNSAFE_CATEGORIES for char in text)


def _escaped(text: str, *, also: str) -> str:
    """Percent-encode the percent sign, ``also``, and unsafe characters; everything else stays readable.

    Principals may come from a client (an API key that a callable reads from a header): encoding them keeps
    each apart and cannot fail, where refusing them would answer a stranger's odd byte with a server error.
    """
    if "%" not in text and also not in text and text.isprintable():
        return text
    return "".join(
        quote(char, safe="", errors="surrogatepass") if char in ("%", also) or _is_unsafe(char) else char
        for char in text
    )
