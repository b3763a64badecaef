"""The steps of an operation: phases that commit, calls that are announced before they are sent, one end.

A second run, by a retry or a sweeper, walks the same way: what is recorded answers from the record, and the first step
that is not recorded is where it goes on.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import takewhile
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.derivation import derive_key
from ..core.documents import NotStorable, as_document
from ..core.errors import OutcomeUnknown
from ..core.headers import may_be_replayed
from ..core.operations import Definition, may_send_again
from ..core.progress import Progress, Step, StepKind
from ..core.states import Record, RecordedResponse, State
from ..failpoints import hit
from ..ownership import database_refused
from ..phasing import PhasedKey, Unanswered, Uncommitted
from ..renewal import longest_silence
from ..storage.transactions import within_test_case
from .answers import Answer, CallInTransaction, Declined, MayNotSendAgain, Misused, OperationChanged

logger = logging.getLogger("django_idempotency")


class Op:
    """The first argument of an operation's function. For the thread that owns the key."""

    def __init__(
        self, key: PhasedKey, definition: Definition, progress: Progress, *, compensating: bool = False
    ) -> None:
        self._key = key
        self._definition = definition
        self._progress = progress
        self._compensating = compensating
        self._entered: set[str] = set()
        self._passed: set[str] = set()

    @property
    def call_timeout(self) -> float:
        """Seconds that a call may take, for the client library that makes it."""
        return self._definition.call_timeout.total_seconds()

    def derived_key(self, step: str) -> str:
        """The key that :meth:`call` hands to the step of this name."""
        return derive_key(self._key.claim.scope, self._key.claim.key, step)

    def phase(self, name: str, fn: Callable[[], Any]) -> Any:
        """Run ``fn`` in a transaction that commits together with its result.

        :returns: the result as it is stored; from the second run on without calling ``fn``.
        :raises NotStorable: the result is not JSON; nothing is committed.
        :raises LeaseLost: another attempt owns the key; nothing is committed.
        """
        return self._pass(self._enter(name, StepKind.PHASE) or self._commit_phase(name, fn))

    def _commit_phase(self, name: str, fn: Callable[[], Any]) -> Step:
        def is_recorded(record: Record) -> bool:
            return record.progress is not None and record.progress.step(name) is not None

        hit("before_phase", name)
        with self._committing(f"the phase {name!r}", is_recorded) as durable:
            result = as_document(fn(), f"the result of the phase {name!r}")
            step = Step(name, StepKind.PHASE, done=True, result=result, compensating=self._compensating)
            progress = self._advance(step, durable=durable)
            hit("before_phase_commit", name)
        self._reach(progress)
        hit("after_phase", name)
        return step

    def call(self, name: str, fn: Callable[[str], Any]) -> Any:
        """Send something to another system, outside any transaction.

        :param fn: ``callable(key) -> result``; it passes the derived key on. It returns or raises :class:`Declined` for
            a definitive answer; any other exception means that nobody knows, and the key is held.
        :raises Declined: the other side refused, now or in an earlier run.
        :raises OutcomeUnknown: nobody knows.
        :raises CallInTransaction: a transaction is open.
        """
        step = self._enter(name, StepKind.CALL)
        if step is None or not step.done:
            step = self._send(name, fn, step)
        result = self._pass(step)
        if step.declined:
            raise Declined(result)
        return result

    def _send(self, name: str, fn: Callable[[str], Any], started: Step | None) -> Step:
        _refuse_transactions(name)
        step = self._announced(name, started)
        hit("before_call", name)
        declined = False
        try:
            result = fn(str(step.key))
        except Declined as decline:
            declined, result = True, decline.result
        except Exception as error:  # noqa: BLE001 - whatever it was, only the other side can know what came of it
            self._key.doubt = Unanswered(name, error)
            raise OutcomeUnknown from self._key.doubt
        hit("after_call", name)
        answered = replace(step, done=True, declined=declined, result=self._definitive(name, result))
        self._reach(self._advance(answered, durable=self._autocommits))
        self._key.doubt = None
        hit("after_call_stored", name)
        return answered

    def _announced(self, name: str, started: Step | None) -> Step:
        """The call as it is recorded before it is sent, each time: an owner that lost its lease must not send at all,
        if it can be helped."""
        now = self._key.store.now()
        if started is not None and not may_send_again(self._definition, started, now=now):
            raise MayNotSendAgain(
                f"the call {name!r} may not be sent again: the other side takes no keys, or may have forgotten this "
                f"one (downstream_retention={self._definition.downstream_retention})"
            )
        key = self.derived_key(name)
        step = started or Step(name, StepKind.CALL, key=key, started_at=now)
        # Also one that was sent before: with its first step, the reversal has begun.
        compensating = step.compensating or self._compensating
        step = replace(step, sends=step.sends + 1, compensating=compensating)
        hit("before_call_started", name)
        self._reach(self._advance(step, durable=self._autocommits))
        return step

    def _definitive(self, name: str, result: Any) -> Any:
        try:
            return as_document(result, f"the result of the call {name!r}")
        except NotStorable as error:
            # The effect has happened, and what came of it cannot be kept.
            self._key.doubt = error
            raise

    def finish(self, fn: Callable[[], Any], *, status: int = 201, headers: Sequence[tuple[str, str]] = ()) -> Answer:
        """Run ``fn`` in the last transaction, together with the seal.

        :param fn: its result, as JSON, is the body that the client gets, now and on each retry.
        :param status: of the response; an operation that was declined finishes with 402, for example.
        :param headers: that say more of the result, such as Location. The client gets them each time as well.
        """
        self._check_turn("op.finish")
        if not 200 <= status < 500:
            raise Misused(f"op.finish(status={status}): each retry would get it, so it must be an answer (200 to 499).")
        _refuse_unsendable(headers)
        with self._committing("op.finish", lambda record: record.state is State.SEALED) as durable:
            data = as_document(fn(), "the result of finish", in_order=False)
            sent = _response(status, headers, data)
            recorded = replace(sent, body=self._key.policy.stored_body(sent.body or b""))
            self._key.seal(recorded, durable=durable)
        self._key.sealed = sent
        hit("after_commit")
        return Answer(status, data)

    def _enter(self, name: str, kind: StepKind) -> Step | None:
        """What is recorded of a step. :raises OperationChanged: it does not fit what the code asks for."""
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise Misused(f"The name of a step must have 1 to {_LONGEST_NAME} printable characters, not {name!r}.")
        if name in self._passed:
            raise OperationChanged(f"The step {name!r} was reached twice; in a loop, give each turn a name of its own.")
        self._entered.add(name)
        step = self._progress.step(name)
        if step is None:
            self._check_turn(f"the step {name!r}")
        elif step.kind is not kind:
            raise OperationChanged(f"The step {name!r} was recorded as a {step.kind.value}.")
        elif not step.done:
            self._check_turn(f"the step {name!r}", again=step)
        return step

    def _check_turn(self, what: str, again: Step | None = None) -> None:
        """Refuse what is new at the wrong time, also where the operation swallowed the error that should have ended it.

        :param again: the call that is about to be sent again. What was recorded behind it need not be reached yet.
        :raises OutcomeUnknown: a call has no answer yet.
        """
        if threading.get_ident() != self._key.thread:
            raise Misused(f"{what} in another thread: the steps of an operation follow each other, in one thread.")
        if self._key.sealed is not None:
            raise Misused(f"{what} after op.finish.")
        if self._key.unsure is not None:
            raise OutcomeUnknown from self._key.unsure
        if self._key.progress is not None and self._key.progress is not self._progress:
            raise Misused(f"{what}, after {self._key.progress.operation!r} has begun under the same key.")
        # What is reversed need not be walked again, only what reverses it.
        before = takewhile(lambda step: step is not again, self._progress.steps)
        ours = [step for step in before if step.compensating or not self._compensating]
        missed = [step.name for step in ours if step.name not in self._entered]
        if missed:
            raise OperationChanged(
                f"Recorded, and not reached any more by {self._progress.operation} before {what}: {', '.join(missed)}."
            )
        if not all(step.done for step in ours):
            raise OutcomeUnknown from self._key.doubt

    def _pass(self, step: Step) -> Any:
        self._passed.add(step.name)
        # A copy: what the operation does to it must not be recorded together with the next step.
        return deepcopy(step.result)

    def _advance(self, step: Step, *, durable: bool) -> Progress:
        progress = self._progress.with_step(step)
        self._key.advance(progress, stale_after=self._definition.stale_after.total_seconds(), durable=durable)
        return progress

    def _reach(self, progress: Progress) -> None:
        """It is committed."""
        self._progress = self._key.progress = progress
        self._key.unsure = None

    @property
    def _autocommits(self) -> bool:
        return not connections[self._key.store.alias].in_atomic_block

    @contextmanager
    def _committing(self, what: str, is_recorded: Callable[[Record], bool]) -> Iterator[bool]:
        """A transaction, and whether its end is a COMMIT and not the savepoint of a TestCase.

        An error after its work is done, of a COMMIT whose answer is lost or of a hook behind it, is a failure only
        where the database does not know of it.
        """
        _refuse_manual_commits(what, connections[self._key.store.alias])
        durable = self._autocommits
        try:
            with transaction.atomic(using=self._key.store.alias, durable=True):
                if durable:
                    self._key.store.limit_silence(longest_silence(self._key.claim.lease))
                yield durable
                self._key.unsure = Uncommitted(what)
        except Exception as error:
            record = self._key.look_up(error) if self._key.unsure else None
            if record is None or not is_recorded(record):
                if database_refused(error):
                    self._key.unsure = None
                raise
            logger.exception("%s is committed; what follows the COMMIT failed.", self._key.claim.id)


