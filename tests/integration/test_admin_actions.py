"""What a person does about a stuck key in the admin: who may, what it changes, and what it must not undo."""

from __future__ import annotations

import json
import re
import threading
from datetime import timedelta
from functools import partial
from html import unescape

import pytest
from django.contrib.admin import ModelAdmin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.db import OperationalError, connections, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

from django_idempotency import resolving
from django_idempotency.core.states import IdempotencyMode, Sealing, Seen
from django_idempotency.models import IdempotencyKey
from django_idempotency.resolving import Refusal, Refused
from tests.support.keys import CREATED, Keys, new_claim
from tests.support.outside import held, lapse, takes_keys, takes_no_keys
from tests.support.waiting import until_waiting

SLUGS = ("sweep", "release", "resolve")
PERMISSIONS = ("view", "change", "release", "resolve")


def page_of(key, page="change"):
    return reverse(f"admin:django_idempotency_idempotencykey_{page}", args=[key.pk])


def staff(*permissions, username="staff"):
    user = User.objects.create_user(username, is_staff=True)
    for permission in permissions:
        user.user_permissions.add(Permission.objects.get(codename=f"{permission}_idempotencykey"))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def person(db):
    """Somebody who may do everything."""
    return staff(*PERMISSIONS)


def idle(**changes):
    """A claim under which nothing has begun, stale for an hour."""
    claim = Keys("default").own(new_claim(**changes))
    return lapse(IdempotencyKey.objects.get(pk=claim.id))


def decision(key, slug, **fields):
    """What the browser sends, of the page as it is now."""
    shown = {"owner_token": key.owner_token, "lease_expires_at": str(key.lease_expires_at)}
    answer = {"status": 402, "body": '{"declined": true}'} if slug == "resolve" else {}
    return shown | {"reason": "Looked it up: order 7."} | answer | fields


def decide(client, key, slug, **fields):
    return client.post(page_of(key, slug), decision(key, slug, **fields))


def told(response):
    return " ".join(str(message) for message in get_messages(response.wsgi_request))


def now(key):
    """The row as it is in the database; None where there is none."""
    return IdempotencyKey.objects.filter(pk=key.pk).first()


def history():
    return [(entry.object_id, entry.change_message, entry.user.username) for entry in LogEntry.objects.order_by("pk")]


def offered(client, key):
    page = client.get(page_of(key)).content.decode()
    return [slug for slug in SLUGS if page_of(key, slug) in page]


@pytest.mark.django_db
class TestWho:
    @pytest.mark.parametrize(
        ("permissions", "may_with_idle", "may_with_begun"),
        [
            (("view",), [], []),
            (("view", "change"), ["sweep", "release"], ["sweep"]),
            (("view", "release"), ["release"], ["release"]),
            (("view", "resolve"), ["resolve"], ["resolve"]),
            (PERMISSIONS, list(SLUGS), list(SLUGS)),
            (("release", "resolve"), [], []),
        ],
    )
    def test_each_decision_has_its_permission(self, outside, permissions, may_with_idle, may_with_begun):
        client = staff(*permissions)
        for key, may in [(idle(), may_with_idle), (held(), may_with_begun)]:
            assert offered(client, key) == may
            for slug in SLUGS:
                allowed = 200 if slug in may else 403
                assert client.get(page_of(key, slug)).status_code == allowed, slug
                if slug not in may:
                    assert decide(client, key, slug).status_code == 403
                    assert now(key).state == "in_flight"
        assert history() == []

    def test_nobody_else_comes_near(self, client):
        key = idle()
        for slug in SLUGS:
            assert decide(client, key, slug)["Location"].startswith("/admin/login/")

    def test_another_site_cannot_decide_for_somebody(self, person):
        key = idle()
        careful = Client(enforce_csrf_checks=True)
        careful.cookies = person.cookies
        assert {decide(careful, key, slug).status_code for slug in SLUGS} == {403}
        assert now(key) is not None

    def test_the_permission_to_change_changes_nothing_else(self, person):
        key = idle()
        assert person.post(page_of(key), {"scope": "mine"}).status_code == 403
        assert 'name="_save"' not in person.get(page_of(key)).content.decode()


