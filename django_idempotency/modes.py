"""How claim, effect and seal share transactions: one class a mode, with the same methods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import Protocol

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseFailure, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from . import renewal
from .core.states import Claim, ClaimAnswer, IdempotencyMode, Record, Verdict
from .storage import Store
from .storage.transactions import Savepoint, savepoint_on, within_test_case

logger = logging.getLogger("django_idempotency")


class RequestTransactions:
    """The transactions that one request's effects commit in: those of ATOMIC_REQUESTS, and the claim's.

    They are durable: an outer ``atomic()``, which could undo a recorded answer after it was sent, is refused.

    :param opted_out: aliases that the project took this view out of ATOMIC_REQUESTS for.
    :param reopened: called when the transaction of the effect is begun anew, where what ``SET LOCAL`` set before the
        claim is gone.
    """

    def __init__(self, opted_out: Container[str] = (), reopened: Callable[[], None] = lambda: None) -> None:
        self._opted_out = opted_out
        self._reopened = reopened
        self._blocks: dict[str, _Block] = {}

    def open(self, *extra: str) -> None:
        """Begin what is not yet open: the transactions of ATOMIC_REQUESTS, and those on the ``extra`` aliases."""
        configured = [alias for alias, database in connections.settings.items() if database["ATOMIC_REQUESTS"]]
        for alias in (*(alias for alias in configured if alias not in self._opted_out), *extra):
            if alias not in self._blocks:
                self._blocks[alias] = _Block(connections[alias])

    def reopen(self, *extra: str) -> None:
        self.open(*extra)
        self._reopened()

    def is_outermost(self, alias: str) -> bool:
        """Whether COMMIT follows when this transaction ends, and not the savepoint of a TestCase."""
        return self._blocks[alias].outermost

    def blocks_within(self) -> dict[str, int]:
        """How many blocks that are not ours are open within ours."""
        return {alias: len(block.within) for alias, block in self._blocks.items()}

    def refuse_inner_blocks(self, *aliases: str) -> None:
        """:raises ImproperlyConfigured: of two blocks that overlap, neither ends as its owner expects."""
        within = self.blocks_within()
        if left := [alias for alias in aliases or within if within[alias]]:
            raise ImproperlyConfigured(
                f"An atomic() block on {left[0]!r} was begun within the transaction of an idempotent view, and is open "
                "where that is to end. Remove it (look for a mixin whose dispatch begins one, behind IdempotencyMixin)."
            )

    def commit(self, last: str | None = None) -> None:
        """End with COMMIT, on the alias ``last`` after all others: what is recorded there then speaks for all.

        :raises ImproperlyConfigured: a block within is open still, and nothing is committed.
        """
        try:
            self.refuse_inner_blocks()
        except ImproperlyConfigured:
            self.roll_back()
            raise
        self._end(None, last)

    def roll_back(self) -> None:
        try:
            self._end(_RolledBack())
        except DatabaseFailure:
            # Out of reach, the database rolls back by itself; the answer must not depend on being told so.
            logger.exception("A transaction could not be rolled back in an orderly way.")

    def _end(self, reason: BaseException | None, last: str | None = None) -> None:
        """As nested ``with`` blocks end, the inner before the outer: where one fails, those around it roll back."""
        blocks, self._blocks = self._blocks, {}
        failure: BaseException | None = None
        for alias in [each for each in reversed(blocks) if each != last] + [each for each in blocks if each == last]:
            cause = failure or reason
            # Django counts blocks: one that somebody left open would end in the place of ours.
            for atomic in (*reversed(blocks[alias].within), blocks[alias].atomic):
                try:
                    atomic.__exit__(type(cause) if cause else None, cause, cause.__traceback__ if cause else None)
                except BaseException as error:  # noqa: BLE001 - raised below
                    failure = error
        if failure is not None:
            raise failure


class _Block:
    """A durable block of ours on one connection, from its beginning."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        refuse_outer_block(connection)
        self._connection = connection
        self.outermost = not connection.in_atomic_block
        self.atomic = transaction.atomic(using=connection.alias, durable=True)
        self.atomic.__enter__()
        self._depth = len(connection.atomic_blocks)

    @property
    def within(self) -> list[transaction.Atomic]:
        """Blocks that are not ours and are open within it."""
        return self._connection.atomic_blocks[self._depth :]


