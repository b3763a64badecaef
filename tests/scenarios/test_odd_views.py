"""REST framework views that do what no tutorial shows: other methods, other responses, no renderer to speak of."""

from __future__ import annotations

import contextlib
import logging

import pytest
from django.db import OperationalError
from django.http import StreamingHttpResponse
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import BrowsableAPIRenderer
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_idempotency import IdempotencyPolicy
from django_idempotency.drf import IdempotencyMixin
from django_idempotency.request_transactions import RequestTransactions

from .site import Handling, assert_replays, effect, problem, records, rows
from .table import answers, raises
from .ways import REST, Reply, api_class, every_way, viewset

pytestmark = pytest.mark.usefixtures("committed")

classes = pytest.mark.parametrize("way", ["viewset", "api_class", "action"])


class TestMethods:
    """A handler is protected by the method that leads to it, wherever that is written."""

    @every_way
    @pytest.mark.parametrize("method", ["patch", "Patch"])
    def test_in_the_letters_of_a_header(self, site, way, method):
        handler = Handling(answers())
        view = way(handler, {})

        def overriding(request, **arguments):
            request.method = method
            return view(request, **arguments)

        site.add(overriding)
        first = site.send()
        assert_replays(site.send(), first)
        assert (handler.entered, rows()) == (1, 1)

    @classes
    def test_chosen_after_dispatch_has_begun(self, site, way):
        def initialize_request(view, request, *args, **kwargs):
            request.method = "PATCH"
            return super(type(view), view).initialize_request(request, *args, **kwargs)

        handler = Handling(answers())
        site.add(REST[way](handler, {}, initialize_request=initialize_request))
        first = site.send()
        assert first.status_code == 201
        assert_replays(site.send(), first)
        assert (handler.entered, rows()) == (1, 1)

    @classes
    def test_put_there_by_initial(self, site, way):
        handler = Handling(answers())

        def initial(view, request, *args, **kwargs):
            super(type(view), view).initial(request, *args, **kwargs)
            view.post = view.post._handler

        site.add(REST[way](handler, {}, initial=initial))
        first = site.send()
        assert first.status_code == 201
        assert_replays(site.send(), first)
        assert (handler.entered, rows()) == (1, 1)
        assert site.send(method="TRACE").status_code == 405

    def test_one_handler_that_calls_another_one(self, site):
        handler = Handling(answers())
        cls = api_class(handler, {}).cls

        class Things(cls):
            def post(self, request):
                return self.patch(request)

        site.add(Things.as_view())
        first = site.send()
        assert_replays(site.send(), first)
        assert (handler.entered, rows(), records()) == (1, 1, 1)

    def test_one_handler_that_gets_along_without_another_one(self, site):
        """What the outer one wrote is not undone by the failure of the inner one."""

        class Things(IdempotencyMixin, APIView):
            def post(self, request):
                effect()
                with contextlib.suppress(ValidationError):
                    self.patch(request)
                return Response(status=201)

            def patch(self, request):
                raise ValidationError

        site.add(Things.as_view())
        first = site.send()
        assert first.status_code == 201
        assert_replays(site.send(), first)
        assert rows() == 1

    def test_a_dispatch_that_tries_again(self, site, mode):
        """Under one claim, with nothing left of the first try."""

        class TryAgain:
            def dispatch(self, request, *args, **kwargs):
                try:
                    return super().dispatch(request, *args, **kwargs)
                except ConnectionError:
                    return super().dispatch(request, *args, **kwargs)

        class Things(IdempotencyMixin, TryAgain, APIView):
            idempotency_policy = IdempotencyPolicy(mode=mode)
            post = staticmethod(Handling(raises(ConnectionError), lambda call: Response({"n": effect().memo}, 201)))

        site.add(Things.as_view())
        first = site.send()
        assert first.status_code == 201
        assert_replays(site.send(), first)
        assert (rows(), records()) == (1, 1)

    @pytest.mark.parametrize("base", [APIView, ViewSet])
    def test_an_asynchronous_handler_is_refused_when_the_view_is_made(self, base):
        async def create(self, request):
            raise AssertionError

        cls = type("Things", (IdempotencyMixin, base), {"create": create, "post": create})
        with pytest.raises(TypeError, match=r"asynchronous handlers, such as \S*Things\.(create|post)"):
            cls.as_view(**({"actions": {"post": "create"}} if base is ViewSet else {}))


class TestFinalizing:
    """What a project does to each response may need what only the handler gives. The answer is sent all the same."""

    @classes
    def test_with_data_that_a_replay_has_not(self, site, way, mode, caplog):
        def finalize_response(view, request, response, *args, **kwargs):
            response = super(type(view), view).finalize_response(request, response, *args, **kwargs)
            response["X-Count"] = str(response.data["count"])
            return response

        handler = Handling(lambda call: Reply(201, {"count": answers()(call).status}))
        site.add(REST[way](handler, {"mode": mode}, finalize_response=finalize_response))
        first = site.send()
        assert first.headers["X-Count"] == "201"
        with caplog.at_level(logging.ERROR, "django_idempotency"):
            assert_replays(site.send(), first)
            assert problem(site.send(body={"other": 1})) == "key-reused"
        assert [record.message.partition(" ")[0] for record in caplog.records] == ["finalize_response"] * 2
        assert (handler.entered, rows()) == (1, 1)

    @classes
    def test_into_a_stream(self, site, way):
        def finalize_response(view, request, response, *args, **kwargs):
            response = super(type(view), view).finalize_response(request, response, *args, **kwargs)
            return StreamingHttpResponse(iter([response.render().content]), status=response.status_code)

        handler = Handling(lambda call: Reply(201, {"status": answers()(call).status}))
        site.add(REST[way](handler, {}, finalize_response=finalize_response))
        first, again = site.send(), site.send()
        assert (first.status_code, first.getvalue()) == (again.status_code, again.content) == (201, b'{"status":201}')
        assert handler.entered == 1


class TestRenderers:
    @classes
    def test_a_view_for_people_alone_is_recorded_as_json(self, site, way):
        handler = Handling(lambda call: Reply(201, {"status": answers()(call).status}))
        site.add(REST[way](handler, {}, renderer_classes=[BrowsableAPIRenderer]))
        headers = {"Accept": "text/html"}
        first, again = site.send(headers=headers), site.send(headers=headers)
        assert first.headers["Content-Type"].startswith("text/html")
        assert (again.status_code, again.json()) == (201, {"status": 201})
        assert (handler.entered, rows()) == (1, 1)

    @pytest.mark.parametrize("accepts", ["application/json", "text/html"])
    @classes
    def test_a_project_answers_for_us_as_its_views_do(self, site, way, accepts):
        def answer(view, error):
            return Response({"code": error.slug}, status=418)

        site.add(REST[way](Handling(answers()), {}, get_idempotency_error_response=answer))
        for key in (None, ""):
            response = site.send(key, headers={"Accept": accepts})
            assert (response.status_code, response.json()["code"][-3:]) == (418, "key")


def test_a_project_answers_as_its_views_do_where_the_database_cannot_be_reached(site, in_atomic_requests, monkeypatch):
    def unreachable(transactions, *aliases):
        raise OperationalError

    in_atomic_requests()
    monkeypatch.setattr(RequestTransactions, "open", unreachable)
    answer = {"get_idempotency_error_response": lambda view, error: Response({"code": error.slug}, status=418)}
    site.add(viewset(Handling(answers()), {}, **answer))
    response = site.send()
    assert (response.status_code, response.json()) == (418, {"code": "store-unavailable"})
