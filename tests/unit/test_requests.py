"""What a request means: its key, its caller and its content, read without taking anything from the view."""

from __future__ import annotations

import hashlib
import io
import tracemalloc
from functools import partial
from types import SimpleNamespace
from urllib.parse import urlencode
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest, QueryDict, UnreadablePostError
from django.test import RequestFactory
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart

from django_idempotency import FingerprintRules
from django_idempotency.core.errors import BodyTooLarge, MalformedBody, MalformedKey
from django_idempotency.core.fingerprint import (
    Content,
    EmptyBody,
    FormBody,
    JsonBody,
    MultipartBody,
    OpaqueBody,
    fingerprint,
)
from django_idempotency.http.requests import (
    counted_headers,
    has_key,
    principal_of,
    raw_body,
    read_body,
    read_key,
    text_kwargs,
    without_parameters,
)

FORM = "application/x-www-form-urlencoded"


_made: list[HttpRequest] = []


@pytest.fixture(autouse=True)
def closed_requests():
    """Close what a request has uploaded, as Django does at its end."""
    yield
    while _made:
        _made.pop().close()


def post(data=b"", content_type="application/json", method="POST", **extra):
    _made.append(RequestFactory().generic(method, "/", data, content_type=content_type, **extra))
    return _made[-1]


def upload(files, fields=(), boundary=BOUNDARY, method="POST"):
    data = dict(fields) | {
        name: SimpleUploadedFile("receipt.pdf", content, content_type="application/pdf")
        for name, content in files.items()
    }
    return post(encode_multipart(boundary, data), MULTIPART_CONTENT.replace(BOUNDARY, boundary), method)


def print_of(request):
    """The fingerprint of the request's body alone."""
    return fingerprint(Content(method="POST", principal="", body=read_body(request)), FingerprintRules())


# --- the key ---


def test_the_key_is_read_in_its_stored_form():
    assert read_key(post(headers={"Idempotency-Key": '"abc"'})) == "abc"
    assert read_key(post(headers={"Idempotency-Key": "abc"})) == "abc"
    assert read_key(post()) is None


@pytest.mark.parametrize("raw", ["", " ", '"', "a,b", "x" * 256, "k\x00", "clé"])
def test_a_header_that_is_there_and_no_key_is_never_taken_for_absent(raw):
    request = post(HTTP_IDEMPOTENCY_KEY=raw)
    assert has_key(request)
    with pytest.raises(MalformedKey, match="Idempotency-Key"):
        read_key(request)


def test_the_name_of_the_header_and_its_strictness_are_settings(settings):
    settings.IDEMPOTENCY = {"HEADER": "X-Request-Key", "STRICT_KEYS": True}
    assert read_key(post(headers={"X-Request-Key": '"abc"'})) == "abc"
    assert read_key(post(headers={"Idempotency-Key": "abc"})) is None
    assert not has_key(post(headers={"Idempotency-Key": "abc"}))
    with pytest.raises(MalformedKey, match="X-Request-Key"):
        read_key(post(headers={"X-Request-Key": "abc"}))


# --- the caller ---


def test_an_authenticated_user_is_named_by_model_and_primary_key():
    assert principal_of(User(pk=7)) == "auth.user:7"


def test_a_user_that_is_no_model_is_named_by_its_class():
    class TokenUser:
        is_authenticated = True
        pk = "abc"

    assert principal_of(TokenUser()) == "TokenUser:abc"


@pytest.mark.parametrize("user", [None, AnonymousUser(), User(), object()])
def test_nobody_else_has_a_name(user):
    assert principal_of(user) is None


# --- headers and URL ---


@pytest.mark.parametrize(
    ("value", "key"), [(5, "5"), (UUID(int=5), "00000000-0000-0000-0000-000000000005"), (None, None)]
)
def test_a_key_that_something_in_front_of_the_view_put_there(value, key):
    request = post()
    request.META["HTTP_IDEMPOTENCY_KEY"] = value
    assert read_key(request) == key


@pytest.mark.parametrize("value", [["a"], {"id": "a"}, b"a", True, 1.5])
def test_what_is_no_key_in_any_form_is_malformed_and_no_crash(value):
    request = post()
    request.META["HTTP_IDEMPOTENCY_KEY"] = value
    with pytest.raises(MalformedKey):
        read_key(request)


