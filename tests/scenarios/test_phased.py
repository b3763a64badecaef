"""Views in PHASED mode, in every way in: three lines around an operation, and what is heard of each of its ends."""

from __future__ import annotations

import itertools
from datetime import date, timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.utils import timezone
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.response import Response
from rest_framework.views import exception_handler

from django_idempotency import BodyCodec, IdempotencyMode, sweeping
from django_idempotency.core.operations import registry
from django_idempotency.models import IdempotencyKey
from django_idempotency.operations import Declined, Misused, NotStorable, operation
from django_idempotency.phasing import current_key
from django_idempotency.storage.base import NEVER
from django_idempotency.sweeping import Fate

from .site import BODY, KEY, REPLAYED, Handling, assert_replays, effect, problem, records, rows
from .ways import REST, WAYS, Reply, every_rest_way, every_way

pytestmark = pytest.mark.usefixtures("committed")

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def own_registry():
    known = dict(registry._definitions)
    yield
    registry._definitions.clear()
    registry._definitions.update(known)
    assert current_key.get() is None


class Outside:
    """Another system, and each key that it was sent."""

    def __init__(self):
        self.keys = []
        self.answers = []

    def send(self, key):
        self.keys.append(key)
        answer = self.answers.pop(0) if self.answers else {"id": "c-1"}
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture
def outside():
    return Outside()


@pytest.fixture
def pay(outside):
    return payment(outside)


def payment(outside, **how):
    """Reserve, authorise, record: two effects, and one elsewhere."""

    def pay(op, *, amount):
        op.phase("reserve", lambda: effect("reserved").pk and None)
        try:
            charge = op.call("authorise", outside.send)
        except Declined as declined:
            result = declined.result
            return op.finish(lambda: {"declined": result, "effect": str(effect("declined").memo)}, status=402)
        return op.finish(lambda: {"charge": charge, "amount": amount, "memo": effect("recorded").memo})

    how = {"downstream_takes_keys": True} | how
    return operation(f"scenarios.pay.{next(_numbers)}", **how)(pay)


def three_lines(pay):
    """What a view has to do with an operation."""

    def handler(call):
        answer = pay(amount=call.data["amount"])
        return Reply(answer.status, answer.data)

    return handler


def put_up(site, way, handler, **policy):
    handling = Handling(handler)
    site.add(way(handling, {"mode": IdempotencyMode.PHASED} | policy))
    return handling


def lapse():
    keys = IdempotencyKey.objects.filter(state="in_flight")
    assert keys.update(lease_expires_at=timezone.now() - timedelta(hours=1))


# --- to its end ---


@every_way
def test_the_answer_is_the_operations_and_so_is_each_replay(site, way, pay, outside):
    handling = put_up(site, way, three_lines(pay))
    first = site.send()
    assert (first.status_code, first.json()) == (
        201,
        {"charge": {"id": "c-1"}, "amount": "1.10", "memo": "recorded"},
    )
    assert first.headers["Content-Type"] == "application/json"
    again = site.send()
    assert_replays(again, first)
    assert (handling.entered, rows(), len(outside.keys)) == (1, 2, 1)
    assert records("sealed") == 1


@every_way
def test_the_same_key_for_something_else_is_refused(site, way, pay, outside):
    put_up(site, way, three_lines(pay))
    site.send()
    refused = site.send(body=BODY | {"amount": "2.20"})
    assert (refused.status_code, problem(refused)) == (422, "key-reused")
    assert (rows(), len(outside.keys)) == (2, 1)


@every_way
def test_what_is_sent_is_what_was_sealed_whatever_the_view_makes_of_it(site, way, pay):
    def handler(call):
        pay(amount=1)
        return Reply(418, {"I am": "a teapot"}, {"Location": "/nowhere/", "ETag": '"1"', "X-Own": "stays"})

    put_up(site, way, handler)
    first = site.send()
    assert (first.status_code, first.json()["amount"]) == (201, 1)
    assert "Location" not in first.headers, "a retry would not get it"
    assert "ETag" not in first.headers
    assert first.headers["X-Own"] == "stays"
    again = site.send()
    assert (again.status_code, again.content) == (first.status_code, first.content)


@every_way
def test_headers_of_the_answer_are_sent_each_time(site, way):
    create = operation(f"scenarios.create.{next(_numbers)}")(
        lambda op: op.finish(lambda: {"id": effect().pk and 7}, headers=[("Location", "/things/7/")])
    )

    def handler(call):
        answer = create()
        return Reply(answer.status, answer.data, {"Location": "/wrong/"})

    put_up(site, way, handler)
    first = site.send()
    assert first.headers["Location"] == "/things/7/"
    assert_replays(site.send(), first)


