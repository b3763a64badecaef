"""The example's API: what customers and providers get to hear, and to hear again."""

from __future__ import annotations

import json
import time
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from example_project.payments import ledger, webhooks
from example_project.payments.factories import (
    AccountFactory,
    AuthorisedChargeFactory,
    ChargeFactory,
    TokenFactory,
)
from example_project.payments.models import Account, Charge, Refund, Transfer

pytestmark = pytest.mark.django_db

ACME = "acme"


@pytest.fixture
def account():
    return AccountFactory(funds=100)


@pytest.fixture
def customer(account):
    return client_of(account)


@pytest.fixture(autouse=True)
def books_close():
    yield
    assert ledger.is_balanced()


def client_of(account: Account) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {TokenFactory(user=account.owner).key}")
    return client


def post(client, path, body=None, key=None):
    headers = {"Idempotency-Key": key or str(uuid4())}
    return client.post(path, body or {}, format="json", headers=headers)


def twice(client, path, body=None):
    """Send a request and its retry; what is said of the answer holds for both."""
    key = str(uuid4())
    first, again = post(client, path, body, key), post(client, path, body, key)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (first.status_code, first.content) == (again.status_code, again.content)
    return first


def charge_of(account, amount=40, **fields):
    return {"account": str(account.pk), "amount": amount, "currency": "EUR", **fields}


class TestCharges:
    def test_a_charge_and_its_retry(self, customer, account):
        response = twice(customer, "/api/charges/", charge_of(account, reference="order 7"))
        assert response.status_code == 201
        charge = Charge.objects.get()
        assert response.headers["Location"] == f"http://testserver/api/charges/{charge.pk}/"
        assert (charge.status, charge.reference, charge.transfers.count()) == ("captured", "order 7", 1)
        assert ledger.balance(account) == 60

    def test_a_decline_is_recorded_and_replayed(self, customer, account):
        response = twice(customer, "/api/charges/", charge_of(account, 101))
        assert (response.status_code, response.json()["status"]) == (402, "declined")
        assert Charge.objects.get().status == "declined"
        assert ledger.balance(account) == 100

    @pytest.mark.parametrize(
        "wrong",
        [{"amount": 0}, {"amount": -1}, {"amount": 10**13}, {"amount": "much"}, {"currency": "eur"},
         {"currency": "USD"}, {"account": "mine"}],
        ids=str,
    )  # fmt: skip
    def test_a_wrong_request_leaves_the_key_free(self, customer, account, wrong):
        key = str(uuid4())
        assert post(customer, "/api/charges/", {**charge_of(account), **wrong}, key).status_code == 400
        assert post(customer, "/api/charges/", charge_of(account), key).status_code == 201

    def test_others_accounts_and_charges_do_not_exist(self, customer):
        others = AuthorisedChargeFactory()
        assert post(customer, "/api/charges/", charge_of(others.account)).status_code == 404
        for path in ("", "capture/", "refund/"):
            answer = customer.get if not path else lambda url: post(customer, url)
            assert answer(f"/api/charges/{others.pk}/{path}").status_code == 404
        assert customer.get("/api/charges/").json()["results"] == []
        assert customer.get(f"/api/accounts/{others.account.pk}/").status_code == 404

    def test_a_list_needs_no_query_for_each_charge(self, customer, account, django_assert_max_num_queries):
        for _ in range(3):
            ChargeFactory(account=account, amount=10)
        with django_assert_max_num_queries(4):  # the token, the count, the charges, their refunds
            assert len(customer.get("/api/charges/").json()["results"]) == 3

    def test_a_stranger_is_asked_for_a_token(self, account):
        response = post(APIClient(), "/api/charges/", charge_of(account))
        assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Token")


class TestCaptureAndRefund:
    def test_a_capture_and_its_retry(self, customer, account):
        charge = AuthorisedChargeFactory(account=account, amount=40)
        response = twice(customer, f"/api/charges/{charge.pk}/capture/")
        assert (response.status_code, response.json()["status"]) == (200, "captured")
        assert charge.transfers.filter(kind=Transfer.Kind.CAPTURE).count() == 1

    def test_a_capture_that_is_not_possible_is_a_result(self, customer, account):
        charge = ChargeFactory(account=account, amount=40)
        assert twice(customer, f"/api/charges/{charge.pk}/capture/").status_code == 409

    def test_a_refund_and_its_retry(self, customer, account):
        charge = ChargeFactory(account=account, amount=40)
        response = twice(customer, f"/api/charges/{charge.pk}/refund/", {"amount": 15})
        assert response.status_code == 201
        assert Refund.objects.get().amount == 15
        assert customer.get(f"/api/charges/{charge.pk}/").json()["refunded"] == 15
        assert ledger.balance(account) == 75

    def test_no_more_is_refunded_than_was_charged(self, customer, account):
        charge = ChargeFactory(account=account, amount=40)
        assert twice(customer, f"/api/charges/{charge.pk}/refund/", {"amount": 41}).status_code == 409
        assert not Refund.objects.exists()

    def test_a_key_of_one_charge_does_not_fit_another(self, customer, account):
        one, other = (ChargeFactory(account=account, amount=40) for _ in range(2))
        assert post(customer, f"/api/charges/{one.pk}/refund/", {}, "k").status_code == 201
        assert post(customer, f"/api/charges/{other.pk}/refund/", {}, "k").status_code == 422
        assert Refund.objects.count() == 1


