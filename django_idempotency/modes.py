"""How claim, effect and seal share transactions: one class a mode, with the same methods."""

from __future__ import annotations

import logging
from typing import Protocol

from django.db import Error as DatabaseFailure, connections

from . import renewal
from .core.states import Claim, ClaimAnswer, IdempotencyMode, Record, RecordedResponse, Verdict
from .failpoints import is_armed
from .request_transactions import RequestTransactions, refuse_outer_block
from .storage import Store
from .storage.transactions import Savepoint, savepoint_on

logger = logging.getLogger("django_idempotency")


class Mode(Protocol):
    """One claim under one mode, from the attempt to own the key to the end of the transactions."""

    def __init__(self, store: Store, claim: Claim, transactions: RequestTransactions) -> None: ...

    def claim(self) -> ClaimAnswer: ...

    def take_over(self, record: Record) -> bool: ...

    def begin(self) -> None:
        """The key is ours: make ready for the handler."""
        ...

    def undo(self) -> None:
        """Drop what the handler wrote, keep the claim, and leave a clean transaction."""
        ...

    def before_seal(self) -> None: ...

    def left_open(self) -> bool:
        """Whether a block that the handler began has not ended, so that COMMIT would not commit."""
        ...

    @property
    def durable(self) -> bool: ...

    def seal_and_commit(self, response: RecordedResponse, retention: float) -> bool:
        """Both in one round trip; ``commit`` then ends what Django knows of. False where that cannot be: nothing has
        changed."""
        ...

    def commit(self) -> None: ...

    def roll_back(self) -> None:
        """End what is open still, if anything is."""
        ...

    def release(self) -> bool:
        """Nothing happened: roll everything back and free the key. False where it was not ours to free."""
        ...


class _Ended:
    """How the transaction of the effect ends, in any mode."""

    def __init__(self, store: Store, claim: Claim, transactions: RequestTransactions) -> None:
        self._store = store
        self._claim = claim
        self._transactions = transactions

    @property
    def durable(self) -> bool:
        return self._transactions.is_outermost(self._store.alias)

    def seal_and_commit(self, response: RecordedResponse, retention: float) -> bool:
        if not self._transactions.ends_with_one_commit(self._store.alias) or is_armed("after_seal"):
            return False
        claim = self._claim
        return self._store.seal_and_commit(
            claim.id, claim.owner_token, response, retention=retention, lease=claim.lease
        )

    def commit(self) -> None:
        self._transactions.commit(last=self._store.alias)

    def roll_back(self) -> None:
        self._transactions.roll_back()


class Atomic(_Ended):
    """Claim, effect and seal in one transaction. A process that dies leaves nothing."""

    def __init__(self, store: Store, claim: Claim, transactions: RequestTransactions) -> None:
        super().__init__(store, claim, transactions)
        self._savepoint: Savepoint | None = None

    def claim(self) -> ClaimAnswer:
        self._transactions.open(self._store.alias)
        self._transactions.refuse_inner_blocks(self._store.alias)
        savepoint = savepoint_on(connections[self._store.alias])
        answer = self._store.claim(self._claim, limit_silence=self.durable, savepoint=savepoint.statement)
        if answer.verdict is Verdict.CLAIMED:
            savepoint.began()
            self._savepoint = savepoint
        return answer

    def take_over(self, record: Record) -> bool:
        if not self._store.take_over(record, self._claim):
            return False
        # The savepoint that travelled with the claim lies before the take-over and would undo it.
        self._savepoint = savepoint_on(connections[self._store.alias], travelling=False)
        self._savepoint.began()
        return True

    def begin(self) -> None:
        pass

    def undo(self) -> None:
        if self._savepoint is not None:
            self._savepoint.undo()

    def before_seal(self) -> None:
        pass

    def left_open(self) -> bool:
        within = self._transactions.blocks_within()
        within[self._store.alias] -= self._savepoint.blocks if self._savepoint is not None else 0
        return any(within.values())

    def commit(self) -> None:
        if self._savepoint is not None:
            self._savepoint.forget()
        super().commit()

    def release(self) -> bool:
        self.roll_back()
        return True

    def roll_back(self) -> None:
        if self._savepoint is not None:
            self._savepoint.forget(rolling_back=True)
        super().roll_back()


