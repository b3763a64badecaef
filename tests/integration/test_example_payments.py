"""The example's books: whatever happens, money only changes places."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from example_project.payments import ledger, services
from example_project.payments.factories import (
    AccountFactory,
    AuthorisedChargeFactory,
    ChargeFactory,
    DeclinedChargeFactory,
    RefundFactory,
    UserFactory,
)
from example_project.payments.models import Account, Charge, LedgerEntry, Refund, Transfer

pytestmark = pytest.mark.django_db


def house(kind: Account.Kind) -> int:
    return ledger.balance(Account.objects.house(kind, "EUR"))


@pytest.fixture(autouse=True)
def books_close():
    yield
    assert ledger.is_balanced()
    assert sum(LedgerEntry.objects.values_list("amount", flat=True)) == 0


class TestLedger:
    def test_a_transfer_takes_what_it_gives(self):
        source, target = AccountFactory(funds=50), AccountFactory(funds=0)
        transfer = ledger.post(Transfer.Kind.MOVE, {source: -20, target: 20}, memo="rent")
        assert (ledger.balance(source), ledger.balance(target)) == (30, 20)
        assert sorted(transfer.entries.values_list("amount", flat=True)) == [-20, 20]

    @pytest.mark.parametrize("amounts", [(), (-5,), (-5, 4), (0, 0), (-5, 5, 0)])
    def test_what_is_no_transfer_is_not_written(self, amounts):
        entries = {AccountFactory(): amount for amount in amounts}
        before = Transfer.objects.count()
        with pytest.raises(ledger.UnbalancedTransfer):
            ledger.post(Transfer.Kind.MOVE, entries)
        assert Transfer.objects.count() == before

    def test_a_transfer_has_one_currency(self):
        with pytest.raises(ledger.UnbalancedTransfer, match="currency"):
            ledger.post(Transfer.Kind.MOVE, {AccountFactory(): -1, AccountFactory(currency="USD"): 1})

    def test_customers_cannot_go_below_zero_and_the_house_can(self):
        account = AccountFactory(funds=10)
        assert house(Account.Kind.EXTERNAL) == -10
        with pytest.raises(ledger.InsufficientFunds) as raised:
            services.move(account, AccountFactory(funds=0), 11)
        assert (raised.value.account, raised.value.missing) == (account, 1)
        assert ledger.balance(account) == 10

    def test_an_unbalanced_transfer_is_found(self):
        account = AccountFactory(funds=10)
        entry = account.entries.get()
        LedgerEntry.objects.filter(pk=entry.pk).update(amount=11)
        assert list(ledger.unbalanced_transfers()) == [entry.transfer]
        LedgerEntry.objects.filter(pk=entry.pk).update(amount=10)

    def test_a_transfer_without_entries_is_found(self):
        empty = Transfer.objects.create(kind=Transfer.Kind.MOVE)
        assert not ledger.is_balanced()
        empty.delete()

    @pytest.mark.parametrize(
        "write",
        [
            lambda account: LedgerEntry.objects.create(
                account=account, amount=0, transfer=account.entries.get().transfer
            ),
            lambda account: LedgerEntry.objects.create(
                account=account, amount=5, transfer=account.entries.get().transfer
            ),
            lambda account: Account.objects.create(currency="EUR", name="nobody's"),
            lambda account: Account.objects.create(currency="EUR", name="a second", kind=Account.Kind.EXTERNAL),
            lambda account: services.charge(account, -5),
            lambda account: Charge.objects.create(account=account, amount=1, currency="EUR", status="captured"),
            lambda account: Refund.objects.create(charge=ChargeFactory(account=account), amount=0),
        ],
        ids=[
            "empty entry",
            "second entry",
            "no owner",
            "second house",
            "negative charge",
            "captured never",
            "no refund",
        ],
    )
    def test_the_database_refuses_what_makes_no_sense(self, write):
        account = AccountFactory()
        with pytest.raises((IntegrityError, ledger.UnbalancedTransfer)), transaction.atomic():
            write(account)


class TestCharging:
    def test_a_charge_moves_the_money_at_once(self):
        charge = ChargeFactory(amount=30_00)
        assert (charge.status, ledger.balance(charge.account)) == ("captured", 70_00)
        assert house(Account.Kind.REVENUE) == 30_00
        assert charge.transfers.count() == 1

    def test_a_declined_charge_is_kept_and_moves_nothing(self):
        charge = DeclinedChargeFactory()
        charge.refresh_from_db()
        assert (charge.status, charge.captured_at) == ("declined", None)
        assert not charge.transfers.exists()

    def test_money_is_held_until_it_is_captured(self):
        charge = AuthorisedChargeFactory(amount=30_00)
        assert (charge.status, ledger.balance(charge.account)) == ("authorised", 70_00)
        assert (house(Account.Kind.HELD), house(Account.Kind.REVENUE)) == (30_00, 0)
        charge = services.capture(charge)
        assert charge.status == "captured"
        assert (house(Account.Kind.HELD), house(Account.Kind.REVENUE)) == (0, 30_00)

    @pytest.mark.parametrize("factory", [ChargeFactory, DeclinedChargeFactory])
    def test_only_held_money_can_be_captured(self, factory):
        with pytest.raises(services.NotPossible, match="authorised"):
            services.capture(factory())

    def test_a_stale_charge_is_not_captured_twice(self):
        charge = AuthorisedChargeFactory()
        services.capture(charge)
        assert charge.status == "authorised"
        with pytest.raises(services.NotPossible):
            services.capture(charge)


class TestRefunding:
    def test_in_parts_until_nothing_is_left(self):
        charge = ChargeFactory(amount=10_00)
        assert RefundFactory(charge=charge, amount=4_00).amount == 4_00
        assert RefundFactory(charge=charge).amount == 6_00
        assert charge.refunded == 10_00
        assert ledger.balance(charge.account) == 100_00
        with pytest.raises(services.NotPossible, match="0 of the charge"):
            services.refund(charge, 1)

    def test_never_more_than_was_charged(self):
        with pytest.raises(services.NotPossible):
            RefundFactory(charge__amount=10_00, amount=10_01)

    @pytest.mark.parametrize("factory", [AuthorisedChargeFactory, DeclinedChargeFactory])
    def test_only_captured_money_can_be_refunded(self, factory):
        with pytest.raises(services.NotPossible, match="captured"):
            services.refund(factory())


class TestAccounts:
    def test_balances_come_with_the_accounts(self, django_assert_num_queries):
        owner = UserFactory()
        funded, empty = (AccountFactory(owner=owner, funds=funds) for funds in (5, 0))
        AccountFactory()
        with django_assert_num_queries(1):
            totals = {account: account.total for account in Account.objects.owned_by(owner).with_balance()}
        assert totals == {funded: 5, empty: 0}

    def test_the_house_has_one_account_a_kind_and_currency(self):
        held = Account.objects.house(Account.Kind.HELD, "EUR")
        assert Account.objects.house(Account.Kind.HELD, "EUR") == held
        assert Account.objects.house(Account.Kind.HELD, "USD") != held
