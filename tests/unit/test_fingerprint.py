"""When two requests are one intent."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import pickle
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_idempotency.core.errors import MalformedBody
from django_idempotency.core.fingerprint import (
    SCHEME,
    Content,
    EmptyBody,
    FileDigest,
    FingerprintRules,
    FormBody,
    JsonBody,
    MultipartBody,
    OpaqueBody,
    digest_stream,
    fingerprint,
)

EVERYTHING = FingerprintRules()
NOTHING_SHA = hashlib.sha256(b"").hexdigest()


def content(body=None, **fields) -> Content:
    values: dict[str, Any] = {"method": "POST", "principal": "user:5", "body": body or EmptyBody()}
    return Content(**values | fields)


def as_json(value) -> JsonBody:
    return JsonBody(value if isinstance(value, bytes) else json.dumps(value).encode())


def same(one: Content, other: Content, rules: FingerprintRules = EVERYTHING) -> bool:
    return fingerprint(one, rules) == fingerprint(other, rules)


def same_body(one, other, **rules) -> bool:
    bodies = [body if hasattr(body, "__dataclass_fields__") else as_json(body) for body in (one, other)]
    return same(content(bodies[0]), content(bodies[1]), FingerprintRules(**rules))


def file(**fields) -> FileDigest:
    defaults: dict[str, Any] = {
        "field": "scan",
        "name": "a.pdf",
        "content_type": "application/pdf",
        "size": 3,
        "sha256": "a" * 64,
    }
    return FileDigest(**defaults | fields)


# --- the scheme


def test_the_form_of_scheme_1_never_changes():
    # Records outlive a release: another form under the same number makes every running retry a mismatch.
    request = content(
        as_json(b'{"b":[1,1.0,null],"a":"\\ud800"}'),
        url_kwargs={"pk": "7"},
        query="b=1&a=%FF",
        headers=(("X-Tenant", "acme"), ("Accept", "*/*")),
    )
    document = (
        '{"body":["json",{"a":"\\ud800","b":[1,1e0,null]}],"headers":{"x-tenant":["acme"]},"method":"POST",'
        '"principal":"user:5","query":{"a":["\xff"],"b":["1"]},"scheme":1,"url":{"pk":"7"}}'
    )
    digest = fingerprint(request, FingerprintRules(headers=("X-Tenant",)))
    assert digest == hashlib.sha256(document.encode()).digest()
    assert len(digest) == 32
    assert SCHEME == 1


def test_an_unknown_scheme_is_an_error_and_not_a_mismatch():
    with pytest.raises(ValueError, match=r"Unknown fingerprint scheme 2 \(known: 1\)"):
        fingerprint(content(), EVERYTHING, scheme=2)


# --- the parts of a request

BASE = content(as_json({"amount": 5}), url_kwargs={"pk": "1"}, query="dry=1", headers=(("X-A", "1"),))


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PATCH"},
        {"principal": "user:6"},
        {"body": as_json({"amount": 6})},
        {"body": EmptyBody()},
        {"url_kwargs": {"pk": "2"}},
        {"url_kwargs": {"id": "1"}},
        {"url_kwargs": {}},
        {"query": ""},
        {"query": "dry=0"},
        {"query": "wet=1"},
        {"headers": (("X-A", "2"),)},
        {"headers": (("X-A", ""),)},
        {"headers": (("X-A", "1"), ("X-A", "1"))},
        {"headers": ()},
    ],
    ids=repr,
)
def test_each_part_counts(change):
    changed = Content(**{name: getattr(BASE, name) for name in BASE.__dataclass_fields__} | change)
    assert not same(BASE, changed, FingerprintRules(headers=("x-a",)))


def test_the_case_of_a_method_is_form():
    assert same(content(method="post"), content(method="POST"))


def test_url_arguments_have_no_order():
    assert same(content(url_kwargs={"a": "1", "b": "2"}), content(url_kwargs={"b": "2", "a": "1"}))


def test_content_is_frozen_when_it_is_made():
    kwargs = {"pk": "1"}
    request = content(url_kwargs=kwargs)
    kwargs["pk"] = "2"
    assert request.url_kwargs == {"pk": "1"}


@pytest.mark.parametrize("fields", [{"url_kwargs": {"pk": 1}}, {"body": b"{}"}, {"body": {"amount": 1}}])
def test_content_of_an_unknown_kind_is_refused(fields):
    with pytest.raises(TypeError):
        content(**fields)


# --- the query


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a=1&b=2", "b=2&a=1"),
        ("a=1&b=2&a=3", "a=1&a=3&b=2"),
        ("a", "a="),
        ("a=1&&b=2&", "b=2&a=1"),
        ("q=a+b", "q=a%20b"),
        ("q=%c3%a9", "q=%C3%A9"),
        ("q=\xc3\xa9", "q=%C3%A9"),
        ("%61=1", "a=1"),
    ],
)
def test_queries_that_only_differ_in_form(one, other):
    assert same(content(query=one), content(query=other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("dry=1", ""),
        ("a=&a=b&c=", "a=&b=c&b="),
        ("a=1&a=2", "a=2&a=1"),
        ("a=1", "a=1&a=1"),
        ("a=", ""),
        ("a=1&b=2", "a=1%26b%3D2"),
        ("a=1;b=2", "a=1&b=2"),
        ("a=+", "a=%2B"),
        ("a=%FF", "a=%FE"),
        ("a=%FF", "a=%EF%BF%BD"),
        ("a=%00", "a="),
        ("a=1", "A=1"),
    ],
)
def test_queries_that_a_view_can_tell_apart(one, other):
    assert not same(content(query=one), content(query=other))


# --- bodies

BODIES = [
    EmptyBody(),
    JsonBody(b"{}"),
    JsonBody(b"[]"),
    JsonBody(b"null"),
    JsonBody(b'""'),
    JsonBody(b'{"a":["1"]}'),
    JsonBody(b'{"a":"1"}'),
    FormBody(()),
    FormBody((("a", "1"),)),
    FormBody((("a", "1"), ("a", ""))),
    FormBody((("a", ""), ("a", "1"))),
    MultipartBody(()),
    MultipartBody((("a", "1"),)),
    MultipartBody((), (file(),)),
    MultipartBody((("a", "1"),), (file(),)),
    MultipartBody((), (file(field="other"),)),
    MultipartBody((), (file(name="b.pdf"),)),
    MultipartBody((), (file(content_type="image/png"),)),
    MultipartBody((), (file(size=4),)),
    MultipartBody((), (file(sha256="b" * 64),)),
    MultipartBody((), (file(), file())),
    MultipartBody((), (file(), file(name="b.pdf"))),
    MultipartBody((), (file(name="b.pdf"), file())),
    MultipartBody((("scan", "a.pdf"),)),
    OpaqueBody(NOTHING_SHA, 0, ""),
    OpaqueBody(NOTHING_SHA, 0, "text/plain"),
    OpaqueBody("a" * 64, 3, "text/plain"),
    OpaqueBody("a" * 64, 3, "text/csv"),
]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(BODIES, 2)), ids=itertools.count())
def test_bodies_of_other_kinds_or_content_differ(one, other):
    assert not same(content(one), content(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (FormBody((("a", "1"), ("b", "2"))), FormBody((("b", "2"), ("a", "1")))),
        (FormBody((("a", "1"), ("b", "2"), ("a", "3"))), FormBody((("a", "1"), ("a", "3"), ("b", "2")))),
        (
            MultipartBody((("a", "1"), ("b", "2")), (file(), file(field="x"))),
            MultipartBody((("b", "2"), ("a", "1")), (file(field="x"), file())),
        ),
        (
            MultipartBody((), (file(content_type="text/plain; charset=utf-8"),)),
            MultipartBody((), (file(content_type="Text/Plain"),)),
        ),
        (OpaqueBody("a" * 64, 3, "text/plain"), OpaqueBody("a" * 64, 3, "TEXT/PLAIN ; charset=utf-8")),
    ],
    ids=itertools.count(),
)
def test_bodies_that_only_differ_in_form(one, other):
    assert same(content(one), content(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":{"b":1,"c":[1,2]},"d":null}', b' { "d":null,\n"a":{"c":[1,2],"b":1}}'),
        (b'{"amount":1.0}', b'{"amount":1.00}'),
        (b'{"amount":100.0}', b'{"amount":1e2}'),
        (b'{"name":"\\u00e9"}', '{"name":"é"}'.encode()),
        (b'{"url":"a\\/b"}', b'{"url":"a/b"}'),
    ],
)
def test_json_that_only_differs_in_form(one, other):
    assert same_body(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"items":[1,2]}', b'{"items":[2,1]}'),
        (b'{"amount":9007199254740992}', b'{"amount":9007199254740993}'),
        (b'{"amount":0.1}', b'{"amount":0.10000000000000001}'),
        (b'{"amount":1}', b'{"amount":1.0}'),
        (b'{"amount":1}', b'{"amount":"1"}'),
        (b'{"amount":1}', b'{"amount":true}'),
        (b'{"a":null}', b"{}"),
        (b'{"a":"\\ud800"}', b'{"a":"\\ud801"}'),
        (b'{"a":"\\ud800"}', b'{"a":"\\\\ud800"}'),
        (b'{"a":"\\ud800"}', b'{"a":"\\ufffd"}'),
        (b'{"a":"e\\u0301"}', b'{"a":"\\u00e9"}'),
    ],
)
def test_json_that_a_view_can_tell_apart(one, other):
    assert not same_body(one, other)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":1,"a":1}', b"[NaN]", b"\xff", b"[" * 10_000 + b"]" * 10_000])
@pytest.mark.parametrize("rules", [EVERYTHING, FingerprintRules(exclude=("a",))], ids=["all", "some"])
def test_a_malformed_body_has_no_fingerprint(raw, rules):
    with pytest.raises(MalformedBody):
        fingerprint(content(JsonBody(raw)), rules)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3),
    max_leaves=10,
)


def shuffled(value, random):
    if isinstance(value, dict):
        names = list(value)
        random.shuffle(names)
        return {name: shuffled(value[name], random) for name in names}
    return [shuffled(element, random) for element in value] if isinstance(value, list) else value


@given(JSON_VALUES, st.randoms(use_true_random=False), st.sampled_from([None, 2]), st.booleans())
def test_no_order_of_members_and_no_white_space_counts(value, random, indent, ascii_only):
    other = json.dumps(shuffled(value, random), indent=indent, ensure_ascii=ascii_only)
    assert same_body(json.dumps(value).encode(), other.encode("utf-8", "surrogatepass"))


def paths(value, way=()):
    yield way
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in steps:
        yield from paths(below, (*way, step))


def replaced(value, way, new):
    if not way:
        return new
    copy = value.copy()
    copy[way[0]] = replaced(value[way[0]], way[1:], new)
    return copy


@given(JSON_VALUES, JSON_VALUES, st.data())
def test_any_single_change_counts(value, new, data):
    way = data.draw(st.sampled_from(list(paths(value))))
    changed = replaced(value, way, new)
    # Python holds True equal to 1; JSON and repr do not.
    assert same_body(value, changed) == (canonical_repr(value) == canonical_repr(changed))


def canonical_repr(value) -> str:
    return json.dumps(value, sort_keys=True)


PAIRS = st.lists(st.tuples(st.sampled_from("ab="), st.sampled_from(["", "1", "a=1", "&"])), max_size=5)


def grouped(pairs):
    return {name: [value for other, value in pairs if other == name] for name, _ in pairs}


@given(PAIRS, PAIRS)
def test_two_forms_are_one_if_each_name_has_the_same_values_in_order(one, other):
    assert same_body(FormBody(tuple(one)), FormBody(tuple(other))) == (grouped(one) == grouped(other))


# --- rules


@pytest.mark.parametrize(
    ("rules", "one", "other"),
    [
        ({"exclude": ["sent_at"]}, {"amount": 5, "sent_at": 1}, {"amount": 5, "sent_at": 2}),
        ({"exclude": ["sent_at"]}, {"amount": 5, "sent_at": 1}, {"amount": 5}),
        ({"exclude": ["meta.sent_at"]}, {"meta": {"sent_at": 1, "by": 2}}, {"meta": {"by": 2}}),
        ({"exclude": ["meta"]}, {"meta": {"sent_at": 1}}, {}),
        (
            {"exclude": ["items.at"]},
            {"items": [{"at": 1, "q": 1}, {"at": 2}]},
            {"items": [{"q": 1}, {"at": 5}]},
        ),
        ({"exclude": ["items.at"]}, {"items": [[{"at": 1}], 7]}, {"items": [[{}], 7]}),
        ({"exclude": ["at"]}, [{"at": 1}, {"at": 2}], [{}, {"at": [3]}]),
        ({"exclude": ["a", "a.b"]}, {"a": {"c": 1}}, {"a": {"c": 2}}),
        ({"exclude": ["a.b", "a"]}, {"a": {"c": 1}}, {"a": {"c": 2}}),
        ({"exclude": ["a.b", "a.c"]}, {"a": {"b": 1, "c": 1, "d": 1}}, {"a": {"b": 2, "c": 2, "d": 1}}),
        ({"exclude": ["a.b"]}, {"a.b": 1}, {}),
        ({"include": ["amount"]}, {"amount": 5, "x": 1}, {"x": [2], "amount": 5}),
        (
            {"include": ["amount", "meta.by"]},
            {"amount": 5, "meta": {"by": 1}},
            {"amount": 5, "meta": {"by": 1, "at": 2}},
        ),
        ({"include": ["amount"]}, {"x": 1}, {}),
        ({"include": ["items.q"]}, {"items": [{"q": 1, "at": 1}]}, {"items": [{"q": 1, "at": 2}]}),
        ({"include": ["a", "a.b"]}, {"a": {"b": 1}, "c": 1}, {"a": {"b": 1}, "c": 2}),
    ],
    ids=repr,
)
def test_what_the_rules_leave_out_makes_no_difference(rules, one, other):
    assert same_body(one, other, **rules)


@pytest.mark.parametrize(
    ("rules", "one", "other"),
    [
        ({"exclude": ["sent_at"]}, {"amount": 5, "sent_at": 1}, {"amount": 6, "sent_at": 1}),
        ({"exclude": ["sent_at"]}, {"meta": {"sent_at": 1}}, {"meta": {"sent_at": 2}}),
        ({"exclude": ["meta.sent_at"]}, {"meta": {"sent_at": 1}}, {}),
        ({"exclude": ["meta.sent_at"]}, {"meta": 1}, {"meta": 2}),
        ({"exclude": ["items.at"]}, {"items": [{"at": 1}, {}]}, {"items": [{"at": 1}]}),
        ({"exclude": ["items.at"]}, {"items": [{"q": 1}, {"q": 2}]}, {"items": [{"q": 2}, {"q": 1}]}),
        ({"exclude": ["at"]}, b"1", b"2"),
        ({"include": ["amount"]}, {"amount": 5}, {"amount": 6}),
        ({"include": ["amount"]}, {"amount": None}, {}),
        ({"include": ["meta.by"]}, {"meta": {"by": 1}}, {"meta": {"by": 2}}),
        ({"include": ["meta.by"]}, {"meta": {"by": None}}, {"meta": {}}),
        # A shape that the path did not expect still counts: nothing merges because a client deviates.
        ({"include": ["meta.by"]}, {"meta": 1}, {"meta": 2}),
        ({"include": ["meta.by"]}, {"meta.by": 1}, {"meta.by": 2}),
        ({"include": ["items.q"]}, {"items": [{"q": 1}, 7]}, {"items": [{"q": 1}, 8]}),
        ({"include": ["a", "a.b"]}, {"a": {"c": 1}}, {"a": {"c": 2}}),
        ({"include": ["a.b", "a"]}, {"a": {"c": 1}}, {"a": {"c": 2}}),
        ({"include": ["amount"]}, b"1", b"2"),
        ({"include": ["amount"]}, b"[]", b"{}"),
    ],
    ids=repr,
)
def test_what_the_rules_keep_counts(rules, one, other):
    assert not same_body(one, other, **rules)


FORMS = [
    lambda pairs: FormBody(tuple(pairs)),
    lambda pairs: MultipartBody(tuple(pairs)),
    lambda pairs: MultipartBody((), tuple(file(field=name, name=value) for name, value in pairs)),
]


@pytest.mark.parametrize("form", FORMS, ids=["form", "multipart", "files"])
def test_rules_speak_of_form_fields_and_files_by_name(form):
    def differ(rules, *changed):
        base = [("amount", "5"), ("meta.at", "1"), ("meta.by", "2"), ("metal", "3")]
        other = [(name, "new" if name in changed else value) for name, value in base]
        return not same_body(form(base), form(other), **rules)

    assert differ({}, "meta.at")
    assert not differ({"exclude": ["meta.at"]}, "meta.at")
    assert differ({"exclude": ["meta.at"]}, "meta.by")
    assert not differ({"exclude": ["meta"]}, "meta.at", "meta.by")
    assert differ({"exclude": ["meta"]}, "metal")
    assert not differ({"include": ["amount"]}, "meta.at", "metal")
    assert differ({"include": ["amount"]}, "amount")
    assert differ({"include": ["meta"]}, "meta.by")
    assert not differ({"include": ["meta"]}, "metal")


def test_a_form_field_on_the_way_to_an_included_path_counts():
    assert not same_body(FormBody((("meta", "1"),)), FormBody((("meta", "2"),)), include=["meta.by"])


def test_a_field_of_a_form_that_is_not_named_does_not_count_by_being_there():
    assert same_body(FormBody((("a", "1"), ("b", "2"))), FormBody((("a", "1"),)), include=["a"])


def test_rules_leave_everything_but_the_body_alone():
    rules = FingerprintRules(exclude=("pk", "dry", "x-a", "POST"))
    for change in ({"url_kwargs": {"pk": "2"}}, {"query": "dry=2"}, {"principal": "user:6"}):
        assert not same(content(url_kwargs={"pk": "1"}, query="dry=1"), content(**change), rules)
    opaque = [content(OpaqueBody(sha * 64, 1, "text/plain")) for sha in "ab"]
    assert not same(*opaque, FingerprintRules(include=("amount",)))


@given(JSON_VALUES, st.lists(st.sampled_from(["a", "b", "a.b", "b.a", "a.a.b"]), max_size=3), st.booleans())
def test_rules_never_fail_on_a_body(value, names, including):
    rules = FingerprintRules(include=names) if including else FingerprintRules(exclude=names)
    assert same(content(as_json(value)), content(as_json(value)), rules)


def test_headers_count_by_name_whatever_its_case():
    rules = FingerprintRules(headers=["X-Tenant"])
    sent = content(headers=(("x-tenant", "acme"), ("Date", "today")))
    assert same(sent, content(headers=(("Date", "later"), ("X-TENANT", " acme\t"))), rules)
    assert not same(sent, content(headers=(("x-tenant", "other"),)), rules)
    assert not same(sent, content(), rules)


def test_a_header_that_no_request_sends_changes_nothing():
    # So that a rule can be added while retries are under way.
    assert fingerprint(content(), FingerprintRules(headers=("X-New",))) == fingerprint(content(), EVERYTHING)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"include": ["a"], "exclude": ["b"]}, ValueError, "include or exclude, not both"),
        ({"exclude": "amount"}, TypeError, "exclude must be a list or tuple of names"),
        ({"headers": "X-A"}, TypeError, "headers must be a list or tuple of names"),
        ({"include": None}, TypeError, "include must be a list or tuple of names"),
        ({"include": b"amount"}, TypeError, "include must hold names"),
        ({"include": [("a", "b")]}, TypeError, "include must hold names"),
        ({"exclude": [""]}, ValueError, "not a path"),
        ({"exclude": ["a."]}, ValueError, "not a path"),
        ({"exclude": ["a..b"]}, ValueError, "not a path"),
        ({"include": [".a"]}, ValueError, "not a path"),
        ({"headers": [""]}, ValueError, "not the name of a header"),
        ({"headers": ["X A"]}, ValueError, "not the name of a header"),
        ({"headers": ["X-A:"]}, ValueError, "not the name of a header"),
        ({"headers": ["X-A\n"]}, ValueError, "not the name of a header"),
    ],
    ids=repr,
)
def test_wrong_rules_are_refused_when_they_are_made(fields, error, message):
    with pytest.raises(error, match=message):
        FingerprintRules(**fields)


def test_rules_are_values():
    rules = FingerprintRules(exclude=["a.b"], headers=["X-B", "x-a", "X-b"])
    assert rules == FingerprintRules(exclude=("a.b",), headers=("x-a", "x-b"))
    fingerprint(content(as_json({"a": {"b": 1}})), rules)
    again = pickle.loads(pickle.dumps(rules))
    assert again == rules
    assert hash(again) == hash(rules)
    with pytest.raises(AttributeError):
        rules.include = ("a",)


# --- files


@pytest.mark.parametrize("fields", [{"sha256": "A" * 64}, {"sha256": "abc"}, {"sha256": "g" * 64}, {"size": -1}])
def test_a_digest_is_checked_when_it_is_made(fields):
    with pytest.raises(ValueError, match="must"):
        file(**fields)
    with pytest.raises(ValueError, match="must"):
        OpaqueBody(**{"sha256": "a" * 64, "size": 0, "content_type": ""} | fields)


@pytest.mark.parametrize("size", [0, 1, 64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, 300_000])
@pytest.mark.parametrize("position", [0, 1, 10**6])
def test_a_stream_is_digested_whole_and_rewound(size, position):
    data = bytes(number % 251 for number in range(size))
    stream = io.BytesIO(data)
    stream.seek(position)
    assert digest_stream(stream) == (hashlib.sha256(data).hexdigest(), size)
    assert stream.tell() == 0
    assert stream.read() == data


class Zeros(io.RawIOBase):
    """Large, and not in memory."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def read(self, size: int = -1, /) -> bytes:
        assert size > 0, "read as a whole"
        chunk = bytes(min(size, self.size - self.at))
        self.at += len(chunk)
        return chunk

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.at = offset
        return offset


def test_a_hundred_megabytes_need_no_memory_of_their_own():
    tracemalloc.start()
    try:
        _, size = digest_stream(Zeros(100 * 2**20))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == 100 * 2**20
    assert peak < 2**20


def test_a_stream_that_breaks_is_rewound_all_the_same():
    class Breaking(Zeros):
        def read(self, size: int = -1, /) -> bytes:
            super().read(size)
            raise OSError("gone")

    stream = Breaking(100)
    with pytest.raises(OSError, match="gone"):
        digest_stream(stream)
    assert stream.at == 0


def test_a_stream_that_cannot_be_rewound_is_not_consumed():
    class OnceOnly(Zeros):
        def seek(self, offset: int, whence: int = 0, /) -> int:
            raise io.UnsupportedOperation("seek")

    stream = OnceOnly(100)
    with pytest.raises(io.UnsupportedOperation):
        digest_stream(stream)
    assert stream.at == 0


def test_a_closed_stream_is_an_error_and_not_an_empty_digest():
    stream = io.BytesIO(b"abc")
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        digest_stream(stream)
