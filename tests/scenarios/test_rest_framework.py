"""What projects put around their REST framework views: renderers, envelopes, handlers, versions, throttles, pages."""

from __future__ import annotations

import json

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import include, path
from django.utils.translation import get_language
from rest_framework.decorators import action, api_view, throttle_classes
from rest_framework.permissions import AllowAny, BasePermission
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer, JSONRenderer, StaticHTMLRenderer
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter, SimpleRouter
from rest_framework.serializers import ModelSerializer
from rest_framework.throttling import BaseThrottle, SimpleRateThrottle
from rest_framework.urlpatterns import format_suffix_patterns
from rest_framework.versioning import AcceptHeaderVersioning, QueryParameterVersioning, URLPathVersioning
from rest_framework.views import exception_handler
from rest_framework.viewsets import ModelViewSet, ViewSet

from django_idempotency import IdempotencyMode, IdempotencyPolicy
from django_idempotency.drf import IdempotencyMixin, idempotent
from django_idempotency.models import IdempotencyKey
from example_project.payments.models import Transfer

from .site import KEY, REPLAYED, Handling, assert_replays, effect, problem, records, rows
from .table import answers, api_exception, raises
from .ways import REST, Reply, every_rest_way, function, viewset

pytestmark = pytest.mark.usefixtures("committed")

# Those that take further members of the view class.
classes = pytest.mark.parametrize("way", ["viewset", "api_class", "action"])


def rest_settings(settings, **changes):
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, **changes}


class EnvelopeRenderer(JSONRenderer):
    def render(self, data, accepted_media_type=None, renderer_context=None):
        return super().render({"data": data, "ok": True}, accepted_media_type, renderer_context)


class EnvelopeMixin:
    """A project's mixin that wraps what its views answer. It relies on a response of the REST framework."""

    finalized = 0

    def finalize_response(self, request, response, *args, **kwargs):
        type(self).finalized += 1
        response = super().finalize_response(request, response, *args, **kwargs)
        response.data = {"result": response.data, "status": response.status_code}
        response["X-Envelope"] = "yes"
        return response


class TestEnvelopes:
    @classes
    def test_of_a_renderer(self, site, way, mode):
        site.add(REST[way](Handling(answers()), {"mode": mode}, renderer_classes=[EnvelopeRenderer]))
        first = site.send()
        assert first.json()["ok"] is True
        assert_replays(site.send(), first)
        assert problem(site.send(body={"other": 1})) == "key-reused"
        assert "data" not in site.send(None).json()

    @pytest.mark.parametrize("order", ["in front of ours", "behind ours"])
    def test_of_finalize_response(self, site, mode, order):
        handler = Handling(answers(), answers(400), answers(402))
        view = viewset(handler, {"mode": mode})
        members = {"finalized": 0}
        if order == "in front of ours":
            cls = type("Things", (EnvelopeMixin, view.cls), members)
        else:
            act = view.cls.create
            members |= {"create": act, "idempotency_policy": view.cls.idempotency_policy}
            cls = type("Things", (IdempotencyMixin, EnvelopeMixin, ViewSet), members)
        site.add(cls.as_view({"post": "create"}))

        first = site.send()
        assert set(first.json()) == {"result", "status"}
        assert cls.finalized == 1
        assert_replays(site.send(), first)
        assert cls.finalized == 2
        assert site.send().content.count(b"result") == 1, "wrapped twice"
        for response in (site.send(body={"other": 1}), site.send(None), site.send("")):
            assert problem(response)
            assert "result" not in response.json()
            assert response.headers["X-Envelope"] == "yes"
        for status in (400, 402):
            again = site.send(f"for-{status}")
            assert again.json()["status"] == status

    @every_rest_way
    def test_of_an_exception_handler(self, site, settings, way):
        """Problems are not the project's errors: a handler that maps statuses and reshapes bodies never sees them."""

        def handler(error, context):
            seen.append(error)
            response = exception_handler(error, context)
            response.status_code = 400
            response.data = {"errors": response.data}
            return response

        seen = []
        rest_settings(settings, EXCEPTION_HANDLER=handler)
        site.add(way(Handling(answers(), raises(lambda: api_exception(402))), {}))
        site.send()
        response = site.send(body={"other": 1})
        assert (response.status_code, problem(response)) == (422, "key-reused")
        assert (site.send(None).status_code, seen) == (400, [])
        first = site.send("another")
        assert (first.status_code, list(first.json())) == (400, ["errors"])
        assert_replays(site.send("another"), first)

    @classes
    def test_a_project_can_answer_for_us(self, site, way):
        def answer(view, error):
            return HttpResponse(json.dumps({"code": error.slug}), status=418, content_type="application/vnd.shop+json")

        site.add(REST[way](Handling(answers()), {}, get_idempotency_error_response=answer))
        response = site.send(None)
        assert (response.status_code, response.json()) == (418, {"code": "missing-key"})
        assert response.headers["Content-Type"] == "application/vnd.shop+json"
        assert "Idempotent-Replayed" not in response.headers


