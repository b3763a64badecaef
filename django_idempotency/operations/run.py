"""One run of an operation: phases that commit, calls that are announced before they are sent, one end.

A second run, by a retry or a sweeper, walks the same way: what is recorded answers from the record, and the first step
that is not recorded is where it goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from ..core.derivation import derive_key
from ..core.documents import as_document
from ..core.errors import IdempotencyError, OutcomeUnknown
from ..core.operations import Definition, may_send_again
from ..core.progress import Progress, Step, StepKind
from ..core.states import RecordedResponse, State
from ..failpoints import hit
from ..ownership import PhasedKey, Unanswered
from ..storage.transactions import within_test_case


class Declined(Exception):
    """A definitive refusal by the other side. Raise it in the function of a call; it is recorded, and raised again by
    each later run, so that the operation takes the same way.

    :param result: what it said, as JSON.
    """

    def __init__(self, result: Any = None) -> None:
        super().__init__(result)
        self.result = result


class CallInTransaction(RuntimeError):
    """A call to another system inside a transaction, which could undo what recorded it."""


class MayNotSendAgain(RuntimeError):
    """A call that may have taken effect, and would take effect once more. The text is ours and safe to store."""


class OperationChanged(RuntimeError):
    """The record of a run that is under way does not fit the code of today. It is held for a person, not guessed."""


@dataclass(frozen=True)
class Answer:
    """What a finished operation tells its caller. ``data`` is as it was recorded."""

    status: int
    data: Any
    replayed: bool = False


class Op:
    """The first argument of an operation's function."""

    def __init__(
        self, key: PhasedKey, definition: Definition, progress: Progress, *, compensating: bool = False
    ) -> None:
        self._key = key
        self._definition = definition
        self._progress = progress
        self._visited: set[str] = set()
        self._compensating = compensating

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
        stored = self._enter(name, StepKind.PHASE)
        if stored is not None:
            return stored.result
        hit("before_phase", name)
        with self._transaction() as durable:
            result = as_document(fn(), f"the result of the phase {name!r}")
            step = Step(name, StepKind.PHASE, done=True, result=result, compensating=self._compensating)
            self._advance(step, durable=durable)
            hit("before_phase_commit", name)
        hit("after_phase", name)
        return result

    def call(self, name: str, fn: Callable[[str], Any]) -> Any:
        """Send something to another system, outside any transaction.

        :param fn: ``callable(key) -> result``; it passes the derived key on. It returns or raises :class:`Declined` for
            a definitive answer; any other exception means that nobody knows, and the key is held.
        :raises Declined: the other side refused, now or in an earlier run.
        :raises OutcomeUnknown: nobody knows.
        :raises CallInTransaction: a transaction is open.
        """
        stored = self._enter(name, StepKind.CALL)
        if stored is None or not stored.done:
            stored = self._send(name, fn, stored)
        if stored.declined:
            raise Declined(stored.result)
        return stored.result

    def _send(self, name: str, fn: Callable[[str], Any], started: Step | None) -> Step:
        _refuse_transactions(name)
        if started is not None and not may_send_again(self._definition, started):
            raise MayNotSendAgain(
                f"the call {name!r} may not be sent again: the other side takes no keys, or may have forgotten this "
                f"one (downstream_retention={self._definition.downstream_retention})"
            )
        key, now = self.derived_key(name), time.time()
        step = started or Step(name, StepKind.CALL, key=key, started_at=now, compensating=self._compensating)
        # Fenced also when it is sent again: an owner that lost its lease must not send at all, if it can be helped.
        step = replace(step, sends=step.sends + 1)
        hit("before_call_started", name)
        self._advance(step, durable=True)
        hit("before_call", name)
        declined = False
        try:
            result = fn(str(step.key))
        except Declined as decline:
            declined, result = True, decline.result
        except Exception as error:  # noqa: BLE001 - whatever it was, only the other side can know what came of it
            raise OutcomeUnknown from Unanswered(name, error)
        document = as_document(result, f"the result of the call {name!r}")
        answered = replace(step, done=True, declined=declined, result=document)
        hit("after_call", name)
        self._advance(answered, durable=True)
        hit("after_call_stored", name)
        return answered

    def finish(self, fn: Callable[[], Any], *, status: int = 201, headers: Sequence[tuple[str, str]] = ()) -> Answer:
        """Run ``fn`` in the last transaction, together with the seal.

        :param fn: its result, as JSON, is the body that the client gets, now and on each retry.
        :param status: of the response; an operation that was declined finishes with 402, for example.
        """
        self._refuse_unvisited()
        recorded, data = None, None
        try:
            with self._transaction() as durable:
                data = as_document(fn(), "the result of finish")
                recorded = self._recorded(status, headers, data)
                self._key.seal(recorded, durable=durable)
        except IdempotencyError:
            raise
        except Exception as error:
            record = self._key.look_up(error)
            if record is None or record.state is not State.SEALED:
                raise
        self._key.sealed = recorded
        hit("after_commit")
        return Answer(status, data)

    def _recorded(self, status: int, headers: Sequence[tuple[str, str]], data: Any) -> RecordedResponse:
        body = json.dumps(data, separators=(",", ":")).encode()
        stored = self._key.policy.stored_body(body)
        return RecordedResponse(status, (("Content-Type", "application/json"), *headers), stored)

    def _enter(self, name: str, kind_: StepKind) -> Step | None:
        """What is recorded of a step. :raises OperationChanged: it does not fit what the code asks for."""
        if not name or len(name) > _LONGEST_NAME:
            raise ImproperlyConfigured(f"The name of a step must have 1 to {_LONGEST_NAME} characters, not {name!r}.")
        if name in self._visited:
            raise OperationChanged(f"The step {name!r} was reached twice; in a loop, give each turn a name of its own.")
        self._visited.add(name)
        stored = self._progress.step(name)
        if stored is None:
            self._refuse_unvisited()
        elif stored.kind is not kind_:
            raise OperationChanged(f"The step {name!r} was recorded as a {stored.kind.value}.")
        return stored

    def _refuse_unvisited(self) -> None:
        missed = [step.name for step in self._progress.steps if step.name not in self._visited]
        if missed and not self._compensating:
            raise OperationChanged(
                f"Recorded, and no longer reached by {self._progress.operation}: {', '.join(missed)}."
            )

    def _advance(self, step: Step, *, durable: bool) -> None:
        progress = self._progress.with_step(step)
        self._key.advance(progress, stale_after=self._definition.stale_after.total_seconds(), durable=durable)
        self._progress = progress

    @contextmanager
    def _transaction(self) -> Iterator[bool]:
        """A durable transaction, and whether its end is a COMMIT and not the savepoint of a TestCase."""
        alias = self._key.store.alias
        outermost = not connections[alias].in_atomic_block
        with transaction.atomic(using=alias, durable=True):
            yield outermost


