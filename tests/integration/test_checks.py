"""What ``manage.py check`` says: of settings and routers, of the views in a URLconf, and of the database itself."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial, wraps
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.checks import Error, Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, connections
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpResponse
from django.test import override_settings
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import CreateView
from rest_framework.decorators import action, api_view, authentication_classes, permission_classes
from rest_framework.generics import CreateAPIView
from rest_framework.permissions import (
    AllowAny,
    BasePermission,
    DjangoModelPermissions,
    IsAuthenticated,
    IsAuthenticatedOrReadOnly,
)
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

import django_idempotency
from django_idempotency import Decision, IdempotencyMode, IdempotencyPolicy, OutcomeRules, retention as reaching
from django_idempotency.checks import IDS, check_databases, check_deployment, check_settings, check_views
from django_idempotency.checks.databases import _cover
from django_idempotency.conf import current
from django_idempotency.core.intervals import plan, reach_of
from django_idempotency.drf import IdempotencyMixin, idempotent
from django_idempotency.http import idempotent_view
from django_idempotency.numbers import signatures
from example_project.payments.models import Account

LEASED = IdempotencyMode.LEASED


def ids(messages):
    """``{"E001", …}``, after a look at what every message must have."""
    for message in messages:
        assert message.hint
        assert message.msg
        assert isinstance(message, Error if message.id.startswith("django_idempotency.E") else CheckWarning)
    return {message.id.removeprefix("django_idempotency.") for message in messages}


def text(messages):
    return "\n".join(str(message) for message in messages)


def bare(view):
    """A decorator that forgets functools.wraps."""

    def inner(*args, **kwargs):
        return view(*args, **kwargs)

    return inner


def polite(view):
    return wraps(view)(bare(view))


class Holder:
    """A decorator that is a class."""

    def __init__(self, view):
        self.view = view

    def __call__(self, *args, **kwargs):
        return self.view(*args, **kwargs)


def many(view):
    return bare(Holder(polite(bare(view))))


class Site:
    """A URLconf."""

    def __init__(self, patterns):
        self.urlpatterns = list(patterns)


def by_header(request):
    return request.headers.get("X-Caller")


@pytest.fixture
def of_views(settings):
    """The messages on a site that has these views."""

    def check(*views):
        settings.ROOT_URLCONF = Site(path(f"{number}/", view) for number, view in enumerate(views))
        return check_views()

    return check


@pytest.fixture
def add_database(settings, monkeypatch):
    """Another entry of DATABASES: the default one, with differences."""

    def add(alias="other", **differences):
        entry = copy.deepcopy(settings.DATABASES["default"]) | differences
        monkeypatch.setitem(settings.DATABASES, alias, entry)
        connections.configure_settings(settings.DATABASES)
        settings.IDEMPOTENCY = {**settings.IDEMPOTENCY}  # the one reader of it looks again
        added.append(alias)

    added = []
    yield add
    for alias in added:
        connections[alias].close()
        del connections[alias]


class RouteTo:
    """A router that sends some models somewhere."""

    def __init__(self, alias, *, keys=True, effects=False, allow=None):
        self.alias, self.keys, self.effects, self.allow = alias, keys, effects, allow

    def db_for_write(self, model, **hints):
        is_key = model._meta.app_label == "django_idempotency"
        return self.alias if (self.keys if is_key else self.effects) else None

    def allow_migrate(self, db, app_label, **hints):
        return self.allow if app_label == "django_idempotency" else None


def test_every_id_has_a_line_and_every_line_an_id():
    """The reference has a heading for each: one that is missing would be a message without an explanation."""
    folder = Path(django_idempotency.__file__).parent / "checks"
    sources = "\n".join(file.read_text() for file in folder.glob("*.py") if file.name != "ids.py")
    assert set(re.findall(r'"([EW]\d{3})"', sources)) == set(IDS)
    assert len({each[1:] for each in IDS}) == len(IDS)


def test_every_id_is_tested():
    mine = "\n".join(file.read_text() for file in Path(__file__).parent.glob("test_checks*.py"))
    assert {each for each in IDS if f'"{each}"' not in mine} == set()


def test_the_example_project_is_sound():
    assert [*check_settings(), *check_views()] == []


class TestSettings:
    def test_an_unknown_name_comes_with_the_nearest_right_one(self, settings):
        settings.IDEMPOTENCY = {"RETENTON": timedelta(days=1)}
        (message,) = check_settings()
        assert message.id == "django_idempotency.E001"
        assert "'RETENTON'" in message.msg
        assert message.hint == "Did you mean 'RETENTION'?"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"LEASE": 30},
            {"RETENTION": None},
            {"METHODS": "POST"},
            {"METHODS": ("GET",)},
            {"MODE": "eventually"},
            {"MODE": []},
            {"DATABASES": ("nowhere",)},
            {"DATABASES": ()},
            {"DATABASES": 7},
            {"HEADER": "Idempotency Key"},
            {"SCOPE": "shop.scopes.by_tenant"},
            {"RETENTION": timedelta(days=30)},
            {5: 5},
            "none",
            None,
        ],
        ids=repr,
    )
    def test_a_wrong_value_is_an_error_and_nothing_else_stumbles_over_it(self, settings, wrong):
        settings.IDEMPOTENCY = wrong
        assert ids(check_settings()) == {"E001"}
        assert check_views() == check_deployment() == check_databases(databases=["default"]) == []

    def test_check_fails_by_it(self, settings):
        settings.IDEMPOTENCY = {"LEASE": 30}
        with pytest.raises(SystemCheckError, match=r"django_idempotency\.E001"):
            call_command("check")

    def test_a_database_of_a_kind_that_holds_no_keys(self, monkeypatch):
        monkeypatch.setattr(connections["default"], "vendor", "oracle")
        assert "E002" in ids(check_settings())

    def test_psycopg2(self, settings, add_database, monkeypatch):
        add_database(ENGINE="django.db.backends.postgresql")
        settings.IDEMPOTENCY = {"DATABASES": ("default", "other")}
        assert "E003" not in ids(check_settings())
        monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", False)
        assert "E003" in ids(check_settings())

    @pytest.mark.parametrize(("mode", "warned"), [(None, True), ("DEFERRED", True), ("immediate", False)])
    def test_sqlite_whose_transactions_begin_as_readers(self, settings, add_database, mode, warned):
        add_database(ENGINE="django.db.backends.sqlite3", NAME=":memory:", OPTIONS={"transaction_mode": mode})
        settings.IDEMPOTENCY = {"DATABASES": ("default", "other")}
        assert ids(check_settings()) == ({"W008"} if warned else set())

    def test_sqlite_whose_lock_is_waited_for_longer_than_a_lease_lasts(self, settings, add_database):
        options = {"transaction_mode": "IMMEDIATE", "timeout": 30}
        add_database(ENGINE="django.db.backends.sqlite3", NAME=":memory:", OPTIONS=options)
        settings.IDEMPOTENCY = {"DATABASES": ("default", "other"), "LEASE": timedelta(seconds=20)}
        assert ids(check_settings()) == {"W009"}
        settings.IDEMPOTENCY = {"DATABASES": ("default", "other"), "LEASE": timedelta(seconds=31)}
        assert ids(check_settings()) == set()

    def test_a_database_without_autocommit(self, settings, add_database):
        add_database("manual", AUTOCOMMIT=False)
        settings.IDEMPOTENCY = {"DATABASES": ["manual"], "USING": "manual"}
        assert "E011" in ids(check_settings())

    def test_a_router_that_sends_the_keys_out_of_the_list(self, settings, add_database):
        add_database()
        settings.DATABASE_ROUTERS = [RouteTo("other", effects=True)]
        assert ids(check_settings()) == {"E004"}

    def test_a_router_that_lets_no_table_be_made(self, settings):
        settings.DATABASE_ROUTERS = [RouteTo(None, allow=False)]
        assert ids(check_settings()) == {"E005"}

    def test_a_router_that_sends_the_keys_elsewhere_than_all_effects(self, settings, add_database):
        """A catch-all for apps that it does not know: claims and effects would commit apart."""
        add_database()
        settings.DATABASE_ROUTERS = [RouteTo("other")]
        settings.IDEMPOTENCY = {"DATABASES": ("default", "other")}
        assert ids(check_settings()) == {"E006"}
        settings.DATABASE_ROUTERS = [RouteTo("other", effects=True)]
        assert ids(check_settings()) == set()

    def test_keys_whose_database_is_chosen_by_scope(self, settings, add_database):
        add_database()
        settings.DATABASE_ROUTERS = [RouteTo("other")]
        settings.IDEMPOTENCY = {"USING": lambda scope: "default"}
        assert ids(check_settings()) == set()

    def test_a_project_that_only_observes(self, settings):
        settings.IDEMPOTENCY = {"OBSERVE_ONLY": True}
        assert ids(check_settings()) == {"W012"}

    def test_failpoints_in_production(self, settings):
        settings.IDEMPOTENCY = {"FAILPOINTS_ENABLED": True}
        assert ids(check_deployment()) == {"W010"}
        settings.DEBUG = True
        assert check_deployment() == []


@pytest.fixture
def postgres_options(settings, add_database):
    """Keys on PostgreSQL, with these OPTIONS. Nobody connects."""

    def set_options(**options):
        add_database(ENGINE="django.db.backends.postgresql", OPTIONS=options)
        settings.DATABASE_ROUTERS = [RouteTo("other", effects=True)]
        settings.IDEMPOTENCY = {"DATABASES": ("other",)}

    return set_options


class TestIsolationBySettings:
    @pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE", "READ_UNCOMMITTED"])
    def test_a_level_where_a_key_can_be_claimed_twice(self, of_views, postgres_options, level):
        from psycopg import IsolationLevel

        postgres_options(isolation_level=IsolationLevel[level])
        assert ids(of_views()) == {"E007"}
        messages = of_views(idempotent_view(scope=by_header)(_plain))
        assert ids(messages) == {"E007"}
        assert "_plain" in text(messages)

    def test_leased_views_may_have_it(self, of_views, postgres_options):
        postgres_options(isolation_level=4)
        assert of_views(idempotent_view(scope=by_header, mode=LEASED)(_plain)) == []

    @pytest.mark.parametrize("level", [2, None])
    def test_read_committed(self, of_views, postgres_options, level):
        postgres_options(isolation_level=level)
        assert of_views() == []

    def test_views_whose_keys_go_elsewhere(self, of_views, postgres_options, settings):
        postgres_options(isolation_level=4)
        settings.IDEMPOTENCY = {"DATABASES": ("default", "other")}
        assert of_views(idempotent_view(scope=by_header, using="default")(_plain)) == []
        assert ids(of_views(idempotent_view(scope=by_header, using=lambda scope: "other")(_plain))) == {"E007"}


def _plain(request):
    return HttpResponse()


class _Unprotected(APIView):
    def post(self, request):
        return Response()


class _Protected(IdempotencyMixin, APIView):
    def post(self, request):
        return Response()


def marked(cls_or_bases, **attributes):
    """A view class with a marked POST handler."""

    @idempotent
    def post(self, request):
        return Response()

    return type("Marked", cls_or_bases, {"post": post, "__module__": __name__, **attributes})


class TestNotInForce:
    def test_what_is_in_force_is_not_reported(self, of_views):
        class Things(IdempotencyMixin, GenericViewSet):
            idempotency_policy = None

            @idempotent
            def create(self, request):
                return Response()

            @action(detail=False, methods=["post"])
            @idempotent
            def below(self, request):
                return Response()

            @idempotent
            @action(detail=False, methods=["post"])
            def above(self, request):
                return Response()

            @polite
            @idempotent
            def partial_update(self, request, pk):
                return Response()

        @idempotent
        @api_view(["POST"])
        def function(request):
            return Response()

        router = SimpleRouter()
        router.register("things", Things, basename="thing")
        assert of_views(function, polite(function), marked((IdempotencyMixin, APIView)).as_view()) == []
        with override_settings(ROOT_URLCONF=Site(router.urls)):
            assert check_views() == []

    def test_a_mark_without_the_mixin(self, of_views):
        (message,) = of_views(marked((APIView,)).as_view())
        assert ids([message]) == {"E020"}
        assert message.obj.endswith("Marked.post")
        assert "inherit IdempotencyMixin" in message.hint

    def test_a_mark_on_an_action_without_the_mixin(self, of_views):
        class Things(GenericViewSet):
            @idempotent
            @action(detail=False, methods=["post"])
            def act(self, request):
                return Response()

        messages = of_views(Things.as_view({"post": "act"}))
        assert ids(messages) == {"E020"}
        assert messages[0].obj.endswith("Things.act")

    @pytest.mark.parametrize("hide", [bare, Holder, partial, many])
    def test_a_mark_that_another_decorator_hides(self, of_views, hide):
        cls = marked((IdempotencyMixin, APIView))
        cls.post = hide(cls.post)
        (message,) = of_views(cls.as_view())
        assert ids([message]) == {"E020"}
        assert "functools.wraps" in message.hint

    def test_a_mark_below_api_view(self, of_views):
        @api_view(["POST"])
        @idempotent
        def pay(request):
            return Response()

        (message,) = of_views(pay)
        assert ids([message]) == {"E020"}
        assert message.hint == "Put @idempotent above @api_view."

    @pytest.mark.parametrize("hide", [bare, polite, csrf_exempt, Holder])
    def test_a_mark_on_a_plain_view(self, of_views, hide):
        messages = of_views(hide(idempotent(lambda request: HttpResponse())), marked((View,)).as_view())
        assert len(messages) == 2
        assert ids(messages) == {"E020"}
        assert all("idempotent_view" in message.hint for message in messages)

    def test_a_policy_without_the_mixin(self, of_views):
        class Forgetful(APIView):
            idempotency_policy = IdempotencyPolicy()

        messages = of_views(Forgetful.as_view())
        assert ids(messages) == {"E020"}
        assert "has an idempotency_policy" in text(messages)

    def test_the_decorator_of_plain_views_on_a_rest_framework_view(self, of_views):
        cls = method_decorator(idempotent_view(scope=by_header), name="dispatch")(
            type("Wrong", (APIView,), {"__module__": __name__})
        )
        assert "E020" in ids(of_views(cls.as_view()))

    def test_one_class_on_many_routes_is_reported_once(self, of_views):
        view = marked((APIView,)).as_view()
        assert len(of_views(view, bare(view), polite(view), view)) == 1


class TestPolicies:
    def test_a_callable_that_cannot_be_hashed(self, of_views):
        @dataclass
        class ByHeader:
            name: str

            def __call__(self, request):
                return request.headers.get(self.name)

        policies = [IdempotencyPolicy(scope=ByHeader(name)) for name in ("X-One", "X-Two")]
        views = [type(f"V{n}", (_Protected,), {"idempotency_policy": each}) for n, each in enumerate(policies)]
        assert of_views(*(view.as_view() for view in views)) == []
        assert [current().resolve(each).scope.name for each in policies] == ["X-One", "X-Two"]

    def test_a_retention_that_partitions_never_reach(self, of_views):
        too_long = IdempotencyPolicy(retention=timedelta(days=60), scope=by_header)
        cls = type("Long", (_Protected,), {"idempotency_policy": too_long})
        messages = of_views(cls.as_view(), idempotent_view(too_long)(_plain), marked((cls,)).as_view())
        assert len(messages) == 3
        assert ids(messages) == {"E021"}
        assert "MAX_RETENTION" in text(messages)

    def test_a_route_that_brings_something_else_than_a_policy(self, of_views):
        assert ids(of_views(_Protected.as_view(idempotency_policy={"required": False}))) == {"E021"}

    @pytest.mark.parametrize(
        ("rules", "statuses"),
        [
            (
                OutcomeRules(release={200, 202, 400}, by_status={200: Decision.SEAL, 204: Decision.RELEASE}),
                "202 or 204",
            ),
            (OutcomeRules(release={303, 409}), None),
            (OutcomeRules(release={200}, decide=lambda status, exception: Decision.SEAL), None),
        ],
    )
    def test_a_success_that_is_undone(self, of_views, settings, rules, statuses):
        policy = IdempotencyPolicy(outcomes=rules, scope=by_header)
        messages = of_views(_Protected.as_view(idempotency_policy=policy), idempotent_view(policy)(_plain))
        assert [message.id for message in messages] == (["django_idempotency.W029"] * 2 if statuses else [])
        assert all(f"A {statuses} leaves" in message.msg for message in messages)
        settings.IDEMPOTENCY = {"OUTCOMES": rules}
        assert ids(of_views(_Protected.as_view())) == ({"W029"} if statuses else set())

    def test_a_policy_that_a_hook_makes_is_not_guessed(self, of_views):
        class Dynamic(_Protected):
            permission_classes = ()

            def get_idempotency_policy(self):
                return None

        assert of_views(Dynamic.as_view()) == []

    def test_keys_that_would_go_to_a_database_that_is_not_listed(self, of_views, add_database):
        add_database()
        messages = of_views(
            _Protected.as_view(idempotency_policy=IdempotencyPolicy(using="other")),
            idempotent_view(scope=by_header, using="nowhere")(_plain),
        )
        assert len(messages) == 2
        assert ids(messages) == {"E004"}

    def test_keys_that_would_commit_elsewhere_than_what_the_view_says_it_writes(self, of_views, add_database, settings):
        class Accounts(IdempotencyMixin, CreateAPIView):
            queryset = Account.objects.all()

        class Open(CreateView):
            model = Account

        add_database()
        settings.DATABASE_ROUTERS = [RouteTo("other", keys=False, effects=True)]
        settings.IDEMPOTENCY = {"DATABASES": ("default", "other")}
        plain = idempotent_view(scope=by_header)
        messages = of_views(Accounts.as_view(), plain(Open.as_view()))
        assert len(messages) == 2
        assert ids(messages) == {"E006"}
        assert "using='other'" in messages[0].hint
        together = IdempotencyPolicy(using="other", scope=by_header)
        assert of_views(Accounts.as_view(idempotency_policy=together), idempotent_view(together)(Open.as_view())) == []
        by_scope = IdempotencyPolicy(using=lambda scope: "other")
        assert of_views(Accounts.as_view(idempotency_policy=by_scope)) == []


class TestAtomicRequests:
    """Django asks what it calls whether the view was taken out, and not the view."""

    @pytest.fixture(autouse=True)
    def switched_on(self, monkeypatch):
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    def views(self):
        @idempotent_view(scope=by_header)
        def function(request):
            return HttpResponse()

        @method_decorator(idempotent_view(scope=by_header), name="dispatch")
        class Cls(View):
            pass

        return [function, Cls.as_view(), _Protected.as_view(idempotency_policy=IdempotencyPolicy(mode=LEASED))]

    @pytest.mark.parametrize("decorate", [polite, csrf_exempt])
    def test_decorators_that_keep_attributes(self, of_views, decorate):
        assert of_views(*map(decorate, self.views())) == []

    @pytest.mark.parametrize("hide", [bare, Holder, partial, many])
    def test_decorators_that_lose_them(self, of_views, hide):
        messages = of_views(*map(hide, self.views()))
        assert len(messages) == 3
        assert ids(messages) == {"E022"}

    def test_a_dispatch_that_overrides_the_decorated_one(self, of_views):
        @method_decorator(idempotent_view(scope=by_header), name="dispatch")
        class Base(View):
            pass

        class Child(Base):
            def dispatch(self, request):
                return super().dispatch(request)

        assert ids(of_views(Child.as_view())) == {"E022"}

    def test_it_is_fine_where_nothing_is_wrapped(self, of_views, monkeypatch):
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)
        assert of_views(*map(bare, self.views())) == []

    def test_what_is_not_protected_may_be_wrapped(self, of_views):
        assert of_views(_plain, _Unprotected.as_view(), bare(_Unprotected.as_view())) == []

    @pytest.mark.django_db
    def test_the_warning_is_true(self, of_views, client):
        """What the check foretells happens: the view cannot run in a transaction of somebody else's."""
        view = self.views()[0]
        assert ids(of_views(bare(view), polite(view))) == {"E022"}
        with pytest.raises(ImproperlyConfigured, match="around an idempotent view"):
            client.post("/0/")
        assert client.post("/1/").status_code == 400  # and asks for a key


