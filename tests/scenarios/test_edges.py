"""Views that do what one does not do, and what nobody thinks of."""

from __future__ import annotations

import contextlib

import pytest
from django.db import connection, transaction
from django.http import HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path, re_path
from rest_framework.permissions import BasePermission

from .site import KEY, Handling, assert_replays, effect, problem, records, rows
from .table import answers, api_exception
from .ways import PLAIN, REST, WAYS, Reply, every_rest_way, every_way, every_way_and_mode, function, viewset

pytestmark = pytest.mark.usefixtures("committed")
postgres_only = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="speaks PostgreSQL")


def says(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


class TestTransactionsByHand:
    @every_way_and_mode
    def test_a_block_without_a_savepoint_that_fails_spoils_the_whole(self, site, way, mode):
        def handle(call):
            effect()
            with contextlib.suppress(LookupError), transaction.atomic(savepoint=False):
                raise LookupError
            return Reply(201, {"done": True})

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        assert problem(site.send()) == "broken-transaction"
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @every_way_and_mode
    def test_savepoints_by_hand_are_the_views_own(self, site, way, mode):
        def handle(call):
            effect("kept")
            here = connection.savepoint()
            effect("dropped")
            transaction.savepoint_rollback(here)
            transaction.savepoint_commit(connection.savepoint())
            return Reply(201, {"rows": rows()})

        site.add(way(Handling(handle), {"mode": mode}))
        first = site.send()
        assert first.json() == {"rows": 1}
        assert_replays(site.send(), first)

    @pytest.mark.parametrize("way", REST.values(), ids=REST)
    def test_clean_savepoints_does_not_hide_ours(self, site, way, mode):
        """Names begin anew after it, so the view's next savepoint could take the name of the one that undoes it."""

        def handle(call):
            effect()
            transaction.clean_savepoints()
            connection.savepoint()
            raise api_exception(402)

        site.add(way(Handling(handle), {"mode": mode}))
        first = site.send()
        assert_replays(site.send(), first)
        assert (first.status_code, rows()) == (402, 0)

    @postgres_only
    @every_way
    def test_a_raw_rollback_leaves_nothing_to_seal(self, site, way, mode):
        def handle(call):
            effect()
            says("ROLLBACK")
            return Reply(201, {"row": str(effect().pk)})

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        response = site.send()
        # In LEASED mode the claim was committed before; what the view wrote afterwards is sealed with it.
        if mode.name == "ATOMIC":
            assert response.status_code >= 400
            assert (rows(), records()) == (0, 0)
            assert site.send().status_code == 201
        else:
            assert (response.status_code, rows(), records("sealed")) == (201, 1, 1)

    @postgres_only
    @every_way
    def test_a_raw_commit_and_a_success(self, site, way, mode):
        def handle(call):
            row = effect()
            says("COMMIT")
            return Reply(201, {"row": str(row.pk)})

        handler = Handling(handle)
        site.add(way(handler, {"mode": mode}))
        first = site.send()
        assert first.status_code == 201
        assert_replays(site.send(), first)
        assert (handler.entered, rows()) == (1, 1)

    @postgres_only
    @every_way
    def test_a_raw_commit_and_a_failure_is_not_run_again_blindly(self, site, way):
        """Its effect stands and nobody knows its answer: the claim that became visible proves it."""

        def handle(call):
            effect()
            says("COMMIT")
            raise RuntimeError

        handler = Handling(handle)
        site.add(way(handler, {}))
        assert site.send().status_code == 500
        assert problem(site.send()) == "held"
        assert (handler.entered, rows()) == (1, 1)


class TestWhatAPolicyCalls:
    @every_way_and_mode
    def test_a_scope_that_fails(self, site, way, mode):
        def scope(request):
            raise LookupError("no tenant")

        handler = Handling(answers())
        site.add(way(handler, {"mode": mode, "scope": scope}))
        assert site.send().status_code == 500
        assert (handler.entered, records()) == (0, 0)
        assert not connection.in_atomic_block

    @pytest.mark.parametrize("answer", [7, b"tenant", ["tenant"]])
    @every_way
    def test_a_scope_that_is_no_text(self, site, way, answer):
        handler = Handling(answers())
        site.add(way(handler, {"scope": lambda request: answer}))
        assert site.send().status_code == 500
        assert (handler.entered, records()) == (0, 0)

    @pytest.mark.parametrize("answer", [None, "", "  "])
    @every_way
    def test_a_scope_that_says_nothing_refuses(self, site, way, answer):
        handler = Handling(answers())
        site.add(way(handler, {"scope": lambda request: answer}))
        response = site.send()
        assert (response.status_code, problem(response)) == (403, "anonymous-scope")
        assert handler.entered == 0

    @every_way
    def test_a_scope_of_odd_characters_is_only_a_scope(self, site, way):
        site.add(way(Handling(answers()), {"scope": lambda request: request.headers["X-Tenant"]}))
        for tenant in ("a b", "a%20b", "caf\u00e9", "a:b", "x" * 5000):
            first = site.send(headers={"X-Tenant": tenant})
            assert first.status_code == 201, tenant
            assert_replays(site.send(headers={"X-Tenant": tenant}), first)
        assert records() == 5

    @every_way
    def test_a_person_with_a_scope_in_common_does_not_get_anothers_answer(self, site, way):
        site.add(way(Handling(answers()), {"scope": lambda request: "the office"}))
        first = site.send(user="ann")
        other = site.send(user="ben")
        assert problem(other) == "key-reused"
        assert_replays(site.send(user="ann"), first)

    @every_way
    def test_a_name_for_the_operation_outlives_the_view(self, site, way):
        handler = Handling(answers())
        for name in ("old", "new"):
            site.add(way(handler, {"operation": "shop.charge"}, name), name)
        first = site.send(to="/old/")
        assert_replays(site.send(to="/new/"), first)
        assert handler.entered == 1


class TestRendering:
    @every_rest_way
    def test_what_cannot_be_rendered_has_no_effect(self, site, way, mode):
        def handle(call):
            effect()
            return Reply(201, {"what": object()})

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        assert site.send().status_code == 500
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @every_way_and_mode
    def test_a_template_that_fails_has_no_effect(self, site, way, mode):
        template = engines["django"].from_string("{{ fails }}")

        class Fails:
            def __str__(self):
                raise RuntimeError("in the template")

        def handle(call):
            effect()
            return TemplateResponse(call.django_request, template, {"fails": Fails()})

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        assert site.send().status_code == 500
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @every_way_and_mode
    def test_what_the_template_writes_belongs_to_the_effect(self, site, way, mode):
        template = engines["django"].from_string("{{ writes }}")

        class Writes:
            def __str__(self):
                return str(effect().pk)

        def handle(call):
            return TemplateResponse(call.django_request, template, {"writes": Writes()}, status=201)

        handler = Handling(handle)
        site.add(way(handler, {"mode": mode}))
        first = site.send()
        assert_replays(site.send(), first)
        assert rows() == 1

    @every_way
    def test_callbacks_after_rendering_run_once(self, site, way):
        ran = []
        template = engines["django"].from_string("text")

        def handle(call):
            effect()
            response = TemplateResponse(call.django_request, template)
            response.add_post_render_callback(lambda response: ran.append(response.status_code))
            return response

        site.add(way(Handling(handle), {}))
        site.send()
        site.send()
        assert ran == [200]


class TestMethods:
    @pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
    @every_way
    def test_those_that_change_nothing_never_look_at_the_key(self, site, way, method):
        site.add(way(Handling(lambda call: Reply(200, {"read": True})), {}))
        for key in ("k", "k", "", "a,b", "x" * 300):
            response = site.send(key, method=method)
            # @api_view has no HEAD unless it is named.
            assert response.status_code in ((200, 405) if method == "HEAD" else (200,))
            assert "Idempotent-Replayed" not in response.headers
        assert records() == 0

    @every_way
    def test_a_policy_by_method(self, site, way):
        site.add(way(Handling(answers()), {"methods": ("DELETE",)}))
        assert site.send(None).status_code == 201
        assert problem(site.send(None, method="DELETE")) == "missing-key"
        assert problem(site.send("", method="DELETE")) == "malformed-key"


class TestStrictKeys:
    @every_way
    def test_only_a_string_is_a_key(self, site, settings, way):
        settings.IDEMPOTENCY = {"STRICT_KEYS": True}
        site.add(way(Handling(answers()), {}))
        assert problem(site.send("bare")) == "malformed-key"
        first = site.send('"a key, with a comma"')
        assert_replays(site.send('"a key, with a comma"'), first)
        assert_replays(site.send('"a key, with a comma";attempt=2'), first)


class TestViewsThatCallViews:
    @every_way_and_mode
    def test_a_protected_view_inside_another_is_loud(self, site, way, mode):
        inner = function(Handling(answers()), {"mode": mode}, "inner")
        site.add(way(Handling(lambda call: inner(call.django_request)), {"mode": mode}))
        assert site.send().status_code == 500
        assert (rows(), records()) == (0, 0)

    @every_way
    def test_a_protected_view_that_was_not_asked_for_a_key_can_be_called(self, site, way):
        inner = function(Handling(answers()), {"required": False, "methods": ("DELETE",)}, "inner")
        site.add(way(Handling(lambda call: inner(call.django_request)), {}))
        first = site.send()
        assert first.status_code == 201
        assert_replays(site.send(), first)


@pytest.mark.parametrize("way", ["viewset", "api_class", "action"])
def test_a_refusal_under_atomic_requests_takes_what_a_permission_wrote(site, in_atomic_requests, way, mode):
    """As it does without us: the REST framework marks the request's transaction."""

    class Refuses(BasePermission):
        def has_permission(self, request, view):
            effect("attempt")
            return False

    in_atomic_requests()
    site.add(WAYS[way](Handling(answers()), {"mode": mode}, permission_classes=[Refuses]))
    assert site.send().status_code == 403
    assert (rows(), records()) == (0, 0)


@pytest.mark.parametrize("way", PLAIN)
def test_url_arguments_count_and_one_that_is_absent_too(site, way):
    def handle(*args):
        return answers()(None)

    view = WAYS[way](handle, {})
    site.urlpatterns.append(re_path(r"^things/(?P<thing>[0-9]+)/(?P<part>\w+)?$", view))
    first = site.send(to="/things/1/")
    assert_replays(site.send(to="/things/1/"), first)
    assert problem(site.send(to="/things/1/a")) == "key-reused"
    assert problem(site.send(to="/things/2/")) == "key-reused"


@pytest.mark.parametrize("way", PLAIN)
def test_an_option_of_a_route_that_another_worker_could_not_compare_stops_a_request_before_the_view(site, way):
    handler = Handling(answers())
    view = WAYS[way](lambda *args: handler(None), {})
    site.urlpatterns += [
        path("named/", view, {"option": says}),
        path("unnamed/", view, {"option": lambda: None}),
    ]
    assert site.send(to="/unnamed/").status_code == 500
    assert (handler.entered, records()) == (0, 0)
    first = site.send(to="/named/")
    assert first.status_code == 201
    assert_replays(site.send(to="/named/"), first)


def test_many_keys_and_many_endpoints_keep_apart(site):
    """Many keys of one caller, and one key of many endpoints, in one breath."""
    for name in ("one", "two", "three"):
        site.add(viewset(Handling(answers()), {}, name), name)
    firsts = {(to, key): site.send(key, to=f"/{to}/") for to in ("one", "two", "three") for key in ("a", "b", "c")}
    assert len({response.content for response in firsts.values()}) == 9
    for (to, key), first in firsts.items():
        assert_replays(site.send(key, to=f"/{to}/"), first)


def test_the_header_reaches_the_view(site):
    """A view may log it or pass a key of its own on; ours does not take it away."""
    site.add(function(Handling(lambda call: HttpResponse(call.request.headers[KEY])), {}))
    assert site.send('"quoted"').content == b'"quoted"'