@pytest.mark.django_db
class TestWhatIsShown:
    def test_how_far_it_came_what_went_out_and_why_it_is_held(self, person, outside):
        key = held(number=4711)
        (derived,) = outside.sent
        page = person.get(page_of(key)).content.decode()
        assert f"send: no answer, sent 1 time, first on {timezone.localtime():%b}" in page
        assert f"under the key {derived}" in page
        assert "the call &#x27;send&#x27; ended in TimeoutError" in page
        assert "tests.takes_keys" in page
        assert "4711" not in page

    def test_what_the_sweeper_tried(self, person, outside):
        key = held()
        outside.is_silent()
        resolving.sweep_taken(resolving.take_up_by_person("default", seen(key), lambda: None))
        page = person.get(page_of(key)).content.decode()
        assert re.search(r'field-sweeps.*?<div class="readonly">1</div>', page, re.DOTALL)
        assert "sent 2 times" in page

    def test_one_that_is_left_to_a_person_says_so(self, outside):
        client, key = staff("view"), held(takes_no_keys)
        resolving.sweep_taken(resolving.take_up_by_person("default", seen(key), lambda: None))
        assert "none: it is left to a person" in client.get(page_of(key)).content.decode()
        other = held()
        listed = reverse("admin:django_idempotency_idempotencykey_changelist")
        for query, expected in [("held", {key.pk, other.pk}), ("person", {key.pk})]:
            found = client.get(listed, {"state": query}).context["cl"].result_list
            assert {row.pk for row in found} == expected
        page = client.get(listed).content.decode()
        assert "left to a person" in page
        assert ">held<" in page

    @pytest.mark.parametrize("zone", ["UTC", "Pacific/Honolulu", "Pacific/Auckland"])
    def test_nor_does_a_project_without_time_zones_mistake_it(self, outside, settings, zone):
        client, key = staff("view"), held(takes_no_keys)
        resolving.sweep_taken(resolving.take_up_by_person("default", seen(key), lambda: None))
        settings.USE_TZ, settings.TIME_ZONE = False, zone
        assert "none: it is left to a person" in client.get(page_of(key)).content.decode()
        listed = client.get(reverse("admin:django_idempotency_idempotencykey_changelist"), {"state": "person"})
        assert [row.pk for row in listed.context["cl"].result_list] == [key.pk]

    def test_steps_of_every_kind_and_of_another_release(self, person, outside):
        key = held()
        IdempotencyKey.objects.filter(pk=key.pk).update(
            steps=[
                {"name": "reserve", "kind": "phase", "done": True},
                {"name": "ask", "kind": "call", "done": True, "declined": True, "sends": 2},
                {"name": "tell", "kind": "call", "done": True},
                {"what": "<b>this</b>"},
            ]
        )
        page = person.get(page_of(key)).content.decode()
        assert "reserve: done<br>ask: declined, sent 2 times<br>tell: answered" in page
        assert "<b>this" not in page

    def test_the_page_of_a_decision_shows_what_it_is_about(self, person, outside):
        key = held()
        for slug in SLUGS:
            page = person.get(page_of(key, slug)).content.decode()
            assert str(key.owner_token) in page
            assert outside.sent[0] in page
            assert "Something may have happened" in page
            assert "Reason" in page
        assert "Something may have happened" not in person.get(page_of(idle(), "release")).content.decode()

    def test_what_the_page_holds_is_what_it_sends(self, person):
        """The hidden fields, to the microsecond."""
        key = idle()
        page = person.get(page_of(key, "release")).content.decode()
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
        sent = {name: unescape(value) for name, value in hidden.items() if name != "csrfmiddlewaretoken"}
        assert set(sent) == {"owner_token", "lease_expires_at"}
        person.post(page_of(key, "release"), sent | {"reason": "because"})
        assert now(key) is None

    def test_it_can_be_translated(self, person):
        key = idle()
        with translation.override("de"):
            assert person.get(page_of(key, "release"), headers={"accept-language": "de"}).status_code == 200


