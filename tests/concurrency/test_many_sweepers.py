"""Many sweepers on many stale payments, each a process: what the processor saw of it is what counts."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest
from django.utils import timezone

from django_idempotency.core.keys import record_id
from django_idempotency.models import IdempotencyKey
from django_idempotency.operations import derive_key
from example_project.payments import processor as client
from example_project.payments.models import Account, CardPayment, LedgerEntry, Transfer
from example_project.processor import Fault
from tests.support.card_payments import CardPayer, assert_consistent, let_time_pass, record
from tests.support.processors import control, processor, shared_processor
from tests.support.servers import url_of_tests
from tests.support.sweepers import Sweepers

__all__ = ["control", "processor", "shared_processor"]

AMOUNT = 42_00


@pytest.fixture
def sweepers(committed, processor):
    environment = {
        "DATABASE_URL": url_of_tests(),
        "PROCESSOR_URL": processor.url,
        # Nobody can be overtaken: what is resolved twice was taken twice.
        "IDEMPOTENCY_LEASE": "600",
    }
    with Sweepers(environment) as sweepers:
        yield sweepers


def stale_payments(control, count):
    """Payments whose request got no answer: the first by being made, the others by being like it."""
    payer = CardPayer(amount=AMOUNT)
    control.plan(Fault.NO_ANSWER_BEFORE_EFFECT)
    assert payer.pay().status_code == 503
    let_time_pass()
    made, held = record(), Account.objects.house(Account.Kind.HELD, payer.account.currency)
    external = Account.objects.house(Account.Kind.EXTERNAL, payer.account.currency)
    copies = [
        CardPayment(account=payer.account, amount=AMOUNT, currency=payer.account.currency) for _ in range(count - 1)
    ]
    reserved = [Transfer(kind=Transfer.Kind.RESERVE, card_payment=payment) for payment in copies]
    CardPayment.objects.bulk_create(copies)
    Transfer.objects.bulk_create(reserved)
    LedgerEntry.objects.bulk_create(
        LedgerEntry(transfer=transfer, account=account, amount=amount)
        for transfer in reserved
        for account, amount in ((held, AMOUNT), (external, -AMOUNT))
    )
    copy_record(made, [str(payment.pk) for payment in copies])
    return payer


def copy_record(made, payments):
    columns = [field.column for field in IdempotencyKey._meta.fields]
    for payment in payments:
        key = str(uuid4())
        changed = {
            "id": record_id(made.scope, key),
            "key": key,
            "owner_token": uuid4(),
            "steps": [
                {**made.steps[0], "result": payment},
                {**made.steps[1], "key": derive_key(made.scope, key, "authorise")},
            ],
        }
        values = {column: changed.get(column, getattr(made, column)) for column in columns}
        IdempotencyKey(**values).save(force_insert=True)


@pytest.mark.parametrize(
    ("sweeping", "count"),
    [(4, 60), pytest.param(10, 1000, marks=[pytest.mark.slow, pytest.mark.timeout(400)])],
)
def test_each_record_is_resolved_once(sweepers, control, sweeping, count):
    payer = stale_payments(control, count)
    records = list(IdempotencyKey.objects.filter(state="in_flight"))
    assert len(records) == count
    # Of every third the money is taken already.
    charged = records[::3]
    for taken in charged:
        reserve, authorise = taken.steps
        client.charge(
            amount=AMOUNT,
            currency="EUR",
            reference=reserve["result"],
            card=payer.body["card"],
            key=authorise["key"],
            timeout=10,
        )
    before = len(control.requests())

    began = timezone.now()
    sweeps = [sweepers.start() for _ in range(sweeping)]
    assert {sweep.wait(300) for sweep in sweeps} == {0}, sweepers.log()
    print(f"{sweeping} sweepers, {count} records: {(timezone.now() - began).total_seconds():.1f} s")

    assert sum(bool(sweep.fates) for sweep in sweeps) > 1
    told = Counter(taken for sweep in sweeps for taken in sweep.fates)
    assert told == {str(each.pk): 1 for each in records}
    assert {fate for sweep in sweeps for fate in sweep.fates.values()} == {"finished"}
    assert IdempotencyKey.objects.filter(state="sealed", sweeps=1, response_status=201).count() == count

    keys = {each.steps[1]["key"] for each in records}
    known = {each.steps[1]["key"] for each in charged}
    seen = Counter((request.operation, request.key) for request in control.requests()[before:])
    assert {key: times for (operation, key), times in seen.items() if operation == "charge"} == dict.fromkeys(
        keys - known, 1
    )
    # Of what is not known by its key, the reference is asked for as well.
    assert seen.pop(("look_up", None)) == len(keys - known)
    assert {key: times for (operation, key), times in seen.items() if operation == "look_up"} == dict.fromkeys(keys, 1)
    assert {key: times for key, times in control.charges_by_key().items() if key in keys} == dict.fromkeys(keys, 1)
    assert_consistent(control)
    assert payer.balance == count * AMOUNT
