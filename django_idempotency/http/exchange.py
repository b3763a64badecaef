"""One HTTP request through the service: from its key to its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import uuid4

from django.db import Error as DatabaseFailure
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import get_language

from ..conf import current
from ..core.counted import Counted, counted_as
from ..core.errors import IdempotencyError, MalformedKey, MissingKey, StoreUnavailable
from ..core.fingerprint import Content, EmptyBody
from ..core.policy import ResolvedPolicy
from ..core.scope import scope
from ..core.states import IdempotencyMode, RecordedResponse
from ..failpoints import hit
from ..ownership import Outcome
from ..request_transactions import RequestTransactions
from ..service import Execution, Intent
from ..signals import tell
from .capture import as_sent, capture, discard, replace_by, replay
from .requests import age_on_arrival, has_key

logger = logging.getLogger("django_idempotency")


@dataclass(frozen=True)
class Asking:
    """What a framework knows about a keyed request: each part is asked for in this order, and only while needed."""

    key: Callable[[], str | None]
    principal: Callable[[], str | None]
    operation: str
    content: Callable[[], Content]


def rendered(response: Any) -> HttpResponseBase:
    """What is sent in the end: ``render()`` may answer with another object."""
    if callable(getattr(response, "render", None)) and not getattr(response, "is_rendered", False):
        response = response.render()
    result: HttpResponseBase = response
    return result


def _unrepeatable(asking: Asking) -> Intent:
    """An operation needs a key to be gone on with, though its client sent none: one that nobody can repeat, so that
    neither its caller nor its content matters."""
    return Intent(scope("nobody", asking.operation), str(uuid4()), Content("", "", EmptyBody()))


def _name_language(request: HttpRequest, response: HttpResponseBase) -> None:
    """Say what LocaleMiddleware would say later: of a replay it knows the retry's language, and not the body's."""
    if hasattr(request, "LANGUAGE_CODE") and not response.has_header("Content-Language"):
        response["Content-Language"] = get_language() or request.LANGUAGE_CODE


@cache
def _warn_that_nothing_is_protected() -> None:
    logger.warning("IDEMPOTENCY['OBSERVE_ONLY'] is on: keys are counted, and no request is protected.")


class Exchange:
    """Opens the request's transactions, asks for the key, and answers once.

    ``open``, ``admit``, then the handler, then ``conclude``; ``abandon`` instead where an exception leaves the view.
    """

    def __init__(self, request: HttpRequest, transactions: RequestTransactions) -> None:
        self._request = request
        self._transactions = transactions
        self._execution = Execution(transactions)
        self._policy: ResolvedPolicy | None = None

    def open(self) -> None:
        """Begin what ATOMIC_REQUESTS would have begun.

        :raises StoreUnavailable: the database is down, and the client of a keyed request should know to come back.
        """
        try:
            self._transactions.open()
        except BaseException as error:
            # What is open by now would stay open in this thread, and fail all requests after this one.
            self._transactions.roll_back()
            if isinstance(error, DatabaseFailure) and has_key(self._request):
                raise StoreUnavailable("the database cannot be reached") from error
            raise

    def admit(self, policy: ResolvedPolicy, asking: Asking) -> HttpResponse | None:
        """None: run the handler. Otherwise the recorded answer.

        :raises IdempotencyError: the request is refused; nothing has run and nothing is open.
        """
        try:
            if current().OBSERVE_ONLY:
                key = None
                self._observed(asking)
            elif (key := asking.key()) is None:
                if policy.required:
                    raise MissingKey(current().HEADER)
                self._execution.pass_by(Counted.MISSING_KEY, asking.operation)
            if key is None and policy.mode is not IdempotencyMode.PHASED:
                return None
            intent = _unrepeatable(asking) if key is None else self._intent(asking, key, policy)
        except IdempotencyError as error:
            self._transactions.roll_back()
            logger.info("A request to %s is refused: %s.", asking.operation, error.slug)
            if outcome := counted_as(error):
                tell(outcome, asking.operation)
            raise
        record = self._execution.claim(intent, policy)
        self._policy = policy
        if record is None or record.response is None:
            return None
        return replay(record.response, policy, self._request)

    def _observed(self, asking: Asking) -> None:
        """Under OBSERVE_ONLY: note what the client sent, and let the request through."""
        _warn_that_nothing_is_protected()
        try:
            outcome = Counted.MISSING_KEY if asking.key() is None else Counted.OBSERVED
        except MalformedKey:
            outcome = Counted.MALFORMED_KEY
        logger.info("Observed only: a request to %s, counted as %s.", asking.operation, outcome.value)
        self._execution.pass_by(outcome, asking.operation)

    def _intent(self, asking: Asking, key: str, policy: ResolvedPolicy) -> Intent:
        age = age_on_arrival(self._request, key, policy)
        return Intent(scope(asking.principal(), asking.operation), key, asking.content(), age)

    def undo(self) -> None:
        """The handler raised: drop what it wrote."""
        self._execution.undo()

    def conclude(
        self,
        response: HttpResponseBase,
        exception: BaseException | None = None,
        render: Callable[[HttpResponseBase], HttpResponseBase] = rendered,
        record: Callable[[HttpResponseBase, ResolvedPolicy], RecordedResponse] = capture,
    ) -> HttpResponseBase:
        """Render, seal or release what the handler came to, and commit.

        :param exception: what the handler raised, where ``response`` was made of that.
        :raises IdempotencyError: the response must not be sent; this is the answer.
        """
        policy = self._policy
        if policy is None or not self._execution.owns_key:
            self._execution.pass_on()
            return response
        hit("after_effect")
        final = render(response)
        if not isinstance(final, HttpResponseBase):
            self._execution.abandon()
            return final  # which Django refuses in words of its own
        _name_language(self._request, final)
        outcome = Outcome(final.status_code, lambda: record(final, policy), exception, lambda: discard(final))
        sealed = self._execution.finish(outcome)
        return final if sealed is None else replace_by(final, as_sent(sealed, self._request))

    def abandon(self, error: BaseException) -> None:
        """An exception leaves the view: nothing is kept.

        :raises TransactionConflict: a better answer than that exception.
        """
        self._execution.abandon(error)
