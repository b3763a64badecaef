"""Plain Django views: who may ask is said by decorators above ours, and people are answered in HTML."""

from __future__ import annotations

import pytest
from django.contrib.auth.decorators import login_required, permission_required, user_passes_test
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from django_idempotency.http import idempotent_view

from .site import KEY, Handling, assert_replays, effect, problem, records, rows
from .table import answers
from .ways import PLAIN

pytestmark = pytest.mark.usefixtures("committed")

every_plain_way = pytest.mark.parametrize("way", PLAIN.values(), ids=PLAIN)


class TestAccess:
    @every_plain_way
    def test_a_login_above_is_asked_for_on_replays_too(self, site, way, mode):
        handler = Handling(answers())
        site.add(login_required(way(handler, {"mode": mode})))
        assert site.send(user=None).status_code == 302
        first = site.send()
        assert_replays(site.send(), first)
        User.objects.update(is_active=False)
        refused = site.send()
        assert refused.status_code == 302
        assert refused.content == b""
        User.objects.update(is_active=True)
        assert_replays(site.send(), first)
        assert (handler.entered, records("sealed")) == (1, 1)

    @every_plain_way
    def test_a_permission_that_was_revoked(self, site, way, mode):
        trusted = user_passes_test(lambda user: user.first_name != "Mallory", login_url="/refused/")
        site.add(trusted(way(Handling(answers()), {"mode": mode})))
        first = site.send()
        User.objects.update(first_name="Mallory")
        assert site.send().status_code == 302
        User.objects.update(first_name="")
        assert_replays(site.send(), first)

    @every_plain_way
    def test_a_permission_that_was_never_given(self, site, way):
        handler = Handling(answers())
        site.add(permission_required("payments.add_charge", raise_exception=True)(way(handler, {})))
        assert site.send().status_code == 403
        assert (handler.entered, records()) == (0, 0)

    @every_plain_way
    def test_a_form_without_its_token_is_refused_before_the_key(self, site, way):
        handler = Handling(answers())
        site.add(way(handler, {}), "guarded")
        site.add(csrf_exempt(way(handler, {}, "open")), "open")
        strict = Client(enforce_csrf_checks=True, raise_request_exception=False)
        strict.force_login(User.objects.create(username="ann"))
        assert strict.post("/guarded/", {"a": 1}, headers={KEY: "k"}).status_code == 403
        assert (handler.entered, records()) == (0, 0)
        assert strict.post("/open/", {"a": 1}, headers={KEY: "k"}).status_code == 201

    def test_methods_of_one_class_under_terms_of_their_own(self, site):
        class Things(View):
            @method_decorator(idempotent_view(required=False))
            def post(self, request):
                return HttpResponse(str(effect().pk))

            @method_decorator(idempotent_view(methods=("PUT",)))
            def put(self, request):
                return HttpResponse(str(effect().pk))

        site.add(Things.as_view())
        assert site.send(None).status_code == 200
        assert problem(site.send(None, method="PUT")) == "missing-key"
        posted, put = site.send(), site.send(method="PUT")
        assert_replays(site.send(), posted)
        assert_replays(site.send(method="PUT"), put)
        assert rows() == 3


class TestPeople:
    @pytest.mark.parametrize(
        "accepts", ["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html"]
    )
    @every_plain_way
    def test_a_browser_is_told_in_html(self, site, way, accepts):
        site.add(way(Handling(answers()), {}))
        response = site.send(None, headers={"Accept": accepts})
        assert (response.status_code, response.headers["Content-Type"]) == (400, "text/html; charset=utf-8")
        assert b"Idempotency-Key" in response.content

    @pytest.mark.parametrize(
        "accepts", ["*/*", "application/json", "application/problem+json", "", "text/html;q=0.1, */*"]
    )
    @every_plain_way
    def test_a_program_is_told_in_problem_json(self, site, way, accepts):
        site.add(way(Handling(answers()), {}))
        assert problem(site.send(None, headers={"Accept": accepts})) == "missing-key"

    @every_plain_way
    def test_what_the_client_sent_is_never_markup(self, site, way):
        site.add(way(Handling(answers()), {}))
        for key in ("<script>alert(1)</script>,", '"<b>'):
            response = site.send(key, headers={"Accept": "text/html"})
            assert response.status_code == 400
            assert b"<script>" not in response.content
            assert b"<b>" not in response.content
