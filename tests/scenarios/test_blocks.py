"""``atomic()`` blocks that overlap with ours: Django counts blocks, so one of theirs would end in the place of ours."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connection, connections, transaction
from django.http import HttpResponse, StreamingHttpResponse

from django_idempotency import modes
from django_idempotency.drf import IdempotencyMixin
from django_idempotency.storage.transactions import NestedSavepoint
from example_project.payments.models import Transfer

from .site import Handling, assert_replays, effect, problem, records, rows
from .table import answers, raises
from .ways import PLAIN, WAYS, Reply, api_class, every_way, every_way_and_mode, function

pytestmark = pytest.mark.usefixtures("committed")

atomic_requests = pytest.mark.parametrize("on", [True, False], ids=["ATOMIC_REQUESTS", "alone"])


def leaves_open(call):
    effect()
    transaction.atomic().__enter__()
    effect()
    return Reply(201, {"done": True})


def streams_in_a_block(call):
    def generate():
        with transaction.atomic():
            effect()
            for _ in range(3):
                yield b"x" * 10

    return StreamingHttpResponse(generate(), status=201)


class TestLeftOpen:
    """Nothing would be committed, though the answer said so, and the connection would stay in the transaction."""

    @every_way_and_mode
    @atomic_requests
    def test_by_the_handler(self, site, in_atomic_requests, way, mode, on):
        in_atomic_requests(on)
        site.add(way(Handling(leaves_open, answers()), {"mode": mode}))
        assert problem(site.send()) == "broken-transaction"
        assert (rows(), records()) == (0, 0)
        first = site.send()
        assert first.status_code == 201
        assert_replays(site.send(), first)
        assert rows() == 1

    @every_way
    def test_by_a_handler_without_a_key(self, site, in_atomic_requests, way):
        in_atomic_requests()
        site.add(way(Handling(leaves_open, answers()), {"required": False}))
        assert site.send(None).status_code == 500
        assert rows() == 0
        assert site.send(None).status_code == 201
        assert rows() == 1

    @every_way_and_mode
    def test_by_a_handler_that_raises_then(self, site, way, mode):
        def handle(call):
            leaves_open(call)
            raise LookupError

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        assert site.send().status_code == 500
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @every_way_and_mode
    def test_by_a_stream_that_is_sent_on(self, site, way, mode):
        """Its block would end when the client has read it all, and roll back when the client goes away."""
        site.add(way(Handling(streams_in_a_block, answers()), {"mode": mode, "max_response_bytes": 5}))
        assert problem(site.send()) == "broken-transaction"
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201
        assert rows() == 1

    @every_way_and_mode
    def test_a_stream_that_was_read_to_its_end_has_left_nothing_open(self, site, way, mode):
        site.add(way(Handling(streams_in_a_block), {"mode": mode}))
        first, again = site.send(), site.send()
        assert (first.getvalue(), again.content) == (b"x" * 30, b"x" * 30)
        assert rows() == 1

    def test_where_the_savepoint_is_a_block_too(self, site, monkeypatch, mode):
        monkeypatch.setattr(modes, "savepoint_on", lambda connection, **_: NestedSavepoint(connection))
        site.add(function(Handling(leaves_open, answers()), {"mode": mode}))
        assert problem(site.send()) == "broken-transaction"
        assert site.send().status_code == 201
        assert rows() == 1


class AtomicMixin:
    """As it is around on the net."""

    @transaction.atomic
    def dispatch(self, request, *args, **kwargs):
        return super().dispatch(request, *args, **kwargs)


@atomic_requests
def test_a_mixin_whose_dispatch_begins_one_is_refused_before_the_handler_runs(site, in_atomic_requests, mode, on):
    in_atomic_requests(on)
    handler = Handling(answers())
    base = api_class(handler, {"mode": mode}).cls
    members = {"post": base.post, "idempotency_policy": base.idempotency_policy}
    site.add(type("Things", (IdempotencyMixin, AtomicMixin, *base.__bases__[1:]), members).as_view())
    site.client("ann").raise_request_exception = True
    for _ in range(2):
        with pytest.raises(Exception, match=r"An atomic\(\) block on 'default'"):
            site.send()
    assert (handler.entered, rows(), records()) == (0, 0, 0)


@every_way_and_mode
def test_transactions_that_somebody_manages_by_hand_are_refused(site, way, mode):
    """With autocommit off no block of Django's commits, so the answer would be a success that nobody keeps."""
    handler = Handling(answers())
    view = way(handler, {"mode": mode})

    def by_hand(request, **arguments):
        transaction.set_autocommit(False)
        try:
            return view(request, **arguments)
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    site.add(by_hand)
    site.client("ann").raise_request_exception = True
    with pytest.raises(ImproperlyConfigured, match="Autocommit is off on 'default'"):
        site.send()
    assert (handler.entered, rows(), records()) == (0, 0, 0)


@every_way
def test_a_block_around_one_of_two_databases_leaves_none_of_ours_open(site, in_atomic_requests, other, way):
    """What was begun before it was noticed would fail every later request of this thread."""
    in_atomic_requests(True, "default")
    in_atomic_requests(True, other)
    view = way(Handling(answers()), {})

    def in_a_block(request, **arguments):
        with transaction.atomic(using=other):
            return view(request, **arguments)

    site.add(in_a_block, "wrapped")
    site.add(view)
    assert site.send(to="/wrapped/").status_code == 500
    assert not connection.in_atomic_block
    assert site.send().status_code == 201


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="has deferred constraints of its own kind")
@pytest.mark.parametrize("keys_on", ["default", "other"])
def test_the_database_of_the_keys_commits_last(site, in_atomic_requests, other, mode, keys_on):
    """A COMMIT that fails elsewhere is heard of as a failure, and not behind a success that is recorded."""
    in_atomic_requests(True, "default")
    in_atomic_requests(True, other)
    elsewhere = "default" if keys_on == other else other

    def handle(call):
        Transfer.objects.using(keys_on).create(kind=Transfer.Kind.DEPOSIT)
        with connections[elsewhere].cursor() as cursor:
            cursor.execute("CREATE TEMP TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP")
            cursor.execute("INSERT INTO late VALUES (1), (1)")
        return Reply(201, {"done": True})

    site.add(WAYS["viewset"](Handling(handle, answers()), {"mode": mode, "using": keys_on}))
    site.client("ann").raise_request_exception = True
    with pytest.raises(IntegrityError):
        site.send()
    assert (rows(), records()) == (0, 0)
    assert site.send().status_code == 201


@pytest.mark.parametrize("way", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("nothing", [None, "text"])
def test_what_is_no_response_is_left_to_django_to_refuse(site, way, mode, nothing):
    def handle(call):
        effect()
        return nothing

    site.add(way(Handling(handle, lambda call: HttpResponse(effect().pk)), {"mode": mode}))
    site.client("ann").raise_request_exception = True
    with pytest.raises((ValueError, AttributeError), match=r"didn't return an HttpResponse|'str' object"):
        site.send()
    assert (rows(), records()) == (0, 0)
    assert site.send().status_code == 200


@every_way
def test_an_error_of_the_view_is_its_own_though_a_block_is_open(site, in_atomic_requests, way):
    in_atomic_requests()
    site.add(way(Handling(raises(LookupError)), {}))
    site.client("ann").raise_request_exception = True
    with pytest.raises(LookupError):
        site.send()
    assert rows() == 0
