"""Keys for other systems, made from the client's: the same for every attempt, and never the client's own."""

from __future__ import annotations

import uuid

from .keys import framed_digest

_PURPOSE = "django-idempotency derived key 1"


def derive_key(scope: str, key: str, step: str, *, hexadecimal: bool = False) -> str:
    """The key under which ``step`` of the intent (``scope``, ``key``) is sent to another system.

    SHA-256 over the purpose, scope, key and step, each in UTF-8 and preceded by its length as eight bytes, big end
    first. By default its first 16 bytes as a UUID of version 8 (RFC 9562, section 5.8), 36 characters that every vendor
    takes; with ``hexadecimal``, all 32 bytes as 64 digits.

    :raises ValueError: a part is empty: two steps must not share a key by accident.
    """
    for name, part in (("scope", scope), ("key", key), ("step", step)):
        if not part:
            raise ValueError(f"A derived key needs a {name} that is not empty.")
    digest = framed_digest(_PURPOSE, scope, key, step)
    if hexadecimal:
        return digest.hex()
    octets = bytearray(digest[:16])
    octets[6] = octets[6] & 0x0F | 0x80
    octets[8] = octets[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(octets)))
