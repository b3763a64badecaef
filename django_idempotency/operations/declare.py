"""``@operation``: a function that becomes resumable, from a view, from a task, or by a sweeper."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import update_wrapper
from typing import Any

from ..conf import current
from ..core.documents import as_document
from ..core.errors import ResponseNotStored
from ..core.fingerprint import Content, JsonBody
from ..core.keys import parse_key
from ..core.operations import Definition, Resolver, registry
from ..core.policy import FIELD_VALIDATORS, IdempotencyPolicy, PolicyError, ResolvedPolicy, declared
from ..core.scope import operation_name, scope as scope_of
from ..core.states import IdempotencyMode, Record
from ..phasing import PhasedKey, current_key
from ..request_transactions import RequestTransactions
from ..service import Execution, Intent, database_for
from .answers import Answer, Misused
from .run import run


class Operation:
    """A declared operation.

    Called in a view in PHASED mode, it runs under the request's key. Anywhere else, :meth:`run` takes a key of its own.
    """

    def __init__(self, definition: Definition) -> None:
        # First: what is attached to the function must not take the place of the definition.
        update_wrapper(self, definition.function)
        self.definition = definition

    def __call__(self, /, **parameters: Any) -> Answer:
        """Run under the key of the request that is being handled.

        :raises Misused: there is none.
        """
        key = current_key.get()
        if key is None:
            raise Misused(
                f"The operation {self.definition.name!r} was called outside a view in PHASED mode. In a task or a "
                f"command, use {self.definition.function.__name__}.run(scope=..., key=..., parameters=...)."
            )
        self._check_database(key)
        key.policy = self._terms(key.policy)
        return run(key, self.definition, parameters)

    def run(self, *, scope: str, key: str, parameters: dict[str, Any]) -> Answer:
        """Run under a key of the caller's, once: a repetition returns the recorded answer.

        :param scope: whose key it is, such as ``"nightly-billing"``.
        :param key: one per intent, 1 to 255 printable ASCII characters.
        :raises IdempotencyError: the key is in use, held, or was used with other parameters.
        :raises ImproperlyConfigured: a transaction is open, which could undo what this tells its caller.
        """
        if not isinstance(key, str):
            raise TypeError(f"A key must be a str, not {type(key).__name__}.")
        document = as_document(parameters, "parameters")
        content = Content("RUN", scope, JsonBody(json.dumps(document).encode()))
        operation = operation_name(self.definition.name, None, "RUN")
        intent = Intent(scope_of(scope, operation), parse_key(json.dumps(key)), content)
        policy = self.resolved()
        execution = Execution(RequestTransactions())
        try:
            record = execution.claim(intent, policy)
            return self(**document) if record is None else _replayed(record, policy)
        except BaseException as error:
            execution.abandon(error)
            raise
        finally:
            execution.leave()

    def resolved(self) -> ResolvedPolicy:
        """The terms under which it runs where no view has others."""
        return current().resolve(self.definition.policy)

    def _check_database(self, key: PhasedKey) -> None:
        """:raises Misused: the operation's phases write to another database than the one that its key is kept in."""
        ours, kept = self.resolved(), key.store.alias
        if self.definition.policy.using is not None and (alias := database_for(ours, key.claim.scope)) != kept:
            raise Misused(
                f"The operation {self.definition.name!r} is for {alias!r}, and the view keeps its keys on {kept!r}: a "
                "phase would not commit together with its record. Set the same using on both."
            )

    def _terms(self, view: ResolvedPolicy) -> ResolvedPolicy:
        """How the answer is kept. A sweeper that finishes in the place of the view knows the operation alone.

        :raises Misused: the view promises something else.
        """
        ours, usual = self.resolved(), current().resolve(IdempotencyPolicy())
        for name in ("retention", "max_response_bytes"):
            if getattr(view, name) not in (getattr(ours, name), getattr(usual, name)):
                raise Misused(
                    f"The view of the operation {self.definition.name!r} sets {name}, which a sweeper would not know: "
                    f"set it on the operation, as in @operation({self.definition.name!r}, {name}=...)."
                )
        if view.body_codec != ours.body_codec:
            raise Misused(
                f"The view and the operation {self.definition.name!r} have different body_codecs: what a sweeper "
                "stores by the operation's, a replay reads by the view's. Set the same on both, or the setting."
            )
        return replace(view, retention=ours.retention, max_response_bytes=ours.max_response_bytes)


