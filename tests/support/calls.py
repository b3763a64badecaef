"""How tests send requests: over the wire, or through this process's own request handler."""

from __future__ import annotations

import http.client
import json

from django.test import Client
from django.utils.datastructures import CaseInsensitiveMapping

from example_project.client import Answer, Request


def call(address: tuple[str, int], request: Request, *, token: str) -> Answer:
    """Over a connection of its own: what a kept one lost would look like an answer that got lost."""
    connection = http.client.HTTPConnection(*address[:2], timeout=30)
    try:
        connection.request("POST", request.path, _body(request), _headers(request, token))
        response = connection.getresponse()
        return Answer(response.status, response.read(), CaseInsensitiveMapping(response.getheaders()))
    except (ConnectionError, http.client.IncompleteRead):
        return Answer(0)
    finally:
        connection.close()


def wire_format(request: Request, token: str) -> bytes:
    """The bytes of a request, for a client that does not wait for the answer."""
    body = _body(request)
    headers = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **_headers(request, token)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {request.path} HTTP/1.1\r\n{head}\r\n".encode() + body


def ask(request: Request, *, token: str) -> Answer:
    """In this thread, on this thread's database connection, through middleware and ATOMIC_REQUESTS."""
    client = Client(raise_request_exception=False, headers=_headers(request, token))
    response = client.post(request.path, _body(request), content_type="application/json")
    return Answer(response.status_code, response.content, response.headers)


def _body(request: Request) -> bytes:
    return json.dumps(request.body).encode()


def _headers(request: Request, token: str) -> dict[str, str]:
    return {
        "Authorization": f"Token {token}",
        "Content-Type": "application/json",
        "Idempotency-Key": request.key,
    }