class TextRenderer(BaseRenderer):
    media_type = "text/csv"
    format = "csv"

    def render(self, data, accepted_media_type=None, renderer_context=None):
        return ",".join(map(str, data.values())).encode()


class TestRepresentations:
    BOTH = (JSONRenderer, TextRenderer)

    def agrees(self, response):
        if response.headers["Content-Type"] == "text/csv; charset=utf-8":
            return b"{" not in response.content
        return response.headers["Content-Type"] == "application/json" and response.json()

    @pytest.mark.parametrize("accepts", ["text/csv", "application/json", "*/*"])
    @classes
    def test_a_retry_that_accepts_something_else(self, site, way, accepts):
        handler = Handling(answers())
        site.add(REST[way](handler, {}, renderer_classes=self.BOTH))
        first = site.send(headers={"Accept": "application/json"})
        again = site.send(headers={"Accept": accepts})
        assert (again.content, again.headers["Content-Type"]) == (first.content, first.headers["Content-Type"])
        assert self.agrees(again)
        assert handler.entered == 1

    @pytest.mark.parametrize("retry", ["/things.csv", "/things.json", "/things", "/things?format=csv"])
    def test_a_format_is_not_another_operation(self, site, retry):
        handler = Handling(answers())
        view = viewset(handler, {}, renderer_classes=self.BOTH)
        site.urlpatterns += format_suffix_patterns([path("things", view)])
        first = site.send(to="/things.json")
        again = site.send(to=retry)
        assert (again.content, again.headers["Content-Type"]) == (first.content, first.headers["Content-Type"])
        assert handler.entered == 1

    def test_a_language_is_not_another_operation(self, site, settings):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
        handler = Handling(lambda call: Reply(201, {"language": get_language(), "row": str(effect().pk)}))
        view = viewset(handler, {})
        site.urlpatterns += i18n_patterns(path("things/", view))
        first = site.send(to="/fr/things/")
        assert first.json()["language"] == "fr"
        again = site.send(to="/de/things/")
        assert again.content == first.content
        assert again.headers["Content-Language"] == "fr", "the language of its body"
        assert handler.entered == 1

    @pytest.mark.parametrize(
        ("scheme", "one", "two"),
        [
            (URLPathVersioning, {"to": "/v1/things/"}, {"to": "/v2/things/"}),
            (QueryParameterVersioning, {"to": "/v1/things/?version=1"}, {"to": "/v1/things/?version=2"}),
            (
                AcceptHeaderVersioning,
                {"to": "/v1/things/", "headers": {"Accept": "application/json; version=1"}},
                {"to": "/v1/things/", "headers": {"Accept": "application/json; version=2"}},
            ),
        ],
        ids=lambda each: getattr(each, "__name__", ""),
    )
    def test_a_version_is_not_another_operation(self, site, scheme, one, two):
        handler = Handling(lambda call: Reply(201, {"version": call.request.version, "row": str(effect().pk)}))
        site.urlpatterns.append(path("v<str:version>/things/", viewset(handler, {}, versioning_class=scheme)))
        first, again = site.send(**one), site.send(**two)
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["Content-Type"] == first.headers["Content-Type"]
        assert handler.entered == 1

    @every_rest_way
    def test_vary_is_kept(self, site, way):
        site.add(way(Handling(answers(201, {"Vary": "X-Tenant"})), {}))
        first, again = site.send(), site.send()
        assert "X-Tenant" in first.headers["Vary"]
        assert set(again.headers["Vary"].split(", ")) == set(first.headers["Vary"].split(", "))

    @every_rest_way
    def test_vary_of_a_problem(self, site, way):
        site.add(way(Handling(answers()), {}))
        assert {"Accept", "Cookie"} <= set(site.send(None).headers["Vary"].split(", "))


