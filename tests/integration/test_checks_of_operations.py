"""What ``manage.py check`` says of operations that are declared in a way that cannot end well."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_idempotency.checks import check_operations
from django_idempotency.core.operations import registry
from django_idempotency.operations import operation

pytestmark = pytest.mark.django_db


@pytest.fixture
def faults(monkeypatch):
    """The ids of what is said of an operation that is declared like this."""
    monkeypatch.setattr(registry, "_definitions", {})

    def faults(**terms):
        operation("tests.checked", **terms)(lambda op: op.finish(dict))
        messages = check_operations()
        assert all(message.obj == "tests.checked" and message.hint for message in messages)
        return {message.id.removeprefix("django_idempotency.") for message in messages}

    return faults


@pytest.mark.parametrize(
    ("call_timeout", "said"),
    [(timedelta(minutes=14), set()), (timedelta(minutes=15), {"W040"}), (timedelta(hours=1), {"W040"})],
)
def test_a_call_that_outlasts_the_renewal_of_its_lease(faults, call_timeout, said):
    assert faults(call_timeout=call_timeout, downstream_takes_keys=True) == said


def test_the_cap_that_counts_is_the_projects(faults, settings):
    settings.IDEMPOTENCY = {"RENEWAL_CAP": timedelta(hours=2)}
    assert faults(call_timeout=timedelta(hours=1), downstream_takes_keys=True) == set()


# Three quarters of it, against a lease of 30 s, stale_after of 20 s and a minute until the next sweep.
@pytest.mark.parametrize(("remembered", "said"), [(148, set()), (146, {"W041"}), (1, {"W041"})])
def test_a_call_that_no_sweeper_reaches_in_time(faults, remembered, said):
    assert faults(downstream_takes_keys=True, downstream_retention=timedelta(seconds=remembered)) == said


def test_what_is_a_persons_anyway_needs_no_time(faults):
    assert faults(downstream_retention=timedelta(seconds=1)) == set()


def test_faults_of_the_settings_come_first(faults, settings):
    settings.IDEMPOTENCY = {"LAESE": 1}
    assert faults(call_timeout=timedelta(hours=1)) == set()


def test_the_example_has_none():
    assert check_operations() == []
