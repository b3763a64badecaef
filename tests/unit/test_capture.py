"""A response as a value and back: byte for byte, without what belongs to one exchange alone."""

from __future__ import annotations

import gzip
import io
import logging
import random

import pytest
from django.core.signals import request_finished
from django.http import (
    FileResponse,
    HttpResponse,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.test import RequestFactory
from django.utils.cache import get_conditional_response

from django_idempotency import BodyCodec, IdempotencyPolicy
from django_idempotency.conf import current
from django_idempotency.core.errors import ResponseNotStored
from django_idempotency.core.states import RecordedResponse
from django_idempotency.http.capture import capture, discard, put_into, replay

LIMIT = 1000


def policy(**fields):
    return current().resolve(IdempotencyPolicy(**{"max_response_bytes": LIMIT} | fields))


def asking(**headers):
    return RequestFactory().post("/", headers=headers)


def again(response, *, accept_encoding=None, **fields):
    """The replay of ``response`` to a client that accepts this."""
    headers = {} if accept_encoding is None else {"Accept-Encoding": accept_encoding}
    return replay(capture(response, policy(**fields)), policy(**fields), asking(**headers))


def sent(response):
    """The bytes that a server would send."""
    return b"".join(response) if response.streaming else response.content


def headers_of(response):
    return {name.lower(): value for name, value in response.items()}


class Counted:
    """An iterable of chunks that knows how far it was read, and whether it was closed."""

    def __init__(self, *chunks):
        self.chunks = chunks
        self.read = 0
        self.closed = False

    def __iter__(self):
        for chunk in self.chunks:
            self.read += 1
            yield chunk

    def close(self):
        self.closed = True


# --- bodies ---


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"\xef\xbb\xbf{}",
        "prix: 5 €".encode("latin-1", "replace"),
        b"\x00\x01\xff\xfe" * 50,
        b"%PDF-1.7\r\n%\xe2\xe3\xcf\xd3\n",
        b"\r\n\r\n",
        random.Random(7).randbytes(LIMIT),
    ],
)
@pytest.mark.parametrize("status", [200, 201, 202, 402, 409, 422])
def test_status_and_bytes_come_back_as_they_were(body, status):
    replayed = again(HttpResponse(body, status=status, content_type="application/octet-stream"))
    assert (replayed.status_code, replayed.content) == (status, body)
    assert replayed["Content-Type"] == "application/octet-stream"