def refuse_outer_block(connection: BaseDatabaseWrapper) -> None:
    """:raises ImproperlyConfigured: somebody else's transaction, now or later, would decide over ours."""
    if connection.in_atomic_block and not within_test_case(connection):
        raise ImproperlyConfigured(
            f"An atomic() block on {connection.alias!r} is open around an idempotent view, an operation or a sweep: "
            "rolled back after the answer was given, it would undo what that answer says. Remove it (look for a "
            "decorator, a middleware, or ATOMIC_REQUESTS around a view that is not idempotent); what runs inside gets "
            "transactions anyway."
        )
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise ImproperlyConfigured(
            f"Autocommit is off on {connection.alias!r}, where a block of Django's ends without a COMMIT: an answer "
            "would be sent and not recorded. Leave AUTOCOMMIT on, and call set_autocommit(False) nowhere around a view."
        )


class _RolledBack(Exception):
    pass


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

    def commit(self) -> None: ...

    def release(self) -> bool:
        """Nothing happened: roll everything back and free the key. False where it was not ours to free."""
        ...


class Atomic:
    """Claim, effect and seal in one transaction. A process that dies leaves nothing."""

    def __init__(self, store: Store, claim: Claim, transactions: RequestTransactions) -> None:
        self._store = store
        self._claim = claim
        self._transactions = transactions
        self._savepoint: Savepoint | None = None

    @property
    def durable(self) -> bool:
        return self._transactions.is_outermost(self._store.alias)

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
        self._transactions.commit(last=self._store.alias)

    def release(self) -> bool:
        if self._savepoint is not None:
            self._savepoint.forget(rolling_back=True)
        self._transactions.roll_back()
        return True


class Leased:
    """The claim commits first, under a lease that is renewed while the owner lives; effect and seal follow, fenced."""

    def __init__(self, store: Store, claim: Claim, transactions: RequestTransactions) -> None:
        self._store = store
        self._claim = claim
        self._transactions = transactions
        self._renewal: renewal.Renewal | None = None

    @property
    def durable(self) -> bool:
        return self._transactions.is_outermost(self._store.alias)

    def claim(self) -> ClaimAnswer:
        self._transactions.commit()
        refuse_outer_block(connections[self._store.alias])
        return self._store.claim_committed(self._claim)

    def take_over(self, record: Record) -> bool:
        return self._store.take_over(record, self._claim)

    def begin(self) -> None:
        self._renew()
        self._reopen()

    def _reopen(self) -> None:
        self._transactions.open(self._store.alias)
        if self.durable:
            # Ahead of what the project does there, so that it travels with the BEGIN.
            self._store.limit_silence(renewal.longest_silence(self._claim.lease))
        self._transactions.reopen(self._store.alias)

    def _renew(self) -> None:
        # Inside a TestCase another connection sees neither the claim nor its lease.
        if self._store.renews_leases and not connections[self._store.alias].in_atomic_block:
            claim = self._claim
            self._renewal = renewal.start(self._store.alias, claim.id, claim.owner_token, claim.lease)

    def undo(self) -> None:
        self._transactions.roll_back()
        self._reopen()

    def before_seal(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()

    def left_open(self) -> bool:
        return any(self._transactions.blocks_within().values())

    def commit(self) -> None:
        self._transactions.commit(last=self._store.alias)

    def release(self) -> bool:
        self.before_seal()
        self._transactions.roll_back()
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

    def begin(self) -> None:
        self._renew()

    def undo(self) -> None:
        pass


MODES: dict[IdempotencyMode, type[Atomic | Leased | Phased]] = {
    IdempotencyMode.ATOMIC: Atomic,
    IdempotencyMode.LEASED: Leased,
    IdempotencyMode.PHASED: Phased,
}
