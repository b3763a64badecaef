"""``@idempotent`` on methods that others override, call, or are called by."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from rest_framework.generics import CreateAPIView, DestroyAPIView, UpdateAPIView
from rest_framework.response import Response
from rest_framework.serializers import ModelSerializer
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet

from django_idempotency import IdempotencyMode
from django_idempotency.drf import IdempotencyMixin, idempotent
from django_idempotency.models import IdempotencyKey

from .site import assert_replays, problem, records

pytestmark = pytest.mark.usefixtures("committed")


class GroupSerializer(ModelSerializer[Group]):
    class Meta:
        model = Group
        fields = ("id", "name")


def marked(name, **terms):
    """A handler that passes on to the framework's, under a mark."""

    def handler(self, request, *args, **kwargs):
        return getattr(super(self.Marked, self), name)(request, *args, **kwargs)

    handler.__name__ = name
    return idempotent(**terms)(handler)


def marking(base, *handlers, **members):
    """A view of groups without a policy of its own, with marks on these handlers."""
    given = {"queryset": Group.objects.all(), "serializer_class": GroupSerializer, "idempotency_policy": None}
    cls = type("Groups", (IdempotencyMixin, base), given | {each.__name__: each for each in handlers} | members)
    cls.Marked = cls
    return cls


ROUTES = {"get": "list", "post": "create", "put": "update", "patch": "partial_update", "delete": "destroy"}


@pytest.mark.parametrize(
    ("base", "handler", "method"),
    [
        (ModelViewSet, "update", "PUT"),
        (ModelViewSet, "update", "PATCH"),
        (ModelViewSet, "partial_update", "PATCH"),
        (CreateAPIView, "create", "POST"),
        (UpdateAPIView, "update", "PUT"),
        (UpdateAPIView, "update", "PATCH"),
        (UpdateAPIView, "partial_update", "PATCH"),
        (DestroyAPIView, "destroy", "DELETE"),
    ],
)
def test_a_mark_stands_for_the_frameworks_own_method_in_front_of_it(site, base, handler, method):
    cls = marking(base, marked(handler))
    site.add(cls.as_view(**({"actions": ROUTES} if base is ModelViewSet else {})))
    group = Group.objects.create(name="one")
    cls.lookup_url_kwarg = "thing"
    to = "/things/" if method == "POST" else f"/things/{group.pk}/"
    first = site.send(None, {"name": "two"}, method=method, to=to)
    assert problem(first) == "missing-key"
    first = site.send("k", {"name": "two"}, method=method, to=to)
    assert first.status_code in (200, 201, 204)
    assert_replays(site.send("k", {"name": "two"}, method=method, to=to), first)
    assert records("sealed") == 1


def test_of_two_marks_on_the_way_the_first_one_is_obeyed(site):
    cls = marking(ModelViewSet, marked("update"), marked("partial_update", mode=IdempotencyMode.LEASED))
    cls.lookup_url_kwarg = "thing"
    site.add(cls.as_view(actions=ROUTES))
    group = Group.objects.create(name="one")
    for method, mode in (("PATCH", "leased"), ("PUT", "atomic")):
        first = site.send(method, {"name": method}, method=method, to=f"/things/{group.pk}/")
        assert first.status_code == 200
        assert_replays(site.send(method, {"name": method}, method=method, to=f"/things/{group.pk}/"), first)
        assert IdempotencyKey.objects.get(key=method).mode == mode


class Base(IdempotencyMixin, APIView):
    idempotency_policy = None

    @idempotent
    def post(self, request):
        return Response({"group": Group.objects.create(name=request.data["name"]).pk}, status=201)


def test_a_method_that_overrides_a_marked_one_and_calls_it_is_under_its_own_mark(site):
    class Things(Base):
        @idempotent(mode=IdempotencyMode.LEASED)
        def post(self, request):
            return super().post(request)

    site.add(Things.as_view())
    first = site.send(body={"name": "one"})
    assert first.status_code == 201
    assert_replays(site.send(body={"name": "one"}), first)
    assert IdempotencyKey.objects.get().mode == "leased"


def test_without_a_mark_of_its_own_it_cannot_call_it(site):
    class Things(Base):
        def post(self, request):
            return super().post(request)

    site.add(Things.as_view())
    site.client("ann").raise_request_exception = True
    with pytest.raises(Exception, match="a method that calls a marked one needs a mark of its own"):
        site.send(body={"name": "one"})
    assert not Group.objects.exists()