def test_headers_that_count_are_found_in_any_case_and_absence_counts_as_empty():
    request = post(headers={"X-Tenant": "a", "Accept-Language": "fr"})
    assert counted_headers(request, ["x-tenant", "X-OTHER"]) == (("x-other", ""), ("x-tenant", "a"))
    assert counted_headers(request, []) == ()


def test_url_arguments_are_text_without_those_that_choose_a_form():
    kwargs = {"pk": 5, "slug": "a", "format": "json", "optional": None}
    assert text_kwargs(kwargs) == {"pk": "5", "slug": "a", "format": "json"}
    assert text_kwargs(kwargs, ["format"]) == {"pk": "5", "slug": "a"}


def test_a_row_that_a_converter_looked_up_is_named_by_its_key_and_not_by_its_text():
    one, other = User(pk=1, username="ann"), User(pk=2, username="ann")
    assert str(one) == str(other)
    assert text_kwargs({"who": one}) == {"who": "auth.user:1"}
    one.username = "renamed"
    assert text_kwargs({"who": one}) == {"who": "auth.user:1"} != text_kwargs({"who": other})


class Shop:
    def __str__(self):
        return "shop of Ann"

    @staticmethod
    def opened():
        pass

    def sell(self):
        pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (post, f"{__name__}.post"),
        (Shop.opened, f"{__name__}.Shop.opened"),
        (Shop, f"<class '{__name__}.Shop'>"),
        (Shop(), "shop of Ann"),
        ({"b": [post], "a": None}, f'[["a", "None"], ["b", "[\\"{__name__}.post\\"]"]]'),
        (frozenset({"b", "a", "c"}), '["a", "b", "c"]'),
        ("<a at 0x7f0000000000>", "<a at 0x7f0000000000>"),
    ],
)
def test_options_of_a_route_are_text_that_is_the_same_in_every_process(value, text):
    assert text_kwargs({"option": value}) == {"option": text}


@pytest.mark.parametrize(
    "value",
    [lambda: None, object(), partial(post), Shop().sell, [object()], {"at": object()}],
    ids=["lambda", "object", "partial", "method", "list", "mapping"],
)
def test_what_has_no_such_text_is_refused_before_a_retry_meets_another_worker(value):
    with pytest.raises(ImproperlyConfigured, match="another one in each process"):
        text_kwargs({"option": value})


@pytest.mark.parametrize(
    ("query", "names", "left"),
    [
        ("", ["format"], ""),
        ("a=1&format=json", [], "a=1&format=json"),
        ("a=%31&b", ["format"], "a=%31&b"),
        ("a=1&format=json&b=", ["format"], "a=1&b="),
        ("format=json", ["format"], ""),
        ("format=a&x=%FF&format=b", ["format"], "x=%FF"),
    ],
)
def test_parameters_that_choose_a_representation_are_left_out(query, names, left):
    assert without_parameters(query, names) == left


# --- bodies by their bytes ---


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "application/ld+json"])
def test_json_is_kept_as_sent_and_left_for_the_view(content_type):
    request = post(b'{"a": 1}', content_type)
    assert read_body(request) == JsonBody(b'{"a": 1}')
    assert request.body == b'{"a": 1}'


@pytest.mark.parametrize("content_type", ["application/json", FORM, "text/plain", ""])
def test_no_body_is_no_body_whatever_it_is_called(content_type):
    assert read_body(post(b"", content_type)) == EmptyBody()


@pytest.mark.parametrize("content_type", ["application/json", FORM, "text/plain"])
def test_chunks_of_which_nothing_was_read_are_not_no_body(content_type):
    """Behind WSGI, Django takes a body without a length for none."""
    with pytest.raises(MalformedBody, match="sent in chunks"):
        read_body(post(content_type=content_type, headers={"Transfer-Encoding": "chunked"}))
    read = post(b"1", content_type=content_type, headers={"Transfer-Encoding": "chunked"})  # as behind ASGI
    assert read_body(read) == read_body(post(b"1", content_type=content_type))


def test_anything_else_counts_by_its_bytes_and_its_name():
    body = b"\x00\xff%PDF"
    assert read_body(post(body, "application/pdf")) == OpaqueBody(
        hashlib.sha256(body).hexdigest(), len(body), "application/pdf"
    )
    assert read_body(post(body, "")).content_type == ""


def test_a_form_is_read_as_fields_and_left_for_the_view():
    request = post(b"a=1&b=&a=2&c=%C3%A9+x", FORM)
    assert read_body(request) == FormBody((("a", "1"), ("b", ""), ("a", "2"), ("c", "é x")))
    assert request.POST.getlist("a") == ["1", "2"]


