"""The key that a client sends, and the identity of the record it leads to."""

from __future__ import annotations

import hashlib
import re
import uuid

import http_sf

from .errors import MalformedKey

# The draft leaves the length to the server. 255 is what the vendors who document a limit allow, and it keeps
# the stored key within every database's indexable text.
MAX_KEY_LENGTH = 255

# A String of 255 characters is at most 512 long with each of them escaped; the rest is room for parameters.
# Bounding the field before it is parsed makes a header of a megabyte as cheap to refuse as an empty one.
MAX_FIELD_LENGTH = 2048

# The form that vendors document: a key written without quotes. VCHAR (RFC 5234, appendix B.1) without the
# characters that mean something around a String: quote, backslash, the comma that joins repeated headers, and
# the semicolon of parameters. So no value has two readings.
_BARE_KEY = re.compile(r"[!#-+\--:<-\[\]-~]+")
_PRINTABLE_ASCII = re.compile(r"[ -~]*")

_RULE = f"a key has 1 to {MAX_KEY_LENGTH} printable ASCII characters"


def parse_key(raw: str, *, strict: bool = False) -> str:
    """The key in a header's value; ``MalformedKey`` for anything else, never a guess.

    ``strict`` takes what draft-ietf-httpapi-idempotency-key-header, section 2.1, defines: an Item of RFC 9651
    whose bare item is a String; its parameters are ignored. Otherwise the bare form is a key as well, and
    ``"abc"`` and ``abc`` are the same one, so that a client that moves to the standard form keeps its keys.

    ``raw`` is the value as WSGI gives it, one character a byte (PEP 3333).
    """
    if len(raw) > MAX_FIELD_LENGTH:
        raise _malformed("it is too long")
    # RFC 9110, section 5.5: white space around a field's value is not part of it. Servers strip it; test
    # clients do not. Strict mode leaves the value to RFC 9651, which knows spaces only.
    value = raw if strict else raw.strip(" \t")
    if not strict and _BARE_KEY.fullmatch(value):
        return _checked(value)
    if not value.strip():
        raise _malformed("it is empty")
    if not _PRINTABLE_ASCII.fullmatch(value):
        raise _malformed("it has a character outside printable ASCII")
    return _checked(_string_item(value, strict))


def _string_item(value: str, strict: bool) -> str:
    try:
        parsed = http_sf.parse(value.encode("ascii"), tltype="item")
    except http_sf.StructuredFieldError:
        parsed = None
    if isinstance(parsed, tuple) and isinstance(parsed[0], str):
        return parsed[0]
    # Only said when the value does not parse: a String may contain a comma. Servers join repeated headers
    # with one (RFC 9110, section 5.3), and choosing either key would be a guess.
    if "," in value:
        raise _malformed("it was sent more than once, or has a comma outside double quotes")
    if strict:
        raise _malformed("it is not a String in double quotes (RFC 9651)")
    raise _malformed("it is neither a String in double quotes (RFC 9651) nor a plain key without quotes")


def _checked(key: str) -> str:
    if len(key) > MAX_KEY_LENGTH:
        raise _malformed("it is too long")
    # A key of spaces is legal syntax and nobody's intent: a template whose variable was empty.
    if not key.strip():
        raise _malformed("it is empty")
    return key


def _malformed(what: str) -> MalformedKey:
    return MalformedKey(f"{what}; {_RULE}")


def record_id(scope: str, key: str) -> uuid.UUID:
    """The primary key of a record: 16 bytes of SHA-256 over scope and key, each preceded by its length.

    Lengths, because with a separator two pairs could read the same. Records outlive a release: another form
    would make every running retry a new request.
    """
    return uuid.UUID(bytes=framed_digest(scope, key)[:16])


def framed_digest(*parts: str) -> bytes:
    """SHA-256 over ``parts`` in UTF-8, each preceded by its length as eight bytes, big end first."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()