class Leased(_Ended):
    """The claim commits first, under a lease that is renewed while the owner lives; effect and seal follow, fenced."""

    def __init__(self, store: Store, claim: Claim, transactions: RequestTransactions) -> None:
        super().__init__(store, claim, transactions)
        self._renewal: renewal.Renewal | None = None
        self._has_begun = False
        """The transaction of the effect, in the round trip of the claim."""

    def claim(self) -> ClaimAnswer:
        self._make_ready()
        if self._store.can_claim_and_begin() and (answer := self._claim_and_begin()):
            return answer
        return self._store.claim_committed(self._claim)

    def _make_ready(self) -> None:
        self._transactions.commit()
        refuse_outer_block(connections[self._store.alias])

    def _claim_and_begin(self) -> ClaimAnswer | None:
        """None where the transaction that the session begins by itself is not one to claim in."""
        # Alone: a claim may wait for a rival, and the others of ATOMIC_REQUESTS may be locked from their beginning.
        self._transactions.open_alone(self._store.alias)
        answer = self._store.claim_and_begin(self._claim, silence=self._longest_silence)
        self._has_begun = answer.verdict is Verdict.CLAIMED
        if not self._has_begun:
            self._transactions.roll_back()
        return None if answer.verdict is Verdict.WRONG_ISOLATION else answer

    def take_over(self, record: Record) -> bool:
        return self._store.take_over(record, self._claim)

    def begin(self) -> None:
        self._renew()
        if self._has_begun:
            self._transactions.reopen(self._store.alias)
        else:
            self._reopen()

    def _reopen(self) -> None:
        self._transactions.open(self._store.alias)
        if self.durable:
            # Ahead of what the project does there, so that it travels with the BEGIN.
            self._store.limit_silence(self._longest_silence)
        self._transactions.reopen(self._store.alias)

    @property
    def _longest_silence(self) -> float:
        return renewal.longest_silence(self._claim.lease)

    def _renew(self) -> None:
        # Inside a TestCase another connection sees neither the claim nor its lease.
        if self._store.renews_leases and (self._has_begun or not connections[self._store.alias].in_atomic_block):
            claim = self._claim
            self._renewal = renewal.start(self._store.alias, claim.id, claim.owner_token, claim.lease)

    def undo(self) -> None:
        self.roll_back()
        self._reopen()

    def before_seal(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()

    def left_open(self) -> bool:
        return any(self._transactions.blocks_within().values())

    def release(self) -> bool:
        self.before_seal()
        self.roll_back()
        for again in (True, False):
            try:
                return self._store.release(self._claim.id, self._claim.owner_token)
            except DatabaseFailure:
                if not again:
                    # Not lost: the lease ends by itself and the next attempt takes over.
                    claim = self._claim
                    logger.exception("%s could not be released; its lease ends within %g s.", claim.id, claim.lease)
                # A session that was ended while it was idle shows so at its next statement. A new one may still be had.
                connections[self._store.alias].close_if_unusable_or_obsolete()
        return False


class Phased(Leased):
    """The claim commits first; what follows commits phase by phase, and an operation sees to that.

    The view around it runs outside any transaction of ours: what it writes there commits by itself, unfenced.
    """

    def claim(self) -> ClaimAnswer:
        self._make_ready()
        return self._store.claim_committed(self._claim)

    def begin(self) -> None:
        self._renew()

    def undo(self) -> None:
        pass


MODES: dict[IdempotencyMode, type[Atomic | Leased | Phased]] = {
    IdempotencyMode.ATOMIC: Atomic,
    IdempotencyMode.LEASED: Leased,
    IdempotencyMode.PHASED: Phased,
}
