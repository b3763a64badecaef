"""Refusals over HTTP: RFC 9457 documents whose bytes are ours."""

from __future__ import annotations

import json

import pytest

from django_idempotency.core import errors
from django_idempotency.http.problems import STATUSES, problem_response


def make(cls):
    arguments = {
        errors.MissingKey: ("Idempotency-Key",),
        errors.MalformedKey: ("it is empty",),
        errors.MalformedFirstSent: ("(what is wrong with it)",),
        errors.TooLate: (800_000.0, 604_800.0),
        errors.MalformedBody: ("it is not UTF-8",),
        errors.StoreUnavailable: ("secret-host is down",),
        errors.ResponseNotStored: (201,),
    }
    return cls(*arguments.get(cls, ()))


@pytest.mark.parametrize("cls", STATUSES)
def test_each_refusal_is_a_problem_document(cls):
    error = make(cls)
    response = problem_response(error)
    assert response.status_code == STATUSES[cls]
    assert response["Content-Type"] == "application/problem+json"
    assert response["Cache-Control"] == "no-store"
    document = json.loads(response.content)
    assert document["type"].endswith(f"#{cls.slug}")
    assert document["title"] == cls.title
    assert document["status"] == STATUSES[cls]
    assert document["detail"] == error.detail
    assert b"secret-host" not in response.content


@pytest.mark.parametrize("cls", STATUSES)
def test_retry_after_is_there_exactly_where_a_repetition_can_succeed(cls):
    error = make(cls)
    assert ("Retry-After" in problem_response(error)) is (error.retry_after is not None)


@pytest.mark.parametrize(
    ("seconds", "header"), [(0, "1"), (-5, "1"), (0.01, "1"), (1.0, "1"), (1.001, "2"), (29.5, "30"), (60, "60")]
)
def test_retry_after_is_whole_seconds_never_too_early_and_never_zero(seconds, header):
    assert problem_response(errors.InProgress(seconds))["Retry-After"] == header


def test_the_base_of_the_type_is_a_setting(settings):
    settings.IDEMPOTENCY = {"PROBLEM_BASE_URI": "https://errors.example/"}
    document = json.loads(problem_response(errors.KeyReused()).content)
    assert document["type"] == "https://errors.example/key-reused"


def test_an_answer_that_was_not_kept_tells_its_status_and_place():
    response = problem_response(errors.ResponseNotStored(201, [("Location", "/charges/7")]))
    assert response.status_code == 409
    assert response["Location"] == "/charges/7"
    assert json.loads(response.content)["original_status"] == 201


def test_html_where_html_was_asked_for_with_nothing_unescaped():
    error = errors.MalformedKey("it has <script>")
    response = problem_response(error, html=True)
    assert response.status_code == 400
    assert response["Content-Type"].startswith("text/html")
    assert b"<script>" not in response.content
    assert b"&lt;script&gt;" in response.content
    assert problem_response(errors.Held(60), html=True)["Retry-After"] == "60"