# Of a column, and enough for a loop's counter behind any sensible name.
_LONGEST_NAME = 255
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_HEADER_VALUE = re.compile(r"[^\r\n\0\ud800-\udfff]*")
_WITHOUT_CONTENT = (204, 205, 304)


def _refuse_unsendable(headers: Sequence[tuple[str, str]]) -> None:
    """Before they are sealed: a record that cannot be sent, or not even be read, is all that a retry would get."""
    given: object = headers
    if not isinstance(given, list | tuple):
        raise Misused(f"op.finish(headers=...) takes a list of pairs, not {type(headers).__name__}.")
    for each in given:
        if not (isinstance(each, list | tuple) and len(each) == 2 and all(isinstance(part, str) for part in each)):
            raise Misused("op.finish(headers=...) takes pairs of a name and a value, each a str.")
        name, value = each
        if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            raise Misused(
                f"op.finish(headers=...): {name!r} is no name of a header, or its value is not one line of text."
            )
        if not may_be_replayed(name):
            raise Misused(f"op.finish(headers=...): {name!r} is of one exchange, and each retry would get it.")


def _response(status: int, headers: Sequence[tuple[str, str]], data: Any) -> RecordedResponse:
    if status in _WITHOUT_CONTENT:
        return RecordedResponse(status, tuple(headers), b"")
    body = json.dumps(data, separators=(",", ":")).encode()
    return RecordedResponse(status, (("Content-Type", "application/json"), *headers), body)


def _refuse_manual_commits(what: str, connection: BaseDatabaseWrapper) -> None:
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise Misused(
            f"Autocommit was switched off on {connection.alias!r}: {what} would end without a COMMIT, and its answer "
            "would be given and not kept. Leave it on in an operation."
        )


def _refuse_transactions(name: str) -> None:
    for connection in connections.all(initialized_only=True):
        connected = connection.connection is not None
        by_hand = connected and not connection.in_atomic_block and not connection.get_autocommit()
        if by_hand or (connection.in_atomic_block and not within_test_case(connection)):
            raise CallInTransaction(
                f"op.call({name!r}) inside a transaction on {connection.alias!r}: it would keep locks while another "
                "system thinks, and could undo the record of what was sent. Move it out of the atomic() block."
            )
