"""``manage.py idempotency reconcile``: what was done twice under two keys, among the payments of the example."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_idempotency.management import reconcile as reconcile_command
from django_idempotency.management.databases import FOR_A_PERSON
from django_idempotency.support import reconciling
from django_idempotency.support.reconciling import Reconciliation
from example_project.payments.factories import (
    AccountFactory,
    AuthorisedCardPaymentFactory,
    CardPaymentFactory,
    ChargeFactory,
    DeclinedCardPaymentFactory,
    DeclinedChargeFactory,
)
from example_project.payments.models import CardPayment, Charge, LedgerEntry, Transfer

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def reconcile(*arguments):
    """What it prints, and what it ends with."""
    out = StringIO()
    try:
        call_command("idempotency", "reconcile", *arguments, stdout=out)
    except CommandError as failure:
        return out.getvalue(), failure
    return out.getvalue(), None


def as_json(*arguments):
    out, failure = reconcile("--json", *arguments)
    (database,) = json.loads(out)["databases"]
    return {each["model"]: each for each in database["reconciliations"]}, failure


def ago(row, **span):
    """As if it had come about then."""
    type(row).objects.filter(pk=row.pk).update(created_at=timezone.now() - timedelta(**span))
    return row


@pytest.fixture
def account():
    return AccountFactory.create()


def test_each_once_is_nothing_to_see(account):
    ChargeFactory.create(account=account, reference="order-1")
    ChargeFactory.create(account=account, reference="order-2")
    ChargeFactory.create(account=account, reference="order-1", amount=11_00)
    ChargeFactory.create(reference="order-1")
    DeclinedChargeFactory.create(reference="order-1")
    out, failure = reconcile()
    assert failure is None
    assert out.count(": no duplicates since ") == 2


def test_a_client_that_made_a_new_key_for_its_retry(account):
    first = ago(AuthorisedCardPaymentFactory.create(account=account, reference="order-1"), seconds=40)
    second = ago(AuthorisedCardPaymentFactory.create(account=account, reference="order-1"), seconds=10)
    found, failure = as_json()
    assert (failure.returncode, str(failure)) == (FOR_A_PERSON, "Done twice: 1.")
    assert found["payments.Charge"]["duplicates"] == 0
    of = found["payments.CardPayment"]
    assert (of["duplicates"], of["window"]) == (1, 3600)
    (duplicate,) = of["first"]
    assert (duplicate["pk"], duplicate["earlier"]) == (str(second.pk), str(first.pk))
    assert duplicate["apart"] == pytest.approx(30, abs=1)
    assert duplicate["values"] == {
        "account": str(account.pk), "amount": 10_00, "currency": "EUR", "reference": "order-1",
    }  # fmt: skip
    out, _ = reconcile()
    assert f"{second.pk} repeats {first.pk} after " in out


def test_three_in_a_row_are_two_too_many(account):
    for minutes in (100, 50, 0):
        ago(ChargeFactory.create(account=account, reference="order-1"), minutes=minutes)
    assert as_json()[0]["payments.Charge"]["duplicates"] == 2, "each is within the window of the one before"


def test_what_the_business_does_not_count_is_not_counted(account):
    CardPaymentFactory.create(account=account, reference="order-1")
    DeclinedCardPaymentFactory.create(account=account, reference="order-1")
    AuthorisedCardPaymentFactory.create(account=account, reference="order-1")
    for _ in range(2):
        ChargeFactory.create(account=account, reference="")
    assert reconcile()[1] is None


@pytest.mark.parametrize(("apart", "found"), [(timedelta(minutes=59), 1), (timedelta(minutes=61), 0)])
def test_the_window(account, apart, found):
    ago(ChargeFactory.create(account=account, reference="order-1"), seconds=apart.total_seconds())
    ChargeFactory.create(account=account, reference="order-1")
    assert as_json()[0]["payments.Charge"]["duplicates"] == found


def test_from_when_on(account):
    """The earlier one of the two may be older than that."""
    ago(ChargeFactory.create(account=account, reference="order-1"), minutes=150)
    ago(ChargeFactory.create(account=account, reference="order-1"), minutes=110)
    for since, found in (("2h", 1), ("100m", 0), ("1d", 1), ((timezone.now() - 2 * HOUR).isoformat(), 1)):
        assert as_json("--since", since)[0]["payments.Charge"]["duplicates"] == found, since


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_time_with_an_offset_is_that_moment_with_and_without_time_zones(settings, use_tz):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Kolkata"
    moment = reconcile_command._moment("2026-11-30T08:00+01:00")
    assert f"{moment:%d %H:%M}" == ("30 08:00" if use_tz else "30 12:30")
    assert timezone.is_aware(moment) is use_tz
    assert timezone.is_aware(reconcile_command._moment("2026-11-30")) is use_tz


@pytest.mark.parametrize("since", ["yesterday", "5", "2026-13-01", "-1d"])
def test_times_that_are_none(since):
    assert "neither a span" in str(reconcile(f"--since={since}")[1])


def test_a_limit_shortens_the_list_and_not_the_count(account):
    for number in range(4):
        ago(ChargeFactory.create(account=account, reference="order-1"), seconds=40 - number)
    found = as_json("--limit", "2")[0]["payments.Charge"]
    assert (found["duplicates"], len(found["first"])) == (3, 2)
    assert "  and 1 more\n" in reconcile("--limit", "2")[0]
    assert as_json("--limit", "0")[0]["payments.Charge"]["duplicates"] == 3


def test_the_database_does_the_comparing(account):
    for _ in range(3):
        ChargeFactory.create(account=account, reference="order-1")
    (of,) = [each for each in reconciling.declared() if each.model is Charge]
    with CaptureQueriesContext(
        connection,
    ) as asked:
        reconciling.find("default", of, since=timezone.now() - HOUR, limit=1)
    assert len(asked) == 2
    assert "LIMIT 2" in asked[0]["sql"]
    assert "COUNT(*)" in asked[1]["sql"]


def test_a_column_that_is_empty_makes_a_row_like_no_other(account):
    ChargeFactory.create_batch(2, account=account, reference="order-1", capture=False)
    of = Reconciliation(Charge, ["account", "captured_at"], HOUR)
    assert reconciling.find("default", of, since=timezone.now() - HOUR, limit=5).count == 0


def test_a_condition_on_related_rows_makes_no_row_repeat_itself(account):
    """A charge has many entries in the ledger, and is one charge all the same."""
    ChargeFactory.create(account=account, reference="order-1")
    of = Reconciliation(Charge, ["account", "reference"], HOUR, where=Q(transfers__entries__isnull=False))
    assert reconciling.find("default", of, since=timezone.now() - HOUR, limit=5).count == 0
    ChargeFactory.create(account=account, reference="order-1")
    assert reconciling.find("default", of, since=timezone.now() - HOUR, limit=5).count == 1


def test_nothing_is_declared(monkeypatch):
    monkeypatch.setattr(reconciling, "declared", list)
    out, failure = reconcile()
    assert (out, failure.returncode) == ("", 1)
    assert "'reconciliations'" in str(failure)


def test_a_module_without_its_list(monkeypatch):
    from example_project.payments import reconciliations

    for wrong in (None, [Charge]):
        monkeypatch.setattr(reconciliations, "RECONCILIATIONS", wrong)
        assert "example_project.payments.reconciliations.RECONCILIATIONS must be" in str(reconcile()[1])


def test_the_apps_are_gone_through():
    assert {each.model for each in reconciling.declared()} == {CardPayment, Charge}
    assert apps.is_installed("example_project.payments")


# --- a declaration ---


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": "payments.Charge"}, "of a model"),
        ({"fields": "account"}, "list of names"),
        ({"fields": []}, "list of names"),
        ({"fields": ["acount"]}, "acount"),
        ({"fields": ["refunds"]}, "no column"),
        ({"window": 3600}, "time span"),
        ({"window": timedelta(0)}, "time span"),
        ({"at": "amount"}, "no DateTimeField"),
        ({"model": LedgerEntry, "fields": ["amount"]}, "at="),
    ],
)
def test_what_cannot_be_asked_is_refused_where_it_is_declared(wrong, said):
    with pytest.raises(ImproperlyConfigured, match=said):
        Reconciliation(**({"model": Charge, "fields": ["account"], "window": HOUR} | wrong))


def test_what_is_filled_in():
    of = Reconciliation(Transfer, ["kind", "memo"], HOUR, where=Q(kind="deposit"))
    assert (of.at, of.fields) == ("created_at", ("kind", "memo"))
    assert of.label == "payments.Transfer by kind, memo"
    with pytest.raises(AttributeError):
        of.window = 2 * HOUR
