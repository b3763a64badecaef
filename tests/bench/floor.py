"""The hand-written floor: claim, effect, seal by raw cursors, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from django.db import connection, transaction
from django.http import HttpResponse
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

LEASE_SECONDS = 30.0
RETENTION_SECONDS = 86400.0

_CLAIM = "SELECT * FROM floor_claim(%s, %s, %s, %s, %s, %s, %s)"
_SEAL = "SELECT floor_seal(%s, %s, %s, %s::smallint, %s::jsonb, %s)"
_RELEASE = "DELETE FROM floor_key_in_flight WHERE id = %s AND owner_token = %s"

Effect = Callable[[Request], Response]


@dataclass
class _Claim:
    id: UUID
    token: UUID


def atomic(request: Request, operation: str, effect: Effect) -> HttpResponse:
    """Claim, effect and seal in one transaction."""
    with transaction.atomic(durable=True):
        claim = _claim(request, operation, "atomic")
        if isinstance(claim, HttpResponse):
            return claim
        return _seal(claim, effect(request))


def leased(request: Request, operation: str, effect: Effect) -> HttpResponse:
    """The claim commits by itself; effect and seal follow in a transaction of their own."""
    claim = _claim(request, operation, "leased")
    if isinstance(claim, HttpResponse):
        return claim
    try:
        with transaction.atomic(durable=True):
            return _seal(claim, effect(request))
    except BaseException:
        with connection.cursor() as cursor:
            cursor.execute(_RELEASE, (claim.id, claim.token))
        raise


def _claim(request: Request, operation: str, mode: str) -> _Claim | HttpResponse:
    key = request.headers["Idempotency-Key"]
    scope = f"user:{request.user.pk} {operation}"
    digest = hashlib.sha256(b"%d:%b%b" % (len(scope), scope.encode(), key.encode())).digest()
    claim = _Claim(UUID(bytes=digest[:16]), uuid4())
    fingerprint = hashlib.sha256(request._request.body).digest()
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, (claim.id, scope, key, fingerprint, claim.token, mode, LEASE_SECONDS))
        verdict, *standing = cursor.fetchone()
    if verdict == "claimed":
        return claim
    return _answer(verdict, (scope, key, fingerprint), standing)


def _answer(verdict: str, asked: tuple[str, str, bytes], standing: list[Any]) -> HttpResponse:
    scope, key, fingerprint, status, headers, body = standing
    if asked != (scope, key, bytes(fingerprint)):
        return HttpResponse(status=422)
    if verdict == "in_flight":
        return HttpResponse(status=409, headers={"Retry-After": "1"})
    headers = json.loads(headers) if isinstance(headers, str) else headers
    return HttpResponse(bytes(body), status=status, headers={**headers, "Idempotent-Replayed": "true"})


def _seal(claim: _Claim, response: Response) -> HttpResponse:
    body = JSONRenderer().render(response.data)
    headers = {"Content-Type": "application/json"}
    with connection.cursor() as cursor:
        cursor.execute(
            _SEAL, (claim.id, claim.token, RETENTION_SECONDS, response.status_code, json.dumps(headers), body)
        )
        (sealed,) = cursor.fetchone()
    if not sealed:
        raise RuntimeError("Another attempt owns the key now.")
    return HttpResponse(body, status=response.status_code, headers=headers)
