"""Bodies that are not JSON: forms, files, large ones, and those that somebody read before us."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from django.core.files.uploadedfile import TemporaryUploadedFile
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.db import connection
from rest_framework.parsers import FileUploadParser, JSONParser
from rest_framework.permissions import BasePermission

from tests.support.multipart import multipart

from .site import BODY, Handling, assert_replays, effect, problem, records, rows
from .table import answers
from .ways import PLAIN, REST, WAYS, Reply, every_rest_way, every_way, every_way_and_mode, viewset

pytestmark = pytest.mark.usefixtures("committed")

FORM = "application/x-www-form-urlencoded"
PDF = "application/pdf"


class Remembered(TemporaryFileUploadHandler):
    """Nobody closes the file of a raw upload: the REST framework tells Django of those in forms only."""

    files: ClassVar[list[Any]] = []

    def new_file(self, *args, **kwargs):
        super().new_file(*args, **kwargs)
        self.files.append(self.file)

    @classmethod
    def close_all(cls):
        while cls.files:
            cls.files.pop().close()


def digests(call):
    """What the view can read of each file, as it finds it."""
    effect()
    return Reply(
        201,
        {
            "fields": sorted(name for name, value in call.data.items() if isinstance(value, str)),
            "files": [
                [name, upload.name, upload.size, hashlib.sha256(upload.read()).hexdigest()]
                for name, uploads in call.files.lists()
                for upload in uploads
            ],
        },
    )


def send(site, fields=(), files=(), key="a-key", boundary=None, **options):
    body, content_type = multipart(fields, files, boundary)
    return site.send(key, body, content_type=content_type, **options)


class TestFiles:
    GIVEN = ("document", "terms.pdf", PDF, b"%PDF-1.7 \x00\xff terms")

    @every_way_and_mode
    def test_a_retry_has_a_boundary_of_its_own(self, site, way, mode):
        handler = Handling(digests)
        site.add(way(handler, {"mode": mode}))
        first = send(site, [("kind", "contract")], [self.GIVEN])
        assert first.json() == {
            "fields": ["kind"],
            "files": [["document", "terms.pdf", len(self.GIVEN[3]), hashlib.sha256(self.GIVEN[3]).hexdigest()]],
        }
        assert_replays(send(site, [("kind", "contract")], [self.GIVEN]), first)
        assert (handler.entered, rows()) == (1, 1)

    @pytest.mark.parametrize(
        ("fields", "files"),
        [
            pytest.param([("kind", "contract")], [(*GIVEN[:3], GIVEN[3] + b"\x00")], id="a byte more"),
            pytest.param([("kind", "contract")], [(*GIVEN[:3], GIVEN[3][:-1] + b"T")], id="a byte changed"),
            pytest.param([("kind", "contract")], [(GIVEN[0], "other.pdf", *GIVEN[2:])], id="another name"),
            pytest.param([("kind", "contract")], [("annex", *GIVEN[1:])], id="another field"),
            pytest.param([("kind", "contract")], [(*GIVEN[:2], "text/plain", GIVEN[3])], id="another type"),
            pytest.param([("kind", "contract")], [GIVEN, GIVEN], id="twice"),
            pytest.param([("kind", "contract")], [], id="no file"),
            pytest.param([("kind", "offer")], [GIVEN], id="another value"),
            pytest.param([], [GIVEN], id="no field"),
            pytest.param([("kind", "contract"), ("document", "terms.pdf")], [], id="a field in place of the file"),
        ],
    )
    @every_way
    def test_another_upload_is_another_intent(self, site, way, fields, files):
        handler = Handling(digests)
        site.add(way(handler, {}))
        first = send(site, [("kind", "contract")], [self.GIVEN])
        assert problem(send(site, fields, files)) == "key-reused"
        assert_replays(send(site, [("kind", "contract")], [self.GIVEN]), first)
        assert handler.entered == 1

    @every_way
    def test_the_order_of_files_under_one_name_counts_and_that_of_names_does_not(self, site, way):
        one, two = (("pages", f"{n}.txt", "text/plain", str(n).encode()) for n in (1, 2))
        site.add(way(Handling(digests), {}))
        first = send(site, [("a", "1"), ("b", "2")], [one, two, self.GIVEN])
        assert_replays(send(site, [("b", "2"), ("a", "1")], [self.GIVEN, one, two]), first)
        assert problem(send(site, [("a", "1"), ("b", "2")], [two, one, self.GIVEN])) == "key-reused"

    @every_way
    def test_a_file_too_large_for_memory_reaches_the_view(self, site, way):
        content = b"0123456789abcdef" * 256 * 1024  # 4 MiB: over FILE_UPLOAD_MAX_MEMORY_SIZE

        def handle(call):
            (upload,) = call.files.getlist("document")
            assert isinstance(upload, TemporaryUploadedFile)
            assert Path(upload.temporary_file_path()).read_bytes() == content
            return digests(call)

        handler = Handling(handle)
        site.add(way(handler, {}))
        large = ("document", "large.bin", "application/octet-stream", content)
        first = send(site, files=[large])
        assert first.json()["files"][0][2] == len(content)
        assert_replays(send(site, files=[large]), first)
        assert problem(send(site, files=[(*large[:3], content[:-1] + b"!")])) == "key-reused"
        assert handler.entered == 1

    @every_rest_way
    @pytest.mark.parametrize("method", ["PUT", "PATCH"])
    def test_by_put_and_patch_through_the_rest_framework(self, site, way, method):
        handler = Handling(digests)
        site.add(way(handler, {"methods": (method,)}))
        first = send(site, [("a", "1")], [self.GIVEN], method=method)
        assert first.json()["files"][0][1] == "terms.pdf"
        assert_replays(send(site, [("a", "1")], [self.GIVEN], method=method), first)
        assert problem(send(site, [("a", "2")], [self.GIVEN], method=method)) == "key-reused"

    @pytest.mark.parametrize("way", PLAIN.values(), ids=PLAIN)
    def test_by_put_plain_django_parses_no_form_and_the_boundary_counts(self, site, way):
        site.add(way(Handling(answers()), {"methods": ("PUT",)}))
        first = send(site, [("a", "1")], boundary="one", method="PUT")
        assert_replays(send(site, [("a", "1")], boundary="one", method="PUT"), first)
        assert problem(send(site, [("a", "1")], boundary="two", method="PUT")) == "key-reused"

    @every_rest_way
    def test_a_raw_upload(self, site, way):
        """FileUploadParser takes the whole body for one file."""

        def handle(call):
            upload = call.request.data["file"]
            effect()
            return Reply(201, [upload.name, hashlib.sha256(upload.read()).hexdigest()])

        handler = Handling(handle)
        site.add(way(handler, {}, parser_classes=[FileUploadParser]))

        def upload(content, name="terms.pdf"):
            headers = {"Content-Disposition": f"attachment; filename={name}"}
            return site.send(body=content, content_type=PDF, headers=headers)

        first = upload(b"terms")
        assert first.json() == ["terms.pdf", hashlib.sha256(b"terms").hexdigest()]
        assert_replays(upload(b"terms"), first)
        assert problem(upload(b"terms!")) == "key-reused"
        assert problem(upload(b"terms", "other.pdf")) == "key-reused"

    @every_rest_way
    def test_a_raw_upload_too_large_for_memory(self, site, settings, way):
        settings.FILE_UPLOAD_HANDLERS = [f"{__name__}.Remembered"]

        def handle(call):
            upload = call.request.data["file"]
            assert isinstance(upload, TemporaryUploadedFile)
            return Reply(201, [upload.size, str(effect().pk)])

        site.add(way(Handling(handle), {}, parser_classes=[FileUploadParser]))
        headers = {"Content-Disposition": "attachment; filename=large.bin"}
        first = site.send(body=b"x" * 4 * 1024 * 1024, content_type=PDF, headers=headers)
        assert first.json()[0] == 4 * 1024 * 1024
        assert_replays(site.send(body=b"x" * 4 * 1024 * 1024, content_type=PDF, headers=headers), first)
        assert problem(site.send(body=b"y" * 4 * 1024 * 1024, content_type=PDF, headers=headers)) == "key-reused"
        Remembered.close_all()

    @every_way
    def test_what_is_no_multipart_at_all(self, site, way):
        handler = Handling(answers())
        site.add(way(handler, {}))
        # The REST framework has an answer of its own.
        assert site.send(body=b"garbage", content_type="multipart/form-data").status_code == 400
        assert (handler.entered, records()) == (0, 0)

    @every_way
    def test_parts_that_cannot_be_read_are_not_an_empty_form(self, site, way):
        handler = Handling(answers())
        site.add(way(handler, {}))
        for content in (b"one intent", b"another intent"):
            body = b"--b\r\nX-Other: header\r\n\r\n" + content + b"\r\n--b--\r\n"
            response = site.send(body=body, content_type="multipart/form-data; boundary=b")
            assert (response.status_code, problem(response)) == (400, "malformed-body")
        assert (handler.entered, records()) == (0, 0)

    @every_way
    def test_an_empty_form_is_a_form(self, site, way):
        site.add(way(Handling(answers()), {}))
        first = send(site)
        assert first.status_code == 201
        assert_replays(send(site), first)


class TestOtherBodies:
    @every_way
    def test_text_counts_byte_by_byte(self, site, way):
        members = {} if way in PLAIN.values() else {"parser_classes": [Anything]}
        site.add(way(Handling(answers()), {}, **members))
        first = site.send(body=b"a\x00b", content_type="text/plain; charset=utf-8")
        assert_replays(site.send(body=b"a\x00b", content_type="text/plain"), first)
        assert problem(site.send(body=b"a\x00c", content_type="text/plain")) == "key-reused"
        assert problem(site.send(body=b"a\x00b", content_type="text/csv")) == "key-reused"

    @every_way
    def test_a_form_that_is_not_utf8_is_kept_apart(self, site, way):
        site.add(way(Handling(answers()), {}))
        first = site.send(body=b"name=%ff", content_type=FORM)
        assert first.status_code == 201
        assert_replays(site.send(body=b"name=%FF", content_type=FORM), first)
        assert problem(site.send(body=b"name=%fe", content_type=FORM)) == "key-reused"

    @every_way
    def test_more_fields_than_django_reads(self, site, way):
        handler = Handling(answers())
        site.add(way(handler, {}))
        body = "&".join(f"f{n}=1" for n in range(1001)).encode()
        response = site.send(body=body, content_type=FORM)
        assert (response.status_code, problem(response)) == (413, "body-too-large")
        assert (handler.entered, records()) == (0, 0)

    @every_way
    def test_json_under_another_name(self, site, way):
        members = {} if way in PLAIN.values() else {"parser_classes": [Anything]}
        site.add(way(Handling(answers()), {}, **members))
        first = site.send(body=b'{"a":1,"b":2}', content_type="application/merge-patch+json")
        assert_replays(site.send(body=b'{"b":2,"a":1}', content_type="application/merge-patch+json"), first)


class Anything(JSONParser):
    media_type = "*/*"

    def parse(self, stream, media_type=None, parser_context=None):
        return stream.read()


class TestLargeBodies:
    @pytest.mark.parametrize("way", ["viewset", "function"])
    def test_fifty_megabytes(self, site, way, mode):
        handler = Handling(answers())
        site.add(WAYS[way](handler, {"mode": mode}))
        response = site.send(body=b'"' + b"x" * 50 * 1024 * 1024 + b'"')
        assert (response.status_code, problem(response)) == (413, "body-too-large")
        assert (handler.entered, records()) == (0, 0)
        assert site.send().status_code == 201

    @every_way
    def test_a_byte_more_than_django_reads_into_memory(self, site, settings, way):
        settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
        handler = Handling(answers())
        site.add(way(handler, {}))
        assert site.send(body=b'"' + b"x" * 98 + b'"').status_code == 201
        response = site.send("another", b'"' + b"x" * 99 + b'"')
        assert (response.status_code, problem(response)) == (413, "body-too-large")
        assert handler.entered == 1

    @pytest.mark.parametrize("way", ["viewset", "function"])
    def test_an_upload_of_a_hundred_megabytes_needs_no_memory(self, way):
        """In a process of its own, whose peak can be measured: the stream is made as it is read."""
        if connection.vendor != "postgresql" or not Path("/proc/self/clear_refs").exists():
            pytest.skip("needs a database that another process reaches, and Linux's peak of memory")
        settings = connection.settings_dict
        user = quote(settings["USER"]) + (f":{quote(settings['PASSWORD'])}" if settings["PASSWORD"] else "")
        url = f"postgres://{user}@{settings['HOST']}:{settings['PORT'] or 5432}/{settings['NAME']}"
        run = subprocess.run(  # noqa: PLW1510 - its errors are shown below
            [sys.executable, "-m", "tests.scenarios.upload_process", way],
            env={**os.environ, "DATABASE_URL": url},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert run.returncode == 0, run.stderr
        statuses, growth = run.stdout.split()
        assert statuses == "201,201,422"  # the upload, its replay, and one with another last byte
        assert int(growth) < 16 * 1024, f"{growth} KiB more than an upload of a kilobyte"


class InFront:
    """Middleware that has a look at the body, in ways that are good, bad, and worse."""

    looks = staticmethod(lambda request: None)

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        InFront.looks(request)
        return self.get_response(request)


KINDS = {
    "JSON": lambda n: (b'{"n": %d}' % n, "application/json"),
    "form": lambda n: (b"n=%d" % n, FORM),
    "multipart": lambda n: multipart([("n", str(n))]),
    "file": lambda n: multipart(files=[("n", "n.txt", "text/plain", b"%d" % n)]),
}


class TestReadBefore:
    @pytest.fixture(autouse=True)
    def in_front(self, settings, monkeypatch):
        settings.MIDDLEWARE = [f"{__name__}.InFront", *settings.MIDDLEWARE]

        def install(looks):
            monkeypatch.setattr(InFront, "looks", staticmethod(looks))

        return install

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("looks", ["body", "POST", "FILES"])
    @every_way
    def test_in_a_way_that_leaves_it_readable(self, site, in_front, way, looks, kind):
        in_front(lambda request: getattr(request, looks))
        handler = Handling(answers())
        site.add(way(handler, {}))
        (one, one_type), (again, again_type), (two, two_type) = (KINDS[kind](n) for n in (1, 1, 2))
        first = site.send(body=one, content_type=one_type)
        assert first.status_code == 201
        assert_replays(site.send(body=again, content_type=again_type), first)
        assert problem(site.send(body=two, content_type=two_type)) == "key-reused"

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("then", [lambda request: None, lambda request: request.POST], ids=["", "then POST"])
    @every_way
    def test_consumed_it_is_refused_and_never_taken_for_empty(self, site, in_front, way, kind, then):
        in_front(lambda request: (request.read(), then(request)))
        handler = Handling(answers())
        site.add(way(handler, {}))
        for number in (1, 2):
            body, content_type = KINDS[kind](number)
            response = site.send(body=body, content_type=content_type)
            assert response.status_code in (400, 500)
        assert (handler.entered, rows(), records()) == (0, 0, 0)

    @pytest.mark.parametrize("kind", KINDS)
    @every_way
    def test_a_stream_that_breaks(self, site, in_front, way, kind):
        def break_stream(request):
            def read(*size):
                raise OSError("connection reset by peer")

            request._stream.read = read

        in_front(break_stream)
        handler = Handling(answers())
        site.add(way(handler, {}))
        body, content_type = KINDS[kind](1)
        response = site.send(body=body, content_type=content_type)
        assert (response.status_code, problem(response)) == (400, "malformed-body")
        assert (handler.entered, rows(), records()) == (0, 0, 0)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("way", ["viewset", "api_class", "action"])
    def test_by_a_permission_class(self, site, way, kind):
        """`.data` reads the stream to its end before the key is looked at."""

        class Reads(BasePermission):
            def has_permission(self, request, view):
                return bool(request.data) and request.FILES is not None

        handler = Handling(answers())
        site.add(WAYS[way](handler, {}, permission_classes=[Reads]))
        (one, one_type), (again, again_type), (two, two_type) = (KINDS[kind](n) for n in (1, 1, 2))
        first = site.send(body=one, content_type=one_type)
        assert first.status_code == 201
        assert_replays(site.send(body=again, content_type=again_type), first)
        assert problem(site.send(body=two, content_type=two_type)) == "key-reused"

    @pytest.mark.parametrize("way", REST.values(), ids=REST)
    def test_the_view_reads_the_stream_itself_afterwards(self, site, way):
        handler = Handling(lambda call: Reply(201, call.django_request.body.decode()))
        site.add(way(handler, {}))
        assert site.send(body=b'{"n": 1}').json() == '{"n": 1}'


def test_a_request_that_is_not_keyed_is_not_read(site):
    """Without a key nothing of ours touches the body: the view streams it, of whatever size."""

    def handle(call):
        return Reply(200, len(call.request.stream.read()))

    site.add(viewset(Handling(handle), {"required": False}))
    assert site.send(None, b"x" * 3 * 1024 * 1024, content_type="application/octet-stream").json() == 3 * 1024 * 1024
    assert site.send(None, BODY).status_code == 200
