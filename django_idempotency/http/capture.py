"""A response as a value, and a value as a response."""

from __future__ import annotations

import gzip
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, cast

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

from ..conf import current
from ..core.errors import ResponseNotStored
from ..core.headers import may_be_replayed
from ..core.policy import ResolvedPolicy
from ..core.states import RecordedResponse

logger = logging.getLogger("django_idempotency")

_DESCRIBE_THE_BODY = frozenset({"content-type", "content-encoding"})
"""Without these its bytes mean nothing, whatever headers a policy names."""

_DESCRIBE_THE_RESULT = ("Location", "Content-Location", "ETag", "Last-Modified", "Link")
"""What a view may say of the result of an operation, which alone decides what is recorded."""

_ACCEPTS_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)


def capture(response: HttpResponseBase, policy: ResolvedPolicy) -> RecordedResponse:
    """What a retry will receive. Reads a stream up to the limit of the policy, and puts it back."""
    body = _body(response, policy.max_response_bytes)
    stored = None if body is None else policy.stored_body(body)
    return RecordedResponse(response.status_code, _headers(response, policy), stored)


def replay(recorded: RecordedResponse, policy: ResolvedPolicy, request: HttpRequest) -> HttpResponse:
    """The recorded answer again, marked as such. :raises ResponseNotStored: see :func:`as_response`."""
    response = as_response(recorded, policy, request)
    response[current().REPLAYED_HEADER] = "true"
    return response


def as_response(recorded: RecordedResponse, policy: ResolvedPolicy, request: HttpRequest) -> HttpResponse:
    """What was recorded, as a response to this request.

    :raises ResponseNotStored: its body was not kept, or cannot be unpacked any more.
    """
    try:
        body = policy.original_body(recorded.body)
    except Exception:
        # The effect stands whatever became of the codec's keys; the caller must hear that, not an error.
        logger.exception("A recorded body could not be unpacked.")
        body = None
    return as_sent(replace(recorded, body=body), request)


def as_sent(original: RecordedResponse, request: HttpRequest) -> HttpResponse:
    """A response with its original body. :raises ResponseNotStored: see :func:`as_response`."""
    if original.body is None:
        raise ResponseNotStored(original.status, [each for each in original.headers if each[0].lower() == "location"])
    response = HttpResponse(original.body, status=original.status)
    del response["Content-Type"]
    for name, value in original.headers:
        response[name] = value
    if response.get("Content-Encoding") == "gzip" and not _ACCEPTS_GZIP.search(
        request.headers.get("Accept-Encoding", "")
    ):
        _uncompress(response)
    return response


def _uncompress(response: HttpResponse) -> None:
    try:
        response.content = gzip.decompress(response.content)
    except (OSError, EOFError, zlib.error):
        # Not gzip, whatever the view said: the first client got the same bytes.
        return
    del response["Content-Encoding"]


def discard(response: HttpResponseBase) -> None:
    """End the streams and files of a response that nobody will read. ``close()`` would end the request as well."""
    closers: list[Callable[[], object]] = getattr(response, "_resource_closers", [])
    for close in closers:
        try:
            close()
        except Exception:
            logger.exception("A response that is not sent could not be closed.")


def replace_by(response: HttpResponseBase, sealed: HttpResponse) -> HttpResponseBase:
    """``response``, which a view has built around the answer of an operation, with that answer and nothing about the
    result that a retry would not receive too."""
    if response.streaming:
        return sealed
    for name in _DESCRIBE_THE_RESULT:
        del response[name]
    return put_into(response, sealed)


def put_into(response: HttpResponseBase, answer: HttpResponse) -> HttpResponseBase:
    """Give ``response``, which the project has finished, the status, bytes and headers of ``answer``.

    Its own headers stay where the answer has none of that name; both sides of Vary count. A stream has no bytes that
    could be replaced: the answer goes alone.
    """
    if response is answer or response.streaming:
        return answer
    answered = cast("HttpResponse", response)
    answered.status_code = answer.status_code
    answered.content = answer.content
    if not answer.has_header("Content-Type"):
        del answered["Content-Type"]
    for name, value in answer.items():
        if name.lower() == "vary":
            patch_vary_headers(answered, [field.strip() for field in value.split(",")])
        else:
            answered[name] = value
    return answered


def _headers(response: HttpResponseBase, policy: ResolvedPolicy) -> tuple[tuple[str, str], ...]:
    wanted = policy.replay_headers
    named = ((name.lower(), name, value) for name, value in response.items())
    return tuple(
        (name, value)
        for lowered, name, value in named
        if (wanted is None or lowered in wanted or lowered in _DESCRIBE_THE_BODY) and may_be_replayed(name)
    )


def _body(response: HttpResponseBase, limit: int) -> bytes | None:
    if not response.streaming:
        content = cast("HttpResponse", response).content
        return content if len(content) <= limit else None
    return _streamed_body(response, limit)


def _streamed_body(response: Any, limit: int) -> bytes | None:
    if response.is_async:
        return None
    chunks: Iterator[bytes] = iter(response.streaming_content)
    read: list[bytes] = []
    size = 0
    for chunk in chunks:
        read.append(chunk)
        size += len(chunk)
        if size > limit:
            response.streaming_content = chain(read, chunks)
            return None
    response.streaming_content = iter(read)
    return b"".join(read)
