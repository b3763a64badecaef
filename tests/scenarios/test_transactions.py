"""Transactions around a view: those of ATOMIC_REQUESTS, those of the claim, and what blocks that do not fit come to."""

from __future__ import annotations

import contextlib

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.http import JsonResponse
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.views import exception_handler

from django_idempotency import IdempotencyMode, OutcomeRules
from django_idempotency.drf import idempotent
from django_idempotency.http import idempotent_view
from example_project.payments.models import Transfer

from .site import Handling, assert_replays, effect, problem, records, rows
from .table import answers, api_exception, raises
from .ways import PLAIN, REST, WAYS, Reply, every_rest_way, every_way, every_way_and_mode, viewset

pytestmark = pytest.mark.usefixtures("committed")

postgres_only = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="speaks PostgreSQL")


def tells_blocks(call):
    """Which databases the handler finds a transaction open on."""
    return Reply(200, sorted(alias for alias in connections if connections[alias].in_atomic_block))


class TestAtomicRequests:
    """Taken out of it, a view gets the same transactions from us, with a key and without."""

    @pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
    @every_way
    def test_requests_that_no_key_is_looked_at_for(self, site, in_atomic_requests, way, on):
        in_atomic_requests(on)
        site.add(way(Handling(tells_blocks), {"required": False, "methods": ("POST",)}))
        for method, key in [("POST", None), ("PUT", "k"), ("PATCH", None), ("DELETE", "k"), ("GET", "k")]:
            assert site.send(key, method=method).json() == (["default"] if on else []), method

    @pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
    @every_way
    def test_requests_with_a_key(self, site, in_atomic_requests, way, mode, on):
        in_atomic_requests(on)
        site.add(way(Handling(tells_blocks), {"mode": mode}))
        assert site.send().json() == ["default"]

    @every_way
    def test_without_a_key_a_failure_is_rolled_back(self, site, in_atomic_requests, way):
        in_atomic_requests()
        site.add(way(Handling(raises(RuntimeError)), {"required": False}))
        for key, method in [(None, "POST"), ("k", "PUT"), (None, "GET")]:
            assert site.send(key, method=method).status_code == 500
        assert rows() == 0

    @every_rest_way
    def test_without_a_key_a_refusal_that_is_raised_is_rolled_back(self, site, in_atomic_requests, way):
        in_atomic_requests()
        site.add(way(Handling(raises(lambda: ValidationError("no"))), {"required": False}))
        assert site.send(None).status_code == 400
        assert rows() == 0

    @every_way
    def test_without_a_key_a_refusal_that_is_returned_keeps_its_row(self, site, in_atomic_requests, way):
        in_atomic_requests()
        site.add(way(Handling(answers(400)), {"required": False}))
        assert site.send(None).status_code == 400
        assert rows() == 1

    @pytest.mark.parametrize("alias", [None, "default", "other"])
    @pytest.mark.parametrize("before", [True, False], ids=["below ours", "above ours"])
    @pytest.mark.parametrize("way", [*PLAIN, "api_view"])
    def test_a_view_that_the_project_took_out(self, site, in_atomic_requests, other, way, before, alias):
        in_atomic_requests(True, "default")
        in_atomic_requests(True, "other")
        opt_out = transaction.non_atomic_requests if alias is None else transaction.non_atomic_requests(using=alias)
        left = sorted({"default", "other"} - {alias or "default"})
        site.add(opted_out(way, opt_out, before))
        assert site.send(None).json() == left
        assert site.send(None, method="GET").json() == left
        # The transaction of a claim is ours, and the project's views never were outside of that.
        assert site.send().json() == sorted({"default", *left})

    def test_a_class_that_the_project_took_out(self, site, in_atomic_requests):
        in_atomic_requests()
        view = viewset(Handling(tells_blocks), {"required": False})
        taken_out = method_decorator(transaction.non_atomic_requests, name="dispatch")(view.cls)
        site.add(taken_out.as_view(view.actions))
        assert site.send(None).json() == []

    @pytest.mark.parametrize("way", PLAIN)
    def test_views_that_share_a_set_with_ours_keep_their_transaction(self, site, in_atomic_requests, other, way):
        in_atomic_requests(True, "default")
        in_atomic_requests(True, "other")

        def ordinary(request):
            return WAYS["function"](Handling(tells_blocks), {"required": False}).__wrapped__(request)

        shared = transaction.non_atomic_requests(using="other")(ordinary)
        site.add(idempotent_view(required=False)(shared), "protected")
        site.add(shared, "ordinary")
        assert shared._non_atomic_requests == {"other"}
        assert site.send(None, to="/protected/").json() == ["default"]
        assert site.send(None, to="/ordinary/").json() == ["default"]

    def test_views_of_one_class_keep_apart(self, site, in_atomic_requests):
        in_atomic_requests()
        view = viewset(Handling(tells_blocks), {"required": False})
        site.add(transaction.non_atomic_requests(view.cls.as_view(view.actions)), "out")
        site.add(view.cls.as_view(view.actions), "in")
        assert site.send(None, to="/out/").json() == []
        assert site.send(None, to="/in/").json() == ["default"]


