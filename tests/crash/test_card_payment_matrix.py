"""A card payment is killed at every line, for every fault of the processor; then the client and the sweeper come.

The cases are made of the failpoints, the faults and the two orders of those who come back. That no place is left out
is a test too.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from random import Random

import pytest

from django_idempotency import failpoints
from django_idempotency.core.operations import registry
from django_idempotency.models import IdempotencyKey
from example_project.payments.models import CardPayment
from example_project.payments.operations import card_payment
from example_project.processor import Fault, Planned
from tests.support.card_payments import CardPayer, let_time_pass, sweep
from tests.support.servers import workers_of
from tests.support.shops import PLACES, assert_one_key, assert_told_the_truth, in_flight, shop

PATIENCE = 0.4
"""Seconds for an answer that the processor holds back."""

pytestmark = pytest.mark.timeout(60)


# --- the cases ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """What is wrong at the processor when it is asked first."""

    name: str
    fault: Fault | None = None
    card: str = "good"

    @property
    def declined(self) -> bool:
        return self.card != "good"

    @property
    def ambiguous(self) -> bool:
        """The client hears that nobody knows."""
        return self.fault is not None

    @property
    def down(self) -> bool:
        """For whoever comes, until the second has found out."""
        return self.fault is Fault.DOWN

    @property
    def slow(self) -> bool:
        return self.fault in (Fault.SLOW, Fault.SLOW_ANSWER)

    @property
    def took_effect(self) -> bool:
        """The one that asks around finds it."""
        return self.fault in (Fault.SLOW_ANSWER, Fault.NO_ANSWER_AFTER_EFFECT, Fault.ERROR_AFTER_EFFECT)

    def plan(self) -> list[Planned]:
        if self.down:
            return [Planned(Fault.DOWN, operation, times=None) for operation in ("charge", "look_up")]
        return [Planned(self.fault)] if self.fault else []


# A processor that forgets a key before its time breaks its word, and nobody can charge once with that.
TROUBLES = (
    Trouble("none"),
    Trouble("decline", card="declined"),
    *(Trouble(fault.value, fault) for fault in Fault if fault is not Fault.FORGET_KEYS),
)
ORDERS = (("retry", "sweep"), ("sweep", "retry"))

CLAIM = ("before_claim", "after_claim")
PHASE = tuple(place for place in PLACES if place.endswith("/reserve"))
SENDING = ("before_call_started/authorise", "before_call/authorise")
ANSWERED = ("after_call/authorise", "after_call_stored/authorise")
END = ("before_seal", "after_seal", "after_commit")
HEARD = ("after_effect",)
RELEASE = ("before_release", "after_release")
TAKEN, LOOKED_UP = ("after_taken",), ("after_looked_up/authorise",)


def passed(trouble: Trouble, order: tuple[str, str]) -> set[str]:
    """The places that a payment passes which nobody kills, by whoever's hand."""
    first = {*CLAIM, *PHASE, *SENDING}
    if not trouble.ambiguous:
        return first | {*ANSWERED, *END, *HEARD}
    first |= {*RELEASE, *END}
    if order[0] == "retry":
        # While the processor is down, the second who comes is the sweeper.
        return first | (by_sweeper(trouble) if trouble.down else {*ANSWERED, *HEARD})
    return first | ({*TAKEN, *ANSWERED, *HEARD} if trouble.down else by_sweeper(trouble))


def by_sweeper(trouble: Trouble) -> set[str]:
    return {*TAKEN, *LOOKED_UP, *END, *(() if trouble.took_effect else (*SENDING, *ANSWERED))}


@dataclass(frozen=True)
class Case:
    trouble: Trouble
    order: tuple[str, str]
    killed_at: tuple[str, ...]
    """The one who passes the first of these by, then the one who passes the second."""

    def __str__(self) -> str:
        return f"{self.trouble.name}-{'+'.join(self.killed_at)}-{self.order[0]} first".replace("/", ".")


ONE_KILL = [
    Case(trouble, order, (place,))
    for trouble, order in product(TROUBLES, ORDERS)
    for place in PLACES
    if place in passed(trouble, order)
]


def _two_kills():
    """The worker around the call, and the one who comes to see after it. Of answers that are not clear it is the second
    one who is killed above."""
    for trouble, order, sent in product(TROUBLES[:2], ORDERS, (False, True)):
        place = "after_call/authorise" if sent else "before_call/authorise"
        again = {*CLAIM, *SENDING, *ANSWERED, *END, *HEARD}
        if order[0] == "sweep":
            again = by_sweeper(replace(trouble, fault=Fault.NO_ANSWER_AFTER_EFFECT if sent else None))
        yield from (Case(trouble, order, (place, second)) for second in PLACES if second in again)


TWO_KILLS = list(_two_kills())


def sampled(cases: list[Case]):
    """All, most of them slow. What is left to a quick run has each place, fault and order at least once."""
    quick: set[Case] = set()
    seen: set[object] = set()
    for case in Random(1).sample(cases, len(cases)):
        traits = {case.trouble, case.order, case.killed_at}
        if not traits <= seen:
            quick.add(case)
            seen |= traits
    return [pytest.param(case, id=str(case), marks=() if case in quick else pytest.mark.slow) for case in cases]


# --- the site -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def patient(django_db_setup, shared_processor, tmp_path_factory):
    with shop(shared_processor, tmp_path_factory.mktemp("kills"), "kill") as patient:
        yield patient