class TestThePageForPeople:
    """The browsable API."""

    HTML = {"Accept": "text/html"}  # noqa: RUF012
    WITH_A_PAGE = (JSONRenderer, BrowsableAPIRenderer)

    @classes
    def test_neither_name_nor_token_is_recorded(self, site, way, mode):
        handler = Handling(answers())
        site.add(REST[way](handler, {"mode": mode}, renderer_classes=self.WITH_A_PAGE))
        first = site.send(headers=self.HTML)
        assert first.headers["Content-Type"].startswith("text/html")
        assert b"ann" in first.content, "the page greets its user"
        record = IdempotencyKey.objects.get()
        assert set(json.loads(bytes(record.response_body))) == {"transfer"}
        assert "csrf" not in str(record.response_headers).lower()
        assert handler.entered == 1

    @classes
    def test_a_retry_gets_the_representation_that_was_recorded(self, site, way):
        handler = Handling(answers())
        site.add(REST[way](handler, {}, renderer_classes=self.WITH_A_PAGE))
        site.send(headers=self.HTML)
        for headers in ({}, self.HTML):
            again = site.send(headers=headers)
            assert (again.status_code, again.headers[REPLAYED]) == (201, "true")
            assert (again.headers["Content-Type"], list(again.json())) == ("application/json", ["transfer"])
        assert (handler.entered, rows()) == (1, 1)

    @classes
    def test_the_page_is_made_after_the_commit(self, site, in_atomic_requests, way, mode):
        in_atomic_requests()
        seen = []

        class Page(BrowsableAPIRenderer):
            def get_context(self, *args):
                seen.append(connection.in_atomic_block)
                return super().get_context(*args)

        site.add(REST[way](Handling(answers()), {"mode": mode}, renderer_classes=[JSONRenderer, Page]))
        assert site.send(headers=self.HTML).status_code == 201
        assert seen == [False]

    @classes
    def test_a_page_that_fails_leaves_the_answer(self, site, way):
        class Page(BrowsableAPIRenderer):
            def get_context(self, *args):
                raise RuntimeError("a template is missing")

        handler = Handling(answers())
        site.add(REST[way](handler, {}, renderer_classes=[JSONRenderer, Page]))
        assert site.send(headers=self.HTML).status_code == 500
        assert site.send().headers[REPLAYED] == "true"
        assert (handler.entered, rows()) == (1, 1)

    @classes
    def test_problems_are_html_where_html_was_negotiated_and_only_there(self, site, way):
        site.add(REST[way](Handling(answers()), {}, renderer_classes=self.WITH_A_PAGE))
        response = site.send(None, headers=self.HTML)
        assert (response.status_code, response.headers["Content-Type"]) == (400, "text/html; charset=utf-8")
        assert b"Idempotency-Key" in response.content
        for accepts in ("application/json", "*/*", "application/problem+json, */*"):
            assert problem(site.send(None, headers={"Accept": accepts})) == "missing-key"

    @classes
    def test_html_of_the_view_itself_is_recorded_as_it_is(self, site, way):
        handler = Handling(lambda call: Reply(201, f"<p>{effect().pk}</p>"))
        site.add(REST[way](handler, {}, renderer_classes=[StaticHTMLRenderer]))
        first = site.send(headers=self.HTML)
        assert_replays(site.send(headers=self.HTML), first)
        assert first.content.startswith(b"<p>")


