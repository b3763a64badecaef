"""One request: claim, run, seal or release. Knows nothing of HTTP.

The order of events is the promise: the claim comes before the handler, the seal goes into the transaction of the
effect, and the answer leaves after its COMMIT.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseFailure, router

from . import retention
from .conf import current
from .core.counted import Counted, counted_as
from .core.errors import Held, IdempotencyError, InProgress, KeyReused, StoreUnavailable, TooLate
from .core.fingerprint import SCHEME, Content, fingerprint
from .core.keys import record_id
from .core.operations import may_send_again, registry
from .core.policy import ResolvedPolicy
from .core.scope import operation_of
from .core.states import Claim, IdempotencyMode, Record, RecordedResponse, State, Verdict
from .failpoints import hit
from .models import IdempotencyKey
from .modes import MODES, Mode
from .ownership import Outcome, TransactionalKey, kind
from .phasing import PhasedKey, current_key
from .request_transactions import RequestTransactions
from .signals import tell
from .storage import Store, store_for

logger = logging.getLogger("django_idempotency")


@dataclass(frozen=True)
class Intent:
    """What the client asked for: a key within a scope, and the content that tells this request from another.

    :param age: seconds since the client first sent it, if it says so.
    """

    scope: str
    key: str
    content: Content
    age: float | None = None

    def is_late(self, policy: ResolvedPolicy) -> bool:
        """Whether the record of an earlier attempt may be gone already."""
        return self.age is not None and self.age > policy.retention.total_seconds()

    def is_nearly_late(self, policy: ResolvedPolicy) -> bool:
        """Whether the time for which a record is kept is nearly over."""
        return self.age is not None and self.age > 3 / 4 * policy.retention.total_seconds() and not self.is_late(policy)

    def check_in_time(self, policy: ResolvedPolicy) -> None:
        """:raises TooLate: to run it might be the second time, and the policy wants none of that."""
        if self.age is not None and policy.refuse_late and self.is_late(policy):
            raise TooLate(self.age, policy.retention.total_seconds())


class Execution:
    """One request from the claim to the commit.

    ``claim`` answers with a record to replay, or with None: run the handler. ``undo`` follows only when that raised.
    ``finish`` ends it, or ``abandon`` where there is no outcome.
    """

    def __init__(self, transactions: RequestTransactions) -> None:
        self.transactions = transactions
        self._owned: TransactionalKey | PhasedKey | None = None
        self._outer: PhasedKey | None = None
        self._about: dict[str, Any] = {}
        self._arrival: Counted | None = None
        self._age: float | None = None
        self._nearly_late = False

    @property
    def owns_key(self) -> bool:
        return self._owned is not None

    def claim(self, intent: Intent, policy: ResolvedPolicy) -> Record | None:
        """Own the key, or return the sealed record to replay.

        :raises IdempotencyError: neither. Nothing has run, and every transaction is rolled back.
        """
        alias = database_for(policy, intent.scope)
        number = record_id(intent.scope, intent.key)
        self._about = {"route": operation_of(intent.scope), "record_id": number, "using": alias}
        self._age, self._nearly_late = intent.age, intent.is_nearly_late(policy)
        try:
            store = store_for(alias)
            if store.partitioned:
                retention.ensure_leaf(alias, policy.retention)
            hit("before_claim")
            record = self._claim(store, number, intent, policy)
            hit("after_claim")
        except BaseException as error:
            self.abandon()
            if isinstance(error, DatabaseFailure):
                logger.error("The keys on %r cannot be reached: %s", alias, kind(error))  # noqa: TRY400 - no values
                self._arrived(Counted.UNAVAILABLE)
                raise StoreUnavailable(kind(error)) from error
            if isinstance(error, IdempotencyError):
                _log_refusal(number, error)
                self._arrived(counted_as(error))
            raise
        if record is not None:
            self._arrived(Counted.REPLAYED)
        return record

    def _claim(self, store: Store, id: UUID, intent: Intent, policy: ResolvedPolicy) -> Record | None:
        claim = Claim(
            id=id,
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
            _check_resumable(store, answer.record, policy)
            if answer.record.progress is None:
                intent.check_in_time(policy)
            if not mode.take_over(answer.record):
                raise InProgress
            logger.warning("%s is taken over: its lease lapsed after attempt %d.", claim.id, answer.record.attempts)
        else:
            try:
                intent.check_in_time(policy)
            except TooLate:
                mode.release()
                raise
            logger.info("%s is claimed.", claim.id)
        self._own(store, claim, policy, mode, resumed=answer.record is not None)
        mode.begin()
        self._arrival = self._arrival or _arrival(intent, policy, answer.record)
        return None

    def _own(self, store: Store, claim: Claim, policy: ResolvedPolicy, mode: Mode, *, resumed: bool) -> None:
        phased = None
        if policy.mode is IdempotencyMode.PHASED:
            # Read after the take-over: until then, the old owner may have come further than was seen.
            record = store.find(claim.id) if resumed else None
            phased = PhasedKey(store, claim, policy, mode, record.progress if record else None)
        self._owned = phased or TransactionalKey(store, claim, policy, mode)
        # None hides the key of a view around this one: an operation that is called in here is not that one's.
        self._outer = current_key.get()
        current_key.set(phased)

    def undo(self) -> None:
        """Drop what a handler that raised has written, so that the project's exception handler meets a clean
        transaction."""
        if self._owned is not None:
            self._owned.undo()

    def finish(self, outcome: Outcome) -> RecordedResponse | None:
        """Seal or release, then commit. What an operation has sealed is sent in place of the view's response.

        :raises IdempotencyError: the response must not be sent, and this is the answer instead.
        """
        owned = self._taken()
        with self._telling(owned):
            if owned is None:
                self.transactions.commit()
                return None
            return owned.finish(outcome)

    def abandon(self, error: BaseException | None = None) -> None:
        """No outcome: roll everything back, and release the key if it is ours and nothing has begun under it.

        :param error: what left the view.
        :raises IdempotencyError: a better answer than that error.
        """
        owned = self._taken()
        with self._telling(owned):
            if owned is None:
                self.transactions.roll_back()
            else:
                owned.abandon(error)

    def leave(self) -> None:
        """The operation has sealed its answer, and nobody is told of it here."""
        with self._telling(self._taken()):
            pass

    def pass_by(self, outcome: Counted, route: str) -> None:
        """Let through what has no key that is looked up, and tell of it once the transactions have ended."""
        self._about, self._arrival = {"route": route}, outcome

    def pass_on(self) -> None:
        """No key is owned: commit."""
        with self._telling(None):
            self.transactions.commit()

    @contextmanager
    def _telling(self, owned: TransactionalKey | PhasedKey | None) -> Iterator[None]:
        """Tell what became of the request, behind the end of its transactions: a receiver may query the database."""
        ended = None
        try:
            yield
        except BaseException as error:
            ended = counted_as(error)
            raise
        finally:
            self._arrived(self._arrival)
            self._arrival = None
            if owned is not None and (outcome := owned.ended or ended):
                tell(outcome, **self._about)

    def _arrived(self, outcome: Counted | None) -> None:
        if outcome is not None:
            tell(outcome, age=self._age, **self._about)
            if self._nearly_late:
                tell(Counted.NEARLY_LATE, **self._about)

    def _taken(self) -> TransactionalKey | PhasedKey | None:
        owned, self._owned = self._owned, None
        if owned is not None:
            current_key.set(self._outer)
        return owned


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


def _arrival(intent: Intent, policy: ResolvedPolicy, taken_over: Record | None) -> Counted:
    if intent.is_late(policy) and (taken_over is None or taken_over.progress is None):
        return Counted.LATE
    return Counted.NEW if taken_over is None else Counted.TAKEOVER


def _log_refusal(id: UUID, error: IdempotencyError) -> None:
    if isinstance(error, StoreUnavailable):
        logger.error("%s is refused: %s", id, error.reason)
    else:
        logger.info("%s is refused: %s.", id, error.slug)


def _check_same_request(record: Record, intent: Intent, policy: ResolvedPolicy) -> None:
    """Compared under the rules of the record's own version.

    :raises KeyReused: the record is of another request, and that has had an effect or may have one.
    """
    if (record.scope, record.key) != (intent.scope, intent.key):
        raise StoreUnavailable(f"{record.id} belongs to another scope and key")
    try:
        ours = fingerprint(intent.content, policy.fingerprint, record.fingerprint_scheme)
    except ValueError as error:
        raise StoreUnavailable(f"{record.id} was fingerprinted by a newer release") from error
    if ours != record.fingerprint and not record.is_vacant:
        raise KeyReused


def _check_lapsed(record: Record) -> None:
    """:raises InProgress: the owner is trusted still. :raises Held: a person must look."""
    if record.mode is IdempotencyMode.ATOMIC:
        # Visible to others, it was committed without its seal: something in the view commits by itself.
        logger.error("%s: an ATOMIC claim was committed without an outcome. A person must look.", record.id)
        raise Held(retry_after=60.0)
    if record.lease_left is not None and record.lease_left > 0:
        raise InProgress(record.lease_left)


def _check_resumable(store: Store, record: Record, policy: ResolvedPolicy) -> None:
    """:raises Held: an operation has begun under this key, and sending again could be a second effect."""
    if record.progress is None:
        return
    definition = registry.get(record.progress.operation)
    open_call = record.progress.open_call
    if policy.mode is not IdempotencyMode.PHASED or definition is None:
        raise Held(retry_after=60.0)
    if open_call is not None and not may_send_again(definition, open_call, now=store.now()):
        raise Held(retry_after=60.0)
