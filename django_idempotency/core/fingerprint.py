"""What a request means, as 32 bytes: equal for a retry, different for another intent under the same key.

Two kinds of error are possible and not equally bad. Keeping two spellings of one request apart answers a
retry with 422; merging two different requests answers the second with the first one's response. So where a
rule is in doubt here, it keeps apart. draft-ietf-httpapi-idempotency-key-header, section 2.4, leaves the
choice to the server.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeAlias
from urllib.parse import parse_qsl

from .canonical import JsonValue, canonical_json_of_parsed, parse_json

SCHEME = 1
"""The scheme of new records. Older ones are compared under their own, so a released scheme never changes."""

_CHUNK = 64 * 1024
_SHA256_HEX = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2

_Tree: TypeAlias = "dict[str, _Tree]"


@dataclass(frozen=True)
class FingerprintRules:
    """Which parts of a request tell one intent from another, beyond what always counts.

    :param include: only these fields of the body count.
    :param exclude: these fields do not count: what a client makes anew for each attempt, such as a time of
        sending.
    :param headers: names of request headers that count.

    A field is a path of member names with dots, ``metadata.sent_at``; it stands for all that lies below it.
    Lists on the way are passed through: ``items.sent_at`` speaks of that member in each element. A form's
    fields and files go by their names, and a dot in a name reads as a step. A path that the body lacks is
    absent, which is not null. Where the body has another shape than an included path, a number where an
    object was expected, that number counts.

    The rules speak of bodies that have fields: JSON, forms, multipart. Any other body counts as a whole.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("include", "exclude", "headers"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        if self.include and self.exclude:
            raise ValueError("FingerprintRules: give include or exclude, not both; include alone says what counts.")
        for path in self.include + self.exclude:
            if not all(path.split(".")):
                raise ValueError(f"FingerprintRules: {path!r} is not a path of names joined by single dots.")
        for header in self.headers:
            if not _TOKEN.fullmatch(header):
                raise ValueError(f"FingerprintRules: {header!r} is not the name of a header.")
        object.__setattr__(self, "headers", tuple(sorted({header.lower() for header in self.headers})))

    @cached_property
    def _tree(self) -> _Tree:
        """The paths as nested names; an empty branch ends one. Of two that overlap the shorter wins."""
        tree: _Tree = {}
        for path in sorted(self.include or self.exclude, key=lambda path: path.count(".")):
            if _below(tree, path) is not None:
                continue
            *way, last = path.split(".")
            branch = tree
            for name in way:
                branch = branch.setdefault(name, {})
            branch[last] = {}
        return tree

    def _drops(self, below: _Tree | None) -> bool:
        return below is None if self.include else below == {}

    def prune(self, value: JsonValue) -> JsonValue:
        """``value`` without the members that do not count, changed in place (the parser made it for us)."""
        pending = [(value, self._tree)] if self._tree else []
        while pending:
            item, tree = pending.pop()
            if isinstance(item, list):
                pending.extend((element, tree) for element in item)
            elif isinstance(item, dict):
                for name in list(item):
                    below = _below(tree, name)
                    if self._drops(below):
                        del item[name]
                    elif below:
                        pending.append((item[name], below))
        return value

    def counts(self, name: str) -> bool:
        """Whether a form's field or file of this name counts."""
        return not self._tree or not self._drops(_below(self._tree, name))


def _names(field_name: str, value: object) -> tuple[str, ...]:
    # ("amount") is a string, and would read as six fields of one letter.
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"FingerprintRules: {field_name} must be a list or tuple of names, not {value!r}.")
    names = tuple(value)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"FingerprintRules: {field_name} must hold names, not {name!r}.")
    return names


def _below(tree: _Tree, name: str) -> _Tree | None:
    """What the rules say below ``name``: empty where a path ends (or has ended), None where no path leads."""
    for step in name.split("."):
        if step not in tree:
            return None
        tree = tree[step]
        if not tree:
            break
    return tree


@dataclass(frozen=True)
class EmptyBody:
    """No body at all. Not an empty form and not a file of no bytes, whatever the content type says."""


@dataclass(frozen=True)
class JsonBody:
    """A body that calls itself JSON, unparsed: a project's parser may have rounded its numbers already."""

    raw: bytes


@dataclass(frozen=True)
class FormBody:
    """Fields in the order sent, names repeated where the client repeated them."""

    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FileDigest:
    """One uploaded file: what a view can see of it, with the content as its hash."""

    field: str
    name: str
    content_type: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        _check_digest(self.sha256, self.size)


@dataclass(frozen=True)
class MultipartBody:
    """A multipart form. Its boundary is made anew by each attempt and plays no part."""

    fields: tuple[tuple[str, str], ...]
    files: tuple[FileDigest, ...] = ()


@dataclass(frozen=True)
class OpaqueBody:
    """A body that nobody here can read: its bytes count, and what the client calls them."""

    sha256: str
    size: int
    content_type: str

    def __post_init__(self) -> None:
        _check_digest(self.sha256, self.size)