@pytest.mark.django_db
class TestSweep:
    def test_it_ends_what_can_end(self, person, outside):
        key = held()
        response = decide(person, key, "sweep")
        assert response["Location"] == page_of(key)
        assert "has come to its end" in told(response)
        assert now(key).state == "sealed"
        assert history() == [(str(key.pk), "Swept. Looked it up: order 7.", "staff")]

    def test_it_releases_where_nothing_has_begun(self, person):
        key = idle()
        assert "the key is released" in told(decide(person, key, "sweep"))
        assert now(key) is None

    def test_nobody_knows_yet(self, person, outside):
        key = held()
        outside.is_silent()
        assert "tried again later: the call 'send' ended in TimeoutError" in told(decide(person, key, "sweep"))

    def test_one_that_was_left_to_a_person_is_tried_again(self, person, outside):
        key = held(takes_no_keys)
        for _ in range(2):
            assert "It takes a person" in told(decide(person, key, "sweep"))
            key = lapse(key)
        assert len(outside.sent) == 1
        assert len(history()) == 2


@pytest.mark.django_db
class TestRelease:
    def test_a_key_under_which_nothing_happened_is_free(self):
        client, key = staff("view", "change"), idle()
        response = decide(client, key, "release")
        assert "The key is released" in told(response)
        assert now(key) is None
        assert history() == [(str(key.pk), "Released. Looked it up: order 7.", "staff")]
        # The page that it leads to does not exist any more, and says so.
        assert client.get(response["Location"]).status_code == 302

    def test_of_an_operation_that_has_begun_the_next_run_sends_the_same_keys(self, person, outside):
        key = held(number=1)
        decide(person, key, "release")
        assert now(key) is None
        takes_keys.run(scope="tests", key=key.key, parameters={"number": 1})
        assert len(outside.sent) == 2
        assert len(set(outside.sent)) == 1

    def test_an_atomic_claim_that_can_be_seen_may_have_had_its_effect(self):
        key = idle(mode=IdempotencyMode.ATOMIC)
        assert decide(staff("view", "change"), key, "release").status_code == 403
        decide(staff("view", "release", username="other"), key, "release")
        assert now(key) is None

    def test_a_reason_is_needed(self, person):
        key = idle()
        for slug in SLUGS:
            response = decide(person, key, slug, reason=" ")
            assert "This field is required" in response.content.decode()
        assert now(key).owner_token == key.owner_token


@pytest.mark.django_db
class TestResolve:
    def test_every_retry_receives_the_response(self, person, outside):
        key = held(takes_no_keys, number=1)
        assert "The response is recorded" in told(decide(person, key, "resolve"))
        answer = takes_no_keys.run(scope="tests", key=key.key, parameters={"number": 1})
        assert (answer.status, answer.data, answer.replayed) == (402, {"declined": True}, True)
        assert len(outside.sent) == 1
        assert history() == [(str(key.pk), "Resolved with 402. Looked it up: order 7.", "staff")]
        row = now(key)
        assert (row.parameters, row.steps, row.held_reason) == (None, None, None)

    def test_a_claim_without_an_operation_can_be_resolved_too(self, person):
        key = idle(mode=IdempotencyMode.ATOMIC)
        decide(person, key, "resolve", status=201, body='{"id": 7}')
        row = now(key)
        assert (row.state, row.response_status, json.loads(bytes(row.response_body))) == ("sealed", 201, {"id": 7})
        assert row.response_headers == [["Content-Type", "application/json"]]
        assert row.expires_at > timezone.now() + timedelta(hours=23)

    @pytest.mark.parametrize("status", [204, 304])
    def test_a_response_that_has_no_body(self, person, status):
        key = idle()
        decide(person, key, "resolve", status=status, body="")
        row = now(key)
        assert (row.response_status, bytes(row.response_body), row.response_headers) == (status, b"", [])

    @pytest.mark.parametrize(
        "fields",
        [
            {"status": 500}, {"status": 199}, {"status": ""}, {"status": "two"}, {"body": ""}, {"body": "{"},
            {"body": "NaN"}, {"body": '"\\u0000"'}, {"body": "[" * 100_000}, {"status": 204},
        ],
    )  # fmt: skip
    def test_what_cannot_be_a_response_is_said_and_nothing_is_recorded(self, person, fields):
        key = idle()
        response = decide(person, key, "resolve", **fields)
        assert response.status_code == 200
        assert response.context["form"].errors
        assert now(key).state == "in_flight"

    @pytest.mark.parametrize("status", [99, 500, 600])
    def test_nor_is_it_by_any_other_way(self, status):
        key = idle()
        with pytest.raises(ValueError, match=str(status)):
            resolving.resolve_by_person("default", seen(key), lambda: None, status=status, data={})


def seen(key):
    return Seen(key.pk, key.owner_token, key.lease_expires_at)