class TestThrottles:
    class Counts(BaseThrottle):
        asked = 0

        def allow_request(self, request, view):
            type(self).asked += 1
            return type(self).asked not in (2, 3)

        def wait(self):
            return 7

    @every_rest_way
    def test_they_run_on_replays_and_leave_the_record_alone(self, site, way, mode):
        counts = type("Counts", (self.Counts,), {"asked": 0})
        handler = Handling(answers())
        site.add(way(handler, {"mode": mode}, throttle_classes=[counts]))
        first = site.send()
        for _ in range(2):
            throttled = site.send()
            assert (throttled.status_code, throttled.headers["Retry-After"]) == (429, "7")
            assert REPLAYED not in throttled.headers
        assert_replays(site.send(), first)
        assert (counts.asked, handler.entered, records("sealed")) == (4, 1, 1)

    @every_rest_way
    def test_a_throttled_first_request_leaves_the_key_free(self, site, way, mode):
        class Once(SimpleRateThrottle):
            rate = "1/min"

            def get_cache_key(self, request, view):
                return None if allowed else "all"

            def allow_request(self, request, view):
                return bool(allowed)

            def wait(self):
                return 1

        allowed = []
        handler = Handling(answers())
        site.add(way(handler, {"mode": mode}, throttle_classes=[Once]))
        assert site.send().status_code == 429
        assert records() == 0
        allowed.append(True)
        assert site.send().status_code == 201

    def test_those_of_a_decorated_function(self, site):
        class Never(BaseThrottle):
            def allow_request(self, request, view):
                return False

        view = idempotent(api_view(["POST"])(throttle_classes([Never])(lambda request: Response())))
        site.add(view)
        assert site.send().status_code == 429


