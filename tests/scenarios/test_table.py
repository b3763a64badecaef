"""The table, through every way in, in both modes: what is committed, and what a TestCase sees of it."""

from __future__ import annotations

import pytest
from django.db import connection
from rest_framework.permissions import AllowAny

from django_idempotency import IdempotencyMode

from .site import Handling, Site, assert_replays, problem, records, rows
from .table import SCENARIOS, Kind, Scenario, Step
from .ways import PLAIN, WAYS, Way, bare

ENTERED = {Kind.FRESH, Kind.UNDONE, Kind.RELEASED, Kind.FAILED, Kind.UNPROTECTED}
KEPT = {Kind.FRESH, Kind.UNPROTECTED}
RECORDED = {Kind.FRESH, Kind.UNDONE}


class Run:
    """A scenario on a site: sends each step, and compares what came of it with what the step says."""

    def __init__(self, site: Site, given: Scenario, way: Way, mode: IdempotencyMode) -> None:
        self.site = site
        self.scenario = given
        self.handler = Handling(*given.does)
        self.entered = self.kept = self.recorded = 0
        self.first = None
        policy = {**given.policy, "mode": mode}
        members = {"permission_classes": [AllowAny]} if given.open and way not in (*PLAIN.values(), bare) else {}
        for name in ("things", "others"):
            site.add(way(self.handler, policy, name, **members), name)

    def walk(self) -> None:
        for step in self.scenario.steps:
            self.take(step)

    def take(self, step: Step) -> None:
        response = self.site.send(**step.send)
        assert response.status_code == step.status, response.content
        self.entered += step.kind in ENTERED
        self.kept += step.kind in KEPT
        self.recorded += step.kind in RECORDED
        assert (self.handler.entered, rows()) == (self.entered, self.kept), "times the handler ran, rows that it left"
        assert (records("sealed"), records()) == (self.recorded, self.recorded), "records sealed, and in all"
        if step.kind is Kind.REPLAYED:
            assert_replays(response, self.first)
        elif step.slug:
            assert problem(response) == step.slug
            assert step.says in response.json()["detail"]
        else:
            assert "Idempotent-Replayed" not in response.headers
            assert response.headers.get("Content-Type") != "application/problem+json"
        if step.kind in RECORDED:
            self.first = response


def cases(*, in_test_case: bool):
    for given in SCENARIOS:
        if in_test_case and not given.in_test_case:
            continue
        for way in WAYS:
            if given.rest_only and way in PLAIN:
                continue
            for mode in given.modes:
                # Where transactions do not matter, a second mode through one way of each framework is enough.
                if mode is IdempotencyMode.LEASED and not given.transactional and way not in ("viewset", "function"):
                    continue
                for atomic_requests in (False, True) if given.transactional and not in_test_case else (False,):
                    label = f"{given}-{way}-{mode.name}{'-ATOMIC_REQUESTS' if atomic_requests else ''}"
                    yield pytest.param(given, WAYS[way], mode, atomic_requests, id=label)


def skip_what_needs_postgres(given):
    if given.needs_postgres and connection.vendor != "postgresql":
        pytest.skip("a failed statement does not break a transaction here")


@pytest.mark.parametrize(("given", "way", "mode", "atomic_requests"), list(cases(in_test_case=False)))
def test_what_is_committed(committed, site, in_atomic_requests, given, way, mode, atomic_requests):
    skip_what_needs_postgres(given)
    in_atomic_requests(atomic_requests)
    Run(site, given, way, mode).walk()


@pytest.mark.django_db
@pytest.mark.parametrize(("given", "way", "mode", "atomic_requests"), list(cases(in_test_case=True)))
def test_inside_a_test_case(site, given, way, mode, atomic_requests):
    skip_what_needs_postgres(given)
    Run(site, given, way, mode).walk()


@pytest.mark.parametrize("given", SCENARIOS, ids=str)
def test_every_scenario_notices_that_protection_is_missing(committed, site, given):
    skip_what_needs_postgres(given)
    run = Run(site, given, bare, IdempotencyMode.ATOMIC)
    if all(step.kind is Kind.UNPROTECTED for step in given.steps):
        run.walk()
        return
    with pytest.raises(AssertionError):
        run.walk()
