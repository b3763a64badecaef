"""How often a request waits for the server, counted on the wire: with its claim and with its seal, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections
from django.http import JsonResponse
from django.test import Client
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency import IdempotencyMode, retention
from django_idempotency.drf import IdempotencyMixin, idempotent
from django_idempotency.failpoints import arm
from django_idempotency.http import idempotent_view
from tests.support.fixtures import committed, quick_flush
from tests.support.modes import TRANSACTIONAL
from tests.support.wire import Wire

__all__ = ["committed", "quick_flush"]

EFFECT = "auth_group"
CLAIM_AND_BEGIN = ["BEGIN", "claim", "COMMIT", "limit_silence"]
SEAL_AND_COMMIT = ["SAVEPOINT", "seal", "COMMIT"]
LOOK = "django_content_type"


class Known(BaseAuthentication):
    """Somebody who costs no query, unless the request says so."""

    def authenticate(self, request):
        if "look" in request.query_params:
            with connection.cursor() as cursor:
                cursor.execute('SELECT count(*) FROM "django_content_type"')
        return SimpleNamespace(pk=5, is_authenticated=True), None


def answer(request):
    if "refuse" in request.GET:
        return 400
    Group.objects.create(name=str(uuid4()))
    return 201


class Plain(APIView):
    authentication_classes = (Known,)

    def post(self, request):
        return Response({}, status=answer(request._request))


class OneView:
    """A ROOT_URLCONF."""

    def __init__(self, view):
        self.urlpatterns = [path("", view)]


def through_mixin(mode, **fields):
    class Protected(IdempotencyMixin, Plain):
        @idempotent(mode=mode, **fields)
        def post(self, request):
            return super().post(request)

    return Protected.as_view()


def through_decorator(mode, **fields):
    @idempotent_view(mode=mode, scope=lambda request: "somebody", **fields)
    def protected(request):
        return JsonResponse({}, status=answer(request))

    return protected


@pytest.fixture(params=[through_mixin, through_decorator], ids=["mixin", "decorator"])
def way(request):
    return request.param


@pytest.fixture
def send(committed, settings):
    """POST to a view and say what went over the wire meanwhile."""
    if connection.vendor != "postgresql":
        pytest.skip("this is about PostgreSQL")

    def send(view, *, key: str | None = "", query: str = "") -> list[list[str]]:
        settings.ROOT_URLCONF = OneView(view)
        headers = {} if key is None else {"Idempotency-Key": key or str(uuid4())}
        with Wire(connection) as wire:
            response = Client().post("/" + query, {}, content_type="application/json", headers=headers)
        assert response.status_code == (400 if "refuse" in query else 201), response.content
        return wire.round_trips

    return send


@pytest.fixture
def atomic_requests(monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.fixture
def server_side_binding(committed, monkeypatch):
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    yield
    connection.close()


def test_a_fresh_request_in_atomic_mode_claims_in_one_and_seals_in_another(send, way):
    trips = send(way(IdempotencyMode.ATOMIC))
    assert trips == [["BEGIN", "claim", "SAVEPOINT"], [EFFECT], SEAL_AND_COMMIT]


def test_a_fresh_request_in_leased_mode_claims_in_a_transaction_of_its_own(send, way):
    trips = send(way(IdempotencyMode.LEASED))
    assert trips == [CLAIM_AND_BEGIN, [EFFECT], SEAL_AND_COMMIT]


@pytest.mark.parametrize("mode", TRANSACTIONAL)
def test_there_is_a_moment_between_seal_and_commit_where_a_test_asks_for_one(send, way, mode):
    arm("after_seal:raise@/dev/null")  # which exists, so nobody is the first to make it
    try:
        assert send(way(mode))[1:] == [[EFFECT], ["seal"], ["COMMIT"]]
    finally:
        arm("")


def test_a_replay_is_one_statement(send, way):
    atomic, leased, key = way(IdempotencyMode.ATOMIC), way(IdempotencyMode.LEASED), str(uuid4())
    send(atomic, key=key)
    assert send(atomic, key=key) == [["BEGIN", "claim", "SAVEPOINT"], ["COMMIT"]]
    assert send(leased, key=key) == [CLAIM_AND_BEGIN, ["ROLLBACK"]]


def test_a_released_key_costs_the_rollback_and_in_leased_mode_a_transaction_more(send, way):
    assert send(way(IdempotencyMode.ATOMIC), query="?refuse") == [["BEGIN", "claim", "SAVEPOINT"], ["ROLLBACK"]]
    assert send(way(IdempotencyMode.LEASED), query="?refuse") == [
        CLAIM_AND_BEGIN,
        ["ROLLBACK"],
        ["DELETE FROM idempotency_key_in_flight"],
    ]


@pytest.mark.parametrize("mode", TRANSACTIONAL)
def test_without_a_key_a_request_is_as_if_unprotected(send, way, mode):
    assert send(way(mode, required=False), key=None) == send(Plain.as_view(), key=None) == [[EFFECT]]


def test_what_atomic_requests_gave_is_one_pair_still(send, way, atomic_requests):
    assert send(Plain.as_view()) == [["BEGIN"], [EFFECT], ["COMMIT"]]
    assert send(way(IdempotencyMode.ATOMIC)) == [["BEGIN", "claim", "SAVEPOINT"], [EFFECT], SEAL_AND_COMMIT]
    assert send(way(IdempotencyMode.LEASED)) == [CLAIM_AND_BEGIN, [EFFECT], SEAL_AND_COMMIT]


def test_a_transaction_that_authentication_began_carries_the_claim_or_costs_a_pair(send, atomic_requests):
    assert send(Plain.as_view(), query="?look") == [["BEGIN"], [LOOK], [EFFECT], ["COMMIT"]]
    assert send(through_mixin(IdempotencyMode.ATOMIC), query="?look") == [
        ["BEGIN"],
        [LOOK],
        ["claim", "SAVEPOINT"],
        [EFFECT],
        SEAL_AND_COMMIT,
    ]
    assert send(through_mixin(IdempotencyMode.LEASED), query="?look") == [
        ["BEGIN"],
        [LOOK],
        ["COMMIT"],
        CLAIM_AND_BEGIN,
        [EFFECT],
        SEAL_AND_COMMIT,
    ]


def test_with_server_side_binding_nothing_travels(send, way, server_side_binding):
    assert send(way(IdempotencyMode.ATOMIC)) == [
        ["BEGIN"],
        ["claim"],
        ["SAVEPOINT"],
        [EFFECT],
        ["seal"],
        ["RELEASE SAVEPOINT"],
        ["COMMIT"],
    ]
    assert send(way(IdempotencyMode.LEASED)) == [["claim"], ["BEGIN", "limit_silence"], [EFFECT], ["seal"], ["COMMIT"]]


def test_how_far_the_partitions_reach_is_asked_beside_the_request(send, way):
    view = way(IdempotencyMode.ATOMIC)
    usual = send(view)
    retention.forget_reach("default")
    assert send(view) == usual


def test_a_project_with_the_app_starts_without_a_database():
    code = (
        "import django, importlib, pkgutil; django.setup(); import django_idempotency as app, django.urls\n"
        "for each in pkgutil.walk_packages(app.__path__, 'django_idempotency.'): importlib.import_module(each.name)\n"
        "django.urls.resolve('/api/charges/')\n"
    )
    nowhere = {
        "DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing",
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | nowhere, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