@pytest.mark.django_db
class TestRefused:
    """Whatever is shown on an old page: nothing is done, and nothing is written into the history."""

    @pytest.fixture(autouse=True)
    def nothing_in_the_history(self):
        yield
        assert history() == []

    @pytest.mark.parametrize("slug", SLUGS)
    def test_a_live_lease_is_nobodys_to_take(self, person, outside, slug):
        key = held()
        IdempotencyKey.objects.filter(pk=key.pk).update(lease_expires_at=timezone.now() + timedelta(seconds=30))
        key = now(key)
        assert offered(person, key) == []
        page = person.get(page_of(key, slug))
        assert page["Location"] == page_of(key)
        for response in (page, decide(person, key, slug)):
            assert "somebody works under this key" in told(response)
        assert now(key).owner_token == key.owner_token

    @pytest.mark.parametrize("slug", SLUGS)
    def test_a_sweeper_has_taken_it_up_since(self, person, outside, slug):
        key = held()
        assert Keys("default").store.take_stale(new_claim().owner_token, lease=0.0, stale_after=0.0).id == key.pk
        assert "since the page was shown" in told(decide(person, key, slug))
        assert now(key).state == "in_flight"

    @pytest.mark.parametrize("slug", SLUGS)
    def test_its_owner_came_further_since_and_has_lapsed_again(self, person, outside, slug):
        """The owner token is the same. What was decided was decided about less."""
        key = held()
        store = Keys("default").store
        store.advance(key.pk, key.owner_token, store.find(key.pk).progress, lease=0.0, stale_after=0.0, durable=False)
        assert "since the page was shown" in told(decide(person, key, slug))
        assert now(key).state == "in_flight"

    @pytest.mark.parametrize("slug", SLUGS)
    def test_it_has_its_answer(self, person, slug):
        key = idle()
        assert Keys("default").store.seal(
            key.pk, key.owner_token, CREATED, retention=60.0, lease=30.0, durable=False
        ) is Sealing.SEALED  # fmt: skip
        assert "has its answer already" in told(decide(person, key, slug))
        assert "has its answer already" in told(person.get(page_of(key, slug)))
        assert now(key).response_status == 201

    @pytest.mark.parametrize("slug", SLUGS)
    def test_there_is_no_such_key_any_more(self, person, slug):
        key = idle()
        IdempotencyKey.objects.all().delete()
        response = decide(person, key, slug)
        assert response.status_code == 302
        assert "free already" in told(response)
        with pytest.raises(Refused) as refused:
            resolving.take_up_by_person("default", seen(key), lambda: None)
        assert refused.value.reason is Refusal.GONE

    def test_an_operation_begun_since_it_was_looked_at(self, outside):
        key = held()
        with pytest.raises(Refused) as refused:
            resolving.release_by_person("default", seen(key), lambda: None)
        assert refused.value.reason is Refusal.BEGUN

    @pytest.mark.parametrize(
        "fields",
        [{"owner_token": "x"}, {"owner_token": ""}, {"lease_expires_at": "yesterday"}, {"lease_expires_at": ""}],
    )
    def test_a_page_that_was_tampered_with(self, person, fields):
        key = idle()
        response = decide(person, key, "release", **fields)
        assert response.status_code == 200
        assert response.context["form"].errors
        assert now(key) is not None

    @pytest.mark.parametrize("slug", SLUGS)
    def test_what_cannot_be_written_down_is_not_done(self, person, monkeypatch, slug):
        key = idle()

        def fail(*_, **__):
            raise ZeroDivisionError

        monkeypatch.setattr("django.contrib.admin.options.ModelAdmin.log_change", fail)
        with pytest.raises(ZeroDivisionError):
            decide(person, key, slug)
        assert (now(key).state, now(key).owner_token) == ("in_flight", key.owner_token)


@pytest.mark.django_db
def test_in_the_database_that_was_chosen(person, settings, monkeypatch):
    """A second alias of the same database; what was asked of it is told by the page that the decision leads to."""
    monkeypatch.setitem(settings.DATABASES, "other", connections["default"].settings_dict)
    settings.IDEMPOTENCY = {"DATABASES": ("default", "other")}
    connections["other"] = connections["default"]
    try:
        key, asked = idle(), []
        monkeypatch.setattr(
            "django_idempotency.interventions.decisions.resolving.release_by_person",
            lambda alias, *_, **__: asked.append(alias),
        )
        assert page_of(key, "release") + "?db=other" in person.get(page_of(key) + "?db=other").content.decode()
        response = person.post(page_of(key, "release") + "?db=other", decision(key, "release"))
        assert (asked, response["Location"]) == (["other"], page_of(key) + "?db=other")
    finally:
        del connections["other"]


