"""The admin of the keys: what it shows, what it keeps to itself, and what it costs with many sealed records."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta
from html import unescape
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_idempotency.admin import AT_MOST
from django_idempotency.interventions.progress import readable
from django_idempotency.models import IdempotencyKey
from tests.support.commits import vacuum_at_the_end

LIST = "/admin/django_idempotency/idempotencykey/"

pytestmark = pytest.mark.django_db


def record(**changes):
    now = timezone.now()
    values = {
        "id": uuid4(),
        "state": "in_flight",
        "scope": "auth.user:5 shop.views.pay:POST",
        "key": "the-clients-key",
        "fingerprint": b"\x01\x02",
        "fingerprint_scheme": 1,
        "mode": "leased",
        "owner_token": uuid4(),
        "claimed_at": now - timedelta(minutes=5),
        "lease_expires_at": now + timedelta(seconds=90),
    }
    return IdempotencyKey.objects.create(**(values | changes))


def sealed(**changes):
    now = timezone.now()
    values = {
        "state": "sealed",
        "lease_expires_at": None,
        "sealed_at": now,
        "expires_at": now + timedelta(hours=20),
        "response_status": 201,
        "response_headers": [["Content-Type", "application/json"], ["X-Secret", "opened-by-nobody"]],
        "response_body": b'{"iban": "DE-secret"}',
    }
    return record(**(values | changes))


def stuck(**changes):
    return record(lease_expires_at=timezone.now() - timedelta(minutes=12), **changes)


def detail(key, query=""):
    return reverse("admin:django_idempotency_idempotencykey_change", args=[key.pk]) + query


@pytest.fixture
def viewer(client):
    """Somebody who may view keys and nothing else."""
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_idempotencykey"))
    client.force_login(user)
    return client


def ids(response):
    assert response.status_code == 200
    return [row.pk for row in response.context["cl"].result_list]


def columns(response):
    return re.findall(r"<t[hd] class=\"field[^>]*>(?:<a[^>]*>)?([^<]*)", response.content.decode())


class TestList:
    def test_it_shows_what_is_in_flight(self, viewer):
        mine, late = record(), stuck()
        sealed()
        assert ids(viewer.get(LIST)) == [late.pk, mine.pk]

    def test_a_row_tells_state_scope_age_lease_attempts_and_mode(self, viewer):
        late = stuck(attempts=3)
        assert columns(viewer.get(LIST)) == [
            str(late.pk), "stuck", late.scope, "5 min", "lapsed 12 min ago", "3", "leased",
        ]  # fmt: skip

    @pytest.mark.parametrize("of", [record, sealed])
    def test_no_key_no_body_and_no_header_is_in_it(self, viewer, of):
        of()
        with CaptureQueriesContext(connection) as queries:
            page = viewer.get(LIST, {"state": "sealed"} if of is sealed else {}).content.decode()
        assert "shop.views.pay" in page
        assert not any(secret in page for secret in ("the-clients-key", "DE-secret", "opened-by-nobody"))
        assert not [query for query in queries if "response_body" in query["sql"] or "response_headers" in query["sql"]]

    def test_the_filter_for_what_is_stuck(self, viewer):
        record()
        sealed()
        newer, older = stuck(), record(lease_expires_at=timezone.now() - timedelta(days=3))
        assert ids(viewer.get(LIST, {"state": "stuck"})) == [older.pk, newer.pk]

    def test_the_filter_for_what_is_sealed(self, viewer):
        record()
        fresh = sealed()
        expired = sealed(expires_at=timezone.now() + timedelta(seconds=0.05))
        assert ids(viewer.get(LIST, {"state": "sealed"})) == sorted([fresh.pk, expired.pk], key=str)
        time.sleep(0.06)
        assert sorted(columns(viewer.get(LIST, {"state": "sealed"}))[1::7]) == ["expired", "sealed"]

    def test_the_choices_and_which_one_is_taken(self, viewer):
        page = viewer.get(LIST).context["cl"]
        (states,) = (spec for spec in page.filter_specs if spec.parameter_name == "state")
        assert [(choice["display"], choice["selected"]) for choice in states.choices(page)] == [
            ("in flight", True),
            ("stuck: the lease has lapsed", False),
            ("held: nobody knows yet", False),
            ("left to a person", False),
            (f"sealed: the first {AT_MOST}", False),
        ]

    def test_search_finds_any_record_by_its_id(self, viewer):
        wanted = sealed()
        sealed()
        record()
        assert ids(viewer.get(LIST, {"q": f" {wanted.pk} "})) == [wanted.pk]
        assert ids(viewer.get(LIST, {"q": wanted.pk.hex})) == [wanted.pk]

    def test_search_finds_a_claim_by_its_exact_key_also_where_that_is_a_uuid(self, viewer):
        wanted = record(key=str(uuid4()))
        record()
        sealed(key=wanted.key)
        assert ids(viewer.get(LIST, {"q": wanted.key})) == [wanted.pk]
        assert ids(viewer.get(LIST, {"q": "the-clients-key"})) != []
        assert ids(viewer.get(LIST, {"q": "the-clients"})) == []

    @pytest.mark.parametrize("term", ["\x00", "%", "'", "x" * 5000, "  "])
    def test_search_takes_anything(self, viewer, term):
        record()
        assert viewer.get(LIST, {"q": term}).status_code == 200

    @pytest.mark.parametrize("lookup", ["scope__contains", "response_status", "key", "response_body__isnull", "id__in"])
    def test_nobody_filters_by_what_has_no_index(self, viewer, lookup):
        assert viewer.get(LIST, {lookup: "1"}).status_code == 400

    def test_nobody_sorts_by_what_has_no_index(self, viewer):
        sealed()
        with CaptureQueriesContext(connection) as queries:
            viewer.get(LIST, {"state": "sealed", "o": "2.-6"})
        ordered = [
            query["sql"] for query in queries if "ORDER BY" in query["sql"] and "idempotency_key" in query["sql"]
        ]
        assert ordered
        assert all(re.search(r'ORDER BY "idempotency_key"\."id" ASC|ORDER BY 1 ASC', sql) for sql in ordered), ordered

    def test_facets_do_not_count(self, viewer):
        sealed()
        assert "_facets" not in viewer.get(LIST).content.decode()
        with CaptureQueriesContext(connection) as queries:
            viewer.get(LIST, {"_facets": "True"})
        assert not [query for query in queries if "FILTER" in query["sql"]]


class TestDetail:
    def test_it_shows_the_key_and_of_the_response_only_what_is_no_secret(self, viewer):
        page = viewer.get(detail(sealed())).content.decode()
        assert "the-clients-key" in page
        assert "201" in page
        assert "21 bytes" in page
        assert "Content-Type, X-Secret" in page
        assert "0102" in page
        assert not any(secret in page for secret in ("DE-secret", "opened-by-nobody"))

    def test_a_body_that_was_not_kept(self, viewer):
        assert "not kept" in viewer.get(detail(sealed(response_body=None))).content.decode()

    def test_a_claim_in_flight(self, viewer):
        page = viewer.get(detail(stuck())).content.decode()
        assert "lapsed 12 min ago" in page

    def test_the_body_never_leaves_the_database(self, viewer):
        key = sealed()
        with CaptureQueriesContext(connection) as queries:
            viewer.get(detail(key))
        mentions = [query["sql"] for query in queries if "response_body" in query["sql"]]
        assert mentions
        assert all("LENGTH" in sql for sql in mentions)

    @pytest.mark.parametrize("unknown", ["00000000-0000-0000-0000-000000000000", "no-uuid"])
    def test_what_does_not_exist(self, viewer, unknown):
        assert viewer.get(f"{LIST}{unknown}/change/").status_code == 302


class TestReadOnly:
    @pytest.fixture
    def superuser(self, client):
        client.force_login(User.objects.create_superuser("root"))
        return client

    def test_not_even_a_superuser_adds_changes_or_deletes(self, superuser):
        key = record()
        assert superuser.get(f"{LIST}add/").status_code == 403
        assert superuser.post(f"{LIST}add/", {"scope": "x"}).status_code == 403
        assert superuser.post(detail(key), {"state": "sealed", "scope": "mine"}).status_code == 403
        assert superuser.post(f"{LIST}{key.pk}/delete/", {"post": "yes"}).status_code == 403
        chosen = {"action": "delete_selected", "_selected_action": [str(key.pk)], "post": "yes"}
        superuser.post(LIST, chosen)
        key.refresh_from_db()
        assert (key.state, key.scope) == ("in_flight", "auth.user:5 shop.views.pay:POST")

    def test_nothing_is_offered(self, superuser):
        key = record()
        assert "delete" not in superuser.get(LIST).content.decode().lower().replace("deletelink", "delete")
        assert 'name="_save"' not in superuser.get(detail(key)).content.decode()

    def test_staff_without_the_permission_see_nothing(self, client):
        client.force_login(User.objects.create_user("staff", is_staff=True))
        key = record()
        assert client.get(LIST).status_code == 403
        assert client.get(detail(key)).status_code == 403

    def test_the_history_is_there_and_empty(self, superuser):
        assert superuser.get(f"{LIST}{record().pk}/history/").status_code == 200


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(seconds=-0.4), "0 s"),
        (timedelta(seconds=119.9), "119 s"),
        (timedelta(minutes=2), "2 min"),
        (timedelta(hours=3, minutes=59), "3 h"),
        (timedelta(days=40), "40 d"),
    ],
)
def test_spans_are_readable(span, text):
    assert readable(span) == text


class TestDatabases:
    def test_one_database_is_no_choice(self, viewer):
        page = viewer.get(LIST, {"db": "default"})
        assert [spec.parameter_name for spec in page.context["cl"].filter_specs] == ["state"]

    def test_the_first_one_unless_another_is_asked_for(self, viewer, two_aliases):
        record()
        for query, chosen in [({}, "default"), ({"db": "other"}, "other"), ({"db": "nowhere"}, "default")]:
            page = viewer.get(LIST, query).context["cl"]
            assert page.queryset.db == chosen
            (databases,) = (spec for spec in page.filter_specs if spec.parameter_name == "db")
            choices = {choice["display"]: choice["selected"] for choice in databases.choices(page)}
            assert choices == {"default": chosen == "default", "other": chosen == "other"}

    def test_links_lead_to_the_record_in_the_database_that_was_listed(self, viewer, two_aliases):
        key = record()
        for query, chosen in [({"db": "other"}, "other"), ({}, "default")]:
            (link,) = re.findall(rf'href="({detail(key)}[^"]*)"', viewer.get(LIST, query).content.decode())
            assert viewer.get(unescape(link)).context["original"]._state.db == chosen


MANY = 200_000
FIRST = "c4ca4238-a0b9-2382-0dcc-509a6f75849b"  # md5 of 1


@pytest.fixture
def many(db):
    """So many sealed records that whoever reads them all is seen."""
    if connection.vendor != "postgresql":
        pytest.skip("about the plans of PostgreSQL")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO idempotency_key (
                id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at,
                sealed_at, expires_at, response_status, response_headers, response_body, sweeps
            )
            SELECT md5(n::text)::uuid, 'sealed', 'auth.user:' || n || ' shop.views.pay:POST', 'key-' || n, '\\x00', 1,
                'atomic', md5(n::text)::uuid, 1, now(), now(), now() + n %% 7 * interval '1 day', 201, '[]', '\\x00', 0
            FROM generate_series(1, %s) AS n
            """,
            [MANY],
        )
        cursor.execute("ANALYZE idempotency_key")
    vacuum_at_the_end()
    return cursor


