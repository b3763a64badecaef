"""The code that the how-to guides show whole, run as it is printed there."""

from __future__ import annotations

# What the guide shows begins here.
from concurrent.futures import ThreadPoolExecutor
from unittest import skipUnless

from django.db import connection, connections
from django.test import TransactionTestCase
from rest_framework.test import APIClient, APITestCase

from example_project.payments.factories import AccountFactory
from example_project.payments.models import Charge


def charge(account, key, amount=12_50):
    client = APIClient()
    client.force_authenticate(account.owner)
    body = {"account": str(account.pk), "amount": amount, "currency": "EUR"}
    return client.post("/api/charges/", body, format="json", headers={"Idempotency-Key": key})


class RetryTests(APITestCase):
    def setUp(self):
        self.account = AccountFactory(funds=100_00)

    def test_a_retry_gets_the_first_answer_and_no_second_charge(self):
        first = charge(self.account, "order-1")
        again = charge(self.account, "order-1")
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.content == first.content
        assert again.headers["Idempotent-Replayed"] == "true"
        assert Charge.objects.count() == 1

    def test_another_amount_under_the_same_key_is_refused(self):
        charge(self.account, "order-1")
        other = charge(self.account, "order-1", amount=99_00)
        assert other.status_code == 422
        assert other.json()["type"].endswith("#key-reused")

    def test_a_refused_request_leaves_its_key_free(self):
        assert charge(self.account, "order-1", amount=-1).status_code == 400
        assert charge(self.account, "order-1").status_code == 201

    def test_keys_of_two_callers_do_not_meet(self):
        other = AccountFactory(funds=100_00)
        mine, theirs = charge(self.account, "order-1"), charge(other, "order-1")
        assert (mine.status_code, theirs.status_code) == (201, 201)
        assert Charge.objects.count() == 2


@skipUnless(connection.vendor == "postgresql", "SQLite has one writer at a time")
class RaceTests(TransactionTestCase):
    def test_of_two_at_once_one_is_made(self):
        account = AccountFactory(funds=100_00)

        def attempt(_):
            try:
                return charge(account, "order-1")
            finally:
                connections.close_all()  # each thread has its own

        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(attempt, range(2)))
        assert {answer.status_code for answer in answers} <= {201, 409}
        assert Charge.objects.count() == 1


# And here it ends.