def test_a_form_that_the_view_reads_first_is_still_there():
    request = post(b"a=1", FORM)
    assert request.POST["a"] == "1"
    assert read_body(request) == FormBody((("a", "1"),))


@pytest.mark.parametrize(("one", "other"), [(b"a=%FF", b"a=%FE"), (b"a=\xff", b"a=\xfe"), (b"a=%C3", b"a=%EF%BF%BD")])
def test_bytes_that_are_no_text_stay_apart(one, other):
    assert print_of(post(one, FORM)) != print_of(post(other, FORM))


def test_a_form_with_too_many_fields_is_too_large(settings):
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 3
    assert len(read_body(post(b"a=1&b=2&c=3", FORM)).fields) == 3
    with pytest.raises(BodyTooLarge):
        read_body(post(b"a=1&b=2&c=3&d=4", FORM))


def test_a_body_over_the_limit_of_the_project_is_too_large(settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    assert read_body(post(b'"12345678"')) == JsonBody(b'"12345678"')
    with pytest.raises(BodyTooLarge):
        read_body(post(b'"123456789"'))


def test_a_body_that_somebody_consumed_is_a_mistake_of_the_project_and_never_an_empty_one():
    for request in (post(b'{"a": 1}'), post(b"a=1", FORM), upload({"file": b"x"})):
        request.read(1)
        with pytest.raises(ImproperlyConfigured, match="consumed before"):
            read_body(request)


def test_a_connection_that_ended_early_is_no_empty_body():
    class Cut(io.BytesIO):
        def read(self, *args):
            raise OSError("connection reset")

    for content_type in ("application/json", f"multipart/form-data; boundary={BOUNDARY}"):
        request = post(b"x" * 10, content_type)
        request._stream = Cut()
        with pytest.raises(MalformedBody, match="connection ended") as refused:
            read_body(request)
        assert isinstance(refused.value.__cause__, UnreadablePostError)


# --- multipart ---


def test_an_upload_counts_by_content_and_not_by_boundary():
    one = upload({"file": b"%PDF-1"}, {"title": "é"}, boundary="one")
    other = upload({"file": b"%PDF-1"}, {"title": "é"}, boundary="another-boundary")
    assert print_of(one) == print_of(other)


@pytest.mark.parametrize(
    "changed",
    [
        {"files": {"file": b"%PDF-2"}},
        {"files": {"other": b"%PDF-1"}},
        {"fields": {"title": "b"}},
        {"fields": {}},
        {"files": {"file": b"%PDF-1", "second": b""}},
    ],
)
def test_one_byte_of_a_field_or_a_file_tells_two_uploads_apart(changed):
    usual = {"files": {"file": b"%PDF-1"}, "fields": {"title": "a"}}
    assert print_of(upload(**usual)) != print_of(upload(**usual | changed))


def test_the_view_still_reads_fields_and_files_from_their_start():
    request = upload({"file": b"%PDF-1"}, {"title": "a"})
    read_body(request)
    assert request.POST["title"] == "a"
    assert request.FILES["file"].read() == b"%PDF-1"


def test_an_upload_that_the_view_has_begun_to_read_counts_whole_and_is_rewound():
    request = upload({"file": b"%PDF-1"})
    request.FILES["file"].read(3)
    assert print_of(request) == print_of(upload({"file": b"%PDF-1"}))
    assert request.FILES["file"].read() == b"%PDF-1"


class KeptElsewhere(FileUploadHandler):
    """An upload handler that sends what it gets somewhere, and leaves a reference."""

    def receive_data_chunk(self, raw_data, start):
        return None

    def file_complete(self, file_size):
        return SimpleNamespace(name="elsewhere", size=file_size, content_type="text/plain", close=lambda: None)


def test_a_file_that_is_not_there_is_a_mistake_of_the_project(settings):
    settings.FILE_UPLOAD_HANDLERS = [f"{__name__}.KeptElsewhere"]
    with pytest.raises(ImproperlyConfigured, match="The file in 'page' cannot be read from its start"):
        read_body(upload({"page": b"x"}))


def test_a_file_that_somebody_closed_is_a_mistake_of_the_project():
    request = upload({"page": b"x"})
    request.FILES["page"].close()
    with pytest.raises(ImproperlyConfigured, match="The file in 'page' cannot be read from its start"):
        read_body(request)


@pytest.mark.parametrize("threshold", [0, 2**30])
def test_files_in_memory_and_on_disk_are_the_same_upload(settings, threshold):
    content = b"x" * 100_000
    usual = print_of(upload({"file": content}))
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = threshold
    assert print_of(upload({"file": content})) == usual


def test_memory_is_flat_whatever_an_upload_weighs():
    size = 30 * 2**20
    head = (
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; name=file; filename=big\r\n"
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    tail = f"\r\n--{BOUNDARY}--\r\n".encode()

    class Generated(io.RawIOBase):
        """The body of an upload, made while it is read."""

        def __init__(self):
            self.parts = iter([head, *[b"x" * 2**16] * (size // 2**16), tail])
            self.rest = b""

        def read(self, count=-1):
            while len(self.rest) < count and (part := next(self.parts, b"")):
                self.rest += part
            taken, self.rest = self.rest[:count], self.rest[count:]
            return taken

    length = str(len(head) + size + len(tail))
    environ = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": MULTIPART_CONTENT, "CONTENT_LENGTH": length}
    request = RequestFactory().request(**environ, **{"wsgi.input": Generated()})
    _made.append(request)
    tracemalloc.start()
    try:
        (file,) = read_body(request).files
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert file.size == size
    assert peak < 4 * 2**20


@pytest.mark.parametrize(
    ("setting", "body"),
    [
        ("DATA_UPLOAD_MAX_NUMBER_FIELDS", {"fields": {"a": "1", "b": "2", "c": "3"}, "files": {}}),
        ("DATA_UPLOAD_MAX_NUMBER_FILES", {"files": {"a": b"1", "b": b"2", "c": b"3"}}),
        ("DATA_UPLOAD_MAX_MEMORY_SIZE", {"fields": {"a": "123"}, "files": {}}),
    ],
)
def test_an_upload_over_a_limit_of_the_project_is_too_large(settings, setting, body):
    setattr(settings, setting, 2)
    with pytest.raises(BodyTooLarge):
        read_body(upload(**body))


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary="])
def test_a_broken_upload_is_malformed(content_type):
    with pytest.raises(MalformedBody, match="not valid multipart/form-data"):
        read_body(post(b"--x\r\n", content_type))


@pytest.mark.parametrize("ending", ["", "\r\n"])
def test_a_form_without_parts_is_an_empty_form(ending):
    assert read_body(post(f"--{BOUNDARY}--{ending}".encode(), MULTIPART_CONTENT)) == MultipartBody((), ())


def test_a_form_of_which_no_part_can_be_read_is_not_the_empty_one():
    nameless = f"--{BOUNDARY}\r\nContent-Disposition: form-data\r\n\r\n100\r\n--{BOUNDARY}--\r\n"
    with pytest.raises(MalformedBody, match="no part of its form can be read"):
        read_body(post(nameless.encode(), MULTIPART_CONTENT))


@pytest.mark.parametrize(
    "said", [{"CONTENT_LENGTH": "\xb2"}, {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": ""}]
)
def test_a_form_whose_length_is_not_said_is_not_the_empty_one(said):
    """Django takes nothing of it, so the view would see an empty form, whatever was sent."""
    request = upload({"file": b"x"})
    request.META.update(said)
    with pytest.raises(MalformedBody, match="no part of its form can be read"):
        read_body(request)


def test_a_form_that_somebody_failed_to_read_in_front_is_not_the_empty_one():
    request = upload({"file": b"x"})
    request._mark_post_parse_error()  # as after a broken upload that a middleware swallowed
    with pytest.raises(MalformedBody, match="no part of its form can be read"):
        read_body(request)


def test_django_parses_no_upload_by_patch_so_its_bytes_count():
    request = upload({"file": b"x"}, method="PATCH")
    assert isinstance(read_body(request), OpaqueBody)
    assert request.body


def test_raw_body_never_parses():
    request = post(b"a=1", FORM)
    assert raw_body(request) == FormBody((("a", "1"),))
    assert not hasattr(request, "_post")


def test_a_query_and_a_form_of_the_same_text_mean_the_same_fields():
    pairs = [("a", "1"), ("b", "x y"), ("a", "é")]
    request = post(urlencode(pairs).encode(), FORM)
    assert sorted(read_body(request).fields) == sorted(
        (name, value) for name, values in QueryDict(urlencode(pairs)).lists() for value in values
    )