Body: TypeAlias = EmptyBody | JsonBody | FormBody | MultipartBody | OpaqueBody


def _check_digest(sha256: str, size: int) -> None:
    if not _SHA256_HEX.fullmatch(sha256):
        raise ValueError("A digest must be SHA-256 in 64 lower-case hexadecimal digits.")
    if size < 0:
        raise ValueError("A size must not be negative.")


@dataclass(frozen=True)
class Content:
    """A request as far as it can count.

    :param method: part of the operation already; here it keeps a named operation's methods apart.
    :param url_kwargs: what the route captured. A key reused on another resource is a mismatch and not a
        second run.
    :param query: the query string as sent, one character a byte or percent-encoded.
    :param principal: who asks. Under a shared scope another person's retry is another request.
    :param headers: pairs of name and value; only those that the rules name count.
    """

    method: str
    principal: str
    body: Body
    url_kwargs: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        kwargs: Mapping[str, object] = self.url_kwargs
        for name, value in kwargs.items():
            if not isinstance(value, str):
                raise TypeError(f"The URL argument {name!r} must be given as text, not {type(value).__name__}.")
        object.__setattr__(self, "url_kwargs", dict(kwargs))
        # A body of an unknown kind would otherwise count as the same nothing in every request.
        body: object = self.body
        if not isinstance(body, Body):
            raise TypeError(f"The body must be one of the kinds in this module, not {type(body).__name__}.")


def fingerprint(content: Content, rules: FingerprintRules, scheme: int = SCHEME) -> bytes:
    """SHA-256 of what ``content`` means under ``rules``. ``MalformedBody``: its body cannot be compared."""
    describe = _SCHEMES.get(scheme)
    if describe is None:
        known = ", ".join(map(str, _SCHEMES))
        raise ValueError(f"Unknown fingerprint scheme {scheme!r} (known: {known}). Is the record from a newer release?")
    return hashlib.sha256(canonical_json_of_parsed(describe(content, rules)).encode()).digest()


def _scheme_1(content: Content, rules: FingerprintRules) -> JsonValue:
    # One JSON document, since its canonical text is unambiguous: no value can pose as two, or as another.
    return {
        "scheme": 1,
        "method": content.method.upper(),
        "url": {**content.url_kwargs},
        "query": _query_1(content.query),
        "principal": content.principal,
        "headers": _headers_1(content.headers, rules),
        "body": _body_1(content.body, rules),
    }


def _query_1(query: str) -> JsonValue:
    # A server that reads a name's values in order cannot see how names interleave. Blank values are values.
    # Latin-1 takes each percent-encoded byte for itself: as UTF-8 all invalid sequences would become the same
    # U+FFFD.
    return _grouped(parse_qsl(query, keep_blank_values=True, encoding="latin-1"))


def _headers_1(headers: Iterable[tuple[str, str]], rules: FingerprintRules) -> JsonValue:
    # Names regardless of case (RFC 9110, section 5.1); white space around a value is not part of it (5.5).
    if not rules.headers:
        return {}
    lowered = ((name.lower(), value.strip(" \t")) for name, value in headers)
    return _grouped((name, value) for name, value in lowered if name in rules.headers)


def _body_1(body: Body, rules: FingerprintRules) -> JsonValue:
    match body:
        case EmptyBody():
            return ["empty"]
        case JsonBody(raw):
            return ["json", rules.prune(parse_json(raw))]
        case FormBody(fields):
            return ["form", _fields_1(fields, rules)]
        case MultipartBody(fields, files):
            described = ((file.field, _file_1(file)) for file in files if rules.counts(file.field))
            return ["multipart", _fields_1(fields, rules), _grouped(described)]
    return ["opaque", _media_type(body.content_type), body.size, body.sha256]


def _fields_1(fields: Iterable[tuple[str, str]], rules: FingerprintRules) -> JsonValue:
    return _grouped((name, value) for name, value in fields if rules.counts(name))


def _file_1(file: FileDigest) -> JsonValue:
    return [file.name, _media_type(file.content_type), file.size, file.sha256]


def _grouped(pairs: Iterable[tuple[str, JsonValue]]) -> JsonValue:
    grouped: dict[str, list[JsonValue]] = {}
    for name, value in pairs:
        grouped.setdefault(name, []).append(value)
    return dict(grouped)


def _media_type(content_type: str) -> str:
    # Without parameters: a boundary is made anew by each attempt, and proxies add a charset on their own.
    return content_type.partition(";")[0].strip().lower()


_SCHEMES: Mapping[int, Callable[[Content, FingerprintRules], JsonValue]] = {1: _scheme_1}


class _Rewindable(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def seek(self, offset: int, /) -> object: ...


def digest_stream(file: _Rewindable) -> tuple[str, int]:
    """SHA-256 and size of the whole file, read in chunks. Afterwards it stands at its start, for the view.

    A stream that cannot be rewound raises before a byte of it is taken: its digest would cost the view its
    content.
    """
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    try:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    finally:
        file.seek(0)
    return digest.hexdigest(), size
