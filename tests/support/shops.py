"""The example as it runs in earnest: workers, sweepers and a processor, each a process that can be killed.

Workers and sweepers obey the same failpoints, which stand at every place that a card payment passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django_idempotency.failpoints import OF_A_REQUEST, OF_A_SWEEPER, OF_AN_OPERATION
from django_idempotency.models import IdempotencyKey
from django_idempotency.operations import derive_key
from example_project.client import Answer
from example_project.processor import ProcessorControl, ProcessorServer
from example_project.serving import ApiServer

from .calls import call
from .card_payments import CardPayer, assert_consistent, let_time_pass
from .pauses import Failpoints
from .servers import ONE_REQUEST_A_PROCESS, served, url_of_tests
from .sweepers import Sweep, Sweepers

STEPS = {"phase": ("reserve",), "call": ("authorise",), "looked": ("authorise",)}
"""Of a card payment, by the word that marks the failpoints of such steps."""


def _places() -> Iterator[str]:
    for point in (*OF_A_REQUEST, *OF_AN_OPERATION, *OF_A_SWEEPER):
        steps = next((names for kind, names in STEPS.items() if kind in point.split("_")), None)
        yield from [point] if steps is None else [f"{point}/{step}" for step in steps]


PLACES = tuple(_places())
"""Every failpoint on the way of a payment, those in steps once for each step."""


@dataclass(frozen=True)
class Shop:
    api: ApiServer
    sweepers: Sweepers
    failpoints: Failpoints
    control: ProcessorControl

    def pay(self, payer: CardPayer) -> Answer:
        return call(self.api.address, payer.request, token=payer.token)

    def sweep(self) -> Sweep:
        return self.sweepers.sweep()


@contextmanager
def shop(
    processor: ProcessorServer,
    folder: Path,
    action: str,
    *,
    lease: float = 30.0,
    renewal_cap: float = 900.0,
    patience: float = 10.0,
    workers: int = 2,
) -> Iterator[Shop]:
    """:param action: of all failpoints. :param patience: in seconds, for an answer of the processor."""
    failpoints = Failpoints(folder, action, PLACES)
    environment = {
        "DATABASE_URL": url_of_tests(),
        "DJANGO_SETTINGS_MODULE": "tests.support.served_settings",
        "IDEMPOTENCY_FAILPOINTS_ENABLED": "true",
        "IDEMPOTENCY_FAILPOINTS": failpoints.specification,
        "IDEMPOTENCY_LEASE": str(lease),
        "IDEMPOTENCY_RENEWAL_CAP": str(renewal_cap),
        "PROCESSOR_URL": processor.url,
        "PROCESSOR_TIMEOUT": str(patience),
    }
    with (
        Sweepers(environment) as sweepers,
        served(environment | ONE_REQUEST_A_PROCESS, workers=workers, threads=1) as api,
    ):
        yield Shop(api, sweepers, failpoints, processor.control)


def in_flight() -> bool:
    return IdempotencyKey.objects.filter(state="in_flight").exists()


def assert_told_the_truth(shop: Shop, payer: CardPayer, *, declined: bool = False) -> Answer:
    """All is over: the client hears what happened, each time the same, and it happened once."""
    let_time_pass()
    first, again = shop.pay(payer), shop.pay(payer)
    status, state, charges = (402, "declined", []) if declined else (201, "authorised", ["charge"])
    assert first.status == again.status == status
    assert again.replayed
    assert again.body == first.body
    assert again.headers.get("Location") == first.headers.get("Location")
    payment = payer.payment
    assert (payment.status, payer.balance) == (state, 0 if declined else payer.body["amount"])
    assert f'"{payment.pk}"'.encode() in first.body
    assert [effect.kind for effect in shop.control.effects(str(payment.pk))] == charges
    [sealed] = IdempotencyKey.objects.filter(key=payer.key)
    assert sealed.state == "sealed"
    assert_one_key(shop, payer, sealed)
    assert_consistent(shop.control)
    return first


def assert_one_key(shop: Shop, payer: CardPayer, record: IdempotencyKey) -> None:
    """The processor was asked for this payment under the derived key, whoever asked and however often."""
    asked = shop.control.requests(str(payer.payment.pk))
    keys = {request.key for request in asked if request.operation == "charge"}
    assert keys == {derive_key(record.scope, record.key, "authorise")}
