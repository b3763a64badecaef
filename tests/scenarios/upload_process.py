"""Uploads 100 MB to a protected view, in a process whose peak of memory tells whether anything kept it.

Prints the statuses of the upload, of its replay, and of one that differs in its last byte; then by how many KiB the
peak grew over that of a small upload.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
from pathlib import Path

import django

HEAD = (
    b'--b\r\nContent-Disposition: form-data; name="document"; filename="large.bin"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n"
)
TAIL = b"\r\n--b--\r\n"


class Made(io.RawIOBase):
    """A multipart body that exists only as far as it is read."""

    def __init__(self, size: int, last: bytes) -> None:
        self.length = len(HEAD) + size + len(TAIL)
        self._parts = iter((HEAD, *self._content(size - 1), last, TAIL))
        self._rest = b""

    def _content(self, left: int):
        block = b"0123456789abcdef" * 4096
        while left > 0:
            yield block[:left]
            left -= len(block)

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "somebody reads the whole body into memory"
        while len(self._rest) < size and (part := next(self._parts, b"")):
            self._rest += part
        read, self._rest = self._rest[:size], self._rest[size:]
        return read


def upload(application, size: int, key: str, last: bytes = b"!") -> str:
    body = Made(size, last)
    statuses = []
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/things/",
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "CONTENT_TYPE": "multipart/form-data; boundary=b",
        "CONTENT_LENGTH": str(body.length),
        "HTTP_HOST": "localhost",
        "HTTP_IDEMPOTENCY_KEY": key,
        "wsgi.input": body,
        "wsgi.url_scheme": "http",
    }
    response = application(environ, lambda status, headers: statuses.append(status.split()[0]))
    b"".join(response)
    response.close()
    return statuses[0]


def peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def main(way: str) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    django.setup()
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.views.decorators.csrf import csrf_exempt
    from rest_framework.permissions import AllowAny

    from .site import Site
    from .ways import WAYS, Call, Reply

    def handle(call: Call) -> Reply:
        digest = hashlib.sha256()
        for chunk in call.files["document"].chunks():
            digest.update(chunk)
        return Reply(201, digest.hexdigest())

    site = Site()
    members = {"permission_classes": [AllowAny]} if way == "viewset" else {}
    site.add(csrf_exempt(WAYS[way](handle, {"scope": lambda request: "everybody here"}, **members)))
    settings.ROOT_URLCONF = site
    application = get_wsgi_application()

    assert upload(application, 1024, "small") == "201"
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    size = 100 * 1024 * 1024
    statuses = [upload(application, size, "large", last) for last in (b"!", b"!", b"?")]
    print(",".join(statuses), peak() - before)


if __name__ == "__main__":
    main(sys.argv[1])
