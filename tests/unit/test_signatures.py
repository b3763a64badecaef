"""From which counts on a client is called broken, and what is said of it."""

from __future__ import annotations

import pytest

from django_idempotency.core.counted import Counted
from django_idempotency.core.signatures import ADVICE, Kind, Signature, Twins, in_counts, in_twins

ROUTE = "shop.charge:POST"


def kinds(**outcomes: int) -> set[Kind]:
    """By the names of the outcomes, which are for good."""
    assert set(outcomes) <= {each.value for each in Counted}
    return {signature.kind for signature in in_counts({ROUTE: outcomes})}


def test_what_clients_do_that_are_sound() -> None:
    assert kinds() == set()
    assert kinds(new=10_000, replayed=300, conflict=200, mismatch=19, missing_key=7, unavailable=40) == set()


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ({"conflict": 49}, False),
        ({"conflict": 50}, True),
        ({"conflict": 30, "unavailable": 20, "new": 5000}, True),
        ({"conflict": 500, "replayed": 1}, False),
        ({"new": 5000}, False),
        ({"released": 500, "mismatch": 10, "new": 200}, False),
    ],
)
def test_nobody_comes_back(outcomes: dict[str, int], said: bool) -> None:
    assert (Kind.NEVER_REPLAYED in kinds(**outcomes)) is said


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ({"mismatch": 20, "new": 1}, True),
        ({"mismatch": 19, "new": 1}, False),
        ({"mismatch": 20, "new": 181}, False),
        ({"mismatch": 20, "new": 100, "replayed": 80}, True),
        ({"mismatch": 1000, "new": 10_000}, False),
        ({"mismatch": 1200, "new": 10_000}, True),
    ],
)
def test_one_key_for_many_requests(outcomes: dict[str, int], said: bool) -> None:
    assert (Kind.REUSED in kinds(**outcomes)) is said


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ({"late": 1, "new": 100_000}, True),
        ({"nearly_late": 4, "replayed": 4}, False),
        ({"nearly_late": 5, "replayed": 5}, True),
        ({"new": 9}, False),
    ],
)
def test_retries_that_come_late(outcomes: dict[str, int], said: bool) -> None:
    assert (Kind.LATE in kinds(**outcomes)) is said


@pytest.mark.parametrize(("twins", "records", "said"), [(4, 4, False), (5, 5, True), (5, 251, False), (5, 250, True)])
def test_a_key_for_each_attempt(twins: int, records: int, said: bool) -> None:
    found = list(in_twins(Twins(ROUTE, twins, records)))
    assert found == ([Signature(Kind.MINTED, ROUTE, twins, records)] if said else [])


def test_each_route_by_itself() -> None:
    """The faults of one are not diluted by the traffic of another."""
    counts = {"a:POST": {"mismatch": 50, "new": 50}, "b:POST": {"new": 100_000, "replayed": 10}}
    assert [(each.kind, each.route, each.cases, each.of) for each in in_counts(counts)] == [
        (Kind.REUSED, "a:POST", 50, 100)
    ]


@pytest.mark.parametrize("kind", Kind)
def test_each_says_what_was_seen_and_what_to_do(kind: Kind) -> None:
    signature = Signature(kind, ROUTE, 37, 1234)
    assert "37" in signature.seen
    assert "1234" in signature.seen
    assert signature.advice == ADVICE[kind]
    assert signature.advice.endswith(".")
