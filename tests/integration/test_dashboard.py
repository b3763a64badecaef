"""The dashboard of the admin: what it shows, to whom, and what it asks the database."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone as timezones
from html import unescape

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.utils import timezone, translation

from django_idempotency.admin import IdempotencyKeyAdmin
from django_idempotency.core.counted import Counted
from django_idempotency.core.intervals import Interval
from django_idempotency.core.pruning import Attachment, Leaf, decide
from django_idempotency.dashboard import data, figures as figures_of
from django_idempotency.models import IdempotencyKey, OldestInFlight, OutcomeCount
from django_idempotency.numbers import readings
from django_idempotency.storage.base import NEVER
from django_idempotency.storage.partitions import TOMBSTONES, create_leaves
from tests.support.records import PAY, claim, count, held, reading, rows_read, scans, seal_many, stuck

APP = "/admin/django_idempotency/"
LIST = f"{APP}idempotencykey/"
PAGE = f"{LIST}dashboard/"

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(client, monkeypatch):
    """Somebody who may view keys and nothing else, and waits for a busy machine."""
    monkeypatch.setattr(data, "PATIENCE", 20.0)
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_idempotencykey"))
    client.force_login(user)
    return client


@pytest.fixture
def postgresql():
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has partitions")


def text(response):
    """What the page says, without its tags."""
    assert response.status_code == 200
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", response.content.decode())))


def cells(rows):
    """The texts of a table, row by row."""
    return [
        [unescape(cell) for cell in re.findall(r"<t[hd](?: scope=\"row\")?>(.*?)</t[hd]>", row)]
        for row in rows.splitlines()
    ]


def make_graves(*days):
    """Partitions of tombstones, of ten days each, that begin so many days from today."""
    today = datetime.now(timezones.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    begins = [today + timedelta(days=each) for each in days]
    create_leaves(connection, [Interval(each, each + timedelta(days=10)) for each in begins], TOMBSTONES)


def figures(response, route=PAY):
    (shown,) = (each for each in response.context["routes"] if each.name == route)
    return {each.id.partition("-")[0]: each for each in shown.figures}


class TestWho:
    def test_whoever_may_view_keys(self, viewer):
        assert viewer.get(PAGE).status_code == 200

    def test_nobody_else(self, client):
        assert client.get(PAGE).status_code == 302
        client.force_login(User.objects.create_user("staff", is_staff=True))
        assert client.get(PAGE).status_code == 403
        assert PAGE not in client.get("/admin/").content.decode()

    def test_the_list_and_the_index_of_the_app_lead_to_it(self, viewer):
        for page in (LIST, APP):
            assert f'href="{PAGE}"' in viewer.get(page).content.decode()

    def test_who_may_not_view_keys_is_not_led_there(self, client):
        user = User.objects.create_user("other", is_staff=True)
        user.user_permissions.add(Permission.objects.get(codename="view_user"))
        client.force_login(user)
        assert client.get(APP).status_code in (403, 404)


class TestClaims:
    def test_held_and_stuck_come_first_and_lead_to_their_lists(self, viewer):
        claim()
        stuck()
        held()
        held(sweep_after=NEVER)
        page = viewer.get(PAGE)
        tiles = [(each.n, each.url, each.alarming) for each in page.context["tiles"]]
        assert tiles == [
            ("2", f"{LIST}?state=held", True),
            ("3", f"{LIST}?state=stuck", True),
            ("1", f"{LIST}?state=person", True),
            ("4", LIST, False),
        ]
        for n, url, _alarming in tiles:
            assert viewer.get(url).context["cl"].result_count == int(n)

    def test_nothing_alarms_where_nothing_is_wrong(self, viewer):
        claim()
        page = viewer.get(PAGE)
        assert not any(tile.alarming for tile in page.context["tiles"])
        assert 'class="alarming"' not in page.content.decode()

    def test_routes_in_flight_the_oldest_first(self, viewer):
        claim(age=timedelta(minutes=3))
        stuck(route="shop.views.refund:POST", age=timedelta(hours=3))
        rows = cells(viewer.get(PAGE).context["claims"])
        assert rows == [["shop.views.refund:POST", "1", "1", "0", "3 h"], [PAY, "1", "0", "0", "3 min"]]

    def test_no_key_principal_or_body_is_on_it(self, viewer):
        claim()
        if connection.vendor == "postgresql":
            seal_many(3)
        page = viewer.get(PAGE).content.decode()
        assert not any(secret in page for secret in ("the-clients-key", "auth.user:5", "key-1", "auth.user:1"))


class TestSigns:
    def test_what_counts_say_is_on_the_page_with_what_to_do(self, viewer):
        count(Counted.NEW, 100)
        count(Counted.MISMATCH, 60)
        page = viewer.get(PAGE)
        ((title, sign, *_),) = page.context["signs"]
        assert (str(title), sign.route, sign.cases, sign.of) == ("One key for different requests", PAY, 60, 160)
        assert sign.advice in text(page)

    def test_none(self, viewer):
        assert "None was found." in text(viewer.get(PAGE))

    def test_records_are_looked_at_when_somebody_asks(self, viewer):
        now = timezone.now()
        for seconds in range(6):
            claim(
                state="sealed", lease_expires_at=None, claimed_at=now - timedelta(seconds=seconds), sealed_at=now,
                expires_at=now + timedelta(hours=20), response_status=201, response_headers=[], response_body=b"{}",
            )  # fmt: skip
        page = viewer.get(PAGE)
        assert page.context["signs"] == []
        ((title, sign, *_),) = viewer.get(page.context["look"]).context["signs"]
        assert (str(title), sign.cases, sign.of) == ("A new key for each attempt", 5, 6)


class TestHistory:
    def test_the_four_numbers_of_a_route(self, viewer):
        count(Counted.NEW, 150)
        count(Counted.REPLAYED, 40)
        count(Counted.CONFLICT, 7)
        count(Counted.MISMATCH, 3)
        reading(95)
        claim(age=timedelta(minutes=5))
        page = viewer.get(PAGE)
        shown = figures(page)
        assert {name: each.headline for name, each in shown.items()} == {
            "replays": "20.0 %", "409": "7", "422": "3", "oldest": "5 min",
        }  # fmt: skip
        assert all(each.path.count("M") == 1 for each in shown.values())
        assert shown["oldest"].top == "100 s"
        said = text(page)
        assert "200 requests with a key" in said
        assert "At most 95 s, on" in said

    def test_the_table_behind_the_pictures_says_the_same(self, viewer):
        count(Counted.NEW, 3)
        count(Counted.REPLAYED, 1)
        count(Counted.NEW, 2, ago=timedelta(hours=5))
        (route,) = viewer.get(PAGE).context["routes"]
        assert [row[1:] for row in cells(route.rows)] == [
            ["2", "0", "0.0 %", "0", "0", "-"],
            ["4", "1", "25.0 %", "0", "0", "-"],
        ]

    @pytest.mark.parametrize(
        ("shown", "n"), [("1h", "1"), ("24h", "11"), ("7d", "111"), ("14d", "1,111"), ("nonsense", "11"), ("", "11")]
    )
    def test_a_range_shows_what_lies_in_it(self, viewer, shown, n):
        for days, much in ((0.02, 1), (0.5, 10), (5, 100), (12, 1000)):
            count(Counted.NEW, much, ago=timedelta(days=days))
        count(Counted.NEW, 9, ago=timedelta(days=15))
        page = viewer.get(PAGE, {"range": shown})
        assert [each.requests for each in page.context["routes"]] == [n]
        assert page.content.decode().count('aria-current="true"') == 1

    def test_the_busiest_routes_and_any_one_that_is_asked_for(self, viewer):
        for number in range(12):
            count(Counted.NEW, 100 + number, route=f"shop.views.View{number}:POST")
        page = viewer.get(PAGE)
        assert [each.name for each in page.context["routes"]] == [f"shop.views.View{n}:POST" for n in range(11, 3, -1)]
        assert "4 more routes" in text(page)
        asked = viewer.get(PAGE, {"route": "shop.views.View2:POST", "range": "1h"})
        assert [each.name for each in asked.context["routes"]] == ["shop.views.View2:POST"]
        assert all("route=shop.views.View2%3APOST" in url for _title, url, _chosen in asked.context["ranges"])
        assert "<option selected>shop.views.View2:POST</option>" in asked.content.decode()

    def test_what_a_route_is_called_is_text(self, viewer):
        count(Counted.NEW, 1, route="<script>alert(1)</script>")
        claim(route="<script>alert(2)</script>")
        page = viewer.get(PAGE).content.decode()
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)" in page

    def test_without_any(self, viewer):
        assert "Nothing was counted in this time." in text(viewer.get(PAGE))


class TestReadings:
    def test_a_sweeper_notes_the_oldest_of_each_route_once_a_minute(self):
        claim(age=timedelta(minutes=5))
        stuck(age=timedelta(hours=2))
        claim(route="shop.views.refund:POST", age=timedelta(seconds=7))
        readings.note_oldest("default")
        claim(age=timedelta(days=1))
        readings.note_oldest("default")
        noted = {each.route: each.seconds for each in OldestInFlight.objects.order_by("minute")[:2]}
        assert noted == {PAY: pytest.approx(7200, abs=5), "shop.views.refund:POST": pytest.approx(7, abs=5)}

    def test_old_ones_go(self):
        reading(5, ago=timedelta(days=15))
        reading(6, ago=timedelta(days=13))
        readings.note_oldest("default")
        assert [each.seconds for each in OldestInFlight.objects.all()] == [6]

    @pytest.mark.parametrize(("hours", "left"), [(1.5, [1, 20, 300]), (20, [21, 300]), (48, [321])])
    def test_what_is_over_is_kept_in_longer_pieces_and_nothing_is_lost(self, viewer, hours, left):
        now = timezone.now()
        hour = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours // 1)
        for minute, n in ((0, 1), (7, 20), (59, 300)):
            count(Counted.NEW, n, ago=now - hour - timedelta(minutes=minute))
            reading(n, ago=now - hour - timedelta(minutes=minute))
        count(Counted.NEW, 4000, ago=timedelta(0))

        def shown():
            pages = [viewer.get(PAGE, {"range": each}) for each in ("1h", "24h", "7d", "14d")]
            # Not the pictures, which move on with each minute.
            return [(each.name, each.requests, each.rows) for page in pages for each in page.context["routes"]]

        before = shown()
        for _ in range(2):
            readings.coarsen("default")
        *old, new = OutcomeCount.objects.order_by("minute").values_list("n", flat=True)
        assert (old, new) == (left, 4000)
        longest = list(OldestInFlight.objects.order_by("minute").values_list("seconds", flat=True))
        assert longest == {3: [1, 20, 300], 2: [20, 300], 1: [300]}[len(left)]
        assert OldestInFlight.objects.earliest("minute").minute == hour
        assert shown() == before


class TestStorage:
    def test_partitions_say_when_they_go(self, viewer, postgresql):
        seal_many(700)
        page = viewer.get(PAGE)
        (bar,) = page.context["bars"]
        rows = cells(bar.rows)
        filled = [kind for kind, segment, _label in bar.segments if segment.fill]
        assert len(bar.segments) == len(rows) >= 10
        assert filled
        assert bar.now is not None
        assert sum(int(row[4].removeprefix("about ")) for row in rows if row[4].startswith("about")) == 700
        assert all(row[5].startswith("dropped after ") for row in rows)

    @pytest.mark.parametrize("wanted", [None, timedelta(days=90)])
    def test_tombstones_say_when_they_go_where_there_are_any(self, viewer, postgresql, settings, wanted):
        """Also where they are not wanted any more, since they are there."""
        settings.IDEMPOTENCY = {"TOMBSTONES": wanted}
        assert [bar.id for bar in viewer.get(PAGE).context["bars"]] == ["partitions"]
        make_graves(-20, 0)
        page = viewer.get(PAGE)
        sealed, tombstones = page.context["bars"]
        (gone, kept) = cells(tombstones.rows)
        assert all(row[0].startswith("public.idempotency_tombstone_") for row in (gone, kept))
        assert gone[5] == "dropped by the next pruning"
        assert kept[5].startswith("dropped after ")
        assert [kind for kind, _segment, _label in tombstones.segments] == ["expired", "current"]
        assert not any("tombstone" in row[0] for row in cells(sealed.rows))
        said = text(page)
        assert said.index("Partitions of sealed records") < said.index("Partitions of tombstones")
        assert "tombstones whose time ends from" in said

    def test_what_names_a_part_of_the_page_is_there_once(self, viewer, postgresql):
        make_graves(0)
        html = viewer.get(PAGE).content.decode()
        ids = re.findall(r' id="([^"]+)"', html)
        assert len(ids) == len(set(ids))
        named = {each for names in re.findall(r' aria-labelledby="([^"]+)"', html) for each in names.split()}
        assert {"tombstones", "tombstones-said", "tombstones-rows"} <= named <= set(ids)

    def test_bytes_of_tombstones_are_no_routes(self, viewer, postgresql):
        seal_many(10)
        before = cells(viewer.get(PAGE).context["shares"])
        make_graves(0)
        assert cells(viewer.get(PAGE).context["shares"]) == before

    def test_a_route_has_its_part_of_the_bytes(self, viewer, postgresql):
        routes = (PAY, PAY, PAY, "shop.views.export:POST")
        seal_many(400, routes=routes, body=1)
        small, large = (each.per_record for each in sorted(data.shares("default"), key=lambda each: each.per_record))
        assert large == pytest.approx(small, abs=10)
        rows = cells(viewer.get(PAGE).context["shares"])
        assert [(row[0], row[1]) for row in rows] == [(PAY, "75.0 %"), ("shop.views.export:POST", "25.0 %")]
        assert "Estimated by 400 sealed records" in text(viewer.get(PAGE))

    def test_on_any_database_a_sample_is_taken(self, viewer):
        now = timezone.now()
        for number in range(3):
            claim(
                state="sealed", lease_expires_at=None, sealed_at=now, expires_at=now + timedelta(hours=20),
                response_status=201, response_headers=[], response_body=b"\x00\xffx" * 1000,
                route=PAY if number else "shop.views.export:POST",
            )  # fmt: skip
        rows = cells(viewer.get(PAGE).context["shares"])
        assert [(row[0], row[1]) for row in rows] == [(PAY, "66.7 %"), ("shop.views.export:POST", "33.3 %")]
        if connection.vendor != "postgresql":
            assert [row[4] for row in rows] == ["3.0\xa0KB", "3.0\xa0KB"]

    def test_a_sample_that_takes_too_long_is_given_up_and_leaves_no_limit(self, viewer, postgresql, monkeypatch):
        seal_many(10)
        monkeypatch.setattr(data, "PATIENCE", 0.05)
        monkeypatch.setattr(
            data, "_stored_bytes", lambda: data.Func(data.F("key"), template="length(pg_sleep(1)::text)")
        )
        assert "the sample of sealed records took too long" in text(viewer.get(PAGE))
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            assert cursor.fetchone() == ("0",)

    def test_a_sample_in_time_leaves_the_limit_as_it_was(self, postgresql):
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = '77s'")
            data.shares("default")
            cursor.execute("SHOW statement_timeout")
            assert cursor.fetchone() == ("77s",)


class TestPartitions:
    """What is said of each follows from what a pruner would do."""

    NOW = datetime(2026, 12, 1, 12, tzinfo=timezones.utc)

    def said(self, **changes):
        today = Interval(self.NOW - timedelta(hours=12), self.NOW + timedelta(hours=12))
        leaf = replace(Leaf("public.leaf", Attachment.ATTACHED, today, ours=True, rows=7, size=2048), **changes)
        return figures_of.sealed(decide([leaf], self.NOW), self.NOW)

    @pytest.mark.parametrize(
        ("changes", "fate"),
        [
            ({}, "dropped after Dec. 2, 2026, 1 a.m."),
            ({"interval": Interval(NOW - timedelta(days=2), NOW - timedelta(days=1))}, "dropped by the next pruning"),
            ({"interval": Interval(NOW - timedelta(days=2), NOW)}, "dropped after Dec. 1, 2026, 1 p.m."),
            ({"ours": False}, "stays: it was not made by this app"),
            ({"interval": None}, "stays: its bounds are not two moments"),
            ({"attachment": Attachment.DETACHED}, "stays: it was detached by hand"),
            ({"attachment": Attachment.PENDING}, "its detachment was interrupted; the next pruning ends it"),
            (
                {"attachment": Attachment.PENDING, "ours": False},
                "a person has to end its detachment, which blocks that of all others",
            ),
        ],
    )
    def test_what_becomes_of_it(self, changes, fate):
        (row,) = cells(self.said(**changes).rows)
        assert row[5] == fate
        assert row[3:5] == ["2.0\xa0KB", "about 7"]

    def test_one_without_bounds_is_a_row_and_no_picture(self):
        bar = self.said(interval=None)
        ((_name, *bounds, _size, _records, _fate),) = cells(bar.rows)
        assert (bounds, bar.segments, bar.now) == (["-", "-"], [], None)

    @pytest.mark.parametrize(("days", "kind"), [(-1, "expired"), (0, "current"), (1, "ahead")])
    def test_past_present_and_future_look_different(self, days, kind):
        shift = timedelta(days=days)
        lower = self.NOW - timedelta(hours=12) + shift
        ((drawn, segment, _label),) = self.said(interval=Interval(lower, lower + timedelta(days=1))).segments
        assert drawn == kind
        assert segment.fill

    def test_what_goes_is_summed_up(self):
        past = Interval(self.NOW - timedelta(days=2), self.NOW - timedelta(days=1))
        said = self.said(interval=past).description
        assert said == "Partitions: 1, with 2.0\xa0KB. The next pruning drops 1, with 2.0\xa0KB."


class TestDatabases:
    def test_every_link_stays_in_the_database_that_is_shown(self, viewer, two_aliases):
        count(Counted.NEW, 1)
        page = viewer.get(PAGE, {"db": "other"})
        html = page.content.decode()
        assert f'href="{LIST}?state=held&amp;db=other"' in html
        assert '<input type="hidden" name="db" value="other">' in html
        assert f"{PAGE}?db=other" in viewer.get(LIST, {"db": "other"}).content.decode()
        assert [(alias, chosen) for alias, _url, chosen in page.context["databases"]] == [
            ("default", False), ("other", True),
        ]  # fmt: skip

    def test_one_database_is_no_choice(self, viewer):
        assert viewer.get(PAGE).context["databases"] == []


MANY = 200_000


class TestCost:
    def test_it_asks_a_fixed_number_of_questions_and_reads_no_partition_whole(self, viewer, postgresql):
        seal_many(MANY, routes=tuple(f"shop.views.View{number}:POST" for number in range(20)))
        for number in range(20):
            claim(route=f"shop.views.View{number}:POST")
            count(Counted.NEW, 5, route=f"shop.views.View{number}:POST")
        with CaptureQueriesContext(connection) as queries:
            assert viewer.get(PAGE).status_code == 200
        ours = [query["sql"] for query in queries if "idempotency_" in query["sql"] and "auth_" not in query["sql"]]
        assert len(ours) == 7
        asked = [sql for sql in ours if '"idempotency_key"' in sql]
        assert len(asked) == 2
        for sql in asked:
            assert rows_read(sql) <= 3 * data.SAMPLE, sql
            for node in scans(sql):
                leaf = node["Relation Name"]
                assert leaf == "idempotency_key_in_flight" or node["Node Type"] != "Seq Scan" or not node["Actual Rows"]

    def test_no_body_is_read(self, viewer):
        claim()
        with CaptureQueriesContext(connection) as queries:
            viewer.get(PAGE)
        reading_bodies = [
            query["sql"] for query in queries if re.search(r"(?<!size\()(?<!AS )response_body", query["sql"])
        ]
        assert all("LENGTH" in sql or "pg_column_size" in sql for sql in reading_bodies)


def test_it_speaks_the_language_of_the_reader(viewer):
    count(Counted.NEW, 1)
    with translation.override("de"):
        said = text(viewer.get(PAGE))
    assert "Anfragen der letzten 24 Stunden" in said
    assert "Durch Wiederholung beantwortet: 0,0 %" in said


def test_tombstones_are_said_in_the_language_of_the_reader(viewer, postgresql):
    make_graves(0)
    with translation.override("de"):
        said = text(viewer.get(PAGE))
    assert "Partitionen der Grabsteine" in said
    assert "Welche Grabsteine wann gelöscht werden" in said
    assert "Grabsteine, deren Zeit endet von" in said


def test_signs_and_numbers_are_said_in_the_language_of_the_reader(viewer, settings):
    settings.LANGUAGE_CODE = "de"
    count(Counted.LATE, 1)
    count(Counted.NEW, 1)
    said = text(viewer.get(PAGE))
    assert "Nach dem Ende der Aufbewahrung oder in deren letztem Viertel kamen 1 von 2 Anfragen eines Tages. " in said
    assert "oder weisen Sie verspätete ab (refuse_late)." in said
    assert " Eine Anfrage mit Schlüssel. " in said
    count(Counted.REPLAYED, 1)
    assert " 2 Anfragen mit Schlüssel. " in text(viewer.get(PAGE))


@pytest.mark.parametrize("both", [False, True])
def test_in_an_admin_site_of_its_own_all_links_stay_there(admin_client, settings, both):
    """Beside a default site that does not have the keys, or has them for others."""
    default, own = AdminSite(name="admin"), AdminSite(name="ops")
    for site in (own, default) if both else (own,):
        site.register(IdempotencyKey, IdempotencyKeyAdmin)
        site.register(User)
    settings.ROOT_URLCONF = type("Urls", (), {"urlpatterns": [path("admin/", default.urls), path("ops/", own.urls)]})
    key = stuck()
    pages = (
        "",
        "dashboard/",
        "dashboard/?signs=records",
        f"{key.pk}/change/",
        f"{key.pk}/sweep/",
        f"{key.pk}/release/",
    )
    for page in pages:
        response = admin_client.get(f"/ops/django_idempotency/idempotencykey/{page}")
        assert response.status_code == 200, page
        assert 'href="/ops/django_idempotency/' in response.content.decode()
        assert 'href="/admin/' not in response.content.decode(), page
    released = admin_client.post(f"/ops/django_idempotency/idempotencykey/{key.pk}/release/", {
        "owner_token": key.owner_token, "lease_expires_at": f"{key.lease_expires_at}", "reason": "a test",
    })  # fmt: skip
    assert released.url.startswith("/ops/")