PAGES = {
    "in flight": {},
    "stuck": {"state": "stuck"},
    "held": {"state": "held"},
    "left to a person": {"state": "person"},
    "sealed": {"state": "sealed"},
    "the last page": {"state": "sealed", "p": "10"},
    "sorted by scope": {"state": "sealed", "o": "2"},
    "search by id": {"q": FIRST},
    "search by key": {"q": "key-77"},
    "search by key among sealed": {"q": "key-77", "state": "sealed"},
    "facets": {"state": "sealed", "_facets": "True"},
    "all": {"state": "sealed", "all": ""},
}


class TestCost:
    def test_no_page_reads_more_than_it_may_show(self, many, viewer):
        """Every statement of every page, run again by the server: its scans look at little more than a list holds."""
        record()
        for name, query in PAGES.items():
            with CaptureQueriesContext(connection) as queries:
                started = time.monotonic()
                response = viewer.get(LIST, query)
                took = time.monotonic() - started
            assert response.status_code == 200
            asked = [query["sql"] for query in queries if '"idempotency_key"' in query["sql"]]
            assert asked, name
            for sql in asked:
                assert rows_read(sql) <= 3 * AT_MOST, (name, sql)
            assert took < 2, name

    def test_a_list_ends_where_it_says_and_a_page_is_one_record(self, many, viewer):
        page = viewer.get(LIST, {"state": "sealed", "p": "10"})
        assert page.context["cl"].result_count == AT_MOST
        assert len(ids(page)) == 100
        assert viewer.get(LIST, {"state": "sealed", "p": "11"}).status_code == 302
        with CaptureQueriesContext(connection) as queries:
            assert "key-1" in viewer.get(detail(IdempotencyKey(pk=FIRST))).content.decode()
        for query in queries:
            if '"idempotency_key"' in query["sql"]:
                assert rows_read(query["sql"]) <= 10


def rows_read(sql):
    """How many rows the scans of a statement looked at, whether they kept them or not."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {sql}")
        (plan,) = cursor.fetchone()

    def of(node):
        children = sum(of(child) for child in node.get("Plans", ()))
        if "Relation Name" not in node:
            return children
        dropped = sum(node.get(f"Rows Removed by {reason}", 0) for reason in ("Filter", "Index Recheck"))
        return children + (node["Actual Rows"] + dropped) * node["Actual Loops"]

    return of((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
