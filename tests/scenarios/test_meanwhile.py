"""A second request while the first is in its handler: in every way in, the same word to the one who comes second."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from django_idempotency import IdempotencyMode
from django_idempotency.models import IdempotencyKey
from tests.support.crowds import Crowd
from tests.support.leases import let_leases_lapse

from .site import Handling, assert_replays, effect, problem, records, rows
from .table import answers, api_exception
from .ways import Reply, every_rest_way, every_way

pytestmark = [
    pytest.mark.usefixtures("committed"),
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer"),
]

SHORT = {"max_wait": timedelta(milliseconds=50)}


@pytest.fixture
def beside():
    """Act on another database connection, and come back when it is done."""
    with Crowd(1) as crowd:
        yield lambda act: crowd.start(act).result(30)


def visits(site, beside, heard, acts=None, **send):
    """A handler during whose first run the same client sends another request."""

    def handle(call):
        row = effect()
        if not heard:
            heard.append(None)
            heard[0] = beside(lambda: site.send(**send))
        return Reply(201, {"row": str(row.pk)})

    return handle


class TestADuplicate:
    @every_way
    def test_is_told_to_come_back_and_gets_the_answer_then(self, site, beside, way, mode):
        heard = []
        handler = Handling(visits(site, beside, heard))
        site.add(way(handler, {"mode": mode, **SHORT}))
        first = site.send()
        assert first.status_code == 201
        assert (heard[0].status_code, problem(heard[0])) == (409, "in-progress")
        assert 1 <= int(heard[0].headers["Retry-After"]) <= 30
        assert_replays(site.send(), first)
        assert (handler.entered, rows(), records()) == (1, 1, 1)

    @every_way
    def test_with_another_body_is_told_that_it_can_never_succeed(self, site, beside, way):
        """Where the first claim can be seen; a claim that is not committed cannot."""
        heard = []
        site.add(way(Handling(visits(site, beside, heard, body={"other": 1})), {"mode": IdempotencyMode.LEASED}))
        assert site.send().status_code == 201
        assert (heard[0].status_code, problem(heard[0])) == (422, "key-reused")
        assert "Retry-After" not in heard[0].headers

    @every_way
    def test_under_another_key_runs(self, site, beside, way, mode):
        heard = []
        handler = Handling(visits(site, beside, heard, key="another"))
        site.add(way(handler, {"mode": mode}))
        assert site.send().status_code == 201
        assert heard[0].status_code == 201
        assert (handler.entered, rows(), records("sealed")) == (2, 2, 2)

    @every_way
    def test_of_another_user_runs(self, site, beside, way, mode):
        heard = []
        handler = Handling(visits(site, beside, heard, user="ben"))
        site.add(way(handler, {"mode": mode}))
        assert site.send().status_code == 201
        assert heard[0].status_code == 201
        assert handler.entered == 2

    @every_way
    def test_that_reads_is_not_held_up(self, site, beside, way, mode):
        heard = []
        handler = Handling(visits(site, beside, heard, method="GET"))
        site.add(way(handler, {"mode": mode}))
        assert site.send().status_code == 201
        assert heard[0].status_code == 201


class TestALapsedLease:
    @every_way
    def test_the_second_owner_keeps_the_key_and_the_first_keeps_nothing(self, site, beside, way):
        heard = []

        def stalls(call):
            row = effect("of the first")
            assert beside(let_leases_lapse) == 1
            heard.append(beside(site.send))
            return Reply(201, {"row": str(row.pk)})

        handler = Handling(stalls, answers())
        site.add(way(handler, {"mode": IdempotencyMode.LEASED}))
        late = site.send()
        assert (late.status_code, problem(late)) == (409, "lease-lost")
        assert int(late.headers["Retry-After"]) >= 1
        assert heard[0].status_code == 201
        assert_replays(site.send(), heard[0])
        assert (handler.entered, rows(), records("sealed"), records()) == (2, 1, 1, 1)

    @pytest.mark.parametrize("late", [answers(400), lambda call: 1 / 0], ids=["400", "500"])
    @every_way
    def test_a_first_owner_that_fails_late_takes_nothing_away(self, site, beside, way, late):
        heard = []

        def stalls(call):
            assert beside(let_leases_lapse) == 1
            heard.append(beside(site.send))
            return late(call)

        site.add(way(Handling(stalls, answers()), {"mode": IdempotencyMode.LEASED}))
        assert site.send().status_code in (400, 500)
        assert heard[0].status_code == 201
        assert_replays(site.send(), heard[0])
        assert (rows(), records("sealed"), records()) == (1, 1, 1)

    @every_rest_way
    def test_a_first_owner_that_declines_late_does_not_replace_the_answer(self, site, beside, way):
        heard = []

        def stalls(call):
            assert beside(let_leases_lapse) == 1
            heard.append(beside(site.send))
            raise api_exception(402)

        site.add(way(Handling(stalls, answers()), {"mode": IdempotencyMode.LEASED}))
        assert problem(site.send()) == "lease-lost"
        assert_replays(site.send(), heard[0])
        assert rows() == 1

    @every_way
    def test_an_owner_that_vanished_is_replaced_when_its_lease_has_lapsed(self, site, way):
        site.add(way(Handling(answers()), {"mode": IdempotencyMode.LEASED}))
        site.send()
        put_back(lease=timedelta(seconds=20))
        response = site.send()
        assert problem(response) == "in-progress"
        assert 18 <= int(response.headers["Retry-After"]) <= 20
        assert let_leases_lapse() == 1
        again = site.send()
        assert (again.status_code, IdempotencyKey.objects.get().attempts) == (201, 2)

    @every_way
    def test_of_an_owner_that_vanished_nothing_stands_in_the_way_of_a_corrected_request(self, site, way):
        handler = Handling(answers())
        site.add(way(handler, {"mode": IdempotencyMode.LEASED}))
        site.send()
        put_back(lease=timedelta(seconds=20))
        corrected = {"amount": 7}
        assert problem(site.send(body=corrected)) == "key-reused", "the owner may be at work still"
        assert let_leases_lapse() == 1
        answer = site.send(body=corrected)
        assert answer.status_code == 201
        assert_replays(site.send(body=corrected), answer)
        assert problem(site.send()) == "key-reused"
        assert (handler.entered, records("sealed"), records()) == (2, 1, 1)


@every_way
def test_a_claim_that_committed_without_its_outcome_is_held_for_a_person(site, way):
    """ATOMIC claims are never seen by others; this one proves that something in the view committed by itself."""
    handler = Handling(answers())
    site.add(way(handler, {}))
    site.send()
    put_back(lease=timedelta(seconds=-1))
    response = site.send()
    assert (response.status_code, problem(response)) == (409, "held")
    assert int(response.headers["Retry-After"]) > 1
    assert problem(site.send(body={"other": 1})) == "key-reused"
    assert (handler.entered, records("in_flight")) == (1, 1)


def put_back(lease):
    """Turn the one record into a claim of somebody who is not there any more."""
    record = IdempotencyKey.objects.get()
    IdempotencyKey.objects.all().delete()
    record.state, record.lease_expires_at = "in_flight", timezone.now() + lease
    record.sealed_at = record.expires_at = record.response_status = None
    record.response_headers = record.response_body = None
    record.save(force_insert=True)
    assert not connection.in_atomic_block
