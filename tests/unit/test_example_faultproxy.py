"""The proxy that other tests trust to fail exactly where they ask it to."""

from __future__ import annotations

import http.client
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from example_project.faultproxy import Fault, FaultProxy


class Upstream(ThreadingHTTPServer):
    """Answers each POST with its number and its body."""

    request_queue_size = 16

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Echo)
        self.requests: list[tuple[str, bytes]] = []
        self.meeting = threading.Barrier(1)
        self.lock = threading.Lock()


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.requests.append((self.headers["Connection"], body))
            answer = b"%d:%s" % (len(self.server.requests), body)
        self.server.meeting.wait(10)
        if body == b"die":
            self.connection.close()
            return
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def upstream():
    with Upstream() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(upstream):
    with FaultProxy(upstream.server_address) as proxy:
        yield proxy


def post(proxy, body):
    connection = http.client.HTTPConnection(*proxy.server_address, timeout=10)
    try:
        connection.request("POST", "/", body, headers={"Connection": "keep-alive"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_passes_an_exchange_on(proxy, upstream):
    assert post(proxy, b"a" * 100_000) == (201, b"1:" + b"a" * 100_000)
    assert upstream.requests == [("close", b"a" * 100_000)]
    exchange = proxy.next_answered()
    assert exchange.fault is Fault.PASS
    assert exchange.answers[0].endswith(b"1:" + b"a" * 100_000)


def test_cuts_the_answer_after_its_end(proxy):
    proxy.fault = Fault.CUT
    with pytest.raises(http.client.RemoteDisconnected):
        post(proxy, b"a")
    assert proxy.next_answered().answers[0].endswith(b"\r\n\r\n1:a")


def test_sends_twice_at_once_and_returns_the_second_answer(proxy, upstream):
    upstream.meeting = threading.Barrier(2)  # neither is answered before both have arrived
    proxy.fault = Fault.TWICE
    status, body = post(proxy, b"a")
    assert (status, len(upstream.requests)) == (201, 2)
    answers = proxy.next_answered().answers
    assert {answer[-3:] for answer in answers} == {b"1:a", b"2:a"}
    assert answers[1].endswith(body)


def test_holds_an_answer_back_until_it_is_told(proxy):
    proxy.fault = Fault.STALL
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, proxy, b"a")
        exchange = proxy.next_answered()
        assert not answer.done()
        proxy.fault = Fault.PASS
        assert post(proxy, b"b") == (201, b"2:b")
        assert not answer.done()
        exchange.resume()
        assert answer.result(10) == (201, b"1:a")


def test_a_stalled_exchange_does_not_outlive_the_proxy(upstream):
    with ThreadPoolExecutor(1) as pool, FaultProxy(upstream.server_address) as proxy:
        proxy.fault = Fault.STALL
        answer = pool.submit(post, proxy, b"a")
        proxy.next_answered()
        proxy.__exit__()
        assert answer.result(10) == (201, b"1:a")


def test_an_api_that_dies_is_a_connection_that_ends(proxy):
    with pytest.raises(http.client.RemoteDisconnected):
        post(proxy, b"die")
    assert proxy.next_answered().answers == [b""]


def test_a_client_that_leaves_early_is_not_forwarded(proxy, upstream):
    connection = http.client.HTTPConnection(*proxy.server_address, timeout=10)
    connection.request("POST", "/", b"half", headers={"Content-Length": "8"})
    connection.close()
    with pytest.raises(queue.Empty):
        proxy.next_answered(timeout=0.2)
    assert not upstream.requests