@every_way
def test_a_decline_is_an_answer_like_any_other(site, way, pay, outside):
    outside.answers = [Declined({"code": "no"})]
    put_up(site, way, three_lines(pay))
    first = site.send()
    assert (first.status_code, first.json()["declined"]) == (402, {"code": "no"})
    assert_replays(site.send(), first)
    assert len(outside.keys) == 1


@every_way
def test_a_response_without_content_stays_one(site, way):
    remove = operation(f"scenarios.remove.{next(_numbers)}")(
        lambda op: op.finish(lambda: effect() and None, status=204)
    )

    def handler(call):
        return Reply(remove().status)

    put_up(site, way, handler)
    first = site.send()
    assert (first.status_code, first.content) == (204, b"")
    assert "Content-Type" not in first.headers
    again = site.send()
    assert (again.status_code, again.content, again.headers[REPLAYED]) == (204, b"", "true")


@every_way
def test_a_body_over_the_limit_is_sent_once(site, way, outside):
    """The first client has asked for it and gets it; what is not kept cannot be sent again."""
    put_up(site, way, three_lines(payment(outside, max_response_bytes=5)), max_response_bytes=5)
    first = site.send()
    assert (first.status_code, first.json()["amount"]) == (201, "1.10")
    again = site.send()
    assert (again.status_code, problem(again)) == (409, "response-not-stored")
    assert again.json()["original_status"] == 201
    assert rows() == 2


@every_way
def test_a_body_is_stored_by_the_codec(site, way, outside):
    unpacked = []
    codec = BodyCodec(pack=lambda body: body[::-1], unpack=lambda stored: unpacked.append(1) or stored[::-1])
    put_up(site, way, three_lines(payment(outside, body_codec=codec)), body_codec=codec)
    first = site.send()
    assert first.json()["amount"] == "1.10"
    assert bytes(IdempotencyKey.objects.get().response_body) == first.content[::-1]
    assert unpacked == []
    assert_replays(site.send(), first)


# --- nobody knows ---


@every_way
def test_a_call_without_an_answer_and_all_that_comes_after(site, way, pay, outside):
    outside.answers = [TimeoutError(), TimeoutError()]
    handling = put_up(site, way, three_lines(pay))
    first = site.send()
    assert (first.status_code, problem(first)) == (503, "outcome-unknown")
    assert 1 <= int(first.headers["Retry-After"]) <= 30
    meanwhile = site.send()
    assert (meanwhile.status_code, problem(meanwhile)) == (409, "in-progress")
    assert 1 <= int(meanwhile.headers["Retry-After"]) <= 30
    assert problem(site.send(body=BODY | {"amount": "2.20"})) == "key-reused"
    assert handling.entered == 1
    lapse()
    assert problem(site.send(body=BODY | {"amount": "2.20"})) == "key-reused", "of what has begun, nothing changes"
    assert problem(site.send()) == "outcome-unknown", "resumed, and silent again"
    lapse()
    answer = site.send()
    assert (answer.status_code, answer.json()["charge"]) == (201, {"id": "c-1"})
    assert REPLAYED not in answer.headers
    assert_replays(site.send(), answer)
    assert (rows(), len(outside.keys), len(set(outside.keys))) == (2, 3, 1)


@every_way
def test_where_the_other_side_takes_no_keys_it_stays_held(site, way, outside):
    outside.answers = [TimeoutError()]
    put_up(site, way, three_lines(payment(outside, downstream_takes_keys=False)))
    assert site.send().status_code == 503
    lapse()
    for _ in range(2):
        held = site.send()
        assert (held.status_code, problem(held), held.headers["Retry-After"]) == (409, "held", "60")
    assert len(outside.keys) == 1
    assert IdempotencyKey.objects.get().held_reason == "the call 'authorise' ended in TimeoutError"


@every_way
def test_after_a_sweep_the_retry_gets_the_truth(site, way, pay, outside):
    outside.answers = [TimeoutError()]
    handling = put_up(site, way, three_lines(pay))
    site.send()
    lapse()
    assert [swept.fate for swept in sweeping.sweep("default", limit=5)] == [Fate.FINISHED]
    answer = site.send()
    assert (answer.status_code, answer.json()["amount"], answer.headers[REPLAYED]) == (201, "1.10", "true")
    assert (handling.entered, rows(), len(set(outside.keys))) == (1, 2, 1)


