"""The body of a request as something to compare: its bytes, or what the REST framework's parsers made of an upload.

A project's parser may turn the fields of a form into anything: JSON that a field holds, objects of nested names. What a
view can tell apart must not become the same, so every value counts, whatever its kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.http import HttpRequest
from django.utils.datastructures import MultiValueDict
from rest_framework.parsers import BaseParser, FileUploadParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.utils.mediatypes import media_type_matches

from ..core.errors import IdempotencyError, MalformedBody
from ..core.fingerprint import Body, MultipartBody, digest_stream
from ..core.policy import SAFE_METHODS
from ..http.requests import body_bytes, multipart_body, raw_body, translated_errors


def read_ahead(request: HttpRequest, parsers: Iterable[type[BaseParser]]) -> IdempotencyError | None:
    """Keep the bytes of a request before anything parses them: once a parser read the stream they are gone.

    Uploads are left alone: their parsers keep what can be read again, and need no memory for it.

    :returns: why it cannot be read, for whoever needs to compare it.
    """
    content_type = request.content_type or ""
    if request.method in SAFE_METHODS or _is_multipart(request):
        return None
    parser = next((each for each in parsers if _takes(each, content_type)), BaseParser)
    if issubclass(parser, FileUploadParser):
        return None
    try:
        body_bytes(request)
    except IdempotencyError as error:
        return error
    return None


def _takes(parser: type[BaseParser], content_type: str) -> bool:
    return parser.media_type == content_type or media_type_matches(parser.media_type, content_type)


def read_body(request: Request) -> Body:
    """The body, left readable for the view.

    :raises MalformedBody: it cannot be compared with a retry. :raises BodyTooLarge: Django's own limit.
    """
    negotiator: Any = request.negotiator
    parser = negotiator.select_parser(request, request.parsers)
    http = request._request  # noqa: SLF001 - whose content_type and body are Django's, not the REST framework's
    if isinstance(parser, MultiPartParser | FileUploadParser) or (parser and _is_multipart(http)):
        return _uploaded(request)
    return raw_body(http)


def _is_multipart(request: HttpRequest) -> bool:
    return request.content_type == "multipart/form-data"


def _uploaded(request: Request) -> MultipartBody:
    """:raises MalformedBody: the request has a body, and nothing of it was read."""
    with translated_errors():
        data, files = request.data, request.FILES
    if not isinstance(files, MultiValueDict):
        files = MultiValueDict({name: [upload] for name, upload in files.items()})
    known = {id(upload) for _, uploads in files.lists() for upload in uploads}
    fields: MultiValueDict[str, str] = MultiValueDict()
    for name, value in _pairs(data):
        if not _all_known(value, known):
            fields.appendlist(name, value if isinstance(value, str) else _text(value))
    return multipart_body(request._request, fields, files)  # noqa: SLF001 - Django's knows how long the body is


def _pairs(data: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(data, MultiValueDict):
        yield from ((name, value) for name, values in data.lists() for value in values)
    elif isinstance(data, Mapping):
        yield from ((str(name), value) for name, value in data.items())
    elif data:
        yield "", data


def _all_known(value: Any, known: set[int]) -> bool:
    """Whether a value is files that ``request.FILES`` has as well: the REST framework puts them into both."""
    values = value if isinstance(value, list) and value else [value]
    return all(id(each) in known for each in values)


def _text(value: Any) -> str:
    try:
        text = json.dumps(_plain(value), sort_keys=True)
    except RecursionError:
        raise MalformedBody("what its fields hold is nested too deep") from None
    # Behind a character that JSON cannot begin with: a field that holds this very text is another one.
    return f"\0{text}"


def _plain(value: Any) -> Any:
    """The same as what JSON has, with nothing dropped on the way."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, MultiValueDict):
        return {name: _plain(values) for name, values in value.lists()}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "read"):
        return [getattr(value, "name", ""), getattr(value, "content_type", ""), *digest_stream(value)]
    return [type(value).__name__, str(value)]
