"""Keys stay unique across the leaves of the table, whatever the clock says and whoever races."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest
from django.db import connections

from django_idempotency.core.states import Verdict
from django_idempotency.storage.partitions import covered
from tests.support.crowds import Crowd
from tests.support.keys import CREATED, Keys, new_claim, rival_of
from tests.support.laboratory import doctor
from tests.support.racing import DAY, Racer, processes

RACERS = 4
KEYS = 80
DAYS = [Racer(retention=(day + 0.5) * DAY) for day in range(RACERS)]


@pytest.fixture(scope="module")
def race():
    with processes(RACERS) as race:
        yield race


def runs(race, lab, racers):
    """How often each key was run."""
    keys = [str(uuid4()) for _ in range(KEYS)]
    counted = Counter(race.run(connections.settings[lab.aliases[0]], racers, keys))
    return [counted[key] for key in keys]


def leaves_used(lab):
    return lab.ask("SELECT count(DISTINCT tableoid) FROM idempotency_key_sealed")


def test_racing_processes_run_each_key_once_though_they_seal_into_different_leaves(race, lab):
    assert runs(race, lab, DAYS) == [1] * KEYS
    assert leaves_used(lab) > 1
    assert lab.ask("SELECT count(*) FROM idempotency_key") == KEYS


def test_without_the_second_look_such_a_race_has_doubles(race, lab):
    """The race above can fail."""
    doctor(lab, "claim_v1", "IF sealed_until > clock_timestamp() THEN", "IF false THEN")
    assert max(runs(race, lab, DAYS)) > 1


STRICTER = [
    pytest.param([Racer("repeatable read", racer.retention) for racer in DAYS], id="repeatable read"),
    pytest.param([DAYS[0], *(Racer("serializable", racer.retention) for racer in DAYS[1:])], id="serializable beside"),
]


@pytest.mark.parametrize("racers", STRICTER)
def test_a_stricter_isolation_makes_no_doubles_either(race, lab, racers):
    assert max(runs(race, lab, racers)) <= 1


@pytest.mark.parametrize("racers", STRICTER)
def test_without_its_refusal_a_stricter_isolation_has_doubles(race, lab, racers):
    doctor(lab, "claim_v1", "IF current_setting('transaction_isolation') <> 'read committed' THEN", "IF false THEN")
    assert max(runs(race, lab, racers)) > 1


@pytest.mark.parametrize("owner_expires", [-60.0, 60.0], ids=["owner before", "owner after"])
def test_a_duplicate_on_the_other_side_of_a_bound_finds_the_answer(lab, owner_expires):
    """What is sealed a minute before midnight expires in another leaf than what would be sealed a minute after."""
    owner, rival = Keys(lab.session()), Keys(lab.session())
    now, leaves = covered(connections[owner.alias])
    bound = (leaves[1].upper - now).total_seconds()
    claim = new_claim()
    with Crowd(1) as crowd, owner.atomic():
        owner.own(claim)
        waiting = crowd.start(rival.claim, rival_of(claim, max_wait=20.0))
        lab.until_waiting()
        owner.seal(claim, retention=bound + owner_expires)
    found = waiting.result(20)
    assert (found.verdict, found.record.response) == (Verdict.FOUND, CREATED)

    other = rival.sealed(new_claim(), retention=bound - owner_expires)
    for sealed in (claim, other):
        assert owner.claim(rival_of(sealed)).verdict is Verdict.FOUND
    assert leaves_used(lab) == 2