@every_way
def test_a_view_that_swallows_it_cannot_tell_a_failure(site, way, pay, outside):
    outside.answers = [TimeoutError()]

    def handler(call):
        try:
            answer = pay(amount=1)
        except Exception:  # noqa: BLE001 - as careless as it is meant to be
            return Reply(402, {"status": "failed"})
        return Reply(answer.status, answer.data)

    put_up(site, way, handler)
    response = site.send()
    assert (response.status_code, problem(response)) == (503, "outcome-unknown")
    assert IdempotencyKey.objects.get().held_reason == "the call 'authorise' ended in TimeoutError"
    lapse()
    assert site.send().status_code == 201


@every_way
@pytest.mark.parametrize("status", [200, 400, 500])
def test_nor_one_that_answers_before_the_end(site, way, status):
    begin = operation(f"scenarios.begin.{next(_numbers)}")(lambda op: op.phase("begin", lambda: effect() and None))

    def handler(call):
        with pytest.raises(Misused):
            begin()
        return Reply(status, {})

    put_up(site, way, handler)
    response = site.send()
    assert (response.status_code, problem(response)) == (503, "outcome-unknown")
    assert IdempotencyKey.objects.get().held_reason == "the operation has begun and was not finished"


@every_way
@pytest.mark.parametrize("error", [ValueError("card 4242"), ValidationError("no"), APIException("no")], ids=repr)
def test_an_error_after_something_has_begun_is_no_answer(site, way, error):
    def failing(op):
        op.phase("first", lambda: effect() and None)
        raise error

    fail = operation(f"scenarios.fail.{next(_numbers)}")(failing)
    put_up(site, way, lambda call: Reply(fail().status))
    response = site.send()
    assert (response.status_code, problem(response)) == (503, "outcome-unknown")
    assert IdempotencyKey.objects.get().held_reason == type(error).__name__
    assert rows() == 1


@every_way
def test_a_result_that_cannot_be_kept_is_held_and_says_which(site, way, outside):
    outside.answers = [{"id": 1, "at": date(2026, 12, 1)}]
    put_up(site, way, three_lines(payment(outside)))
    assert problem(site.send()) == "outcome-unknown"
    assert IdempotencyKey.objects.get().held_reason.startswith("the result of the call 'authorise'.at is a date")


def turned_into_502(error, context):
    """As projects have it, who want an answer to everything."""
    return exception_handler(error, context) or Response({"oops": type(error).__name__}, status=502)


@every_rest_way
@pytest.mark.parametrize("raised", [None, ValueError()], ids=["by a call", "by the operation"])
def test_the_projects_exception_handler_does_not_make_something_else_of_it(site, way, outside, settings, raised):
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"EXCEPTION_HANDLER": f"{__name__}.turned_into_502"}
    outside.answers = [TimeoutError()]

    def failing(op):
        if raised is None:
            op.call("send", outside.send)
        op.phase("first", lambda: None)
        raise raised

    fail = operation(f"scenarios.fail.{next(_numbers)}")(failing)
    put_up(site, way, lambda call: Reply(fail().status))
    response = site.send()
    assert (response.status_code, problem(response)) == (503, "outcome-unknown")
    assert problem(site.send()) == "in-progress"


# --- nothing has begun ---


@every_rest_way
@pytest.mark.parametrize(("error", "status"), [(ValidationError("no"), 400), (ValueError("no"), 500)], ids=str)
def test_a_first_phase_that_fails_frees_the_key(site, way, error, status):
    fails = [error]

    def first(op):
        def act():
            effect()
            if fails:
                raise fails.pop()

        op.phase("first", act)
        return op.finish(lambda: "done")

    called = operation(f"scenarios.first.{next(_numbers)}")(first)
    put_up(site, way, lambda call: Reply(called().status, "done"))
    assert site.send().status_code == status
    assert (rows(), records()) == (0, 0)
    assert site.send().status_code == 201
    assert rows() == 1


@every_way
@pytest.mark.parametrize("status", [400, 404, 409, 422, 429, 500])
def test_an_error_before_the_operation_leaves_the_key_free(site, way, pay, status):
    replies = [Reply(status, {"no": status})]

    def handler(call):
        return replies.pop() if replies else three_lines(pay)(call)

    put_up(site, way, handler)
    refused = site.send()
    assert (refused.status_code, refused.json()) == (status, {"no": status})
    assert records() == 0
    assert site.send(body=BODY | {"corrected": True}).status_code == 201


@every_way
@pytest.mark.parametrize("status", [200, 201, 303])
def test_a_success_without_an_operation_is_loud_and_records_nothing(site, way, status, caplog):
    put_up(site, way, lambda call: effect() and Reply(status, {}))
    response = site.send()
    assert response.status_code == 500
    assert records() == 0
    with pytest.raises(ImproperlyConfigured, match="answered without finishing an operation"):
        raise response.exc_info[1]


