"""``@operation``: a function that becomes resumable, from a view, from a task, or by a sweeper."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from functools import update_wrapper
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ..conf import current
from ..core.documents import as_document
from ..core.errors import ResponseNotStored
from ..core.fingerprint import Content, JsonBody
from ..core.keys import parse_key
from ..core.operations import Definition, Resolver, registry
from ..core.policy import IdempotencyPolicy, ResolvedPolicy, declared
from ..core.scope import operation_name, scope as scope_of
from ..core.states import IdempotencyMode, Record
from ..modes import RequestTransactions
from ..ownership import current_key
from ..service import Execution, Intent
from .run import Answer, run


class Operation:
    """A declared operation.

    Called in a view in PHASED mode, it runs under the request's key. Anywhere else, :meth:`run` takes a key of its own.
    """

    def __init__(self, definition: Definition, policy: IdempotencyPolicy) -> None:
        self.definition = definition
        self.policy = policy
        update_wrapper(self, definition.function)

    def __call__(self, **parameters: Any) -> Answer:
        """Run under the key of the request that is being handled.

        :raises ImproperlyConfigured: there is none.
        """
        key = current_key.get()
        if key is None:
            raise ImproperlyConfigured(
                f"The operation {self.definition.name!r} was called outside a view in PHASED mode. In a task or a "
                f"command, use {self.definition.function.__name__}.run(scope=..., key=..., parameters=...)."
            )
        return run(key, self.definition, parameters)

    def run(self, *, scope: str, key: str, parameters: dict[str, Any]) -> Answer:
        """Run under a key of the caller's, once: a repetition returns the recorded answer.

        :param scope: whose key it is, such as ``"nightly-billing"``.
        :param key: one per intent, 1 to 255 printable ASCII characters.
        :raises IdempotencyError: the key is in use, held, or was used with other parameters.
        """
        document = as_document(parameters, "parameters")
        content = Content("RUN", scope, JsonBody(json.dumps(document).encode()))
        operation = operation_name(self.definition.name, None, "RUN")
        intent = Intent(scope_of(scope, operation), parse_key(json.dumps(key)), content)
        policy = self.resolved()
        execution = Execution(RequestTransactions())
        try:
            record = execution.claim(intent, policy)
            if record is not None:
                return _replayed(record, policy)
            return self(**document)
        except BaseException as error:
            execution.abandon(error)
            raise
        finally:
            current_key.set(None)

    def resolved(self) -> ResolvedPolicy:
        """The terms under which it runs where no view has others."""
        return current().resolve(self.policy)


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
        :class:`Happened`, :class:`DidNotHappen` or :class:`Unknown`.
    :param void: ``function(op, **parameters)`` that reverses an effect whose outcome is unknown and finishes with what
        the client should hear. Its calls have names of their own.
    :param call_timeout: the longest that a call takes.
    :param downstream_retention: how long the other side remembers a key.
    :param stale_after: how long after the end of a lease a sweeper takes over; twice ``call_timeout`` unless given.
    :param fields: fields of :class:`IdempotencyPolicy`, such as ``retention`` or ``lease``.
    """
    policy = declared(None, {**fields, "mode": IdempotencyMode.PHASED})

    def declare(function: Callable[..., Answer]) -> Operation:
        definition = Definition(
            name=name,
            function=function,
            downstream_takes_keys=downstream_takes_keys,
            resolver=resolver,
            void=void,
            call_timeout=call_timeout,
            downstream_retention=downstream_retention,
            stale_after=2 * call_timeout if stale_after is None else stale_after,
            policy=policy,
        )
        registry.add(definition)
        return Operation(definition, policy)

    return declare


def _replayed(record: Record, policy: ResolvedPolicy) -> Answer:
    response = record.response
    if response is None or response.body is None:
        raise ResponseNotStored(response.status if response else 0)
    body = response.body if policy.body_codec is None else policy.body_codec.unpack(response.body)
    return Answer(response.status, json.loads(body), replayed=True)