class TestViewSets:
    """Policies by class, by action, by keyword, and by mark; through a router, as projects do it."""

    @pytest.fixture
    def things(self, site):
        def make(**members):
            cls = type("Things", (IdempotencyMixin, ViewSet), {"__module__": __name__, **members})
            router = SimpleRouter()
            router.register("things", cls, basename="thing")
            site.urlpatterns.append(path("", include(router.urls)))
            return cls

        return make

    def act(self, request, *args, **kwargs):
        return Response({"row": str(effect().pk)}, status=201)

    def test_a_policy_of_the_class_covers_its_actions(self, site, things):
        things(create=TestViewSets.act, go=action(detail=False, methods=["post"])(named(TestViewSets.act, "go")))
        for to in ("/things/", "/things/go/"):
            assert problem(site.send(None, to=to)) == "missing-key"
            first = site.send(to=to)
            assert_replays(site.send(to=to), first)

    def test_a_keyword_of_the_action_replaces_the_policy(self, site, things):
        optional = IdempotencyPolicy(required=False)
        go = action(detail=False, methods=["post"], idempotency_policy=optional)(named(TestViewSets.act, "go"))
        stay = action(detail=False, methods=["post"], idempotency_policy=None)(named(TestViewSets.act, "stay"))
        things(create=TestViewSets.act, go=go, stay=stay)
        assert site.send(None, to="/things/go/").status_code == 201
        assert site.send(None, to="/things/stay/").status_code == 201
        assert problem(site.send(None)) == "missing-key"
        assert site.send(to="/things/stay/").headers.get(REPLAYED) is None
        assert site.send("", to="/things/stay/").status_code == 201, "not opted in, it never looks at the key"
        assert records() == 0

    def test_a_mark_overrides_the_fields_that_it_names(self, site, things):
        policy = IdempotencyPolicy(required=False, max_response_bytes=0)
        go = action(detail=False, methods=["post"])(idempotent(max_response_bytes=1000)(named(TestViewSets.act, "go")))
        things(create=TestViewSets.act, go=go, idempotency_policy=policy)
        assert site.send(None, to="/things/go/").status_code == 201, "not required, as the class says"
        first = site.send(to="/things/go/")
        assert_replays(site.send(to="/things/go/"), first)
        site.send()
        assert problem(site.send()) == "response-not-stored"

    @pytest.mark.parametrize("order", ["mark above", "mark below"])
    def test_a_mark_on_either_side_of_action(self, site, things, order):
        mark, as_action = idempotent(mode=IdempotencyMode.LEASED), action(detail=True, methods=["post"])
        act = named(TestViewSets.act, "go")
        go = mark(as_action(act)) if order == "mark above" else as_action(mark(act))
        things(go=go, idempotency_policy=None)
        assert problem(site.send(None, to="/things/7/go/")) == "missing-key"
        first = site.send(to="/things/7/go/")
        assert_replays(site.send(to="/things/7/go/"), first)
        assert IdempotencyKey.objects.get().mode == "leased"
        assert problem(site.send(to="/things/8/go/")) == "key-reused"

    def test_a_mark_covers_put_on_its_handler(self, site, things):
        things(update=idempotent(named(TestViewSets.act, "update")), idempotency_policy=None)
        first = site.send(to="/things/7/", method="PUT")
        assert_replays(site.send(to="/things/7/", method="PUT"), first)

    def test_one_action_for_several_methods(self, site, things):
        go = action(detail=False, methods=["get", "post", "put"])(named(TestViewSets.act, "go"))
        things(go=idempotent(go), idempotency_policy=None)
        first = site.send(to="/things/go/")
        assert_replays(site.send(to="/things/go/"), first)
        assert REPLAYED not in site.send(to="/things/go/", method="PUT").headers
        assert site.send(None, to="/things/go/", method="GET").status_code == 201

    def test_extra_handlers_of_an_action(self, site, things):
        """``@go.mapping.delete`` is another function on the same route."""

        def remove(self, request, *args, **kwargs):
            return Response({"removed": str(effect().pk)})

        go = action(detail=False, methods=["post"])(idempotent(named(TestViewSets.act, "go")))
        things(go=go, remove=go.mapping.delete(idempotent(remove)), idempotency_policy=None)
        first = site.send(to="/things/go/")
        removed = site.send(to="/things/go/", method="DELETE")
        assert list(removed.json()) == ["removed"]
        assert_replays(site.send(to="/things/go/"), first)
        assert_replays(site.send(to="/things/go/", method="DELETE"), removed)

    def test_the_policy_can_depend_on_the_request(self, site, things):
        def policy(view):
            return IdempotencyPolicy(required=view.request.headers.get("X-Api") == "2")

        things(create=TestViewSets.act, get_idempotency_policy=policy)
        assert site.send(None).status_code == 201
        assert problem(site.send(None, headers={"X-Api": "2"})) == "missing-key"

    def test_the_key_can_come_from_elsewhere(self, site, things):
        things(create=TestViewSets.act, get_idempotency_key=lambda view, request: request.data.get("order"))
        first = site.send(None, {"order": "o-1"})
        assert_replays(site.send(None, {"order": "o-1"}), first)
        assert problem(site.send(None, {})) == "missing-key"

    def test_a_model_viewset(self, site):
        class MemoSerializer(ModelSerializer):
            class Meta:
                model = Transfer
                fields = ("id", "kind", "memo")

        class Transfers(IdempotencyMixin, ModelViewSet):
            queryset = Transfer.objects.all()
            serializer_class = MemoSerializer

        router = DefaultRouter()
        router.register("transfers", Transfers)
        site.urlpatterns.append(path("", include(router.urls)))
        body = {"kind": "deposit", "memo": "one"}
        assert site.send(body={"kind": "unknown"}, to="/transfers/").status_code == 400
        first = site.send(body=body, to="/transfers/")
        assert first.status_code == 201
        assert_replays(site.send(body=body, to="/transfers/"), first)
        to = f"/transfers/{first.json()['id']}/"
        changed = site.send(body={"memo": "two"}, to=to, method="PATCH")
        assert_replays(site.send(body={"memo": "two"}, to=to, method="PATCH"), changed)
        for method, status in [("PUT", 200), ("DELETE", 204)]:
            assert site.send(None, body, to=to, method=method).status_code == status
        assert site.send(method="GET", to="/transfers/").json()["count"] == 0
        assert site.send(method="GET", to="/").status_code == 200