@every_way
def test_parameters_that_are_no_json_are_a_mistake_before_anything_begins(site, way, pay, outside):
    put_up(site, way, lambda call: Reply(pay(amount=date(2026, 12, 1)).status))
    response = site.send()
    assert response.status_code == 500
    assert "parameters.amount is a date" in str(response.exc_info[1])
    assert (records(), rows(), outside.keys) == (0, 0, [])


# --- in the wrong place ---


@every_way
def test_two_operations_in_one_view_are_loud_and_the_first_stands(site, way, pay, outside):
    other = payment(outside)

    def handler(call):
        pay(amount=1)
        return Reply(other(amount=2).status)

    put_up(site, way, handler)
    response = site.send()
    assert response.status_code == 500
    with pytest.raises(Misused, match=f"'{other.definition.name}' was called under a key whose operation has finished"):
        raise response.exc_info[1]
    again = site.send()
    assert (again.status_code, again.json()["amount"]) == (201, 1)
    assert (rows(), len(outside.keys)) == (2, 1)


@every_way
@pytest.mark.parametrize("other_mode", [IdempotencyMode.ATOMIC, IdempotencyMode.LEASED], ids=lambda mode: mode.name)
def test_in_a_view_in_another_mode_an_operation_is_a_mistake(site, way, pay, outside, other_mode):
    put_up(site, way, three_lines(pay), mode=other_mode)
    response = site.send()
    assert response.status_code == 500
    with pytest.raises(Misused, match="called outside a view in PHASED mode"):
        raise response.exc_info[1]
    assert (records(), outside.keys) == (0, [])


@pytest.mark.parametrize(
    ("way", "user"),
    [pytest.param(way, "ann", id=name) for name, way in WAYS.items()]
    + [pytest.param(WAYS["function"], None, id="function-nobody")],
)
def test_a_request_without_a_key_is_protected_from_everything_but_its_repetition(site, way, pay, outside, user):
    """As while clients are asked to send keys: required=False."""
    outside.answers = [TimeoutError()]
    put_up(site, way, three_lines(pay), required=False)
    lost = site.send(key=None, user=user)
    assert (lost.status_code, problem(lost)) == (503, "outcome-unknown")
    lapse()
    assert [swept.fate for swept in sweeping.sweep("default", limit=5)] == [Fate.FINISHED]
    assert rows() == 2
    again = site.send(key=None, user=user)
    assert (again.status_code, again.json()["amount"]) == (201, "1.10")
    assert REPLAYED not in again.headers
    assert (rows(), len(set(outside.keys))) == (4, 2)


@every_way
def test_another_operation_in_the_place_of_the_one_that_has_begun_is_for_a_person(site, way, pay, outside):
    outside.answers = [TimeoutError()]
    today = [pay, payment(outside)]

    def handler(call):
        return three_lines(today.pop(0))(call)

    put_up(site, way, handler)
    assert site.send().status_code == 503
    lapse()
    response = site.send()
    assert (response.status_code, problem(response)) == (503, "outcome-unknown")
    held = IdempotencyKey.objects.get()
    assert held.held_reason.startswith(f"The key belongs to the operation {pay.definition.name!r}, not ")
    assert held.sweep_after == NEVER
    assert len(outside.keys) == 1


@every_way
def test_an_operation_with_a_key_of_its_own_runs_beside(site, way, pay, outside):
    """And the view's own key is the view's again afterwards."""
    other = payment(outside)

    def handler(call):
        other.run(scope="beside", key="b", parameters={"amount": 2})
        with pytest.raises(NotStorable):
            other.run(scope="beside", key="c", parameters={"amount": {2}})
        return three_lines(pay)(call)

    put_up(site, way, handler)
    assert site.send().json()["amount"] == "1.10"
    assert records("sealed") == 2


