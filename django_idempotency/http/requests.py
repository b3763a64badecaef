"""What a request means: its key, its caller, and the content that tells it from another."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from django.conf import settings as django_settings
from django.core.exceptions import (
    ImproperlyConfigured,
    RequestDataTooBig,
    TooManyFieldsSent,
    TooManyFilesSent,
)
from django.db.models import Model
from django.http import HttpRequest, RawPostDataException, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.utils.datastructures import MultiValueDict

from ..conf import current
from ..core.errors import BodyTooLarge, MalformedBody, MalformedFirstSent, MalformedKey
from ..core.fingerprint import (
    Body,
    EmptyBody,
    FileDigest,
    FormBody,
    JsonBody,
    MultipartBody,
    OpaqueBody,
    digest_stream,
)
from ..core.first_sent import parse_first_sent, time_of_uuid7
from ..core.keys import parse_key
from ..core.policy import ResolvedPolicy


def read_key(request: HttpRequest) -> str | None:
    """The key in its stored form; None where the header is absent.

    :raises MalformedKey: the header is there and is no key. Never treated as absent.
    """
    raw = request.META.get(_meta_name(current().HEADER))
    if raw is None:
        return None
    # Something in front of the view may have put a number there, and a test client puts what a test says.
    text = str(raw) if isinstance(raw, str | int | UUID) and not isinstance(raw, bool) else ""
    try:
        return parse_key(text, strict=current().STRICT_KEYS)
    except MalformedKey as error:
        raise MalformedKey(f"in the {current().HEADER} header, {error.reason}") from None


def has_key(request: HttpRequest) -> bool:
    """Whether the header is there, well-formed or not, and is going to be honoured."""
    return _meta_name(current().HEADER) in request.META and not current().OBSERVE_ONLY


def age_on_arrival(request: HttpRequest, key: str, policy: ResolvedPolicy) -> float | None:
    """Seconds since the client first sent the request; None where it does not say. Clocks differ, so what lies in the
    future is 0.

    :raises MalformedFirstSent: what FIRST_SENT_HEADER names is there and is no time.
    """
    header = current().FIRST_SENT_HEADER
    raw = request.META.get(_meta_name(header)) if header else None
    if raw is None:
        first_sent = time_of_uuid7(key) if policy.trust_uuid7 else None
    else:
        try:
            first_sent = parse_first_sent(str(raw))
        except MalformedFirstSent as error:
            raise MalformedFirstSent(f"in the {header} header, {error.reason}") from None
    return None if first_sent is None else max(0.0, time.time() - first_sent)


@cache
def _meta_name(header: str) -> str:
    return "HTTP_" + header.upper().replace("-", "_")


def principal_of(user: Any) -> str | None:
    """A name for an authenticated user, unique across user models; None for anybody else."""
    if user is None or not getattr(user, "is_authenticated", False) or getattr(user, "pk", None) is None:
        return None
    meta = getattr(user, "_meta", None)
    return f"{meta.label_lower if meta else type(user).__name__}:{user.pk}"


def counted_headers(request: HttpRequest, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), request.headers.get(name, "")) for name in sorted(names)) if names else ()


def read_body(request: HttpRequest) -> Body:
    """The body of a plain Django request, left readable for the view.

    :raises MalformedBody: it cannot be compared with a retry. :raises BodyTooLarge: Django's own limit.
    :raises ImproperlyConfigured: somebody consumed the stream before.
    """
    if request.content_type == "multipart/form-data" and request.method == "POST":
        with translated_errors():
            _refuse_consumed(request)
            return multipart_body(request, request.POST, request.FILES)
    return raw_body(request)


def _refuse_consumed(request: HttpRequest) -> None:
    # A form whose stream somebody else has read is parsed as an empty one, without a word: all would be one request.
    if getattr(request, "_read_started", False) and not (hasattr(request, "_post") or hasattr(request, "_body")):
        raise RawPostDataException


def body_bytes(request: HttpRequest) -> bytes:
    """``request.body``, with our answers where it cannot be had."""
    try:
        return request.body
    except _UNREADABLE as error:
        raise _translated(error) from error


def raw_body(request: HttpRequest) -> Body:
    """The body by its bytes, which are read before anything parses them."""
    raw = body_bytes(request)
    if not raw and _is_chunked(request):
        # Behind WSGI, Django takes nothing of it, and neither would the view: every such request would be the same one.
        raise MalformedBody("it was sent in chunks, of which this server reads nothing; send a Content-Length")
    if not raw:
        return EmptyBody()
    content_type = request.content_type or ""
    if content_type == "application/json" or content_type.endswith("+json"):
        return JsonBody(raw)
    if content_type == "application/x-www-form-urlencoded":
        return FormBody(_form_fields(raw))
    return OpaqueBody(hashlib.sha256(raw).hexdigest(), len(raw), content_type)


def multipart_body(
    request: HttpRequest, fields: MultiValueDict[str, Any], files: MultiValueDict[str, Any]
) -> MultipartBody:
    """Fields and digests of the files, which are rewound for the view. The boundary plays no part.

    :raises MalformedBody: the request has a body, and nothing of it was read.
    """
    if not fields and not files and not _is_empty_form(request):
        raise MalformedBody("no part of its form can be read, or something in front of the view has read them before")
    return MultipartBody(
        tuple((name, value) for name, values in fields.lists() for value in values if isinstance(value, str)),
        tuple(_file_digest(name, upload) for name, uploads in files.lists() for upload in uploads),
    )


def _is_empty_form(request: HttpRequest) -> bool:
    """Whether there is room for no more than the closing boundary. Django drops parts that it cannot read, and all of a
    form whose stream was consumed, without a word: every such request would be the same one."""
    boundary = (request.content_params or {}).get("boundary", "")
    length = request.META.get("CONTENT_LENGTH") or "0"
    if _is_chunked(request) or not length.isdecimal():
        return False  # a form whose length is not said is not read at all
    return int(length) <= len(boundary) + len("\r\n----\r\n")


def _is_chunked(request: HttpRequest) -> bool:
    return "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()


def _file_digest(name: str, upload: Any) -> FileDigest:
    try:
        sha256, size = digest_stream(upload)
    except (AttributeError, ValueError) as error:
        raise ImproperlyConfigured(
            f"The file in {name!r} cannot be read from its start, so it cannot be compared with that of a retry. Look "
            "for an upload handler that keeps no file, or for something in front of the view that closes it."
        ) from error
    return FileDigest(name, upload.name or "", upload.content_type or "", size, sha256)


def _form_fields(raw: bytes) -> tuple[tuple[str, str], ...]:
    try:
        pairs = parse_qsl(
            raw.decode("utf-8", "surrogateescape"),
            keep_blank_values=True,
            # Replacement characters would make different bytes equal.
            errors="surrogateescape",
            max_num_fields=django_settings.DATA_UPLOAD_MAX_NUMBER_FIELDS,
        )
    except ValueError:
        raise BodyTooLarge from None
    return tuple(pairs)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turns what Django raises over an unreadable body into our answers."""
    try:
        yield
    except _UNREADABLE as error:
        raise _translated(error) from error


