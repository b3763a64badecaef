"""Decorators in an unlucky order: the view works as it was written, or is refused where it is written."""

from __future__ import annotations

from functools import wraps

import pytest
from django.http import JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView

from django_idempotency.drf import idempotent
from django_idempotency.http import idempotent_view


def bare(view):
    """A decorator that forgets functools.wraps."""

    def inner(request, *args, **kwargs):
        return view(request, *args, **kwargs)

    return inner


def polite(view):
    @wraps(view)
    def inner(request, *args, **kwargs):
        return view(request, *args, **kwargs)

    return inner


class _Site:
    def __init__(self, *patterns):
        self.urlpatterns = list(patterns)


def test_a_decorator_between_idempotent_and_api_view_is_refused():
    """It would be dropped silently, and with it perhaps the only thing that keeps strangers out."""

    @api_view(["POST"])
    def pay(request):
        return Response({})

    with pytest.raises(TypeError, match="directly above @api_view"):
        idempotent(polite(pay))
    assert idempotent(pay).cls is not pay.cls


def test_a_class_whose_dispatch_is_decorated_is_still_made_anew_as_it_was():
    @method_decorator(polite, name="dispatch")
    class Pay(APIView):
        def post(self, request):
            return Response({})

    assert issubclass(idempotent(Pay.as_view()).cls, Pay)


@pytest.mark.parametrize("wrapper", [bare, polite])
def test_idempotent_view_sees_a_rest_framework_view_below_another_decorator(wrapper):
    @api_view(["POST"])
    def pay(request):
        return Response({})

    with pytest.raises(TypeError, match="REST framework view"):
        idempotent_view(wrapper(pay))


def _on_dispatch(cls):
    return method_decorator(idempotent_view(scope=lambda request: "somebody"), name="dispatch")(cls).as_view()


def _on_as_view(cls):
    return idempotent_view(scope=lambda request: "somebody")(cls.as_view())


def _on_hidden_as_view(cls):
    return idempotent_view(scope=lambda request: "somebody")(bare(cls.as_view()))


@pytest.mark.django_db
@pytest.mark.parametrize("attach", [_on_dispatch, _on_as_view, _on_hidden_as_view])
def test_classes_below_a_careless_decorator_are_operations_of_their_own(attach, client, settings):
    """One key on two endpoints: neither may answer with what the other one recorded."""

    class Deposit(View):
        def post(self, request):
            return JsonResponse({"view": "deposit"})

    class Withdrawal(View):
        def post(self, request):
            return JsonResponse({"view": "withdrawal"})

    settings.ROOT_URLCONF = _Site(
        path("deposit/", bare(attach(Deposit))), path("withdrawal/", bare(attach(Withdrawal)))
    )
    answers = [client.post(f"/{name}/", headers={"Idempotency-Key": "one"}) for name in ("deposit", "withdrawal")]
    assert [answer.json()["view"] for answer in answers] == ["deposit", "withdrawal"]
    again = client.post("/deposit/", headers={"Idempotency-Key": "one"})
    assert (again.json()["view"], again.headers["Idempotent-Replayed"]) == ("deposit", "true")