@pytest.mark.parametrize(
    ("of_the_view", "name"),
    [
        ({"retention": timedelta(days=3)}, "retention"),
        ({"max_response_bytes": 5}, "max_response_bytes"),
        ({"body_codec": BodyCodec(pack=bytes, unpack=bytes)}, "body_codec"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("way", [WAYS["viewset"], WAYS["function"]], ids=["viewset", "function"])
def test_terms_that_a_sweeper_would_not_know_are_refused_before_anything_begins(
    site, way, pay, outside, of_the_view, name
):
    put_up(site, way, three_lines(pay), **of_the_view)
    response = site.send()
    assert response.status_code == 500
    with pytest.raises(Misused, match=name):
        raise response.exc_info[1]
    assert (records(), outside.keys) == (0, [])


@every_way
def test_the_terms_of_the_operation_hold_in_a_view_that_says_nothing(site, way, outside):
    put_up(site, way, three_lines(payment(outside, retention=timedelta(days=3))))
    site.send()
    assert IdempotencyKey.objects.get().expires_at - timezone.now() > timedelta(days=2)


@every_way
def test_a_codec_of_the_operation_alone_is_refused(site, way, outside):
    """A replay goes by the view, and could not read it."""
    put_up(site, way, three_lines(payment(outside, body_codec=BodyCodec(pack=bytes, unpack=bytes))))
    assert "different body_codecs" in str(site.send().exc_info[1])


@every_way
def test_an_operation_for_another_database_than_the_views_is_refused(site, way, outside, other):
    """Its phases would commit there, and be recorded here."""
    put_up(site, way, three_lines(payment(outside, using=other)))
    assert "is for 'other', and the view keeps its keys on 'default'" in str(site.send().exc_info[1])
    assert (records(), outside.keys) == (0, [])


@every_way
@pytest.mark.parametrize("using", ["default", lambda scope: "default"])
def test_one_for_the_same_database_is_not(site, way, outside, using):
    put_up(site, way, three_lines(payment(outside, using=using)))
    assert site.send().status_code == 201


# --- transactions ---


@every_way
def test_atomic_requests_ends_where_the_view_begins(site, way, pay, outside, in_atomic_requests):
    in_atomic_requests()
    seen = []
    send = outside.send

    def sending(key):
        seen.append(connections["default"].in_atomic_block)
        return send(key)

    outside.send = sending
    put_up(site, way, three_lines(payment(outside)))
    assert site.send().status_code == 201
    assert seen == [False]
    outside.answers = [TimeoutError()]
    assert site.send(key="another").status_code == 503
    assert rows() == 3, "what was committed before it stays"


@every_way
def test_atomic_requests_of_another_database_as_well(site, way, pay, other, in_atomic_requests):
    in_atomic_requests(alias=other)
    put_up(site, way, three_lines(pay))
    assert site.send().status_code == 201


@every_way
def test_what_the_view_writes_itself_commits_by_itself(site, way, pay, outside):
    """As the documentation says: unfenced, and not undone."""
    outside.answers = [TimeoutError()]

    def handler(call):
        effect("mine")
        return three_lines(pay)(call)

    put_up(site, way, handler)
    assert site.send().status_code == 503
    assert rows() == 2


@every_way
def test_a_transaction_around_a_call_is_refused(site, way, outside):
    def around(op):
        op.phase("first", lambda: effect() and None)
        with transaction.atomic():
            return op.call("send", outside.send)

    called = operation(f"scenarios.around.{next(_numbers)}")(around)
    put_up(site, way, lambda call: Reply(called().status))
    assert problem(site.send()) == "outcome-unknown"
    assert "op.call('send') inside a transaction on 'default'" in IdempotencyKey.objects.get().held_reason
    assert outside.keys == []


def test_a_streaming_response_is_replaced_too(site, pay):
    def handler(call):
        pay(amount=1)
        return StreamingHttpResponse([b"a", b"b"])

    put_up(site, WAYS["function"], handler)
    first = site.send()
    assert (first.status_code, first.json()["amount"]) == (201, 1)


def test_a_page_for_people_shows_the_recorded_answer(site, pay):
    put_up(site, REST["viewset"], three_lines(pay))
    first = site.send(headers={"Accept": "text/html"})
    assert (first.status_code, first.json()["amount"]) == (201, "1.10")
    assert_replays(site.send(headers={"Accept": "application/json"}), first)


@every_way
def test_an_error_of_the_view_after_the_end_is_loud_and_the_answer_stands(site, way, pay):
    def handler(call):
        pay(amount=1)
        raise ZeroDivisionError

    put_up(site, way, handler)
    assert site.send().status_code == 500
    again = site.send()
    assert (again.status_code, again.json()["amount"]) == (201, 1)


@every_rest_way
def test_an_error_that_is_handled_after_the_end_gives_way_to_the_answer(site, way, pay):
    def handler(call):
        pay(amount=1)
        raise ValidationError("too late")

    put_up(site, way, handler)
    first = site.send()
    assert (first.status_code, first.json()["amount"]) == (201, 1)


def test_a_plain_response_in_the_decorators_way(site, pay):
    def handler(call):
        answer = pay(amount=1)
        return HttpResponse(status=answer.status)

    put_up(site, WAYS["function"], handler)
    first = site.send(headers={KEY: "k"})
    assert first.json()["amount"] == 1