class _OnlyObjects(BasePermission):
    def has_object_permission(self, request, view, obj):
        return obj.owner == request.user


class _ApiKey(BasePermission):
    def has_permission(self, request, view):
        return "X-Api-Key" in request.headers


class TestAnonymousScope:
    @pytest.mark.parametrize(
        ("permissions", "warned"),
        [
            ([], True),
            ([AllowAny], True),
            ([_OnlyObjects], True),
            ([AllowAny, _OnlyObjects], True),
            ([AllowAny | IsAuthenticated], True),
            ([AllowAny & _OnlyObjects], True),
            ([IsAuthenticated], False),
            ([IsAuthenticatedOrReadOnly], False),
            ([DjangoModelPermissions], False),
            ([AllowAny, IsAuthenticated], False),
            ([AllowAny & IsAuthenticated], False),
            ([~IsAuthenticated], False),  # not looked into
            ([_ApiKey], False),  # it may be that nobody gets past it without being somebody
        ],
    )
    def test_permissions_that_admit_anybody(self, of_views, permissions, warned):
        cls = type("Open", (_Protected,), {"permission_classes": permissions})
        messages = of_views(cls.as_view())
        assert ids(messages) == ({"W023"} if warned else set())
        if warned:
            assert "(post)" in messages[0].obj

    def test_a_view_that_authenticates_nobody(self, of_views):
        assert ids(of_views(type("Deaf", (_Protected,), {"authentication_classes": ()}).as_view())) == {"W023"}

    def test_an_action_that_opens_itself(self, settings):
        class Things(IdempotencyMixin, GenericViewSet):
            def create(self, request):
                return Response()

            @action(detail=False, methods=["post"], permission_classes=[AllowAny])
            def knock(self, request):
                return Response()

        router = SimpleRouter()
        router.register("things", Things, basename="thing")
        settings.ROOT_URLCONF = Site(router.urls)
        (message,) = check_views()
        assert ids([message]) == {"W023"}
        assert message.obj.endswith("(knock)")

    def test_api_view_with_its_decorators(self, of_views):
        @idempotent
        @api_view(["POST"])
        @permission_classes([AllowAny])
        def opened(request):
            return Response()

        @idempotent
        @api_view(["POST"])
        @authentication_classes([])
        def deaf(request):
            return Response()

        messages = of_views(opened, deaf)
        assert len(messages) == 2
        assert ids(messages) == {"W023"}

    def test_an_explicit_scope_settles_it(self, of_views, settings):
        class ByHook(_Protected):
            permission_classes = ()

            def get_idempotency_scope(self, request, policy):
                return "somebody"

        class ByPolicy(_Protected):
            permission_classes = ()
            idempotency_policy = IdempotencyPolicy(scope=by_header)

        assert of_views(ByHook.as_view(), ByPolicy.as_view()) == []
        settings.IDEMPOTENCY = {"SCOPE": by_header}
        assert of_views(type("Open", (_Protected,), {"permission_classes": ()}).as_view()) == []

    def test_what_code_decides_is_not_guessed(self, of_views):
        class Choosy(_Protected):
            permission_classes = ()
            authentication_classes = ()

            def get_permissions(self):
                return [IsAuthenticated()]

            def get_authenticators(self):
                return []

        assert of_views(Choosy.as_view()) == []

    @pytest.mark.parametrize("decorator", [property, cached_property])
    @pytest.mark.parametrize("name", ["permission_classes", "authentication_classes"])
    def test_neither_is_what_a_property_decides(self, of_views, name, decorator):
        def decides(view):
            raise AssertionError

        cls = type("Choosy", (_Protected,), {name: decorator(decides)})
        assert of_views(cls.as_view()) == []

    def test_get_is_not_asked_about(self, of_views):
        class Reading(IdempotencyMixin, APIView):
            permission_classes = ()

            def get(self, request):
                return Response()

        assert of_views(Reading.as_view()) == []

    def test_a_plain_view_without_anything_that_sets_a_user(self, of_views, settings):
        view = idempotent_view(_plain)
        assert of_views(view) == []
        settings.MIDDLEWARE = [each for each in settings.MIDDLEWARE if "Authentication" not in each]
        assert ids(of_views(view)) == {"W023"}
        assert of_views(idempotent_view(scope=by_header)(_plain)) == []
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.OwnAuthentication", "no.such.Middleware"]
        assert of_views(view) == []

    def test_unprotected_views_may_be_open(self, of_views):
        assert of_views(type("Open", (_Unprotected,), {"permission_classes": ()}).as_view()) == []