def opted_out(way, opt_out, before):
    if not before:
        return opt_out(WAYS[way](Handling(tells_blocks), {"required": False}))
    if way == "api_view":
        view = opt_out(api_view(["GET", "POST"])(lambda request: Response(tells_blocks(None).data)))
        return idempotent(required=False)(view)

    def tell(*args):
        return JsonResponse(tells_blocks(None).data, safe=False)

    view = opt_out(tell) if way == "function" else opt_out(type("V", (View,), {"get": tell, "post": tell}).as_view())
    return idempotent_view(required=False)(view)


class SetsTenant(BasePermission):
    """What multi-tenant projects do while they authenticate."""

    def has_permission(self, request, view):
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL scenario.tenant = 'blue'")
        return True


def tells_tenant(call=None):
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('scenario.tenant', true)")
        return Reply(200, cursor.fetchone()[0])


@postgres_only
class TestSetLocal:
    def begin_again(self, request):
        self.began = getattr(self, "began", 0) + 1
        SetsTenant().has_permission(request, self)

    @pytest.mark.parametrize("way", ["viewset", "api_class", "action"])
    def test_it_reaches_the_handler_in_atomic_mode(self, site, in_atomic_requests, way):
        in_atomic_requests()
        handler = Handling(tells_tenant)
        site.add(WAYS[way](handler, {"required": False}, permission_classes=[SetsTenant]))
        for key in ("k", None):
            assert site.send(key).json() == "blue"

    @pytest.mark.parametrize("way", ["viewset", "api_class", "action"])
    def test_in_leased_mode_a_hook_sets_it_again(self, site, in_atomic_requests, way):
        in_atomic_requests()
        members = {"permission_classes": [SetsTenant], "idempotent_transaction_began": TestSetLocal.begin_again}
        site.add(WAYS[way](Handling(tells_tenant), {"mode": IdempotencyMode.LEASED}, **members))
        assert site.send().json() == "blue"

    def test_in_leased_mode_it_is_gone_without_the_hook(self, site, in_atomic_requests):
        in_atomic_requests()
        site.add(viewset(Handling(tells_tenant), {"mode": IdempotencyMode.LEASED}, permission_classes=[SetsTenant]))
        assert site.send().json() in ("", None)

    def test_the_exception_handler_and_the_renderer_find_it_after_an_undo(self, site, in_atomic_requests, mode):
        in_atomic_requests()
        seen = []

        def handle_exception(view, error):
            seen.append(tells_tenant().data)
            return super(type(view), view).handle_exception(error)

        members = {
            "permission_classes": [SetsTenant],
            "idempotent_transaction_began": TestSetLocal.begin_again,
            "handle_exception": handle_exception,
        }
        site.add(viewset(Handling(raises(lambda: api_exception(402))), {"mode": mode}, **members))
        assert site.send().status_code == 402
        assert seen == ["blue"]

    @every_way_and_mode
    def test_what_the_claim_sets_for_itself_is_gone_afterwards(self, site, way, mode):
        def tells_limits(call):
            with connection.cursor() as cursor:
                cursor.execute("SELECT current_setting('lock_timeout'), current_setting('enable_seqscan')")
                return Reply(200, cursor.fetchone())

        site.add(way(Handling(tells_limits), {"mode": mode}))
        assert site.send().json() == ["0", "on"]