@pytest.fixture
def rivals(committed):
    """Somebody who may do everything, where COMMIT commits."""
    return staff(*PERMISSIONS)


class TestRaces:
    @pytest.mark.parametrize("slug", SLUGS)
    def test_a_retry_goes_on_while_a_person_decides(self, rivals, crowd, outside, slug):
        """The page was shown before. Released or answered otherwise, the payment could be made twice."""
        key = held(number=1)
        on_its_way, go_on = threading.Event(), threading.Event()

        def slowly(_key):
            on_its_way.set()
            assert go_on.wait(30)
            return "done"

        outside.answer = slowly
        retry = crowd.start(takes_keys.run, scope="tests", key=key.key, parameters={"number": 1})
        assert on_its_way.wait(30)
        assert "somebody works under this key" in told(decide(rivals, key, slug))
        go_on.set()
        assert retry.result(30).data == {"number": 1, "answer": "done"}
        assert history() == []
        assert len(outside.sent) == 2

    @pytest.fixture
    def while_open(self, crowd):
        """Let somebody wait for what another session has done and not committed."""

        def act(uncommitted, waiting):
            done, commit = threading.Event(), threading.Event()

            def hold():
                with transaction.atomic():
                    uncommitted()
                    done.set()
                    assert commit.wait(30)

            holder = crowd.start(hold)
            assert done.wait(30)
            waits = crowd.start(waiting)
            until_waiting(containing="idempotency_key_in_flight")
            commit.set()
            holder.result(30)
            return waits.result(30)

        return act

    @pytest.mark.parametrize("slug", SLUGS)
    def test_a_sweeper_is_just_taking_it(self, rivals, while_open, outside, slug):
        key = held()
        response = while_open(
            lambda: Keys("default").store.take_stale(new_claim().owner_token, lease=30.0, stale_after=0.0),
            lambda: decide(rivals, key, slug),
        )
        assert "somebody works under this key" in told(response)
        assert history() == []

    @pytest.mark.parametrize("slug", SLUGS)
    def test_its_owner_is_just_sealing(self, rivals, while_open, slug):
        """The row moves to another partition under the waiting statement."""
        key = idle()
        response = while_open(
            lambda: Keys("default").store.seal(
                key.pk, key.owner_token, CREATED, retention=60.0, lease=30.0, durable=False
            ),
            lambda: decide(rivals, key, slug),
        )
        assert "has its answer already" in told(response)
        assert now(key).response_status == 201
        assert history() == []

    def test_two_people_decide_at_once(self, rivals, crowd, outside):
        key = held()
        ways = ["release", "resolve", "sweep"] * 2
        clients = [staff(*PERMISSIONS, username=f"staff-{number}") for number in range(len(ways))]
        crowd.all_at_once([partial(decide, client, key, slug) for client, slug in zip(clients, ways, strict=True)])
        assert len(history()) == 1
        assert IdempotencyKey.objects.filter(state="in_flight").count() == 0

    def test_a_sweep_is_outside_the_transaction_of_the_request(self, rivals, outside, monkeypatch):
        monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
        key = held()
        assert "has come to its end" in told(decide(rivals, key, "sweep"))
        assert now(key).state == "sealed"

    @pytest.mark.parametrize("really", [True, False])
    def test_a_commit_whose_answer_was_lost_is_not_told_as_nothing_done(self, rivals, monkeypatch, really):
        key = idle()
        take_note = ModelAdmin.log_change

        def note(*arguments):
            monkeypatch.setattr(connections["default"], "commit", partial(lose, connections["default"].commit))
            return take_note(*arguments)

        def lose(commit):
            monkeypatch.delattr(connections["default"], "commit")
            if really:
                commit()
            raise OperationalError

        monkeypatch.setattr(ModelAdmin, "log_change", note)
        assert "not known whether that was done" in told(decide(rivals, key, "resolve"))
        assert now(key).state == ("sealed" if really else "in_flight")