def test_a_replay_says_so_and_the_first_answer_does_not():
    first = HttpResponse(b"x")
    assert again(first)["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first


def test_the_mark_of_a_replay_has_the_name_of_the_setting(settings):
    settings.IDEMPOTENCY = {"REPLAYED_HEADER": "X-Replay"}
    replayed = again(HttpResponse(b"x"))
    assert replayed["X-Replay"] == "true"
    assert "Idempotent-Replayed" not in replayed


def test_no_content_stays_without_a_content_type():
    response = HttpResponse(status=204)
    del response["Content-Type"]
    replayed = again(response)
    assert (replayed.status_code, replayed.content, "Content-Type" in replayed) == (204, b"", False)


def test_a_redirect_keeps_its_target():
    response = HttpResponseRedirect("/charges/7")
    response.status_code = 303
    assert (again(response).status_code, again(response)["Location"]) == (303, "/charges/7")


def test_what_a_view_made_of_text_is_recorded_in_its_charset():
    response = HttpResponse("5 €", content_type="text/plain; charset=iso-8859-15")
    replayed = again(response)
    assert replayed.content == b"5 \xa4"
    assert replayed["Content-Type"] == "text/plain; charset=iso-8859-15"


@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
def test_a_body_up_to_the_limit_is_kept(size):
    assert capture(HttpResponse(b"x" * size), policy()).body == b"x" * size


@pytest.mark.parametrize("size", [LIMIT + 1, 10 * LIMIT])
@pytest.mark.parametrize("make", [HttpResponse, lambda body: StreamingHttpResponse([body])])
def test_a_body_over_the_limit_is_never_kept_in_part_and_is_sent_whole(make, size):
    response = make(b"x" * size)
    recorded = capture(response, policy())
    assert recorded.body is None
    assert sent(response) == b"x" * size


def test_a_limit_of_zero_keeps_the_empty_body_alone():
    assert capture(HttpResponse(b"x"), policy(max_response_bytes=0)).body is None
    assert capture(HttpResponse(b""), policy(max_response_bytes=0)).body == b""
    assert capture(StreamingHttpResponse([b"x"]), policy(max_response_bytes=0)).body is None
    assert capture(StreamingHttpResponse([]), policy(max_response_bytes=0)).body == b""


def test_a_replay_without_a_body_is_a_clear_answer_with_the_status_and_the_place():
    response = HttpResponse(b"x" * (LIMIT + 1), status=201, headers={"location": "/charges/7", "X-Id": "7"})
    with pytest.raises(ResponseNotStored) as refused:
        again(response)
    assert refused.value.original_status == 201
    assert refused.value.headers == (("location", "/charges/7"),)


# --- streams ---


@pytest.mark.parametrize("chunks", [(), (b"",), (b"a", b"", b"bc"), ("tëxt", b"bytes"), (b"x" * 400,) * 2])
def test_a_stream_is_recorded_and_put_back(chunks):
    expected = b"".join(chunk.encode() if isinstance(chunk, str) else chunk for chunk in chunks)
    response = StreamingHttpResponse(iter(chunks))
    assert capture(response, policy()).body == expected
    assert response.streaming
    assert sent(response) == expected


@pytest.mark.parametrize(("last", "kept"), [(b"", True), (b"y", False)])
def test_the_limit_of_a_stream_is_exact(last, kept):
    response = StreamingHttpResponse([b"x" * (LIMIT - 1), b"z", last])
    body = capture(response, policy()).body
    assert (body is not None) is kept
    assert sent(response) == b"x" * (LIMIT - 1) + b"z" + last


def test_a_stream_is_read_only_until_the_limit_is_passed():
    chunks = Counted(*[b"x" * 300] * 1000)
    response = StreamingHttpResponse(chunks)
    assert capture(response, policy()).body is None
    assert chunks.read == 4, "four times 300 bytes are more than the limit; the other 996 are not read ahead"
    assert len(sent(response)) == 300_000
    assert chunks.read == 1000, "and nothing is read twice"


def test_a_stream_is_still_closed_at_the_end_of_the_request(monkeypatch):
    # Django would look after the database connections that other tests of this process have left.
    monkeypatch.setattr(request_finished, "send", lambda **_: None)
    for length in (1, 10):
        chunks = Counted(*[b"x" * 300] * length)
        response = StreamingHttpResponse(chunks)
        capture(response, policy())
        assert not chunks.closed
        response.close()
        assert chunks.closed


def test_an_endless_stream_is_not_waited_for():
    def for_ever():
        while True:
            yield b"x" * 300

    response = StreamingHttpResponse(for_ever())
    assert capture(response, policy()).body is None
    assert next(iter(response)) == b"x" * 300


def test_a_stream_that_fails_half_way_fails_before_anything_is_recorded():
    def failing():
        yield b"half"
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        capture(StreamingHttpResponse(failing()), policy())


def test_a_file_is_recorded_with_the_name_that_it_is_saved_under():
    response = FileResponse(io.BytesIO(b"%PDF"), filename="receipt é.pdf", as_attachment=True)
    replayed = again(response)
    assert replayed.content == b"%PDF" == sent(response)
    assert replayed["Content-Disposition"] == response["Content-Disposition"]
    assert replayed["Content-Type"] == "application/pdf"


def test_an_asynchronous_stream_is_left_alone():
    async def chunks():
        yield b"x"

    response = StreamingHttpResponse(chunks())
    assert capture(response, policy()).body is None
    assert response.is_async


# --- headers ---

KEPT = {
    "Content-Type": "application/json", "Location": "/charges/7", "ETag": '"7"', "Link": "</next>; rel=next",
    "Last-Modified": "Tue, 01 Dec 2026 00:00:00 GMT", "Content-Language": "fr", "Content-Disposition": "inline",
    "Cache-Control": "private", "Vary": "Accept", "X-Charge-Id": "ch_7", "Deprecation": "true",
    "Preference-Applied": "x",
}  # fmt: skip
DROPPED = [
    "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection", "TE", "Trailer", "Transfer-Encoding",
    "Upgrade", "Content-Length", "Date", "Server", "Age", "Via", "Set-Cookie", "X-Request-ID", "X-Correlation-ID",
    "Request-Id", "Traceparent", "Server-Timing", "X-Runtime", "X-Response-Time", "Access-Control-Allow-Origin",
    "Access-Control-Expose-Headers", "RateLimit-Limit", "RateLimit-Policy", "RateLimit", "X-RateLimit-Remaining",
    "X-Rate-Limit-Reset",
]  # fmt: skip


def test_headers_of_the_result_are_replayed():
    replayed = again(HttpResponse(b"{}", headers=KEPT))
    assert {name: replayed[name] for name in KEPT} == KEPT


@pytest.mark.parametrize("name", DROPPED)
@pytest.mark.parametrize("change", [str, str.lower, str.upper])
def test_headers_of_one_exchange_are_not(name, change):
    response = HttpResponse(b"x", headers={change(name): "1"})
    assert name not in again(response)
    assert name in response, "the first answer keeps it"
    assert name not in again(response, replay_headers=[name]), "not even where the policy names it"


def test_cookies_are_not_replayed():
    response = HttpResponse(b"x")
    response.set_cookie("sessionid", "secret")
    recorded = capture(response, policy())
    assert "secret" not in repr(recorded)
    replayed = again(response)
    assert not replayed.cookies


def test_a_policy_can_name_the_headers_and_those_that_describe_the_body_come_along():
    response = HttpResponse(
        gzip.compress(b"x"),
        headers={"Content-Type": "text/csv", "Content-Encoding": "gzip", "Location": "/7", "ETag": '"7"', "X-Id": "7"},
    )
    recorded = capture(response, policy(replay_headers=["location", "X-ID"]))
    assert {name.lower() for name, _ in recorded.headers} == {"content-type", "content-encoding", "location", "x-id"}
    assert again(response, replay_headers=["Location"]).content == b"x"
    assert [name.lower() for name, _ in capture(HttpResponse(b"x"), policy(replay_headers=[])).headers] == [
        "content-type"
    ]


def test_header_values_beyond_ascii_come_back_as_they_were():
    response = HttpResponse(b"x", headers={"X-Name": "Zoë", "X-Far": "価格"})
    replayed = again(response)
    assert replayed["X-Name"] == "Zoë"
    assert replayed["X-Far"] == response["X-Far"]


def test_the_order_of_headers_is_kept():
    names = [f"X-{name}" for name in "CABXYZ"]
    replayed = again(HttpResponse(b"x", headers=dict.fromkeys(names, "1")))
    assert [name for name, _ in replayed.items() if name.startswith("X-")] == names


def test_the_etag_of_a_replay_of_a_post_makes_no_304():
    response = again(HttpResponse(b"x", headers={"ETag": '"7"'}))
    request = asking(**{"If-None-Match": '"7"'})
    assert get_conditional_response(request, etag='"7"', response=response).status_code != 304


# --- compressed bodies ---


def gzipped(body=b"hello " * 20, **headers):
    return HttpResponse(
        gzip.compress(body),
        content_type="text/plain",
        headers={"Content-Encoding": "gzip", "Vary": "Accept-Encoding", **headers},
    )


@pytest.mark.parametrize(
    "accepts", ["gzip", "gzip, br", "br;q=1.0, gzip;q=0.5", "GZIP", "deflate,gzip", "gzip;q=0.001"]
)
def test_a_client_that_takes_gzip_gets_the_same_bytes(accepts):
    response = gzipped()
    replayed = again(response, accept_encoding=accepts)
    assert replayed.content == response.content
    assert replayed["Content-Encoding"] == "gzip"


@pytest.mark.parametrize(
    "accepts", [None, "", "identity", "br", "gzip;q=0", "gzip; q=0", "gzip ;q=0.000, br", "identity;q=1, gzip;q=0.0"]
)
def test_a_client_that_does_not_gets_them_unpacked(accepts):
    replayed = again(gzipped(), accept_encoding=accepts)
    assert replayed.content == b"hello " * 20
    assert "Content-Encoding" not in replayed
    assert replayed["Vary"] == "Accept-Encoding"


def test_a_body_that_only_claims_to_be_gzip_is_sent_as_it_was():
    for body in (b"not gzip at all", gzip.compress(b"cut" * 50)[:-9]):
        response = HttpResponse(body, headers={"Content-Encoding": "gzip"})
        replayed = again(response, accept_encoding="identity")
        assert (replayed.content, replayed["Content-Encoding"]) == (body, "gzip")


def test_other_encodings_are_left_alone():
    response = HttpResponse(b"\x0b\x02\x80x\x03", headers={"Content-Encoding": "br"})
    assert again(response, accept_encoding="identity")["Content-Encoding"] == "br"


# --- codecs ---


def rotate(body):
    return bytes(byte ^ 0x55 for byte in body)


def test_a_codec_decides_what_is_stored_and_its_inverse_what_is_sent():
    codec = BodyCodec(rotate, rotate)
    recorded = capture(HttpResponse(b"secret"), policy(body_codec=codec))
    assert recorded.body == rotate(b"secret")
    assert again(HttpResponse(b"secret"), body_codec=codec).content == b"secret"


def test_a_codec_is_not_asked_about_a_body_that_is_not_kept():
    def never(body):
        raise AssertionError

    codec = BodyCodec(never, never)
    assert capture(HttpResponse(b"x" * (LIMIT + 1)), policy(body_codec=codec)).body is None
    with pytest.raises(ResponseNotStored):
        replay(RecordedResponse(201, (), None), policy(body_codec=codec), asking())


def test_a_codec_that_cannot_pack_fails_while_the_effect_can_still_be_undone():
    def no_key(body):
        raise LookupError("no key")

    with pytest.raises(LookupError, match="no key"):
        capture(HttpResponse(b"x"), policy(body_codec=BodyCodec(no_key, rotate)))


def test_a_codec_that_cannot_unpack_any_more_is_an_answer_and_not_an_error(caplog):
    def lost_key(body):
        raise LookupError("no key")

    codec = BodyCodec(rotate, lost_key)
    with caplog.at_level(logging.ERROR, "django_idempotency"), pytest.raises(ResponseNotStored) as refused:
        again(HttpResponse(b"secret", status=201), body_codec=codec)
    assert refused.value.original_status == 201
    assert "could not be unpacked" in caplog.text
    assert refused.value.__cause__ is None or "secret" not in repr(refused.value.__cause__)


# --- into a response that the project has finished ---


def test_the_answer_is_put_into_a_finished_response():
    finished = HttpResponse(b"{}", status=200, headers={"X-Envelope": "1", "X-Both": "finished"})
    answer = HttpResponse(b"[1]", status=201, content_type="application/json", headers={"X-Both": "answer"})
    result = put_into(finished, answer)
    assert result is finished
    assert (result.status_code, result.content) == (201, b"[1]")
    assert headers_of(result) == {"content-type": "application/json", "x-envelope": "1", "x-both": "answer"}


def test_both_sides_of_vary_count_once():
    finished = HttpResponse(headers={"Vary": "Accept, Cookie"})
    answer = HttpResponse(headers={"Vary": "Accept-Encoding,accept"})
    assert put_into(finished, answer)["Vary"] == "Accept, Cookie, Accept-Encoding"


def test_vary_over_everything_stays_so():
    assert put_into(HttpResponse(headers={"Vary": "Accept"}), HttpResponse(headers={"Vary": "*"}))["Vary"] == "*"


def test_an_answer_without_a_content_type_takes_that_of_the_response_away():
    answer = HttpResponse(status=204)
    del answer["Content-Type"]
    assert "Content-Type" not in put_into(HttpResponse(b"{}", content_type="application/json"), answer)


def test_a_stream_is_no_place_for_an_answer_which_goes_alone():
    answer = HttpResponse(b"[1]")
    assert put_into(StreamingHttpResponse([b"x"]), answer) is answer
    assert put_into(answer, answer) is answer


# --- a response that nobody will read ---


def test_a_response_that_is_not_sent_is_closed_without_ending_the_request():
    chunks, ended = Counted(b"x"), []
    response = StreamingHttpResponse(chunks)
    request_finished.connect(ended.append, weak=False)
    try:
        discard(response)
    finally:
        request_finished.disconnect(ended.append)
    assert chunks.closed
    assert ended == []


def test_one_that_cannot_be_closed_does_not_keep_the_others_open(caplog):
    def failing():
        raise OSError

    chunks = Counted(b"x")
    response = StreamingHttpResponse(chunks)
    response._resource_closers.insert(0, failing)
    discard(response)
    assert chunks.closed
    assert "could not be closed" in caplog.text