def __getattr__(name):
    # Imported late, as a middleware is: by its name.
    if name == "OwnAuthentication":
        from django.contrib.auth.middleware import AuthenticationMiddleware

        return type(name, (AuthenticationMiddleware,), {})
    raise AttributeError(name)


class TemplateMiddleware:
    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        return self.get_response(request)

    def process_template_response(self, request, response):
        response.data = {"added": True}
        return response


class TestProjects:
    @pytest.mark.parametrize("how", ["engine", "setting"])
    def test_schemas_for_tenants_need_a_scope_that_names_them(self, of_views, settings, add_database, how):
        views = [_Protected.as_view(), idempotent_view(_plain)]
        assert of_views(*views) == []
        if how == "engine":
            add_database(ENGINE="django_tenants.postgresql_backend")
        else:
            settings.TENANT_MODEL = "customers.Client"
        try:
            messages = of_views(*views)
            assert len(messages) == 2
            assert ids(messages) == {"E024"}
            assert of_views(idempotent_view(scope=by_header)(_plain)) == []
            settings.IDEMPOTENCY = {"SCOPE": by_header}
            assert of_views(*views) == []
        finally:
            settings.DATABASES.get("other", {})["ENGINE"] = settings.DATABASES["default"]["ENGINE"]

    def test_two_functions_that_a_decorator_gave_one_name(self, of_views):
        """One key on both would answer with what the other one recorded."""

        def first(request):
            return HttpResponse()

        def second(request):
            return HttpResponse()

        protect = idempotent_view(scope=by_header)
        messages = of_views(protect(bare(first)), protect(bare(second)))
        assert ids(messages) == {"E025"}
        assert "inner" in messages[0].obj
        assert of_views(protect(polite(first)), protect(polite(second))) == []
        named = [idempotent_view(scope=by_header, operation=each.__name__)(bare(each)) for each in (first, second)]
        assert of_views(*named) == []

    def test_two_api_view_functions_that_a_decorator_gave_one_name(self, of_views):
        def first(request):
            return Response()

        def second(request):
            return Response()

        views = [idempotent(api_view(["POST"])(bare(each))) for each in (first, second)]
        assert ids(of_views(*views)) == {"E025"}

    def test_one_view_on_two_routes_is_one_operation(self, of_views):
        view = idempotent_view(scope=by_header)(_plain)
        assert of_views(view, bare(view), polite(view), _Protected.as_view(), _Protected.as_view()) == []

    def test_two_views_that_were_given_one_name(self, of_views):
        policy = IdempotencyPolicy(operation="payments", scope=by_header)
        base = type("Base", (_Protected,), {"idempotency_policy": policy})
        messages = of_views(*(type(name, (base,), {}).as_view() for name in ("Charge", "Refund")))
        assert ids(messages) == {"W026"}

    def test_one_class_on_routes_that_make_other_operations_of_it(self, of_views):
        class Move(_Protected):
            direction = "in"

        class Plain(CreateView):
            direction = "in"

        for make in (Move.as_view, lambda **given: idempotent_view(scope=by_header)(Plain.as_view(**given))):
            messages = of_views(make(), make(), make(direction="out"), make(direction="out"))
            assert ids(messages) == {"W028"}
            assert all("differ in direction are" in message.msg for message in messages)
        given = [{"direction": each, "idempotency_policy": IdempotencyPolicy(operation=each)} for each in ("in", "out")]
        assert of_views(*(Move.as_view(**each) for each in given)) == []

    def test_one_class_for_other_models(self, of_views):
        decorate = idempotent_view(scope=by_header)
        orders, users = (CreateView.as_view(model=model, fields=["id"]) for model in (Account, User))
        assert ids(of_views(decorate(orders), decorate(users))) == {"W028"}

    def test_what_only_looks_otherwise_is_one_operation(self, of_views):
        decorate = idempotent_view(scope=by_header)
        routes = [{"template_name": "a.html"}, {"template_name": "b.html"}, {"extra_context": {"a": 1}}]
        assert of_views(*(decorate(CreateView.as_view(model=Account, **each)) for each in routes)) == []

    def test_actions_of_one_viewset_are_operations_of_their_own(self, settings):
        class Things(IdempotencyMixin, GenericViewSet):
            idempotency_policy = IdempotencyPolicy(operation="things")

            def create(self, request):
                return Response()

            @action(detail=False, methods=["post"])
            def act(self, request):
                return Response()

        router = SimpleRouter()
        router.register("things", Things, basename="thing")
        settings.ROOT_URLCONF = Site(router.urls)
        assert check_views() == []

    def test_template_response_middleware_comes_too_late(self, of_views, settings):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.TemplateMiddleware"]
        assert of_views(_Unprotected.as_view()) == []
        (message,) = of_views(_Protected.as_view())
        assert ids([message]) == {"W027"}
        assert message.obj.endswith("TemplateMiddleware")

    @pytest.mark.django_db
    def test_and_so_it_is(self, of_views, settings, client, django_user_model):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.TemplateMiddleware"]
        of_views(_Protected.as_view(), _Unprotected.as_view())
        client.force_login(django_user_model.objects.create(username="ann"))
        answers = [client.post("/0/", headers={"Idempotency-Key": "one"}).content for _ in range(2)]
        assert answers == [b"", b""]
        assert client.post("/1/").content != b""


