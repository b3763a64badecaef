"""What is told of each request: one word on its arrival, and one on the end of a key that was not answered."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from django_idempotency import IdempotencyMode, signals
from django_idempotency.core.operations import registry
from django_idempotency.models import IdempotencyKey
from django_idempotency.operations import operation
from django_idempotency.storage import store_for
from tests.support.crowds import Crowd
from tests.support.leases import let_leases_lapse
from tests.support.listening import heard
from tests.support.modes import LEASED

from .site import Handling, effect, problem, records, rows
from .table import answers, raises
from .ways import WAYS, Reply, every_way, every_way_and_mode

__all__ = ["heard"]

pytestmark = pytest.mark.usefixtures("committed")


@every_way_and_mode
def test_first_a_new_one_then_replays_and_mismatches(site, heard, way, mode):
    site.add(way(Handling(answers()), {"mode": mode}))
    site.send()
    (told,) = heard.all
    record = IdempotencyKey.objects.get()
    assert told == {
        "outcome": signals.Counted.NEW,
        "route": record.scope.partition(" ")[2],
        "record_id": record.pk,
        "using": "default",
        "age": None,
    }
    assert told["route"].endswith(":POST")
    site.send()
    site.send(body={"other": 1})
    assert heard.take() == ["new", "replayed", "mismatch"]


@every_way_and_mode
@pytest.mark.parametrize("behave", [answers(400), answers(500), raises(RuntimeError)], ids=["refusal", "500", "error"])
def test_what_leaves_the_key_free_is_new_and_released(site, heard, way, mode, behave):
    site.add(way(Handling(behave), {"mode": mode}))
    site.send()
    assert heard.take() == ["new", "released"]
    assert records() == 0


@every_way_and_mode
def test_what_comes_without_a_usable_key_is_told_apart(site, heard, way, mode):
    site.add(way(Handling(answers()), {"mode": mode}))
    site.send(None)
    site.send("a,b")
    site.send(body=b'{"a": NaN')
    assert heard.take() == ["missing_key", "malformed_key", "refused"]
    site.send(user=None)
    # A REST framework view has asked who that is before it looks for a key.
    assert heard.take() in ([], ["refused"])


@every_way
def test_where_no_key_is_required_its_lack_is_counted_all_the_same(site, heard, in_atomic_requests, way):
    in_atomic_requests()
    site.add(way(Handling(answers()), {"required": False}))
    assert site.send(None).status_code == 201
    assert heard.take() == ["missing_key"]
    site.send(None, method="GET")
    assert heard.take() == []


def test_a_request_that_fails_without_a_key_is_counted_too(site, heard, in_atomic_requests):
    in_atomic_requests()
    site.add(WAYS["function"](Handling(raises(RuntimeError)), {"required": False}))
    assert site.send(None).status_code == 500
    assert heard.take() == ["missing_key"]


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer")
@every_way
def test_a_duplicate_meanwhile_is_a_conflict(site, heard, caplog, way, mode):
    caplog.set_level(logging.INFO, logger="django_idempotency")
    statuses = []

    def handle(call):
        if not statuses:
            statuses.append(0)
            with Crowd(1) as crowd:
                statuses.append(crowd.start(site.send).result(30).status_code)
        return Reply(201, {})

    site.add(way(Handling(handle), {"mode": mode, "max_wait": timedelta(milliseconds=50)}))
    site.send()
    assert statuses == [0, 409]
    assert heard.take() == ["conflict", "new"], "in the order in which they ended"
    refused = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    assert refused == [f"{IdempotencyKey.objects.get().pk} is refused: in-progress."]


@every_way
def test_a_lapsed_claim_is_taken_over_and_its_owner_fenced(site, heard, way):
    again = []

    def handle(call):
        if not again:
            again.append(None)
            with Crowd(1) as crowd:
                crowd.start(let_leases_lapse).result(30)
                again[0] = crowd.start(site.send).result(30)
        return Reply(201, {"row": str(effect().pk)})

    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    site.add(way(Handling(handle), {"mode": LEASED}))
    assert site.send().status_code == 409
    assert again[0].status_code == 201
    assert heard.take() == ["takeover", "new", "fenced"]
    assert rows() == 1


@every_way_and_mode
def test_a_store_that_is_down_is_unavailable(site, heard, monkeypatch, way, mode):
    def fail(*_, **__):
        raise OperationalError

    site.add(way(Handling(answers()), {"mode": mode}))
    site.send()
    heard.take()
    for way_in in ("claim", "claim_and_begin"):
        monkeypatch.setattr(type(store_for("default")), way_in, fail)
    assert site.send().status_code == 503
    assert heard.take() == ["unavailable"]


@every_way_and_mode
def test_a_receiver_that_raises_is_logged_and_changes_nothing(site, heard, caplog, way, mode):
    def fail(**_):
        raise RuntimeError("a receiver of the project's")

    signals.counted.connect(fail)
    try:
        site.add(way(Handling(answers()), {"mode": mode}))
        assert [site.send().status_code for _ in range(2)] == [201, 201]
    finally:
        signals.counted.disconnect(fail)
    assert heard.take() == ["new", "replayed"]
    logged = [each for each in caplog.records if each.name == "django.dispatch"]
    assert len(logged) == 2


@every_way_and_mode
def test_a_receiver_may_query_even_badly(site, way, mode):
    """Behind COMMIT, nothing that it breaks is the request's."""
    asked = []

    def ask(**_):
        asked.append(rows())
        with connection.cursor() as cursor:
            cursor.execute("SELECT nonsense")

    signals.counted.connect(ask, sender=signals.Counted.NEW)
    try:
        site.add(way(Handling(lambda call: Reply(201, {"row": str(effect().pk)})), {"mode": mode}))
        assert site.send().status_code == 201
        assert site.send().headers["Idempotent-Replayed"] == "true"
    finally:
        signals.counted.disconnect(ask, sender=signals.Counted.NEW)
    assert asked == [1], "it sees the effect, and hears of one outcome alone"
    assert rows() == 1


