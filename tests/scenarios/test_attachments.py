"""However it is attached, it works, or it fails before the handler's body runs; nothing runs unprotected in silence."""

from __future__ import annotations

from functools import wraps

import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from rest_framework.decorators import action, api_view
from rest_framework.generics import CreateAPIView
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet, ModelViewSet, ViewSet

from django_idempotency import IdempotencyPolicy
from django_idempotency.drf import IdempotencyMixin, idempotent
from django_idempotency.http import idempotent_view

from .site import assert_replays, effect, records, rows


def acts(self=None, request=None, *args, **kwargs):
    """The body of a REST framework handler."""
    return Response({"row": str(effect().pk)}, status=201)


def handler(name="post"):
    """A new function each time: marks stand on it."""

    def method(self, request, *args, **kwargs):
        return acts()

    method.__name__ = method.__qualname__ = name
    return method


def plain(request=None, *args, **kwargs):
    """The body of a Django view."""
    return HttpResponse(str(effect().pk), status=201)


def plain_function():
    def view(request):
        return plain()

    return view


def plain_method(self, request, *args, **kwargs):
    return plain()


def with_wraps(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def without_wraps(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def view_class(*bases, **members):
    return type("Things", bases, {"__module__": __name__, **members})


def viewset(create, policy=None, base=ViewSet):
    members = {"create": create} if policy is None else {"create": create, "idempotency_policy": policy}
    return view_class(IdempotencyMixin, base, **members).as_view({"post": "create"})


NONE = {"idempotency_policy": None}

WORKS = {
    # the mixin
    "mixin before the view class": lambda: view_class(IdempotencyMixin, APIView, post=handler()).as_view(),
    "mixin before a generic view": lambda: view_class(IdempotencyMixin, CreateAPIView, post=handler()).as_view(),
    "mixin inherited": lambda: view_class(view_class(IdempotencyMixin, APIView), post=handler()).as_view(),
    "mixin in a base without a view": lambda: view_class(
        view_class(IdempotencyMixin), APIView, post=handler()
    ).as_view(),
    "mixin behind a mixin": lambda: view_class(
        LoginRequiredMixin, IdempotencyMixin, APIView, post=handler()
    ).as_view(),
    "mixin in front of a mixin": lambda: view_class(
        IdempotencyMixin, LoginRequiredMixin, APIView, post=handler()
    ).as_view(),
    "mixin, class decorated": lambda: method_decorator(never_cache, name="dispatch")(
        view_class(IdempotencyMixin, APIView, post=handler())
    ).as_view(),
    "mixin, view decorated": lambda: never_cache(view_class(IdempotencyMixin, APIView, post=handler()).as_view()),
    # the mark
    "mark": lambda: viewset(idempotent(handler("create")), None),
    "mark with parentheses": lambda: viewset(idempotent()(handler("create"))),
    "mark with a policy": lambda: viewset(idempotent(IdempotencyPolicy())(handler("create"))),
    "mark without a policy of the class": lambda: view_class(
        IdempotencyMixin, APIView, post=idempotent(handler()), **NONE
    ).as_view(),
    "mark below a decorator": lambda: viewset(with_wraps(idempotent(handler("create")))),
    "mark above a decorator": lambda: viewset(idempotent(with_wraps(handler("create")))),
    "mark above a careless decorator": lambda: viewset(idempotent(without_wraps(handler("create")))),
    "mark below method_decorator": lambda: viewset(method_decorator(never_cache)(idempotent(handler("create")))),
    "mark through method_decorator": lambda: method_decorator(idempotent(), name="post")(
        view_class(IdempotencyMixin, APIView, post=handler(), **NONE)
    ).as_view(),
    "mark in a base class": lambda: view_class(
        view_class(IdempotencyMixin, APIView, post=idempotent(handler()), **NONE)
    ).as_view(),
    # @api_view
    "above api_view": lambda: idempotent(api_view(["POST"])(lambda request: acts())),
    "above api_view, with fields": lambda: idempotent(required=True)(api_view(["POST"])(lambda request: acts())),
    "above a decorated function": lambda: idempotent(api_view(["POST"])(with_wraps(lambda request: acts()))),
    "above api_view, below a decorator": lambda: never_cache(idempotent(api_view(["POST"])(lambda request: acts()))),
    "above as_view": lambda: idempotent(view_class(APIView, post=handler()).as_view()),
    # plain views
    "function": lambda: idempotent_view(plain_function()),
    "function with parentheses": lambda: idempotent_view()(plain_function()),
    "function with a policy": lambda: idempotent_view(IdempotencyPolicy())(plain_function()),
    "function below decorators": lambda: csrf_exempt(require_POST(login_required(idempotent_view(plain_function())))),
    "function above decorators": lambda: idempotent_view(csrf_exempt(require_POST(login_required(plain_function())))),
    "function below a careless decorator": lambda: without_wraps(idempotent_view(plain_function())),
    "function above a careless decorator": lambda: idempotent_view(without_wraps(plain_function())),
    "class": lambda: idempotent_view(view_class(View, post=plain_method)).as_view(),
    "class with parentheses": lambda: idempotent_view()(view_class(View, post=plain_method)).as_view(),
    "as_view": lambda: idempotent_view(view_class(View, post=plain_method).as_view()),
    "dispatch through method_decorator": lambda: method_decorator(idempotent_view, name="dispatch")(
        view_class(View, post=plain_method)
    ).as_view(),
    "dispatch through method_decorator, with fields": lambda: method_decorator(
        idempotent_view(required=True), name="dispatch"
    )(view_class(View, post=plain_method)).as_view(),
    "post through method_decorator": lambda: method_decorator(idempotent_view, name="post")(
        view_class(View, post=plain_method)
    ).as_view(),
    "post of a class behind LoginRequiredMixin": lambda: method_decorator(idempotent_view, name="post")(
        view_class(LoginRequiredMixin, View, post=plain_method)
    ).as_view(),
    "class behind login_required": lambda: login_required(idempotent_view(view_class(View, post=plain_method).as_view())),
    "subclass of a decorated class": lambda: view_class(
        idempotent_view(view_class(View)), post=plain_method
    ).as_view(),
}  # fmt: skip


async def asynchronous(*args):
    return HttpResponse(str(effect().pk))


async def asynchronous_method(self, request):
    return HttpResponse(str(effect().pk))


REFUSED_WHEN_MADE = {
    "mixin behind the view class": lambda: view_class(APIView, IdempotencyMixin, post=handler()),
    "mixin behind a viewset": lambda: view_class(ViewSet, IdempotencyMixin, create=handler("create")),
    "mixin behind a model viewset": lambda: view_class(ModelViewSet, IdempotencyMixin),
    "mixin behind a view of the project": lambda: view_class(view_class(APIView, post=handler()), IdempotencyMixin),
    "mixin between two views": lambda: view_class(view_class(APIView), IdempotencyMixin, GenericViewSet),
    "mixin on a plain view": lambda: view_class(IdempotencyMixin, View, post=plain_method),
    "a policy that is none": lambda: view_class(IdempotencyMixin, APIView, idempotency_policy={"required": True}),
    "mark on a class": lambda: idempotent(view_class(APIView, post=handler())),
    "mark on a class with the mixin": lambda: idempotent()(view_class(IdempotencyMixin, APIView, post=handler())),
    "mark on a plain class": lambda: idempotent(view_class(View, post=plain_method)),
    "mark on nothing": lambda: idempotent(required=True)("create"),
    "mark on get": lambda: view_class(IdempotencyMixin, APIView, get=idempotent(handler("get"))),
    "mark on an action that reads": lambda: view_class(
        IdempotencyMixin, ViewSet, go=action(detail=False)(idempotent(handler("go")))
    ),
    "mark on dispatch": lambda: view_class(IdempotencyMixin, APIView, dispatch=idempotent(handler("dispatch"))),
    "mark on an asynchronous handler": lambda: idempotent(asynchronous_method),
    "mark on a viewset's view": lambda: idempotent(
        view_class(ViewSet, create=handler("create")).as_view({"post": "create"})
    ),
    "mark on a protected view": lambda: idempotent(view_class(IdempotencyMixin, APIView, post=handler()).as_view()),
    "mark far above api_view": lambda: idempotent(login_required(api_view(["POST"])(lambda request: acts()))),
    "mark twice on api_view": lambda: idempotent(idempotent(api_view(["POST"])(lambda request: acts()))),
    "a field that does not exist": lambda: idempotent(max_wiat=1),
    "idempotent_view on a REST framework class": lambda: idempotent_view(view_class(APIView, post=handler())),
    "idempotent_view on its view": lambda: idempotent_view(view_class(APIView, post=handler()).as_view()),
    "idempotent_view on a viewset's view": lambda: idempotent_view(viewset(handler("create"))),
    "idempotent_view on api_view": lambda: idempotent_view(api_view(["POST"])(lambda request: acts())),
    "idempotent_view far above api_view": lambda: idempotent_view(
        never_cache(api_view(["POST"])(lambda request: acts()))
    ),
    "idempotent_view over idempotent": lambda: idempotent_view(idempotent(api_view(["POST"])(lambda request: acts()))),
    "idempotent_view on an asynchronous function": lambda: idempotent_view(asynchronous),
    "idempotent_view on an asynchronous class": lambda: idempotent_view(view_class(View, post=asynchronous_method)),
    "idempotent_view on its view, asynchronous": lambda: idempotent_view(
        view_class(View, post=asynchronous_method).as_view()
    ),
    "idempotent_view on a class with LoginRequiredMixin": lambda: idempotent_view(
        view_class(LoginRequiredMixin, View, post=plain_method)
    ),
    "idempotent_view on its view, with LoginRequiredMixin": lambda: idempotent_view(
        view_class(LoginRequiredMixin, View, post=plain_method).as_view()
    ),
    "idempotent_view on a name": lambda: idempotent_view()("shop.views.pay"),
    "idempotent_view, a field that does not exist": lambda: idempotent_view(scop=len),
}  # fmt: skip

REFUSED_BEFORE_THE_BODY = {
    "mark without the mixin": lambda: view_class(APIView, post=idempotent(handler())).as_view(),
    "mark on an action without the mixin": lambda: view_class(
        ViewSet, go=action(detail=False, methods=["post"])(idempotent(handler("go")))
    ).as_view({"post": "go"}),
    "mark below api_view": lambda: api_view(["POST"])(idempotent(lambda request: acts())),
    "mark below a careless decorator": lambda: viewset(without_wraps(idempotent(handler("create")))),
    "mark below a careless decorator, without a policy": lambda: view_class(
        IdempotencyMixin, ViewSet, create=without_wraps(idempotent(handler("create"))), **NONE
    ).as_view({"post": "create"}),
    "mark twice": lambda: viewset(idempotent(idempotent(handler("create")))),
    "mark on what the handler calls": lambda: view_class(
        IdempotencyMixin,
        ViewSet,
        create=lambda self, request: self.go(request),
        go=idempotent(handler("go")),
        **NONE,
    ).as_view({"post": "create"}),
    "mark on a plain function": lambda: idempotent(plain_function()),
    "mark on a plain view": lambda: idempotent(view_class(View, post=plain_method).as_view()),
    "mark in a plain class": lambda: view_class(View, post=idempotent(plain_method)).as_view(),
    "idempotent_view on a method": lambda: view_class(View, post=idempotent_view(plain_method)).as_view(),
    "idempotent_view twice": lambda: idempotent_view(idempotent_view(plain_function())),
    "idempotent_view on dispatch with LoginRequiredMixin": lambda: method_decorator(idempotent_view, name="dispatch")(
        view_class(LoginRequiredMixin, View, post=plain_method)
    ).as_view(),
}


UNSEEN = (
    "function below a careless decorator",
    "post through method_decorator",
    "post of a class behind LoginRequiredMixin",
)
"""Django cannot see below these that ours opens the transactions of ATOMIC_REQUESTS itself."""


@pytest.mark.parametrize(
    ("attach", "atomic_requests"),
    [pytest.param(attach, False, id=name) for name, attach in WORKS.items()]
    + [
        pytest.param(attach, True, id=f"{name}-ATOMIC_REQUESTS") for name, attach in WORKS.items() if name not in UNSEEN
    ],
)
def test_works(committed, site, in_atomic_requests, attach, atomic_requests):
    in_atomic_requests(atomic_requests)
    site.add(attach())
    first = site.send()
    assert first.status_code == 201
    assert_replays(site.send(), first)
    assert (rows(), records("sealed")) == (1, 1)
    assert site.send(None).status_code == 400


@pytest.mark.parametrize("attach", REFUSED_WHEN_MADE.values(), ids=REFUSED_WHEN_MADE)
def test_refused_when_made(attach):
    with pytest.raises((TypeError, ValueError)):
        attach()


@pytest.mark.parametrize("attach", REFUSED_BEFORE_THE_BODY.values(), ids=REFUSED_BEFORE_THE_BODY)
def test_refused_before_the_body(committed, site, attach):
    site.add(attach())
    for key in ("k", None):
        assert site.send(key).status_code in (400, 500)
    assert (rows(), records()) == (0, 0)


@pytest.mark.parametrize("attach", [WORKS[name] for name in UNSEEN], ids=UNSEEN)
def test_unseen_under_atomic_requests_it_is_loud(committed, site, in_atomic_requests, attach):
    in_atomic_requests()
    site.add(attach())
    site.client("ann").raise_request_exception = True
    with pytest.raises(ImproperlyConfigured, match="around an idempotent view"):
        site.send()
    assert (rows(), records()) == (0, 0)


def test_the_word_is_clear(committed, site):
    site.add(view_class(APIView, post=idempotent(handler())).as_view())
    site.client("ann").raise_request_exception = True
    with pytest.raises(ImproperlyConfigured, match="needs IdempotencyMixin"):
        site.send()


@pytest.mark.parametrize(
    "view",
    [
        idempotent_view(lambda request: effect() and None),
        idempotent_view(lambda request: effect() and "201"),
        view_class(IdempotencyMixin, APIView, post=lambda self, request: effect() and None).as_view(),
    ],
    ids=["nothing", "text", "nothing from the REST framework"],
)
def test_what_is_no_response_has_no_effect(committed, site, view):
    site.add(view)
    assert site.send().status_code == 500
    assert (rows(), records()) == (0, 0)


def test_a_method_that_the_view_lacks_leaves_no_record(committed, site):
    site.add(view_class(IdempotencyMixin, APIView, put=handler("put")).as_view(), "rest")
    site.add(idempotent_view(require_POST(plain_function())), "plain")
    for to in ("/rest/", "/plain/"):
        assert site.send(to=to, method="PATCH").status_code == 405
    assert (rows(), records()) == (0, 0)
    assert site.send(to="/plain/").status_code == 201