class _Odd:
    """Answers to anything, as a mock does, and raises where that is inconvenient."""

    def __getattr__(self, name):
        if name in ("__wrapped__", "actions"):
            raise RuntimeError(name)
        return _Odd()

    def __call__(self, request):
        return HttpResponse()


class _Absent:
    """Stands for something that is not there at the moment, as proxies to what belongs to a request or a task do."""

    @property
    def __dict__(self):
        raise RuntimeError("working outside of it")

    def __call__(self, request):
        return HttpResponse()


def _holding(held):
    def view(request):
        return held(request)

    return view


class TestOddCallbacks:
    def test_nothing_in_a_urlconf_makes_it_fail(self, settings, of_views):
        looped = bare(_plain)
        looped.__wrapped__ = looped
        unfilled = _with_empty_cell()
        assert of_views(_Odd(), partial(_plain), _Odd().method, looped, unfilled, print, type("C", (), {})) == []
        assert of_views(_Absent(), _holding(_Absent()), idempotent_view(scope=by_header)(_holding(_Absent()))) == []

    def test_included_and_prefixed_patterns_are_found(self, settings):
        from django.conf.urls.i18n import i18n_patterns

        inner = ([path("a/", marked((APIView,)).as_view())], "inner")
        deep = path("b/", include([path("c/", idempotent(lambda request: HttpResponse()))]))
        settings.ROOT_URLCONF = Site([path("x/", include(inner)), *i18n_patterns(deep)])
        assert len(check_views()) == 2

    def test_a_project_without_urls(self, settings):
        settings.ROOT_URLCONF = None
        assert check_views() == []

    def test_a_project_without_rest_framework(self, of_views, monkeypatch):
        monkeypatch.delitem(sys.modules, "rest_framework.views")
        assert of_views(idempotent_view(scope=by_header)(_plain)) == []

    def test_a_project_of_nothing_but_django_and_this_app(self):
        """No users, no middleware, no REST framework: the checks run, and bring none of it in."""
        program = """
import sys
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_idempotency"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    ROOT_URLCONF=(urls := type("urls", (), {})),
)
import django
django.setup()
from django.http import HttpResponse
from django.urls import path
from django_idempotency.http import idempotent_view
urls.urlpatterns = [path("", idempotent_view(lambda request: HttpResponse()))]
from django.core.checks import run_checks
print(sorted(message.id for message in run_checks(databases=["default"])))
print([name for name in ("rest_framework", "django.contrib.auth.models") if name in sys.modules])
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        found, loaded = done.stdout.splitlines()
        assert found == str([f"django_idempotency.{each}" for each in ("W008", "W023", "W031")])
        assert loaded == "[]"

    def test_nothing_of_the_project_is_called(self, of_views):
        def explosive(request):
            raise AssertionError("called")

        assert of_views(idempotent_view(scope=explosive)(explosive)) == []


def _with_empty_cell():
    def view(request):
        return later(request)

    if view is None:
        later = None
    return view


@pytest.fixture
def cursor(db):
    """On PostgreSQL, in the transaction of the test: what it does to the schema is undone."""
    if connection.vendor != "postgresql":
        pytest.skip("about what PostgreSQL says of itself")
    with connection.cursor() as cursor:
        yield cursor


@pytest.fixture
def role(cursor):
    """Go on as a role that may log in and read which migrations ran, and nothing else."""
    cursor.execute("CREATE ROLE idempotency_checks_visitor")
    cursor.execute("GRANT SELECT ON django_migrations TO idempotency_checks_visitor")

    def become():
        cursor.execute("SET LOCAL ROLE idempotency_checks_visitor")

    yield become
    if not connection.needs_rollback:
        cursor.execute("RESET ROLE")


@pytest.fixture
def any_database(django_db_setup, django_db_blocker):
    """Databases that a test adds may be connected to."""
    if connection.vendor != "postgresql":
        pytest.skip("about what PostgreSQL says of itself")
    with django_db_blocker.unblock():
        yield


def of_database():
    return check_databases(databases=["default"])


@pytest.mark.usefixtures("somebody_sweeps")
class TestDatabases:
    def test_a_migrated_database_is_sound(self, db):
        assert of_database() == []

    def test_only_databases_that_are_named_and_hold_keys_are_asked(self):
        assert check_databases() == check_databases(databases=[]) == check_databases(databases=["nowhere"]) == []

    def test_it_runs_with_check_database(self, db, settings):
        settings.IDEMPOTENCY = {"DATABASES": ("default",)}
        MigrationRecorder(connection).migration_qs.filter(app="django_idempotency").delete()
        with pytest.raises(SystemCheckError, match=r"django_idempotency\.W031"):
            call_command("check", databases=["default"], fail_level="WARNING")

    def test_a_server_that_does_not_answer(self, any_database, add_database, settings):
        add_database(ENGINE="django.db.backends.postgresql", HOST="127.0.0.1", PORT="1", PASSWORD="hush-hush")
        settings.IDEMPOTENCY = {"DATABASES": ("other",)}
        messages = check_databases(databases=["other"])
        assert ids(messages) == {"E030"}
        assert "hush" not in text(messages)

    def test_migrations_that_have_not_run_are_no_error_since_migrate_runs_the_checks(self, db):
        MigrationRecorder(connection).migration_qs.filter(app="django_idempotency").delete()
        assert ids(of_database()) == {"W031"}

    @pytest.mark.parametrize(
        ("broken", "lacking"),
        [
            ("DROP FUNCTION idempotency_take_over_v1", "the function idempotency_take_over_v1"),
            ("DROP TABLE idempotency_key_in_flight", "the table idempotency_key_in_flight"),
            ("DROP TABLE idempotency_key CASCADE", "the partitioned table idempotency_key"),
            (
                "DROP TABLE idempotency_key CASCADE; CREATE TABLE idempotency_key (id uuid PRIMARY KEY)",
                "the partitioned table idempotency_key,",
            ),
        ],
    )
    def test_a_table_that_is_not_what_the_migrations_make(self, cursor, broken, lacking):
        cursor.execute(broken)
        messages = of_database()
        assert ids(messages) == {"E032"}
        assert lacking in text(messages)

    def test_a_replica(self, cursor):
        cursor.execute("SET LOCAL transaction_read_only = on")
        assert ids(of_database()) == {"E033"}

    @pytest.mark.parametrize("level", ["repeatable read", "serializable"])
    def test_a_level_that_the_server_chooses(self, any_database, add_database, settings, level):
        """ALTER DATABASE or ALTER ROLE can set it, where no setting of Django's shows it."""
        options = "-c default_transaction_isolation=" + level.replace(" ", "\\ ")
        add_database(NAME=connection.settings_dict["NAME"], OPTIONS={"options": options})
        settings.DATABASE_ROUTERS = [RouteTo("other", effects=True)]
        settings.IDEMPOTENCY = {"DATABASES": ("other",)}
        assert ids(check_databases(databases=["other"])) == {"E034"}
        settings.IDEMPOTENCY = {"DATABASES": ("other",), "MODE": LEASED}
        with override_settings(ROOT_URLCONF=None):
            assert check_databases(databases=["other"]) == []

    def test_a_level_that_django_asks_for_overrides_the_servers(self, any_database, add_database, settings):
        options = {"options": "-c default_transaction_isolation=serializable", "isolation_level": 2}
        add_database(NAME=connection.settings_dict["NAME"], OPTIONS=options)
        settings.DATABASE_ROUTERS = [RouteTo("other", effects=True)]
        settings.IDEMPOTENCY = {"DATABASES": ("other",)}
        assert check_databases(databases=["other"]) == []

    def test_a_role_that_may_not_touch_the_table(self, cursor, role):
        role()
        messages = of_database()
        assert ids(messages) == {"E035"}
        assert "INSERT on idempotency_key_in_flight" in text(messages)

    def test_the_rights_that_the_hint_names_are_enough(self, cursor, role):
        cursor.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_key, idempotency_key_in_flight, "
            "idempotency_key_sealed, idempotency_outcome_count, idempotency_oldest_in_flight "
            "TO idempotency_checks_visitor"
        )
        role()
        assert of_database() == []

    def test_what_counts_take_is_needed_where_there_are_counts(self, cursor, role, settings):
        cursor.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_key, idempotency_key_in_flight, "
            "idempotency_key_sealed TO idempotency_checks_visitor"
        )
        role()
        said = text(of_database())
        for table in ("idempotency_outcome_count", "idempotency_oldest_in_flight"):
            assert all(f"{right} on {table}" in said for right in ("SELECT", "INSERT", "UPDATE", "DELETE"))
        settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"COUNTS": False}
        assert "E035" not in ids(of_database())

    def test_with_tombstones_the_role_has_to_see_them(self, cursor, role, settings):
        cursor.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency_key, idempotency_key_in_flight, "
            "idempotency_key_sealed TO idempotency_checks_visitor"
        )
        role()
        settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"TOMBSTONES": timedelta(days=90)}
        messages = of_database()
        assert ids(messages) == {"E035"}
        assert "SELECT on idempotency_tombstone" in text(messages)

    def test_no_partitions(self, cursor):
        drop_leaves(cursor, keep=timedelta(0))
        assert ids(of_database()) == {"W037"}

    @pytest.mark.parametrize(("days", "expected"), [(0, "E036"), (2, "W037"), (5, None)])
    def test_partitions_that_end_too_soon_for_a_role_that_cannot_make_more(self, cursor, role, days, expected):
        """With a retention of a day: too few to record anything, fewer than two days to spare, enough."""
        cursor.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO idempotency_checks_visitor"
        )
        drop_leaves(cursor, keep=timedelta(days=days))
        role()
        assert ids(of_database()) == ({expected} if expected else set())

    def test_the_longest_retention_of_any_view_counts(self, cursor, of_views):
        drop_leaves(cursor, keep=timedelta(days=5))
        of_views(idempotent_view(scope=by_header, retention=timedelta(days=7))(_plain))
        messages = of_database()
        assert ids(messages) == {"W037"}
        assert "7 days" in text(messages)

    def test_a_wait_in_which_the_owner_can_become_the_victim_of_a_deadlock(self, cursor, of_views, settings):
        cursor.execute("SET LOCAL deadlock_timeout = '400ms'")
        assert ids(of_database()) == {"W038"}
        settings.IDEMPOTENCY = {"MAX_WAIT": timedelta(seconds=0.7)}
        assert of_database() == []
        of_views(idempotent_view(scope=by_header, max_wait=timedelta(seconds=0.9))(_plain))
        assert ids(of_database()) == {"W038"}

    def test_a_wait_that_ends_as_if_the_store_were_down(self, cursor, of_views, settings):
        cursor.execute("SET LOCAL statement_timeout = '1500ms'")
        (message,) = of_database()
        assert (ids([message]), "after 1.5 s" in message.msg) == ({"W039"}, True)
        settings.IDEMPOTENCY = {"MAX_WAIT": timedelta(seconds=1.4)}
        assert of_database() == []
        of_views(idempotent_view(scope=by_header, max_wait=timedelta(seconds=1.6))(_plain))
        assert ids(of_database()) == {"W039"}
        cursor.execute("SET LOCAL statement_timeout = 0")
        assert of_database() == []