# Of a column, and enough for a loop's counter behind any sensible name.
_LONGEST_NAME = 255


def _refuse_transactions(name: str) -> None:
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block and not within_test_case(connection):
            raise CallInTransaction(
                f"op.call({name!r}) inside a transaction on {connection.alias!r}: it would keep locks while another "
                "system thinks, and could undo the record of what was sent. Move it out of the atomic() block."
            )


def run(
    key: PhasedKey, definition: Definition, parameters: Mapping[str, Any], *, compensating: bool = False
) -> Answer:
    """Run an operation under a key that is ours, from its beginning or from where an earlier run stopped.

    :param compensating: reverse what may have happened. Once that has begun, every later run does the same.
    :raises OperationChanged: the record belongs to other code.
    """
    progress = key.progress
    if progress is None:
        progress = Progress(definition.name, as_document(dict(parameters), "parameters"))
    elif progress.operation != definition.name:
        raise OperationChanged(f"The key belongs to the operation {progress.operation!r}, not {definition.name!r}.")
    void = definition.void if compensating or progress.compensating else None
    op = Op(key, definition, progress, compensating=void is not None)
    answer = (void or definition.function)(op, **progress.parameters)
    if key.sealed is None or not isinstance(answer, Answer):
        raise ImproperlyConfigured(f"The operation {definition.name!r} must return op.finish(...).")
    return answer
