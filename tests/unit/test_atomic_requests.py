"""A protected view is out of ATOMIC_REQUESTS for Django, and keeps what the project itself said."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.db.transaction import non_atomic_requests
from django.http import HttpResponse
from django.test import RequestFactory

from django_idempotency.http.atomic_requests import TakenOut, take_out, transactions_of


def view(request):
    return HttpResponse()


def fresh_view():
    def view(request):
        return HttpResponse()

    return view


def request_to(view):
    request = RequestFactory().post("/")
    request.resolver_match = SimpleNamespace(func=view)
    return request


def opted_out(view):
    return set(transactions_of(request_to(view))._opted_out)


def test_django_hears_that_the_view_is_out_on_every_alias():
    taken = TakenOut()
    assert "default" in taken
    assert "whatever" in taken
    assert taken.by_project == frozenset()


def test_what_the_project_said_before_is_kept():
    view = non_atomic_requests(using="other")(fresh_view())
    take_out(view)
    assert opted_out(view) == {"other"}


def test_what_the_project_says_afterwards_is_kept_too():
    view = fresh_view()
    take_out(view)
    non_atomic_requests(using="other")(view)
    assert opted_out(view) == {"other"}
    assert isinstance(view._non_atomic_requests, TakenOut)


def test_two_views_never_share_a_set():
    one = non_atomic_requests(fresh_view())
    other = fresh_view()
    other._non_atomic_requests = one._non_atomic_requests  # as functools.wraps does
    take_out(other)
    non_atomic_requests(using="second")(other)
    assert one._non_atomic_requests == {"default"}
    assert opted_out(other) == {"default", "second"}


@pytest.mark.parametrize("match", [None, SimpleNamespace(), SimpleNamespace(func=view)])
def test_a_request_that_was_resolved_otherwise_opts_out_of_nothing(match):
    request = RequestFactory().post("/")
    request.resolver_match = match
    assert set(transactions_of(request)._opted_out) == set()


def test_a_view_that_was_never_taken_out_is_djangos_business():
    view = non_atomic_requests(fresh_view())
    assert opted_out(view) == set()
