"""One request: claim, run, seal or release. Knows nothing of HTTP.

The order of events is the promise: the claim comes before the handler, the seal goes into the transaction of the
effect, and the answer leaves after its COMMIT.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseFailure, IntegrityError, connections, router, transaction

from . import retention
from .conf import current
from .core.errors import (
    BrokenTransaction,
    Held,
    InProgress,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    StoreUnavailable,
    TransactionConflict,
)
from .core.fingerprint import SCHEME, Content, fingerprint
from .core.keys import record_id
from .core.outcomes import Decision
from .core.policy import ResolvedPolicy
from .core.states import Claim, IdempotencyMode, Record, RecordedResponse, Sealing, State, Verdict
from .failpoints import hit
from .models import IdempotencyKey
from .modes import MODES, Mode, RequestTransactions
from .storage import Store, store_for
from .storage.transactions import cannot_commit, is_lost, passing, sqlstate

logger = logging.getLogger("django_idempotency")


@dataclass(frozen=True)
class Intent:
    """What the client asked for: a key within a scope, and the content that tells this request from another."""

    scope: str
    key: str
    content: Content


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


class Execution:
    """One request from the claim to the commit.

    ``claim`` answers with a record to replay, or with None: run the handler. ``undo`` follows only when that raised.
    ``finish`` ends it, or ``abandon`` where there is no outcome.
    """

    def __init__(self, transactions: RequestTransactions) -> None:
        self.transactions = transactions
        self._owned: _Owned | None = None

    @property
    def owns_key(self) -> bool:
        return self._owned is not None

    def claim(self, intent: Intent, policy: ResolvedPolicy) -> Record | None:
        """Own the key, or return the sealed record to replay.

        :raises IdempotencyError: neither. Nothing has run, and every transaction is rolled back.
        """
        alias = database_for(policy, intent.scope)
        try:
            store = store_for(alias)
            if store.partitioned:
                retention.ensure_leaf(alias, policy.retention)
            hit("before_claim")
            record = self._claim(store, intent, policy)
            hit("after_claim")
        except BaseException as error:
            self.abandon()
            if isinstance(error, DatabaseFailure):
                logger.error("The keys on %r cannot be reached: %s", alias, _kind(error))  # noqa: TRY400 - no values
                raise StoreUnavailable(_kind(error)) from error
            raise
        return record

    def _claim(self, store: Store, intent: Intent, policy: ResolvedPolicy) -> Record | None:
        claim = Claim(
            id=record_id(intent.scope, intent.key),
            scope=intent.scope,
            key=intent.key,
            fingerprint=fingerprint(intent.content, policy.fingerprint),
            fingerprint_scheme=SCHEME,
            owner_token=uuid4(),
            mode=policy.mode,
            lease=policy.lease.total_seconds(),
            max_wait=policy.max_wait.total_seconds(),
        )
        mode = MODES[policy.mode](store, claim, self.transactions)
        answer = mode.claim()
        if answer.verdict is Verdict.WAITED:
            raise InProgress
        if answer.verdict is Verdict.WRONG_ISOLATION:
            raise StoreUnavailable(
                "a claim needs READ COMMITTED; use IdempotencyMode.LEASED under another isolation level"
            )
        if answer.record is not None:
            _check_same_request(answer.record, intent, policy)
            if answer.record.state is State.SEALED:
                logger.info("%s is replayed.", claim.id)
                self.transactions.commit()
                return answer.record
            _check_lapsed(answer.record)
            if not mode.take_over(answer.record):
                raise InProgress
            logger.warning("%s is taken over: its lease lapsed after attempt %d.", claim.id, answer.record.attempts)
        else:
            logger.info("%s is claimed.", claim.id)
        self._owned = _Owned(store, claim, policy, mode)
        mode.begin()
        return None

    def undo(self) -> None:
        """Drop what a handler that raised has written, so that the project's exception handler meets a clean
        transaction."""
        if self._owned is not None:
            self._owned.undo()

    def finish(self, outcome: Outcome) -> None:
        """Seal or release, then commit.

        :raises IdempotencyError: the response must not be sent, and this is the answer instead.
        """
        if self._owned is None:
            self.transactions.commit()
            return
        try:
            sealed = self._owned.settle(outcome)
        except BaseException as error:
            self.abandon(error)
            if isinstance(error, DatabaseFailure):
                raise StoreUnavailable(_kind(error)) from error
            raise
        if not sealed:
            self.abandon()
            return
        owned, self._owned = self._owned, None
        owned.commit()
        hit("after_commit")

    def abandon(self, error: BaseException | None = None) -> None:
        """Roll everything back, and release the key if it is ours.

        :param error: what left the view.
        :raises TransactionConflict: the error is of a kind that a repetition gets past.
        """
        owned, self._owned = self._owned, None
        if owned is None:
            self.transactions.roll_back()
            return
        hit("before_release")
        if owned.mode.release():
            logger.info("%s is released.", owned.claim.id)
        hit("after_release")
        if isinstance(error, DatabaseFailure) and (why := passing(error)):
            logger.warning("%s was rolled back by the database: %s.", owned.claim.id, why)
            raise TransactionConflict from error


@dataclass
class _Owned:
    """A key that is ours."""

    store: Store
    claim: Claim
    policy: ResolvedPolicy
    mode: Mode
    undone: bool = False

    def undo(self) -> None:
        self.undone = True
        try:
            self.mode.undo()
        except DatabaseFailure:
            # The handler's own error goes on to the project; the broken transaction is met again at the end.
            logger.exception("The writes under %s could not be undone one by one.", self.claim.id)

    def settle(self, outcome: Outcome) -> bool:
        """Seal, if that is what the rules say and the transaction can carry it."""
        broken = self._is_broken()
        if broken and outcome.exception is None and outcome.status < 400:
            logger.error("%s: the view answered %d over a broken transaction.", self.claim.id, outcome.status)
            raise BrokenTransaction
        if self.policy.outcomes.decision(outcome.status, outcome.exception) is Decision.RELEASE:
            return False
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
        hit("before_seal")
        self.mode.before_seal()
        self._seal(response)
        hit("after_seal")
        return True

    def _is_broken(self) -> bool:
        connection = connections[self.store.alias]
        if self.undone and not connection.closed_in_transaction:
            # The framework marks the transaction of a request whose handler raised; those writes are undone already.
            transaction.set_rollback(False, using=self.store.alias)
        return cannot_commit(connection)

    def _seal(self, response: RecordedResponse) -> None:
        sealing = self._try_seal(response)
        if sealing is Sealing.NO_PARTITION:
            retention.forget_reach(self.store.alias)
            retention.ensure_leaf(self.store.alias, self.policy.retention)
            sealing = self._try_seal(response)
        if sealing is Sealing.LOST:
            logger.warning("%s was taken over while this attempt ran; its writes are rolled back.", self.claim.id)
            raise LeaseLost
        if sealing is not Sealing.SEALED:
            raise StoreUnavailable(f"no partition of {self.store.alias!r} takes the record")
        logger.info("%s is sealed with %d.", self.claim.id, response.status)

    def _try_seal(self, response: RecordedResponse) -> Sealing:
        return self.store.seal(
            self.claim.id,
            self.claim.owner_token,
            response,
            retention=self.policy.retention.total_seconds(),
            lease=self.claim.lease,
            durable=self.mode.durable,
        )

    def commit(self) -> None:
        """Commit, and find out what became of it where the answer was lost."""
        try:
            self.mode.commit()
        except Exception as error:
            record = self._look_up(error)
            if record is not None and record.owner_token != self.claim.owner_token:
                raise LeaseLost from error
            if record is not None and record.state is State.SEALED:
                logger.exception("%s is committed; what follows the COMMIT failed.", self.claim.id)
                return
            if not _database_refused(error):
                raise OutcomeUnknown from error
            self.mode.release()
            if passing(error):
                raise TransactionConflict from error
            raise  # of a deferred constraint or trigger: the project's own error

    def _look_up(self, error: Exception) -> Record | None:
        connections[self.store.alias].close_if_unusable_or_obsolete()
        try:
            return self.store.find(self.claim.id)
        except DatabaseFailure:
            raise OutcomeUnknown from error


def database_for(policy: ResolvedPolicy, scope: str) -> str:
    """The alias that the effects under ``scope`` commit in.

    :raises ImproperlyConfigured: it is not one of the setting DATABASES, so nobody would migrate or sweep it.
    """
    using = policy.using
    alias = using(scope) if callable(using) else using or router.db_for_write(IdempotencyKey)
    if alias not in current().DATABASES:
        raise ImproperlyConfigured(
            f"The policy keeps keys on {alias!r}, which IDEMPOTENCY['DATABASES'] does not list: {current().DATABASES}."
        )
    return alias


def _check_same_request(record: Record, intent: Intent, policy: ResolvedPolicy) -> None:
    """:raises KeyReused: the record is of another request. Compared under the rules of the record's own version."""
    if (record.scope, record.key) != (intent.scope, intent.key):
        raise StoreUnavailable(f"{record.id} belongs to another scope and key")
    try:
        ours = fingerprint(intent.content, policy.fingerprint, record.fingerprint_scheme)
    except ValueError as error:
        raise StoreUnavailable(f"{record.id} was fingerprinted by a newer release") from error
    if ours != record.fingerprint:
        logger.info("%s is refused: its first request had other content.", record.id)
        raise KeyReused


def _check_lapsed(record: Record) -> None:
    """:raises InProgress: the owner is trusted still. :raises Held: a person must look."""
    if record.mode is IdempotencyMode.ATOMIC:
        # Visible to others, it was committed without its seal: something in the view commits by itself.
        logger.error("%s: an ATOMIC claim was committed without an outcome. A person must look.", record.id)
        raise Held(retry_after=60.0)
    if record.lease_left is not None and record.lease_left > 0:
        raise InProgress(record.lease_left)


def _database_refused(error: Exception) -> bool:
    """Whether the server itself said no to a COMMIT, and not a connection that broke: nothing is committed."""
    return isinstance(error, IntegrityError) or not is_lost(sqlstate(error))


def _kind(error: BaseException) -> str:
    """The class of a database error: its message may quote the values of a row."""
    return type(error.__cause__ or error).__name__