def named(function, name):
    """A function of its own: marks and actions stand on it."""

    def copy(self, request, *args, **kwargs):
        return function(self, request, *args, **kwargs)

    copy.__name__ = copy.__qualname__ = name
    return copy


class TestAccess:
    """Who may ask is found out before the key is looked at, on replays too."""

    @every_rest_way
    def test_a_permission_that_was_revoked(self, site, way, mode):
        class Trusted(BasePermission):
            def has_permission(self, request, view):
                return User.objects.get(pk=request.user.pk).first_name != "Mallory"

        handler = Handling(answers())
        site.add(way(handler, {"mode": mode}, permission_classes=[Trusted]))
        first = site.send()
        User.objects.update(first_name="Mallory")
        refused = site.send()
        assert refused.status_code == 403
        assert first.json()["transfer"] not in refused.content.decode()
        User.objects.update(first_name="")
        assert_replays(site.send(), first)
        assert handler.entered == 1

    @every_rest_way
    def test_a_user_who_was_deactivated(self, site, way):
        site.add(way(Handling(answers()), {}))
        first = site.send()
        User.objects.update(is_active=False)
        assert site.send().status_code in (401, 403)
        User.objects.update(is_active=True)
        assert_replays(site.send(), first)

    @every_rest_way
    def test_somebody_unknown(self, site, way):
        handler = Handling(answers())
        site.add(way(handler, {}))
        assert site.send(user=None).status_code == 401
        assert (handler.entered, records()) == (0, 0)

    @every_rest_way
    def test_somebody_unknown_is_told_of_a_missing_key_only_where_it_may_come_in(self, site, way):
        site.add(way(Handling(answers()), {}))
        assert site.send(None, user=None).status_code == 401

    @every_rest_way
    def test_an_object_that_is_not_the_callers(self, site, way):
        """404 from the handler, as for one that does not exist; the key stays free."""

        def handle(call):
            if call.arguments["thing"] == "theirs":
                raise api_exception(404)
            return answers()(call)

        site.add(way(Handling(handle), {}))
        assert site.send(to="/things/theirs/").status_code == 404
        assert site.send(to="/things/mine/").status_code == 201

    @pytest.mark.parametrize("address", [{"X-Forwarded-For": "10.0.0.1"}, {"Forwarded": "for=10.0.0.1"}, {}])
    @every_rest_way
    def test_an_address_that_the_caller_writes_does_not_choose_the_scope(self, site, way, address):
        site.add(way(Handling(answers()), {}, permission_classes=[AllowAny]))
        assert problem(site.send(user=None, headers=address)) == "anonymous-scope"


def test_middleware_for_template_responses_meets_a_rendered_one(site, settings):
    """It is called, but what it changes comes too late: the bytes are recorded."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.ChangesContext"]
    template = engines["django"].from_string("{{ word }}")
    site.add(function(Handling(lambda call: TemplateResponse(call.request, template, {"word": str(effect().pk)})), {}))
    first = site.send()
    assert first.content != b"changed"
    assert_replays(site.send(), first)


class ChangesContext:
    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        return self.get_response(request)

    def process_template_response(self, request, response):
        response.context_data = {"word": "changed"}
        return response


class TestViewsThatDidNotOptIn:
    def test_they_never_look_at_the_key(self, site):
        site.urlpatterns += [
            path("admin/", admin.site.urls),
            path("session/", include("rest_framework.urls")),
            path("plain/", lambda request: HttpResponse(str(effect().pk))),
        ]
        for header in ("k", "", "a,b", "x" * 300):
            for to, status in [("/plain/", 200), ("/admin/login/", 200), ("/session/login/", 200)]:
                response = site.client("ann").post(to, {"username": "ann", "password": "no"}, headers={KEY: header})
                assert response.status_code in (status, 302)
                assert REPLAYED not in response.headers
        assert records() == 0
        assert rows() == 4
