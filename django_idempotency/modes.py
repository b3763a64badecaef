"""How claim, effect and seal share transactions: one class a mode, with the same methods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from contextlib import ExitStack
from typing import Protocol

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseFailure, connections, transaction

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
        self._stack = ExitStack()
        self._outermost: dict[str, bool] = {}

    def open(self, *extra: str) -> None:
        """Begin what is not yet open: the transactions of ATOMIC_REQUESTS, and those on the ``extra`` aliases."""
        configured = [alias for alias, database in connections.settings.items() if database["ATOMIC_REQUESTS"]]
        for alias in (*(alias for alias in configured if alias not in self._opted_out), *extra):
            if alias not in self._outermost:
                refuse_outer_block(alias)
                outermost = not connections[alias].in_atomic_block
                self._stack.enter_context(transaction.atomic(using=alias, durable=True))
                self._outermost[alias] = outermost

    def reopen(self, *extra: str) -> None:
        self.open(*extra)
        self._reopened()

    def is_outermost(self, alias: str) -> bool:
        """Whether COMMIT follows when this transaction ends, and not the savepoint of a TestCase."""
        return self._outermost[alias]

    def commit(self) -> None:
        self._taken().close()

    def roll_back(self) -> None:
        try:
            self._taken().__exit__(_RolledBack, _RolledBack(), None)
        except DatabaseFailure:
            # Out of reach, the database rolls back by itself; the answer must not depend on being told so.
            logger.exception("A transaction could not be rolled back in an orderly way.")

    def _taken(self) -> ExitStack:
        stack, self._stack, self._outermost = self._stack, ExitStack(), {}
        return stack


def refuse_outer_block(alias: str) -> None:
    """:raises ImproperlyConfigured: somebody else's transaction is open, whose end would decide over ours."""
    connection = connections[alias]
    if connection.in_atomic_block and not within_test_case(connection):
        raise ImproperlyConfigured(
            f"An atomic() block on {alias!r} is open around an idempotent view, an operation or a sweep: rolled back "
            "after the answer was given, it would undo what that answer says. Remove it (look for a decorator, a "
            "middleware, or ATOMIC_REQUESTS around a view that is not idempotent); what runs inside gets transactions "
            "anyway."
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

    def commit(self) -> None:
        if self._savepoint is not None:
            self._savepoint.forget()
        self._transactions.commit()

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
        refuse_outer_block(self._store.alias)
        return self._store.claim_committed(self._claim)

    def take_over(self, record: Record) -> bool:
        return self._store.take_over(record, self._claim)

    def begin(self) -> None:
        self._renew()
        self._transactions.reopen(self._store.alias)

    def _renew(self) -> None:
        # Inside a TestCase another connection sees neither the claim nor its lease.
        if self._store.renews_leases and not connections[self._store.alias].in_atomic_block:
            claim = self._claim
            self._renewal = renewal.start(self._store.alias, claim.id, claim.owner_token, claim.lease)

    def undo(self) -> None:
        self._transactions.roll_back()
        self._transactions.reopen(self._store.alias)

    def before_seal(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()

    def commit(self) -> None:
        self._transactions.commit()

    def release(self) -> bool:
        self.before_seal()
        self._transactions.roll_back()
        try:
            return self._store.release(self._claim.id, self._claim.owner_token)
        except DatabaseFailure:
            # Not lost: the lease ends by itself and the next attempt takes over.
            logger.exception("%s could not be released; its lease ends within %g s.", self._claim.id, self._claim.lease)
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
