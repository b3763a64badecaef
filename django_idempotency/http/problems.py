"""Refusals as RFC 9457 problem documents: the one place that knows their status codes."""

from __future__ import annotations

import json
import math
from html import escape

from django.http import HttpResponse

from ..conf import current
from ..core import errors

STATUSES: dict[type[errors.IdempotencyError], int] = {
    errors.MissingKey: 400,
    errors.MalformedKey: 400,
    errors.MalformedFirstSent: 400,
    errors.MalformedBody: 400,
    errors.AnonymousScope: 403,
    errors.InProgress: 409,
    errors.Held: 409,
    errors.LeaseLost: 409,
    errors.ResponseNotStored: 409,
    # Gone, and not Conflict: there is nothing to wait for, and client libraries repeat a 409 by themselves.
    errors.TooLate: 410,
    errors.BodyTooLarge: 413,
    errors.KeyReused: 422,
    # Not 410, on which senders of webhooks end their subscription, nor 409, which clients repeat.
    errors.KeyExpired: 422,
    errors.BrokenTransaction: 500,
    errors.StoreUnavailable: 503,
    errors.OutcomeUnknown: 503,
    errors.TransactionConflict: 503,
}
"""400, 409 and 422 are those of draft-ietf-httpapi-idempotency-key-header, section 2.7; the others follow RFC 9110."""


def problem_response(error: errors.IdempotencyError, *, html: bool = False) -> HttpResponse:
    """The answer to a refused request, in bytes of our own: no renderer or envelope of the project shapes it."""
    status = STATUSES[type(error)]
    document = {
        "type": current().PROBLEM_BASE_URI + error.slug,
        "title": error.title,
        "status": status,
        "detail": error.detail,
        **error.members,
    }
    if html:
        title, detail = escape(error.title), escape(error.detail)
        page = f"<!doctype html><title>{title}</title><h1>{title}</h1><p>{detail}</p>"
        response = HttpResponse(page, status=status, content_type="text/html; charset=utf-8")
    else:
        response = HttpResponse(json.dumps(document), status=status, content_type="application/problem+json")
    if error.retry_after is not None:
        response["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, errors.ResponseNotStored):
        for name, value in error.headers:
            response[name] = value
    response["Cache-Control"] = "no-store"
    return response