def _parts(answer):
    return answer.status, answer.data


class TestLate:
    HEADER = "First-Sent"

    @pytest.fixture(autouse=True)
    def header(self, settings):
        settings.IDEMPOTENCY = {"FIRST_SENT_HEADER": self.HEADER, "RETENTION": timedelta(hours=1)}

    def sent(self, ago):
        return {self.HEADER: (timezone.now() - ago).isoformat()}

    @every_way_and_mode
    def test_what_is_older_than_the_retention_is_refused_and_leaves_nothing(self, site, heard, way, mode):
        handler = Handling(answers())
        site.add(way(handler, {"mode": mode, "refuse_late": True}))
        late = site.send(headers=self.sent(timedelta(hours=2)))
        assert (late.status_code, problem(late)) == (410, "too-late")
        assert "Retry-After" not in late.headers
        document = late.json()
        assert document["retention_seconds"] == 3600
        assert 7200 <= document["age_seconds"] < 7300
        assert heard.all[0]["age"] == pytest.approx(7200, abs=60)
        assert heard.take() == ["late"]
        assert (handler.entered, records()) == (0, 0)
        # In time it runs, under the same key.
        assert site.send(headers=self.sent(timedelta(minutes=44))).status_code == 201
        assert heard.take() == ["new"]

    @every_way_and_mode
    def test_in_the_last_quarter_of_its_time_it_is_told_besides(self, site, heard, way, mode):
        site.add(way(Handling(answers()), {"mode": mode}))
        for minutes, told in ((46, ["new", "nearly_late"]), (59, ["replayed", "nearly_late"]), (61, ["replayed"])):
            site.send(headers=self.sent(timedelta(minutes=minutes)))
            assert heard.take() == told

    @every_way_and_mode
    def test_a_record_that_stands_is_replayed_whenever(self, site, heard, way, mode):
        site.add(way(Handling(answers()), {"mode": mode, "refuse_late": True}))
        first = site.send(headers=self.sent(timedelta(0)))
        again = site.send(headers=self.sent(timedelta(days=30)))
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers["Idempotent-Replayed"] == "true"
        other = site.send(body={"other": 1}, headers=self.sent(timedelta(days=30)))
        assert other.status_code == 422
        assert heard.take() == ["new", "replayed", "mismatch"]

    @every_way_and_mode
    def test_one_that_has_expired_and_is_not_pruned_does_not_stand(self, site, way, mode):
        handler = Handling(answers())
        site.add(way(handler, {"mode": mode, "refuse_late": True, "retention": timedelta(seconds=1)}))
        site.send()
        if connection.vendor == "postgresql":
            # An update would have to find a partition of the past.
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_sleep(extract(epoch FROM expires_at - clock_timestamp())) FROM idempotency_key"
                )
        else:
            IdempotencyKey.objects.update(expires_at=timezone.now())
        assert site.send(headers=self.sent(timedelta(hours=2))).status_code == 410
        assert handler.entered == 1

    @pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer")
    @every_way
    def test_what_died_under_a_lease_is_not_gone_on_with_late(self, site, heard, way):
        """Its claim may itself have come after the record was gone, and died before it was refused."""
        site.add(way(Handling(answers(400), answers()), {"mode": LEASED, "refuse_late": True}))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(store_for("default")), "release", lambda *_: False)
            site.send()
        let_leases_lapse()
        heard.take()
        assert site.send(headers=self.sent(timedelta(hours=2))).status_code == 410
        assert heard.take() == ["late"]
        assert site.send(headers=self.sent(timedelta(0))).status_code == 201
        assert heard.take() == ["takeover"]

    @every_way_and_mode
    def test_without_refusal_it_runs_and_is_counted(self, site, heard, way, mode):
        site.add(way(Handling(answers()), {"mode": mode}))
        assert site.send(headers=self.sent(timedelta(hours=2))).status_code == 201
        assert heard.take() == ["late"]

    @every_way
    @pytest.mark.parametrize("value", ["yesterday", "", "@", "2026-11-30", "Mon, 30 Nov 2026", "a", "@1.5"])
    def test_what_is_no_time_is_refused_and_named(self, site, heard, way, value):
        handler = Handling(answers())
        site.add(way(handler, {}))
        refused = site.send(headers={self.HEADER: value})
        assert (refused.status_code, problem(refused)) == (400, "malformed-first-sent")
        assert self.HEADER in refused.json()["detail"]
        assert heard.take() == ["malformed_key"]
        assert handler.entered == 0

    @every_way
    def test_a_clock_that_is_ahead_makes_an_age_of_nothing(self, site, heard, way):
        site.add(way(Handling(answers()), {"refuse_late": True}))
        assert site.send(headers=self.sent(-timedelta(days=9))).status_code == 201
        assert heard.all[0]["age"] == 0

    @every_way
    def test_where_no_key_is_looked_at_the_header_is_not(self, site, way):
        site.add(way(Handling(answers()), {"required": False}))
        site.add(WAYS["function"](Handling(answers()), {"methods": {"PUT"}}, "others"), "others")
        assert site.send(None, headers={self.HEADER: "nonsense"}).status_code == 201
        assert site.send(to="/others/", headers={self.HEADER: "nonsense"}).status_code == 201

    @every_way
    def test_a_key_of_version_7_is_a_time_only_where_the_policy_says_so(self, site, way):
        old = "0192e8a4-7c00-7cc3-98c4-dc0c0c07398f"  # of 2024
        site.add(way(Handling(answers()), {"refuse_late": True}))
        site.add(way(Handling(answers()), {"refuse_late": True, "trust_uuid7": True}, "others"), "others")
        assert site.send(old).status_code == 201
        assert problem(site.send(old, to="/others/")) == "too-late"
        # What the header says comes first.
        assert site.send(old, to="/others/", headers=self.sent(timedelta(0))).status_code == 201
        assert site.send("no-uuid", to="/others/").status_code == 201