class TestMoves:
    def move(self, source, target, amount=30):
        return {"from_account": str(source.pk), "to_account": str(target.pk), "amount": amount}

    @pytest.fixture
    def savings(self, account):
        return AccountFactory(owner=account.owner, funds=0)

    def test_a_move_and_its_retry(self, customer, account, savings):
        assert twice(customer, "/api/moves/", self.move(account, savings)).status_code == 201
        assert (ledger.balance(account), ledger.balance(savings)) == (70, 30)

    def test_a_decline_that_is_raised_is_replayed_and_leaves_nothing(self, customer, account, savings):
        before = Transfer.objects.count()
        assert twice(customer, "/api/moves/", self.move(savings, account)).status_code == 402
        assert Transfer.objects.count() == before

    def test_only_between_ones_own_accounts(self, customer, account):
        assert post(customer, "/api/moves/", self.move(account, AccountFactory())).status_code == 404
        assert post(customer, "/api/moves/", self.move(AccountFactory(), account)).status_code == 404

    def test_only_between_two_accounts_of_one_currency(self, customer, account):
        dollars = AccountFactory(owner=account.owner, currency="USD", funds=0)
        assert post(customer, "/api/moves/", self.move(account, account)).status_code == 400
        assert post(customer, "/api/moves/", self.move(account, dollars)).status_code == 400


class TestWebhook:
    def deliver(self, client, body, event="evt_1", provider=ACME, **wrong):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {**webhooks.signed_headers(provider, event, raw), **wrong}
        return client.post(f"/webhooks/{provider}/", raw, content_type="application/json", headers=headers)

    def test_an_event_counts_once(self, client, account):
        first, again = (self.deliver(client, charge_of(account)) for _ in range(2))
        assert (first.status_code, first.content) == (again.status_code, again.content)
        assert first.status_code == 201
        assert again.headers["Idempotent-Replayed"] == "true"
        assert ledger.balance(account) == 140
        assert Transfer.objects.filter(memo="acme evt_1").count() == 1

    def test_providers_number_their_events_apart(self, client, account):
        for provider in (ACME, "globex"):
            response = self.deliver(client, charge_of(account), provider=provider)
            assert response.status_code == 201
            assert "Idempotent-Replayed" not in response.headers
        assert ledger.balance(account) == 180

    @pytest.mark.parametrize(
        "wrong",
        [
            {"Webhook-Signature": "0" * 64},
            {"Webhook-Signature": ""},
            {"Webhook-Signature": "ü"},
            {"Idempotency-Key": "evt_2"},
            {"Webhook-Timestamp": "yesterday"},
            {"Webhook-Timestamp": "9" * 30},
            {"Webhook-Timestamp": str(int(time.time()) - webhooks.TOLERANCE_SECONDS - 10)},
        ],
        ids=str,
    )
    def test_what_the_provider_did_not_sign_is_refused(self, client, account, wrong):
        assert self.deliver(client, charge_of(account), **wrong).status_code == 401
        assert ledger.balance(account) == 100

    def test_an_old_signature_does_not_open_the_door_again(self, client, account):
        raw = json.dumps(charge_of(account)).encode()
        old = str(int(time.time()) - webhooks.TOLERANCE_SECONDS - 10)
        signature = webhooks.signature("only-for-the-example", "evt_1", old, raw)
        wrong = {"Webhook-Timestamp": old, "Webhook-Signature": signature}
        assert self.deliver(client, raw, **wrong).status_code == 401

    def test_an_unknown_provider_is_refused(self, client):
        assert client.post("/webhooks/nobody/", b"{}", content_type="application/json").status_code == 401

    @pytest.mark.parametrize("body", [b"[]", b"{}", b'{"account": "x", "amount": 1, "currency": "EUR"}'])
    def test_what_is_no_deposit_leaves_the_event_free(self, client, account, body):
        assert self.deliver(client, body).status_code == 400
        assert self.deliver(client, charge_of(account)).status_code == 201

    def test_text_that_is_no_json_is_refused(self, client):
        headers = webhooks.signed_headers(ACME, "evt_1", b"nonsense")
        response = client.post("/webhooks/acme/", b"nonsense", content_type="text/plain", headers=headers)
        assert response.status_code == 400

    def test_an_unknown_account_is_not_found(self, client, account):
        assert self.deliver(client, charge_of(account, currency="USD")).status_code == 404

    def test_only_post(self, client):
        assert client.get("/webhooks/acme/").status_code == 405