_TOO_LARGE = (RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent)
_UNREADABLE = (*_TOO_LARGE, MultiPartParserError, UnreadablePostError, RawPostDataException)


def _translated(error: Exception) -> Exception:
    if isinstance(error, _TOO_LARGE):
        return BodyTooLarge()
    if isinstance(error, MultiPartParserError):
        return MalformedBody("it is not valid multipart/form-data")
    if isinstance(error, UnreadablePostError):
        return MalformedBody("the connection ended before it was complete")
    return ImproperlyConfigured(
        "The request body was consumed before it could be fingerprinted. Something in front of the view reads "
        "the stream itself; let it use request.body instead."
    )


def text_kwargs(kwargs: Mapping[str, Any], leave_out: Iterable[str | None] = ()) -> dict[str, str]:
    return {name: argument(value) for name, value in kwargs.items() if name not in leave_out and value is not None}


def argument(value: Any) -> str:
    """What the URL named, or its route as an option of its own, as text that is the same in every process.

    :raises ImproperlyConfigured: it has none, and a retry that meets another worker would be another request.
    """
    if isinstance(value, Model):
        # A converter may have looked up a row, whose text can change, and be that of another one.
        return f"{value._meta.label_lower}:{value.pk}"  # noqa: SLF001 - documented
    if isinstance(value, Mapping):
        return json.dumps(sorted([argument(name), argument(each)] for name, each in value.items()))
    if isinstance(value, list | tuple):
        return json.dumps([argument(each) for each in value])
    if isinstance(value, set | frozenset):
        return json.dumps(sorted(argument(each) for each in value))
    text, cls = str(value), cast("Any", type(value))
    if cls.__str__ is not object.__str__ or not _ADDRESS.search(text):
        return text
    if name := _importable_name(value):
        return name
    raise ImproperlyConfigured(
        f"An argument of the view is {cls.__qualname__}, whose text is another one in each process, so it cannot be "
        "compared with that of a retry. In the options of a route, name functions that can be imported, and give "
        "objects a __str__ that says what they are."
    )


# As Python writes what has no text of its own.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+\b")


def _importable_name(value: Any) -> str | None:
    """Of a function. None for a lambda and for what is made within another function: two can have one name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    found: Any = sys.modules.get(module)
    for step in name.split("."):
        found = getattr(found, step, None)
    return f"{module}.{name}" if found is value else None


def without_parameters(query: str, names: Iterable[str | None]) -> str:
    """A query string without parameters that choose a representation and not a meaning."""
    left_out = set(names)
    if not query or not left_out:
        return query
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    kept = [(name, value) for name, value in pairs if name not in left_out]
    return query if len(kept) == len(pairs) else urlencode(kept, errors="surrogateescape")