class TestObserveOnly:
    @pytest.fixture(autouse=True)
    def observe(self, settings):
        settings.IDEMPOTENCY = {"OBSERVE_ONLY": True}

    @every_way_and_mode
    def test_nothing_is_protected_and_all_is_counted(self, site, heard, way, mode):
        handler = Handling(lambda call: Reply(201, {"row": str(effect().pk)}))
        site.add(way(handler, {"mode": mode}))
        first, again = site.send(), site.send()
        assert first.content != again.content
        assert "Idempotent-Replayed" not in again.headers
        assert [site.send(key).status_code for key in (None, "a,b")] == [201, 201]
        assert (handler.entered, rows(), records()) == (4, 4, 0)
        assert heard.take() == ["observed", "observed", "missing_key", "malformed_key"]

    @every_way
    def test_a_failure_is_djangos(self, site, heard, in_atomic_requests, way):
        in_atomic_requests()

        def fail(call):
            effect()
            raise RuntimeError

        site.add(way(Handling(fail), {}))
        assert site.send().status_code == 500
        assert rows() == 0, "ATOMIC_REQUESTS rolled it back"
        assert heard.take() == ["observed"]

    @every_way
    def test_without_atomic_requests_each_write_commits_by_itself(self, site, way):
        def fail(call):
            effect()
            raise RuntimeError

        site.add(way(Handling(fail), {}))
        assert site.send().status_code == 500
        assert rows() == 1

    @every_way
    def test_a_body_that_could_not_be_compared_reaches_the_view(self, site, way):
        site.add(way(Handling(lambda call: Reply(201, {"got": len(call.django_request.body)})), {}))
        assert site.send(body=b'{"a": NaN}').status_code == 201

    @every_way
    def test_an_operation_runs_under_a_key_that_is_not_the_clients(self, site, heard, way):
        @operation(f"observed.{uuid4().hex}")
        def pay(op):
            return op.finish(lambda: {"row": str(effect().pk)}, status=201)

        try:
            site.add(way(Handling(lambda call: Reply(*_parts(pay()))), {"mode": IdempotencyMode.PHASED}))
            assert [site.send().status_code for _ in range(2)] == [201, 201]
        finally:
            registry._definitions.pop(pay.definition.name)
        assert rows() == 2
        assert "a-key" not in IdempotencyKey.objects.values_list("key", flat=True)
        assert heard.take() == ["observed", "observed"]

    def test_it_is_said_once(self, site, caplog):
        from django_idempotency.http import exchange

        exchange._warn_that_nothing_is_protected.cache_clear()
        site.add(WAYS["viewset"](Handling(answers()), {}))
        for _ in range(3):
            site.send()
        said = [each for each in caplog.records if "OBSERVE_ONLY" in each.getMessage()]
        assert [each.levelname for each in said] == ["WARNING"]
