"""What a store is asked for, with everything that a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from django.db import connections, transaction

from django_idempotency.core.keys import record_id
from django_idempotency.core.states import Claim, ClaimAnswer, IdempotencyMode, RecordedResponse, Sealing, Verdict
from django_idempotency.storage import Store, store_for
from django_idempotency.storage.transactions import NestedSavepoint

CREATED = RecordedResponse(201, (("Content-Type", "application/json"), ("Location", "/charges/7")), b'{"id": 7}')


def new_claim(**changes: Any) -> Claim:
    """A claim on a key that nobody has used."""
    key = str(changes.pop("key", uuid4()))
    scope = changes.pop("scope", "auth.user:5 shop.charge:POST")
    usual = Claim(
        id=record_id(scope, key),
        scope=scope,
        key=key,
        fingerprint=b"f" * 32,
        fingerprint_scheme=1,
        owner_token=uuid4(),
        mode=IdempotencyMode.LEASED,
        lease=30.0,
        max_wait=0.2,
    )
    return replace(usual, **changes)


def rival_of(claim: Claim, **changes: Any) -> Claim:
    """Another attempt at the same key."""
    return replace(claim, owner_token=uuid4(), **changes)


class Keys:
    """A store as one session sees it. Each call commits, unless a transaction is open."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.store: Store = store_for(alias)

    def atomic(self) -> transaction.Atomic:
        return transaction.atomic(using=self.alias)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """A transaction that is rolled back in the end."""
        with self.atomic():
            yield
            transaction.set_rollback(True, using=self.alias)

    def claim(self, claim: Claim, *, limit_silence: bool = False) -> ClaimAnswer:
        with self.atomic():
            return self.store.claim(claim, limit_silence=limit_silence, savepoint=NestedSavepoint.statement)

    def own(self, claim: Claim) -> Claim:
        assert self.claim(claim).verdict is Verdict.CLAIMED
        return claim

    def seal(
        self,
        claim: Claim,
        response: RecordedResponse = CREATED,
        *,
        token: UUID | None = None,
        retention: float = 3600.0,
        durable: bool = False,
    ) -> Sealing:
        with self.atomic():
            return self.store.seal(
                claim.id,
                token or claim.owner_token,
                response,
                retention=retention,
                lease=claim.lease,
                durable=durable,
            )

    def sealed(self, claim: Claim, response: RecordedResponse = CREATED, **how: Any) -> Claim:
        """A key that is claimed and sealed."""
        self.own(claim)
        assert self.seal(claim, response, **how) is Sealing.SEALED
        return claim

    def expired(self, claim: Claim, response: RecordedResponse = CREATED) -> Claim:
        """A record that is past its time and still in the table."""
        return self.sealed(claim, response, retention=0.0)

    def lapsed(self, claim: Claim) -> Claim:
        """A key that is claimed under a lease that is over."""
        self.own(replace(claim, lease=0.0))
        return claim

    def take_over(self, seen: Claim, claim: Claim) -> bool:
        record = self.store.find(seen.id)
        assert record is not None
        with self.atomic():
            return self.store.take_over(replace(record, owner_token=seen.owner_token), claim)

    def release(self, claim: Claim, *, token: UUID | None = None) -> bool:
        return self.store.release(claim.id, token or claim.owner_token)

    def count(self, claim: Claim) -> int:
        with connections[self.alias].cursor() as cursor:
            wanted = claim.id if connections[self.alias].vendor == "postgresql" else claim.id.hex
            cursor.execute("SELECT count(*) FROM idempotency_key WHERE id = %s", (wanted,))
            return int(cursor.fetchone()[0])