class TestSeveralDatabases:
    def both(self, status):
        def handle(call):
            effect("here")
            Transfer.objects.using("other").create(kind=Transfer.Kind.DEPOSIT, memo="there")
            return Reply(status, {"done": True})

        return handle

    @every_way
    def test_all_of_them_commit(self, site, in_atomic_requests, other, way, mode):
        in_atomic_requests(True, "default")
        in_atomic_requests(True, "other")
        handler = Handling(self.both(201))
        site.add(way(handler, {"mode": mode}))
        first = site.send()
        assert_replays(site.send(), first)
        assert (rows(), handler.entered) == (2, 1)

    @every_way
    def test_all_of_them_roll_back(self, site, in_atomic_requests, other, way, mode):
        in_atomic_requests(True, "default")
        in_atomic_requests(True, "other")
        site.add(way(Handling(self.both(400), self.both(500), self.both(201)), {"mode": mode}))
        assert [site.send().status_code for _ in range(2)] == [400, 500]
        assert rows() == 0
        assert site.send().status_code == 201
        assert rows() == 2

    @every_way
    def test_keys_live_where_the_effects_do(self, site, other, way, mode):
        def handle(call):
            Transfer.objects.using("other").create(kind=Transfer.Kind.DEPOSIT)
            return tells_blocks(call)

        handler = Handling(handle)
        site.add(way(handler, {"mode": mode, "using": "other"}))
        first = site.send()
        assert first.json() == ["other"]
        assert_replays(site.send(), first)
        assert (rows(), handler.entered) == (1, 1)

    @every_way
    def test_a_callable_finds_the_database_of_a_scope(self, site, other, way):
        asked = []

        def using(scope):
            asked.append(scope)
            return "other"

        site.add(way(Handling(tells_blocks), {"using": using}))
        assert site.send().json() == ["other"]
        assert asked[0].startswith("auth.user:")

    @every_way
    def test_an_alias_that_nobody_looks_after_is_refused(self, site, other, settings, way):
        settings.IDEMPOTENCY = {"DATABASES": ("default",)}
        handler = Handling(answers())
        site.add(way(handler, {"using": "other"}))
        assert site.send().status_code == 500
        assert (handler.entered, records()) == (0, 0)


class TestBlocksOfTheProject:
    @every_way_and_mode
    def test_its_own_atomic_blocks_work(self, site, way, mode):
        def handle(call):
            with transaction.atomic():
                effect("kept")
            with contextlib.suppress(LookupError), transaction.atomic():
                effect("dropped")
                raise LookupError
            return Reply(201, {"done": True})

        site.add(way(Handling(handle), {"mode": mode}))
        first = site.send()
        assert_replays(site.send(), first)
        assert [each.memo for each in Transfer.objects.all()] == ["kept"]

    @every_way
    def test_a_durable_block_in_the_view_is_refused_loudly(self, site, way, mode):
        def handle(call):
            with transaction.atomic(durable=True):
                effect()
            return Reply()

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        site.client("ann").raise_request_exception = True
        with pytest.raises(RuntimeError, match="durable"):
            site.send()
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @every_way
    def test_a_block_around_the_view_is_refused_loudly(self, site, way, mode):
        handler = Handling(answers())
        site.add(transaction.atomic(way(handler, {"mode": mode})))
        site.client("ann").raise_request_exception = True
        with pytest.raises(Exception, match=r"durable|atomic\(\) block"):
            site.send()
        assert (handler.entered, rows(), records()) == (0, 0, 0)

    @every_way
    def test_a_view_that_commits_by_itself_cannot(self, site, way, mode):
        def handle(call):
            effect()
            transaction.commit()
            return Reply()

        site.add(way(Handling(handle), {"mode": mode}))
        assert site.send().status_code == 500
        assert (rows(), records()) == (0, 0)


class TestUndoing:
    @every_rest_way
    def test_the_projects_handler_meets_a_clean_transaction(self, site, settings, in_atomic_requests, way, mode):
        """What the exception handler of the project writes about a business error is kept with it."""

        def handler(error, context):
            effect("audit")
            return exception_handler(error, context)

        settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "EXCEPTION_HANDLER": handler}
        site.add(way(Handling(raises(lambda: api_exception(402))), {"mode": mode}))
        first = site.send()
        assert_replays(site.send(), first)
        assert [each.memo for each in Transfer.objects.all()] == ["audit"]

    @every_rest_way
    def test_a_database_error_that_the_project_turns_into_a_conflict(self, site, settings, way, mode):
        def handler(error, context):
            if isinstance(error, IntegrityError):
                error = api_exception(409)
            return exception_handler(error, context)

        def handle(call):
            row = effect()
            Transfer(pk=row.pk, kind=Transfer.Kind.DEPOSIT).save(force_insert=True)

        settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "EXCEPTION_HANDLER": handler}
        handling = Handling(handle)
        site.add(way(handling, {"mode": mode}))
        first = site.send()
        assert first.status_code == 409
        assert_replays(site.send(), first)
        assert (rows(), handling.entered) == (0, 1)

    @pytest.mark.parametrize("status", [400, 403, 404, 409, 422])
    @every_rest_way
    def test_a_validation_error_is_released_whatever_it_is_rendered_as(self, site, settings, way, status):
        def handler(error, context):
            response = exception_handler(error, context)
            response.status_code = status
            return response

        settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "EXCEPTION_HANDLER": handler}
        site.add(way(Handling(raises(lambda: ValidationError("no")), answers()), {}))
        assert site.send().status_code == status
        assert (rows(), records()) == (0, 0)
        assert site.send(body={"corrected": True}).status_code == 201

    @every_rest_way
    def test_a_raised_error_under_a_policy_that_seals_it(self, site, way, mode):
        class Declined(APIException):
            status_code = 400

        rules = OutcomeRules(by_exception={Declined: "seal"})
        handler = Handling(raises(Declined), answers())
        site.add(way(handler, {"mode": mode, "outcomes": rules}))
        first = site.send()
        assert_replays(site.send(), first)
        assert (rows(), handler.entered) == (0, 1)

    @every_way
    def test_a_policy_can_release_what_is_usually_recorded(self, site, way, mode):
        rules = OutcomeRules(by_status={402: "release"})
        site.add(way(Handling(answers(402), answers()), {"mode": mode, "outcomes": rules}))
        assert site.send().status_code == 402
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201

    @every_way
    def test_a_callable_decides(self, site, way):
        asked = []

        def decide(status, exception):
            asked.append((status, exception))
            return "seal" if status == 404 else None

        site.add(way(Handling(answers(404), answers()), {"outcomes": OutcomeRules(decide=decide)}))
        first = site.send()
        assert_replays(site.send(), first)
        assert asked == [(404, None)]

    @every_way
    def test_rules_that_fail_have_no_effect(self, site, way, mode):
        def decide(status, exception):
            raise LookupError

        site.add(way(Handling(answers()), {"mode": mode, "outcomes": OutcomeRules(decide=decide)}))
        assert site.send().status_code == 500
        assert (rows(), records()) == (0, 0)


