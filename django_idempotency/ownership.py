"""A key that is ours: what its owner may do with it, and how that ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from django.db import Error as DatabaseFailure, IntegrityError, connections, transaction

from . import retention
from .core.counted import Counted
from .core.errors import (
    BrokenTransaction,
    LeaseLost,
    OutcomeUnknown,
    StoreUnavailable,
    TransactionConflict,
)
from .core.outcomes import Decision
from .core.policy import ResolvedPolicy
from .core.states import Claim, Record, RecordedResponse, Sealing, State
from .failpoints import hit
from .modes import Mode
from .storage import Store
from .storage.transactions import cannot_commit, drop_if_broken, is_lost, passing, sqlstate

logger = logging.getLogger("django_idempotency")


@dataclass(frozen=True)
class Outcome:
    """What the view came to.

    :param record: makes what a retry will receive. Called only if the outcome is to be sealed.
    :param exception: what the handler raised, where the response was made of that.
    :param discard: ends what is still going on in a response that is not sent after all.
    """

    status: int
    record: Callable[[], RecordedResponse]
    exception: BaseException | None = None
    discard: Callable[[], None] = lambda: None


@dataclass
class OwnedKey:
    """:param ended: how, where that is not by an answer."""

    store: Store
    claim: Claim
    policy: ResolvedPolicy
    mode: Mode
    ended: Counted | None = field(default=None, kw_only=True)

    def seal(self, response: RecordedResponse, *, durable: bool) -> None:
        """Record the outcome in the open transaction, which the caller commits.

        :raises LeaseLost: the key is somebody else's now. :raises StoreUnavailable: no partition takes the record. In
            both cases the transaction has to be rolled back.
        """
        self._before_seal()
        self._seal(response, durable=durable)

    def _before_seal(self) -> None:
        hit("before_seal")
        self.mode.before_seal()

    def _seal(self, response: RecordedResponse, *, durable: bool) -> None:
        sealing = self._try_seal(response, durable)
        if sealing is Sealing.NO_PARTITION:
            retention.forget_reach(self.store.alias)
            retention.ensure_leaf(self.store.alias, self.policy.retention)
            sealing = self._try_seal(response, durable)
        if sealing is Sealing.LOST:
            logger.warning("%s was taken over while this attempt ran; its writes are rolled back.", self.claim.id)
            self.ended = Counted.FENCED
            raise LeaseLost
        if sealing is not Sealing.SEALED:
            raise StoreUnavailable(f"no partition of {self.store.alias!r} takes the record")
        self._log_sealed(response)
        hit("after_seal")

    def _log_sealed(self, response: RecordedResponse) -> None:
        logger.info("%s is sealed with %d.", self.claim.id, response.status)

    def _try_seal(self, response: RecordedResponse, durable: bool) -> Sealing:
        return self.store.seal(
            self.claim.id,
            self.claim.owner_token,
            response,
            retention=self.policy.retention.total_seconds(),
            lease=self.claim.lease,
            durable=durable,
        )

    def look_up(self, error: BaseException) -> Record | None:
        """What the database knows of our key, after an ``error`` that left open what it did.

        :raises LeaseLost: the key is somebody else's. :raises OutcomeUnknown: the database cannot be asked.
        """
        drop_if_broken(connections[self.store.alias])
        try:
            record = self.store.find(self.claim.id)
        except DatabaseFailure:
            raise OutcomeUnknown from error
        if record is not None and record.owner_token != self.claim.owner_token:
            logger.warning("%s was taken over while this attempt ran.", self.claim.id)
            raise LeaseLost from error
        return record


@dataclass
class TransactionalKey(OwnedKey):
    """Owned in ATOMIC or LEASED mode: the whole view is one transaction."""

    undone: bool = False

    def undo(self) -> None:
        self.undone = True
        try:
            self.mode.undo()
        except DatabaseFailure:
            # The handler's own error goes on to the project; the broken transaction is met again at the end.
            logger.exception("The writes under %s could not be undone one by one.", self.claim.id)

    def finish(self, outcome: Outcome) -> None:
        """Seal or release, and commit."""
        with self._abandoned_on_failure():
            response = self._settle(outcome)
        if response is None:
            self.abandon(None)
            return
        if not self._committed(partial(self._seal_and_commit, response)):
            with self._abandoned_on_failure():
                self._seal(response, durable=self.mode.durable)
            self._committed(self._commit)
        hit("after_commit")

    @contextmanager
    def _abandoned_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.abandon(error)
            if isinstance(error, DatabaseFailure):
                raise StoreUnavailable(kind(error)) from error
            raise

    def abandon(self, error: BaseException | None) -> None:
        """Roll everything back and release the key.

        :raises TransactionConflict: the ``error`` that left the view is of a kind that a repetition gets past.
        """
        hit("before_release")
        if self.mode.release():
            logger.info("%s is released.", self.claim.id)
            self.ended = self.ended or Counted.RELEASED
        hit("after_release")
        if isinstance(error, DatabaseFailure) and (why := passing(error)):
            logger.warning("%s was rolled back by the database: %s.", self.claim.id, why)
            raise TransactionConflict from error

    def _settle(self, outcome: Outcome) -> RecordedResponse | None:
        """What to seal, if that is what the rules say and the transaction can carry it."""
        broken = self._is_broken()
        if broken and outcome.exception is None and outcome.status < 400:
            logger.error("%s: the view answered %d over a broken transaction.", self.claim.id, outcome.status)
            raise BrokenTransaction
        if self.policy.outcomes.decision(outcome.status, outcome.exception) is Decision.RELEASE:
            return None
        if broken:
            self.mode.undo()
        response = outcome.record()
        if self.mode.left_open():
            logger.error(
                "%s: an atomic() block that the view began is open still, perhaps in a generator that it streams.",
                self.claim.id,
            )
            outcome.discard()
            raise BrokenTransaction
        self._before_seal()
        return response

    def _is_broken(self) -> bool:
        connection = connections[self.store.alias]
        if self.undone and not connection.closed_in_transaction:
            # The framework marks the transaction of a request whose handler raised; those writes are undone already.
            transaction.set_rollback(False, using=self.store.alias)
        return cannot_commit(connection)

    def _seal_and_commit(self, response: RecordedResponse) -> bool:
        if not self.mode.seal_and_commit(response, self.policy.retention.total_seconds()):
            return False
        self._log_sealed(response)
        return self._commit()

    def _commit(self) -> bool:
        self.mode.commit()
        return True

    def _committed(self, commit: Callable[[], bool]) -> bool:
        """What ``commit`` says, or what became of it where its answer was lost."""
        try:
            return commit()
        except BaseException as error:
            # Neither the look-up nor the next request of this thread may meet what is open still.
            self.mode.roll_back()
            if not isinstance(error, Exception):
                logger.warning("%s was interrupted at its COMMIT. A retry finds out.", self.claim.id)
                raise
            record = self.look_up(error)
            if record is not None and record.state is State.SEALED:
                logger.exception("%s is committed; what follows the COMMIT failed.", self.claim.id)
                return True
            if not database_refused(error):
                raise OutcomeUnknown from error
            self.abandon(error)
            raise  # of a deferred constraint or trigger: the project's own error


def kind(error: BaseException) -> str:
    """The class of an error: the message of a database error may quote the values of a row."""
    return type(error.__cause__ or error).__name__


def database_refused(error: Exception) -> bool:
    """Whether the server itself said no to a COMMIT, and not a connection that broke: nothing is committed."""
    return isinstance(error, IntegrityError) or not is_lost(sqlstate(error))
