"""What the REST framework's parsers made of an upload, as something to compare.

A project's parser may turn the fields of a form into anything: JSON that a field holds, objects of nested names. What a
view can tell apart must not become the same, so every value counts, whatever its kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from django.utils.datastructures import MultiValueDict
from rest_framework.request import Request

from ..core.errors import MalformedBody
from ..core.fingerprint import MultipartBody, digest_stream
from ..http.requests import multipart_body, translated_errors


def uploaded(request: Request) -> MultipartBody:
    """The fields and files of an upload, parsed.

    :raises MalformedBody: the request has a body, and nothing of it was read.
    """
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