@pytest.fixture
def somebody_sweeps(monkeypatch):
    """What runs, and what does not, is another matter: ``test_checks_of_health``."""
    monkeypatch.setattr(signatures, "last_sweep", lambda alias: timedelta(0))


class TestCover:
    """Partitions as processes or a daily job make them, and as they run out where nobody does."""

    STEP = timedelta(minutes=30)
    STARTS = tuple(datetime(2026, 12, 1, tzinfo=timezone.utc) + timedelta(minutes=m) for m in (0, 1, 479, 481, 1439))

    @pytest.fixture(params=[(1 / 24, 7), (1, 7), (6, 7), (7, 7), (1, 1), (8, 8), (8.5, 8.5), (30, 30)], ids=str)
    def retention(self, request, settings):
        retention, longest = map(timedelta, request.param)
        settings.IDEMPOTENCY = {"RETENTION": retention, "MAX_RETENTION": longest}
        return retention

    @pytest.fixture(params=STARTS, ids=str)
    def start(self, request):
        return request.param

    @pytest.fixture
    def until(self, start):
        """How far the leaves reach, of which the last were made just now."""
        return reach_of(plan([], start, current().MAX_RETENTION), start)

    def said(self, cover, *, may_create=False):
        return list(_cover("default", cover, may_create, ()))

    def process(self, monkeypatch, now, until, looked=reaching.RETRY_SECONDS):
        """One that knows the leaves, and looked at them so many seconds ago."""
        monkeypatch.setattr(reaching, "datetime", type("Then", (datetime,), {"now": staticmethod(lambda _zone: now)}))
        monkeypatch.setitem(reaching._reaches, "default", reaching._Reach(until, time.monotonic() - looked))

    @pytest.mark.parametrize("may_create", [True, False])
    def test_nothing_is_said_until_a_claim_would_make_more_and_for_a_night_after(
        self, monkeypatch, retention, start, until, may_create
    ):
        now, night = start, timedelta(hours=12)
        while night > timedelta(0):
            assert self.said(until - now, may_create=may_create) == []
            self.process(monkeypatch, now, until)
            if not reaching._reaches_far_enough("default", retention):
                night -= self.STEP
            now += self.STEP

    def test_nothing_is_said_nor_tried_where_a_job_makes_them_once_a_day(self, monkeypatch, retention, start, until):
        for late in (timedelta(hours=24), timedelta(hours=27)):
            self.process(monkeypatch, start + late, until)
            assert reaching._reaches_far_enough("default", retention)
            assert self.said(until - (start + late)) == []

    def test_where_nobody_makes_more_it_is_said_two_days_before_a_claim_is_refused(self, retention, start, until):
        refused = until - retention - timedelta(hours=1)
        second = timedelta(seconds=1)
        first = self.said(until - refused + timedelta(days=2) - second)
        assert ids(first) == {"W037"}
        assert "Claims are refused with 503 in 2.0 days, if nobody makes more." in text(first)
        assert ids(self.said(until - refused)) == {"W037"}
        assert ids(self.said(until - refused - second)) == {"E036"}

    def test_a_claim_is_refused_when_it_is_said_to_be(self, monkeypatch, retention, start, until):
        refused = until - retention - timedelta(hours=1)
        for now, taken in ((refused, True), (refused + timedelta(seconds=1), False)):
            self.process(monkeypatch, now, until, looked=0.0)
            assert reaching._reaches_far_enough("default", retention) is taken

    def test_who_may_make_them_is_not_told_of_refusals(self, retention):
        for cover in (timedelta(0), retention + timedelta(days=1)):
            (said,) = self.said(cover, may_create=True)
            assert ids([said]) == {"W037"}
            assert "The next request has to make more." in said.msg
            assert "503" not in said.msg


def drop_leaves(cursor, keep):
    """Leave the partitions that begin before ``keep`` from now; none at all for 0."""
    cursor.execute(
        r"""
        SELECT inhrelid::regclass::text FROM pg_inherits JOIN pg_class AS leaf ON leaf.oid = inhrelid
        WHERE inhparent = 'idempotency_key_sealed'::regclass AND (
            %s = interval '0'
            OR (regexp_match(pg_get_expr(relpartbound, leaf.oid), 'FROM \(''([^'']+)'))[1]::timestamptz > now() + %s
        )
        """,
        [keep, keep],
    )
    for (name,) in cursor.fetchall():
        cursor.execute(f"DROP TABLE {name}")
