"""Responses of every kind: a retry gets the bytes of the first answer, or a clear word that they were not kept."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib

import pytest
from django.http import (
    FileResponse,
    HttpResponse,
    HttpResponseRedirect,
    JsonResponse,
    StreamingHttpResponse,
)
from django.template import engines
from django.template.response import TemplateResponse
from django.utils.decorators import method_decorator
from django.views.decorators.gzip import gzip_page

from django_idempotency import BodyCodec
from django_idempotency.models import IdempotencyKey

from .site import REPLAYED, Handling, assert_replays, effect, problem, records, rows
from .table import answers
from .ways import PLAIN, WAYS, Reply, every_rest_way, every_way, every_way_and_mode

pytestmark = pytest.mark.usefixtures("committed")


def bytes_of(response):
    return response.getvalue()


def sha(response):
    return hashlib.sha256(bytes_of(response)).hexdigest()


def acts(make):
    """A handler that has an effect and answers with what ``make`` makes of the request and the effect."""

    def handle(call):
        return make(call.django_request, effect())

    return Handling(handle)


class Late(HttpResponse):
    """Renders itself into another object, as Django allows."""

    def __init__(self, text):
        super().__init__()
        self._text = text

    def render(self):
        return HttpResponse(self._text, status=202, headers={"X-Late": "yes"})


def template(request, row):
    return TemplateResponse(request, engines["django"].from_string("<p>{{ row.pk }}</p>"), {"row": row}, status=201)


KINDS = {
    "HttpResponse": lambda request, row: HttpResponse(f"row {row.pk}", status=201),
    "HttpResponse of a generator": lambda request, row: HttpResponse(part for part in ("row ", str(row.pk))),
    "JsonResponse": lambda request, row: JsonResponse({"row": str(row.pk)}, status=201),
    "redirect": lambda request, row: HttpResponseRedirect(f"/things/{row.pk}/"),
    "empty": lambda request, row: HttpResponse(status=204),
    "template": template,
    "callable render": lambda request, row: Late(str(row.pk)),
    "stream": lambda request, row: StreamingHttpResponse((part for part in (b"row ", row.pk.bytes)), status=201),
    "stream of one pass": lambda request, row: StreamingHttpResponse(iter([b"a" * 70_000, b"b" * 70_000])),
    "file": lambda request, row: FileResponse(io.BytesIO(str(row.pk).encode()), as_attachment=True, filename="row.txt"),
    "PDF": lambda request, row: HttpResponse(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", content_type="application/pdf"),
    "latin-1": lambda request, row: HttpResponse("Grüße".encode("latin-1"), content_type="text/plain; charset=latin-1"),
    "NUL bytes": lambda request, row: HttpResponse(b"\x00\x01\x00", content_type="application/octet-stream"),
    "byte order mark": lambda request, row: HttpResponse(b"\xef\xbb\xbf[]", content_type="application/json"),
    "gzip as a file": lambda request, row: HttpResponse(gzip.compress(b"row"), content_type="application/gzip"),
    "every byte": lambda request, row: HttpResponse(bytes(range(256)) * 4, content_type="application/octet-stream"),
    "no content type": lambda request, row: HttpResponse(b"x", headers={"Content-Type": ""}),
}  # fmt: skip


@every_way_and_mode
@pytest.mark.parametrize("kind", KINDS)
def test_equal_bytes(site, way, mode, kind):
    handler = acts(KINDS[kind])
    site.add(way(handler, {"mode": mode}))
    first, again = site.send(), site.send()
    assert sha(again) == sha(first)
    assert again.status_code == first.status_code
    assert again.headers[REPLAYED] == "true"
    # A longer Vary costs a cache a hit, a shorter one gives it a wrong answer.
    assert set(first.headers["Vary"].split(", ")) <= set(again.headers["Vary"].split(", "))
    kept = {name: value for name, value in first.items() if name not in ("Content-Length", "Vary")}
    assert {name: again.headers.get(name) for name in kept} == kept
    assert (handler.entered, rows(), records("sealed")) == (1, 1, 1)


@every_rest_way
def test_data_that_is_a_generator_is_rendered_once(site, way):
    handler = Handling(lambda call: Reply(201, (number for number in (effect().pk is not None, 2, 3))))
    site.add(way(handler, {}))
    first, again = site.send(), site.send()
    assert first.json() == [True, 2, 3]
    assert_replays(again, first)


@every_way_and_mode
def test_a_stream_that_fails_has_no_effect(site, way, mode):
    def parts():
        yield b"beginning"
        raise RuntimeError("the end is missing")

    handler = Handling(lambda call: (effect(), StreamingHttpResponse(parts()))[1], answers())
    site.add(way(handler, {"mode": mode}))
    assert site.send().status_code == 500
    assert (rows(), records()) == (0, 0)
    assert site.send().status_code == 201


@every_way
def test_an_asynchronous_stream_is_sent_and_not_kept(site, way):
    async def parts():
        yield b"part"

    handler = Handling(lambda call: (effect(), StreamingHttpResponse(parts()))[1])
    site.add(way(handler, {}))
    with pytest.warns(Warning, match="asynchronous iterators"):
        assert b"".join(site.send()) == b"part"
    assert problem(site.send()) == "response-not-stored"
    assert (handler.entered, rows()) == (1, 1)


BIG = {
    "bytes": lambda request, row: HttpResponse(b"x" * 101, status=201, headers={"Location": f"/things/{row.pk}/"}),
    "stream": lambda request, row: StreamingHttpResponse(
        (b"x" * 50 for _ in range(10)), status=201, headers={"Location": f"/things/{row.pk}/"}
    ),
    "file": lambda request, row: FileResponse(
        io.BytesIO(b"x" * 9000), status=201, headers={"Location": f"/things/{row.pk}/"}
    ),
}


class TestTheLimit:
    @every_way_and_mode
    @pytest.mark.parametrize("kind", BIG)
    def test_over_it_the_first_answer_is_whole_and_a_retry_is_told(self, site, way, mode, kind):
        handler = acts(BIG[kind])
        site.add(way(handler, {"mode": mode, "max_response_bytes": 100}))
        first = site.send()
        assert bytes_of(first) in (b"x" * 101, b"x" * 500, b"x" * 9000)
        for _ in range(2):
            again = site.send()
            assert (again.status_code, problem(again)) == (409, "response-not-stored")
            assert again.json()["original_status"] == 201
            assert again.headers["Location"] == first.headers["Location"]
            assert "Retry-After" not in again.headers
        assert (handler.entered, rows()) == (1, 1)
        assert IdempotencyKey.objects.get().response_body is None

    def test_at_the_limit_it_is_kept(self, site):
        site.add(WAYS["function"](acts(lambda request, row: HttpResponse(b"x" * 100)), {"max_response_bytes": 100}))
        first = site.send()
        assert_replays(site.send(), first)

    def test_over_the_default_of_a_mebibyte(self, site):
        site.add(WAYS["function"](acts(lambda request, row: HttpResponse(b"x" * (1024 * 1024 + 1))), {}))
        site.send()
        assert problem(site.send()) == "response-not-stored"

    @every_way
    def test_a_limit_of_zero_keeps_no_body_at_all(self, site, way):
        handler = Handling(answers(201), answers(204, body=False))
        site.add(way(handler, {"max_response_bytes": 0}))
        assert site.send().status_code == 201
        assert problem(site.send()) == "response-not-stored"
        first = site.send("another-key")
        assert_replays(site.send("another-key"), first)
        assert not any(record.response_body for record in IdempotencyKey.objects.all())

    def test_a_key_of_another_intent_is_told_so_first(self, site):
        site.add(WAYS["function"](Handling(answers()), {"max_response_bytes": 0}))
        site.send()
        assert problem(site.send(body={"other": 1})) == "key-reused"


class TestCodecs:
    SECRET = b"4111 1111 1111 1111"

    def answer(self, call):
        return HttpResponse(self.SECRET + str(effect().pk).encode(), content_type="text/plain")

    def test_encrypted_bodies_are_not_in_the_table(self, site):
        def turn(body):
            return bytes(byte ^ 0x5A for byte in body)

        site.add(WAYS["viewset"](Handling(self.answer), {"body_codec": BodyCodec(turn, turn)}))
        first = site.send()
        assert first.content.startswith(self.SECRET)
        assert self.SECRET not in bytes(IdempotencyKey.objects.get().response_body)
        assert_replays(site.send(), first)

    def test_a_compact_form_is_rendered_again(self, site):
        def pack(body):
            return str(json.loads(body)["transfer"]).encode()

        def unpack(stored):
            return json.dumps({"transfer": stored.decode()}).encode()

        site.add(WAYS["function"](Handling(answers()), {"body_codec": BodyCodec(pack, unpack)}))
        first = site.send()
        assert bytes(IdempotencyKey.objects.get().response_body) == first.json()["transfer"].encode()
        assert_replays(site.send(), first)

    def test_the_limit_is_of_the_body_and_not_of_its_stored_form(self, site):
        codec = BodyCodec(zlib.compress, zlib.decompress)
        handler = acts(lambda request, row: HttpResponse(b"x" * 200))
        site.add(WAYS["function"](handler, {"body_codec": codec, "max_response_bytes": 100}))
        site.send()
        assert problem(site.send()) == "response-not-stored"

    @every_way_and_mode
    def test_what_cannot_be_unpacked_any_more_is_not_run_again(self, site, way, mode, caplog):
        def lost(stored):
            raise ValueError(f"no key for {stored!r}")

        handler = Handling(answers())
        site.add(way(handler, {"mode": mode, "body_codec": BodyCodec(bytes, lost)}))
        site.send()
        assert problem(site.send()) == "response-not-stored"
        assert handler.entered == 1

    @every_way_and_mode
    def test_what_cannot_be_packed_has_no_effect(self, site, way, mode):
        def fails(body):
            raise ValueError("no key")

        site.add(way(Handling(answers()), {"mode": mode, "body_codec": BodyCodec(fails, bytes)}))
        assert site.send().status_code == 500
        assert (rows(), records()) == (0, 0)

    @every_way
    @pytest.mark.parametrize("packed", ["text", None])
    def test_what_is_not_packed_into_bytes_has_no_effect(self, site, way, packed):
        """The database would take text for bytes, and read backslashes in it."""
        site.add(way(Handling(answers()), {"body_codec": BodyCodec(lambda body: packed, bytes)}))
        assert site.send().status_code == 500
        assert (rows(), records()) == (0, 0)

    @every_way
    @pytest.mark.parametrize("unpacked", ["text", None])
    def test_what_is_not_unpacked_into_bytes_is_not_sent(self, site, way, unpacked):
        handler = Handling(answers())
        site.add(way(handler, {"body_codec": BodyCodec(bytes, lambda stored: unpacked)}))
        site.send()
        assert problem(site.send()) == "response-not-stored"
        assert handler.entered == 1


GIVEN = {
    "Location": "/things/7/",
    "ETag": '"v1"',
    "Link": "</next>; rel=next",
    "X-Balance": "58",
    "Content-Language": "de",
    "Cache-Control": "private",
    "Retry-After": "5",
}
OF_THE_EXCHANGE = {
    "Set-Cookie": "a=b",
    "Date": "Thu, 01 Jan 1970 00:00:00 GMT",
    "Connection": "close",
    "Transfer-Encoding": "identity",
    "X-Request-ID": "r-1",
    "Server": "s",
    "X-RateLimit-Remaining": "4",
    "RateLimit": "limit=5",
    "Access-Control-Allow-Origin": "https://a.example",
}


class TestHeaders:
    @every_way_and_mode
    def test_those_of_the_result_are_replayed_and_those_of_the_exchange_are_not(self, site, way, mode):
        handler = Handling(answers(201, GIVEN | OF_THE_EXCHANGE))
        site.add(way(handler, {"mode": mode}))
        first, again = site.send(), site.send()
        assert OF_THE_EXCHANGE.items() <= dict(first.items()).items()
        assert GIVEN.items() <= dict(again.items()).items()
        assert not OF_THE_EXCHANGE.keys() & dict(again.items()).keys()

    @every_way
    def test_a_cookie_is_not_handed_out_again(self, site, way):
        def handle(call):
            response = HttpResponse(str(effect().pk))
            response.set_cookie("session", "of the first caller")
            return response

        site.add(way(Handling(handle), {}))
        assert "session" in site.send().cookies
        again = site.send()
        assert again.headers[REPLAYED] == "true"
        assert not again.cookies
        assert not any("of the first caller" in str(record.response_headers) for record in IdempotencyKey.objects.all())

    @every_way
    def test_a_policy_can_name_them(self, site, way):
        handler = Handling(answers(201, GIVEN))
        site.add(way(handler, {"replay_headers": ("location",)}))
        first, again = site.send(), site.send()
        assert again.headers["Location"] == "/things/7/"
        assert again.headers["Content-Type"] == first.headers["Content-Type"]
        assert not {"ETag", "Link", "X-Balance"} & dict(again.items()).keys()

    def test_the_mark_of_a_replay_has_a_name_of_the_projects_choice(self, site, settings):
        settings.IDEMPOTENCY = {"REPLAYED_HEADER": "X-Replay", "HEADER": "X-Key"}
        site.add(WAYS["function"](Handling(answers()), {}))
        first, again = (site.send(key=None, headers={"X-Key": "k"}) for _ in range(2))
        assert "X-Replay" not in first.headers
        assert again.headers["X-Replay"] == "true"
        assert "X-Key" in site.send(key=None).json()["detail"]
        assert "X-Key" in site.send(key=None, headers={"X-Key": ""}).json()["detail"]


class TestCompression:
    TEXT = "compressible " * 100

    def decoded(self, response):
        raw = bytes_of(response)
        return (gzip.decompress(raw) if response.headers.get("Content-Encoding") == "gzip" else raw).decode()

    def text(self, call):
        return HttpResponse(f"{effect().pk} {self.TEXT}")

    @pytest.mark.parametrize("then", ["gzip", "", "identity", "br, *;q=0.1"])
    @pytest.mark.parametrize("at_first", ["gzip", ""])
    @pytest.mark.parametrize("way", ["viewset", "function"])
    def test_outside(self, site, settings, way, at_first, then):
        settings.MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *settings.MIDDLEWARE]
        handler = Handling(self.text)
        site.add(WAYS[way](handler, {}))
        first, again = (site.send(headers={"Accept-Encoding": accepted}) for accepted in (at_first, then))
        assert self.decoded(first) == self.decoded(again)
        assert ("Content-Encoding" in again.headers) == (then == "gzip")
        assert "Accept-Encoding" in again.headers["Vary"]
        assert handler.entered == 1

    @pytest.mark.parametrize("then", ["gzip", "", "identity", "gzip;q=0"])
    @pytest.mark.parametrize("at_first", ["gzip", ""])
    @pytest.mark.parametrize("way", [*PLAIN, "viewset"])
    @pytest.mark.parametrize("terms", [{}, {"replay_headers": ("location",)}], ids=["all headers", "named headers"])
    def test_inside(self, site, way, at_first, then, terms):
        handler = Handling(lambda call: gzip_page(lambda request: self.text(call))(call.django_request))
        site.add(WAYS[way](handler, terms))
        first, again = (site.send(headers={"Accept-Encoding": accepted}) for accepted in (at_first, then))
        assert self.decoded(first) == self.decoded(again)
        if then != "gzip":
            assert "Content-Encoding" not in again.headers
        assert handler.entered == 1

    def test_what_only_claims_to_be_compressed_is_sent_as_it_is(self, site):
        handler = acts(lambda request, row: HttpResponse(b"plain", headers={"Content-Encoding": "gzip"}))
        site.add(WAYS["function"](handler, {}))
        first, again = site.send(), site.send()
        assert (again.status_code, again.content) == (first.status_code, first.content)

    def test_the_decorator_on_a_class(self, site):
        way = WAYS["view_class"]
        handler = Handling(self.text)
        view = way(handler, {})
        site.add(method_decorator(gzip_page, name="dispatch")(view.view_class).as_view())
        first, again = (site.send(headers={"Accept-Encoding": accepted}) for accepted in ("gzip", ""))
        assert self.decoded(first) == self.decoded(again)
        assert handler.entered == 1


def test_a_retry_is_never_answered_as_not_modified(site, settings):
    settings.MIDDLEWARE = ["django.middleware.http.ConditionalGetMiddleware", *settings.MIDDLEWARE]
    site.add(WAYS["viewset"](Handling(answers(200, {"ETag": '"v1"'})), {}))
    first = site.send()
    again = site.send(headers={"If-None-Match": '"v1"'})
    assert (again.status_code, again.content) == (200, first.content)
