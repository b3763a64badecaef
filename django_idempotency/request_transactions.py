"""The transactions around one request, which must be the outermost: what is answered is committed, or nothing is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseFailure, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from .storage.transactions import within_test_case

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
            self.open_alone(alias)

    def open_alone(self, alias: str) -> None:
        if alias not in self._blocks:
            self._blocks[alias] = _Block(connections[alias])

    def reopen(self, *extra: str) -> None:
        self.open(*extra)
        self._reopened()

    def is_outermost(self, alias: str) -> bool:
        """Whether COMMIT follows when this transaction ends, and not the savepoint of a TestCase."""
        return self._blocks[alias].outermost

    def ends_with_one_commit(self, alias: str) -> bool:
        """Whether COMMIT on this alias is all that is left to do: no other is open, and no block within."""
        return [*self._blocks] == [alias] and self.is_outermost(alias) and not self._blocks[alias].within

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
