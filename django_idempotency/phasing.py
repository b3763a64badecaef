"""A key that an operation owns: it is advanced step by step, each in a commit of its own."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseFailure, connections

from .core.counted import Counted
from .core.errors import Explained, ForAPerson, IdempotencyError, LeaseLost, OutcomeUnknown, TransactionConflict
from .core.progress import Progress
from .core.states import Record, RecordedResponse, State
from .failpoints import hit
from .ownership import Outcome, OwnedKey, kind
from .storage.transactions import also_if_broken, passing

logger = logging.getLogger("django_idempotency")


@dataclass
class PhasedKey(OwnedKey):
    """Owned in PHASED mode: an operation advances it and seals it, each time in a transaction of its own.

    :param progress: how far the operation has come, by what is committed; None before its first phase or call.
    :param doubt: why nobody knows what became of the call that was sent last.
    :param unsure: which COMMIT may have recorded more than is known here. Nothing may be built on it, nor on its
        absence.
    :param sealed: the answer as it is sent, once the operation has finished.
    :param thread: that may advance it. Two at once would both be the owner, and both do the next phase.
    """

    progress: Progress | None = None
    doubt: Explained | None = None
    unsure: Explained | None = None
    sealed: RecordedResponse | None = None
    thread: int = field(default_factory=threading.get_ident)

    def undo(self) -> None:
        pass

    def advance(self, progress: Progress, *, stale_after: float, durable: bool) -> None:
        """Record how far the operation has come, in the open transaction or, outside of one, at once.

        :raises LeaseLost: the key is somebody else's now; the open transaction has to be rolled back.
        """
        # What the other side answered must not be lost for a connection that broke during a long call.
        advanced = also_if_broken(
            connections[self.store.alias], lambda: self._try_advance(progress, stale_after, durable)
        )
        if not advanced:
            logger.warning("%s was taken over; this attempt at %s stops.", self.claim.id, progress.operation)
            self.ended = Counted.FENCED
            raise LeaseLost

    def _try_advance(self, progress: Progress, stale_after: float, durable: bool) -> bool:
        return self.store.advance(
            self.claim.id,
            self.claim.owner_token,
            progress,
            lease=self.claim.lease,
            stale_after=stale_after,
            durable=durable,
        )

    def finish(self, outcome: Outcome) -> RecordedResponse | None:
        """The answer that the operation has sealed, to be sent whatever the view made of it; None where none has begun.

        :raises OutcomeUnknown: the operation has begun and not ended.
        :raises ImproperlyConfigured: the view answered with success and ran no operation.
        """
        self.abandon(outcome.exception)
        if self.sealed is None and outcome.status < 400:
            raise ImproperlyConfigured(
                "A view in PHASED mode answered without finishing an operation, so nothing was recorded for a retry. "
                "Run an operation in it, or choose another mode."
            )
        return self.sealed

    def abandon(self, error: BaseException | None) -> None:
        """Release the key where nothing has begun; hold it where nobody knows how it ended.

        :raises OutcomeUnknown: it is held.
        :raises TransactionConflict: nothing has begun, and the ``error`` is of a kind that a repetition gets past.
        """
        if self.sealed is not None:
            return
        self.mode.before_seal()
        try:
            self._let_go(error)
        except IdempotencyError:
            # There is no answer to give where the process is told to end. It must end.
            if error is None or isinstance(error, Exception):
                raise

    def _let_go(self, error: BaseException | None) -> None:
        hit("before_release")
        record = self._release(error or Unfinished())
        hit("after_release")
        if record is None:
            logger.info("%s is released.", self.claim.id)
            self.ended = Counted.RELEASED
            if isinstance(error, DatabaseFailure) and passing(error):
                raise TransactionConflict from error
        elif record.state is State.SEALED and record.response is not None:
            # The COMMIT that sealed it succeeded, and only its answer was lost.
            body = self.policy.original_body(record.response.body)
            self.sealed = replace(record.response, body=body)
        else:
            cause = self.doubt or error or Unfinished()
            traceback = None if isinstance(error, IdempotencyError) else error
            self.hold(describe(cause), sweep_after=None if isinstance(error, ForAPerson) else 0.0, cause=traceback)
            raise OutcomeUnknown(retry_after=max(1.0, record.lease_left or 1.0)) from error

    def _release(self, reason: BaseException) -> Record | None:
        """Free the key. What stands where that must not be: the database alone knows whether something has begun, since
        the COMMIT of a first phase may have succeeded while its answer was lost."""
        record = None
        # Twice, because the first statement may be the one that finds the connection broken.
        for _ in range(2):
            if self.mode.release():
                return None
            record = self.look_up(reason)
            if record is None or record.progress is not None or record.state is State.SEALED:
                break
        return record

    def hold(self, reason: str, *, sweep_after: float | None = 0.0, cause: BaseException | None = None) -> None:
        """Leave the key in flight, for a sweeper or a person to find out. Never an error: the lease ends anyway."""
        logger.error("%s is held: %s", self.claim.id, reason, exc_info=cause)
        self.ended = Counted.HELD
        self.mode.before_seal()
        try:
            also_if_broken(
                connections[self.store.alias],
                lambda: self.store.hold(self.claim.id, self.claim.owner_token, reason, sweep_after=sweep_after),
            )
        except DatabaseFailure:
            logger.exception("%s could not be marked as held; its lease ends by itself.", self.claim.id)


current_key: ContextVar[PhasedKey | None] = ContextVar("django_idempotency_current_key", default=None)
"""The key that an operation called in a view belongs to."""


class Unanswered(Explained):
    """Which call, and what kind of silence."""

    def __init__(self, step: str, error: Exception) -> None:
        super().__init__(f"the call {step!r} ended in {describe(error)}")
        self.__cause__ = error


class Uncommitted(Explained):
    """Which COMMIT nobody knows the end of."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the COMMIT of {what} has no known end")


class Unfinished(Explained):
    def __init__(self) -> None:
        super().__init__("the operation has begun and was not finished")


def describe(error: BaseException) -> str:
    """An error for a record that operators read: its kind, and not its text, which may quote somebody's data."""
    if isinstance(error, OutcomeUnknown) and isinstance(error.__cause__, Explained):
        error = error.__cause__
    if not isinstance(error, Explained):
        return kind(error)
    # It may hold another system's words, and must not fail to be stored for a character that the database refuses.
    return str(error).encode(errors="backslashreplace").decode().replace("\0", "\\x00")