def operation(
    name: str,
    *,
    downstream_takes_keys: bool = False,
    resolver: Resolver | None = None,
    void: Callable[..., Any] | None = None,
    call_timeout: timedelta = timedelta(seconds=10),
    downstream_retention: timedelta = timedelta(hours=24),
    stale_after: timedelta | None = None,
    **fields: Any,
) -> Callable[[Callable[..., Answer]], Operation]:
    """Declare ``function(op, **parameters)``, which returns ``op.finish(...)``, as an operation.

    :param name: names it in records, for good: a renaming makes a running operation one for a person.
    :param downstream_takes_keys: the other side answers a key that it knows from its record. Only then is a call that
        has no answer sent again.
    :param resolver: ``callable(record)`` that asks the other side about ``record.progress.open_call`` and answers
        :class:`Happened`, :class:`DidNotHappen` or :class:`Unknown`. It is asked outside any transaction.
    :param void: ``function(op, **parameters)`` that reverses an effect whose outcome is unknown and finishes with what
        the client should hear. Its calls have names of their own; under the name of the open call, the request that
        has no answer is sent once more. It must hold also if that request arrives later: its owner may have been
        suspended before it was sent.
    :param call_timeout: the longest that a call takes.
    :param downstream_retention: how long the other side remembers a key.
    :param stale_after: how long after the end of a lease a sweeper takes over; twice ``call_timeout`` unless given.
    :param fields: of :class:`IdempotencyPolicy`: lease, max_wait, retention, max_response_bytes, body_codec, using and
        fingerprint. The others belong to a view.
    :raises PolicyError: any of them is wrong.
    """
    if foreign := fields.keys() & _OF_A_VIEW:
        raise PolicyError(f"@operation({name!r}): {', '.join(sorted(foreign))} is for the policy of a view.")
    if len(FIELD_VALIDATORS["operation"]("The name of an operation", name)) > _LONGEST_NAME:
        raise PolicyError(f"The name of an operation must have at most {_LONGEST_NAME} characters, not {name!r}.")
    FIELD_VALIDATORS["required"]("downstream_takes_keys", downstream_takes_keys)
    stale_after = 2 * call_timeout if stale_after is None else stale_after
    durations = {
        "call_timeout": call_timeout,
        "downstream_retention": downstream_retention,
        "stale_after": stale_after,
    }
    for duration, value in durations.items():
        FIELD_VALIDATORS["max_wait"](duration, value)
    for function, given in {"resolver": resolver, "void": void}.items():
        if given is not None and not callable(given):
            raise PolicyError(f"{function} must be a callable, not {given!r}.")
    policy = declared(None, {**fields, "mode": IdempotencyMode.PHASED})

    def declare(function: Callable[..., Answer]) -> Operation:
        if isinstance(function, Operation):
            raise PolicyError(f"@operation({name!r}): {function.definition.name!r} is an operation already.")
        definition = Definition(
            name=name,
            function=function,
            downstream_takes_keys=downstream_takes_keys,
            resolver=resolver,
            void=void,
            call_timeout=call_timeout,
            downstream_retention=downstream_retention,
            stale_after=stale_after,
            policy=policy,
        )
        registry.add(definition)
        return Operation(definition)

    return declare


# What a column takes.
_LONGEST_NAME = 255
_OF_A_VIEW = frozenset({"required", "methods", "mode", "scope", "outcomes", "replay_headers", "operation"})


def _replayed(record: Record, policy: ResolvedPolicy) -> Answer:
    response = record.response
    body = None if response is None else policy.original_body(response.body)
    if response is None or body is None:
        raise ResponseNotStored(response.status if response else 0)
    return Answer(response.status, json.loads(body) if body else None, replayed=True)
