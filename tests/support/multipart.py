"""multipart/form-data as clients send it: each attempt with a boundary of its own."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

File = tuple[str, str, str, bytes]
"""Field, file name, content type, content."""


def multipart(
    fields: Iterable[tuple[str, str]] = (), files: Iterable[File] = (), boundary: str | None = None
) -> tuple[bytes, str]:
    """A body, and the Content-Type that goes with it."""
    boundary = boundary or uuid4().hex
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields]
    parts += [
        f'Content-Disposition: form-data; name="{field}"; filename="{name}"\r\nContent-Type: {content_type}\r\n\r\n'
        .encode() + content
        for field, name, content_type, content in files
    ]  # fmt: skip
    body = b"".join(f"--{boundary}\r\n".encode() + part + b"\r\n" for part in parts)
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"