class TestWhatDoesNotReturn:
    @pytest.mark.parametrize("leaves", [SystemExit, KeyboardInterrupt, GeneratorExit])
    @every_way
    def test_out_of_the_handler_nothing_is_kept(self, site, way, mode, leaves):
        site.add(way(Handling(raises(leaves), answers()), {"mode": mode}))
        with pytest.raises(leaves):
            site.send()
        assert (rows(), records()) == (0, 0)
        assert not connection.in_atomic_block
        assert site.send().status_code == 201

    @pytest.mark.parametrize("leaves", [SystemExit, GeneratorExit, RuntimeError])
    @every_way
    def test_after_the_commit_the_answer_is_kept(self, site, settings, way, mode, leaves):
        """The client hangs up, or a middleware fails, when all is done and nothing is sent."""
        settings.MIDDLEWARE = [f"{__name__}.HangsUp", *settings.MIDDLEWARE]
        HangsUp.leaves = leaves
        handler = Handling(answers())
        site.add(way(handler, {"mode": mode}))
        if leaves is RuntimeError:
            assert site.send().status_code == 500
        else:
            with pytest.raises(leaves):
                site.send()
        again = site.send()
        assert (again.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
        assert (handler.entered, rows()) == (1, 1)

    @every_way
    def test_a_cancelled_statement_leaves_nothing(self, site, way, mode):
        if connection.vendor != "postgresql":
            pytest.skip("has no statement_timeout")

        def handle(call):
            effect()
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = '10ms'")
                cursor.execute("SELECT pg_sleep(5)")

        site.add(way(Handling(handle, answers()), {"mode": mode}))
        assert site.send().status_code >= 500
        assert (rows(), records()) == (0, 0)
        assert site.send().status_code == 201


class HangsUp:
    leaves: type[BaseException] | None = None

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        response = self.get_response(request)
        leaves, HangsUp.leaves = HangsUp.leaves, None
        if leaves is not None:
            raise leaves
        return response


class TestSessions:
    @every_way
    def test_what_a_view_writes_to_the_session_survives_a_release(self, site, settings, way, mode):
        """Saved by the middleware, after the view's transaction has ended: outside the promise, and documented."""
        settings.SESSION_ENGINE = "django.contrib.sessions.backends.db"

        def handle(call):
            call.django_request.session["tried"] = True
            return Reply(400, {"detail": "no"})

        site.add(way(Handling(handle), {"mode": mode}))
        assert site.send().status_code == 400
        assert records() == 0
        assert site.client("ann").session["tried"] is True


@pytest.mark.parametrize("way", [name for name in REST if name != "api_view"])
def test_authentication_is_looked_at_outside_of_the_claim(site, way, mode):
    """A permission class that refuses leaves no claim, and what it wrote stays with a key as it does without."""

    class Refuses(BasePermission):
        def has_permission(self, request, view):
            effect("attempt")
            return False

    site.add(WAYS[way](Handling(answers()), {"mode": mode}, permission_classes=[Refuses]))
    assert site.send().status_code == 403
    assert (rows(), records()) == (1, 0)


def test_problem_after_admission_does_not_leave_a_transaction(site, in_atomic_requests, mode):
    in_atomic_requests()
    site.add(viewset(Handling(answers()), {"mode": mode}))
    assert problem(site.send("")) == "malformed-key"
    assert not connection.in_atomic_block