@pytest.fixture(scope="module")
def impatient(django_db_setup, shared_processor, tmp_path_factory):
    """It gives up an answer that does not come, and may give up one that does: a loaded machine is slow as well."""
    with shop(shared_processor, tmp_path_factory.mktemp("kills"), "kill", patience=PATIENCE) as impatient:
        yield impatient


class Story:
    """One payment, from the first request until nothing is in flight any more."""

    def __init__(self, site, trouble, order):
        self.site, self.trouble, self.order = site, trouble, order
        self.payer = CardPayer(card=trouble.card)
        site.control.plan(*trouble.plan())

    def begin(self):
        return self.site.pay(self.payer)

    def come_back(self, turn):
        """Whether they lived, when their time had come."""
        let_time_pass()
        if turn == "retry":
            lived = not self.site.pay(self.payer).lost
        else:
            status = self.site.sweep().wait()
            assert status in (0, -signal.SIGKILL), self.site.sweepers.log()
            lived = status == 0
        if self.trouble.down:
            self.site.control.clear()
        return lived

    def go_on(self):
        """Everybody comes back, in their order, and then again until it has ended."""
        for turn in self.order:
            self.come_back(turn)
        for turn in self.order * 2:
            if in_flight():
                self.come_back(turn)

    def end(self):
        # What is held back arrives last, when others have acted already.
        self.site.control.resume()
        assert not in_flight()
        return assert_told_the_truth(self.site, self.payer, declined=self.trouble.declined)


@pytest.fixture
def story(committed, control, request):
    """:param trouble: decides who serves: one that waits for the processor, or one that does not."""

    def begin(trouble, order=ORDERS[0]):
        return Story(request.getfixturevalue("impatient" if trouble.slow else "patient"), trouble, order)

    return begin


# --- the tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", sampled(ONE_KILL))
def test_killed_anywhere_it_is_charged_once_and_the_retry_hears_the_truth(story, case):
    it = story(case.trouble, case.order)
    [place] = case.killed_at
    with it.site.failpoints.armed(place) as kill:
        it.begin()
        it.go_on()
        assert kill.reached
    it.end()


@pytest.mark.parametrize("case", sampled(TWO_KILLS))
def test_whoever_comes_to_see_after_it_is_killed_as_well(story, case):
    it = story(case.trouble, case.order)
    first, second = case.killed_at
    with it.site.failpoints.armed(first) as kill:
        assert it.begin().lost
        assert kill.reached
    with it.site.failpoints.armed(second) as kill:
        assert not it.come_back(case.order[0])
        assert kill.reached
    it.go_on()
    it.end()


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]} first")
@pytest.mark.parametrize("fault", [Fault.SLOW, Fault.SLOW_ANSWER], ids=lambda fault: fault.value)
def test_killed_while_it_waits_for_the_processor(story, crowd, control, fault, order):
    """Before or after the money was taken, and before the client of the processor gives up."""
    it = story(replace(Trouble("held"), card="good"), order)
    control.plan(fault)
    answer = crowd.start(it.begin)
    control.until_held()
    for pid in workers_of(it.site.api):
        os.kill(pid, signal.SIGKILL)
    assert answer.result(30).lost
    it.go_on()
    it.end()


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]} first")
@pytest.mark.parametrize("trouble", TROUBLES[:2], ids=lambda trouble: trouble.name)
def test_whatever_is_killed_and_however_often_an_intent_has_one_key(story, trouble, order):
    """Each who comes is killed at the next place: the attempts add up to one."""
    it = story(trouble, order)
    turns = iter(order * len(PLACES))
    for place in (*CLAIM, *PHASE, *SENDING, *ANSWERED[:1], *END[:2]):
        # Not everybody passes each place: it may take a second one to come.
        with it.site.failpoints.armed(place) as kill:
            for _ in range(2):
                it.come_back("retry" if place in (*CLAIM, *PHASE) else next(turns))
                if kill.reached:
                    break
            else:
                pytest.fail(f"nobody passes {place}")
    [record] = IdempotencyKey.objects.filter(state="in_flight")
    assert record.attempts > 4
    assert_one_key(it.site, it.payer, record)
    it.go_on()
    it.end()


# --- the matrix itself --------------------------------------------------------------------------------


class Passed(dict[str, None]):
    """In place of what is armed: it notes which places are asked for."""

    def __init__(self):
        super().__init__(never=None)
        self.places = set()

    def get(self, place, default=None):
        self.places.add(place)
        return default


@pytest.fixture
def places(monkeypatch):
    """The places that are passed in this process from now on. The processor has less time here as well."""
    noted = Passed()
    monkeypatch.setattr(failpoints, "_armed", noted)
    changed = replace(card_payment.definition, call_timeout=timedelta(seconds=PATIENCE))
    monkeypatch.setattr(card_payment, "definition", changed)
    monkeypatch.setitem(registry._definitions, changed.name, changed)

    def read():
        steps = {place for place in noted.places if "/" in place and not place.endswith("/None")}
        bare = {place.removesuffix("/None") for place in noted.places if place.endswith("/None")}
        return steps | bare

    return read


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]} first")
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_the_matrix_has_every_place_that_a_payment_passes(committed, control, places, trouble, order):
    payer = CardPayer(card=trouble.card)
    control.plan(*trouble.plan())
    payer.pay()
    turns = {"retry": payer.pay, "sweep": sweep}
    for turn in order * 2:
        let_time_pass()
        turns[turn]()
        control.clear() if trouble.down else None
    assert places() == passed(trouble, order)
    assert CardPayment.objects.get().status != "reserved"


def test_no_failpoint_is_left_out():
    assert {place for case in ONE_KILL for place in case.killed_at} == set(PLACES)
