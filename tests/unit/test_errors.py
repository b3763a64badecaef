"""Refusals: each has one stable name and one status, tells the client what to do, and travels between processes."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from django_idempotency.core import errors
from django_idempotency.core.errors import IdempotencyError
from django_idempotency.http.problems import STATUSES

# As published: clients branch on these, so a slug or a status that changes breaks them.
PUBLISHED = {
    "missing-key": 400,
    "malformed-key": 400,
    "malformed-first-sent": 400,
    "malformed-body": 400,
    "too-late": 410,
    "body-too-large": 413,
    "anonymous-scope": 403,
    "key-reused": 422,
    "key-expired": 422,
    "in-progress": 409,
    "lease-lost": 409,
    "held": 409,
    "response-not-stored": 409,
    "store-unavailable": 503,
    "outcome-unknown": 503,
    "transaction-conflict": 503,
    "broken-transaction": 500,
}
ARGUMENTS = {
    errors.MissingKey: ("Idempotency-Key",),
    errors.MalformedKey: ("it is empty",),
    errors.MalformedFirstSent: ("(what is wrong with it)",),
    errors.TooLate: (800_000.0, 604_800.0),
    errors.MalformedBody: ("it is not UTF-8",),
    errors.InProgress: (2.5,),
    errors.Held: (60.0,),
    errors.LeaseLost: (3.0,),
    errors.StoreUnavailable: ("OperationalError", 7.0),
    errors.OutcomeUnknown: (4.0,),
    errors.TransactionConflict: (1.0,),
    errors.ResponseNotStored: (201, [("Location", "/charges/7")]),
}


def every_error():
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, IdempotencyError)]
    return [each for each in classes if not each.__name__.startswith("_") and each is not IdempotencyError]


def instance(cls):
    return cls(*ARGUMENTS.get(cls, ()))


def test_every_error_has_a_status_and_every_status_an_error():
    assert set(STATUSES) == set(every_error())


def test_slugs_and_statuses_are_as_published_and_unique():
    slugs = [cls.slug for cls in every_error()]
    assert len(set(slugs)) == len(slugs)
    assert {cls.slug: STATUSES[cls] for cls in every_error()} == PUBLISHED
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", slug) for slug in slugs)


def test_titles_are_unique_too():
    titles = [cls.title for cls in every_error()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("cls", every_error())
def test_an_error_travels_through_pickle_with_all_it_carries(cls, protocol):
    error = instance(cls)
    arrived = pickle.loads(pickle.dumps(error, protocol))
    assert type(arrived) is cls
    assert vars(arrived) == vars(error)
    assert arrived.args == error.args
    assert (arrived.detail, arrived.retry_after, arrived.members) == (error.detail, error.retry_after, error.members)


@pytest.mark.parametrize("cls", every_error())
def test_an_error_can_be_copied(cls):
    assert vars(copy.copy(instance(cls))) == vars(instance(cls))


@pytest.mark.parametrize("cls", every_error())
def test_the_client_gets_a_sentence(cls):
    detail = instance(cls).detail
    assert detail.endswith(".")
    assert detail[0].isupper()


def test_only_what_can_succeed_on_repetition_says_when_to_repeat():
    waiting = {cls.slug for cls in every_error() if instance(cls).retry_after is not None}
    assert waiting == {
        "in-progress", "held", "lease-lost", "store-unavailable", "outcome-unknown", "transaction-conflict",
    }  # fmt: skip


def test_retry_after_is_what_was_given_or_a_second():
    assert errors.InProgress(12.5).retry_after == 12.5
    assert errors.InProgress().retry_after == 1.0
    assert errors.StoreUnavailable("why").retry_after == 1.0
    assert errors.StoreUnavailable("why", 60).retry_after == 60


def test_the_reason_of_an_outage_is_for_the_log_alone():
    error = errors.StoreUnavailable("OperationalError on db7.internal")
    assert "db7" in str(error)
    assert "db7" not in error.detail + str(dict(error.members))


def test_a_reason_is_told_to_the_client_where_the_client_can_mend_it():
    assert errors.MalformedKey("it is longer than 255 characters").detail == (
        "The idempotency key is malformed: it is longer than 255 characters."
    )
    assert "Idempotency-Key" in errors.MissingKey("Idempotency-Key").detail


def test_a_lost_response_tells_the_original_status_and_keeps_its_headers_apart():
    error = errors.ResponseNotStored(201, [("Location", "/charges/7")])
    assert error.members == {"original_status": 201}
    assert error.headers == (("Location", "/charges/7"),)
    assert errors.ResponseNotStored(204).headers == ()


def test_the_base_has_answers_to_everything_that_is_asked():
    base = IdempotencyError()
    assert (base.detail, base.retry_after, base.members) == (base.title, None, {})
