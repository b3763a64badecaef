"""Two pruners on one SQLite file, each a process of its own, and somebody who claims expired keys again meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_idempotency.core.pruning import MARGIN
from django_idempotency.core.states import Verdict
from django_idempotency.models import IdempotencyKey
from django_idempotency.storage import batches
from tests.support import pruners
from tests.support.keys import Keys, new_claim, rival_of
from tests.support.laboratory import LaboratoryFile, empty
from tests.support.pauses import Failpoints
from tests.support.waiting import eventually

EXPIRED = 3 * batches.SIZE
AGO = 2 * MARGIN


@pytest.fixture
def file(sqlite_file, django_db_blocker):
    with django_db_blocker.unblock():
        made = LaboratoryFile(sqlite_file)
        # Whoever finds another writer at work waits for its turn, as the example does.
        alias = made.session(options={"timeout": 20})
        empty(alias)
        yield made
        empty(alias)
        made.close()


@pytest.fixture
def keys(file):
    return Keys(file.aliases[0])


@pytest.fixture
def told():
    return pruners.queue()


@pytest.fixture
def pruner(file, told):
    """Starts them; none outlives the test."""
    started = []

    def start(**how):
        started.append(pruners.start(file.aliases[0], told=told, **how))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.join()


@pytest.fixture
def expired(keys):
    """The longest expired first: three batches."""
    keys.sealed(pattern := new_claim())
    row = IdempotencyKey.objects.using(keys.alias).get(id=pattern.id)
    claims = [new_claim() for _ in range(EXPIRED)]
    rows = []
    for number, claim in enumerate(claims):
        # One statement for all: sealed one by one they would take longer than the test.
        same = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}
        own = {"id": claim.id, "key": claim.key, "owner_token": claim.owner_token}
        expires_at = row.sealed_at - AGO - timedelta(seconds=EXPIRED - number)
        rows.append(IdempotencyKey(**same | own | {"expires_at": expires_at}))
    row.delete()
    IdempotencyKey.objects.using(keys.alias).bulk_create(rows)
    return claims


@pytest.fixture
def kept(keys):
    """What no pruner may touch: answers that hold, and claims that are in flight, however old."""
    with keys.atomic():
        sealed = [keys.sealed(new_claim(), retention=3600.0) for _ in range(10)]
        return [*sealed, *(keys.own(new_claim()) for _ in range(10)), *(keys.lapsed(new_claim()) for _ in range(10))]


class Claimant:
    """Claims expired keys again, and seals every other one. Knows which of them no pruner had removed before."""

    def __init__(self, keys):
        self.keys = keys
        self.again = []
        self.replaced = 0

    def claim(self, claim):
        again = rival_of(claim)
        with self.keys.atomic():
            # One transaction: nobody comes between the look and the claim.
            self.replaced += self.keys.count(again)
            assert self.keys.store.claim(again, limit_silence=False, savepoint=None).verdict is Verdict.CLAIMED
        if len(self.again) % 2:
            self.keys.seal(again)
        self.again.append(again)


def owners(keys):
    return dict(IdempotencyKey.objects.using(keys.alias).values_list("id", "owner_token"))


def assert_nothing_else_is_there(keys, *claims):
    assert owners(keys) == {claim.id: claim.owner_token for claim in claims}


def test_each_expired_row_goes_once_and_what_is_claimed_meanwhile_stays(keys, pruner, told, expired, kept):
    claimant = Claimant(keys)
    processes = [pruner(), pruner()]
    eventually(lambda: not keys.count(expired[0]), "a first batch is gone", within=60)
    # Those that are removed last, so that many of them are still there.
    for claim in expired[:: -EXPIRED // 100]:
        claimant.claim(claim)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert told.get() + told.get() + claimant.replaced == EXPIRED
    assert_nothing_else_is_there(keys, *kept, *claimant.again)


def test_what_another_pruner_has_removed_and_somebody_claimed_stays(keys, pruner, told, expired, kept, tmp_path):
    """The first has read which rows are due, and comes to most of them when they are gone, or not due any more."""
    waiting = Failpoints(tmp_path, "wait")
    with waiting.armed("after_batch") as pause:
        first = pruner(failpoints=waiting.specification)
        pause.wait()
        second = pruner()
        second.join(60)
        assert (second.exitcode, told.get()) == (0, EXPIRED - batches.SIZE)
        claimant = Claimant(keys)
        for claim in expired[:: EXPIRED // 50]:
            claimant.claim(claim)
    first.join(60)
    assert (first.exitcode, told.get()) == (0, batches.SIZE)
    assert claimant.replaced == 0
    assert_nothing_else_is_there(keys, *kept, *claimant.again)
