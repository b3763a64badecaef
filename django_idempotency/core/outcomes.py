"""Which outcomes are recorded, and which leave the key free.

A recorded outcome answers every retry. A released one rolls the view's writes back and lets the corrected request run
under the same key; it must therefore only be an answer that a later request can turn into another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class Decision(str, Enum):
    SEAL = "seal"
    RELEASE = "release"


RELEASED_STATUSES = frozenset({400, 401, 403, 404, 405, 406, 408, 412, 413, 415, 425, 428, 429, 431})
"""Validation, authentication, permission, routing, throttling and precondition failures (RFC 9110, RFC 6585,
RFC 8470): the view did not act, and the same intent can succeed later."""


@dataclass(frozen=True, eq=False)  # compared by identity: rules hold mappings and callables
class OutcomeRules:
    """Decides what becomes of an outcome. The first rule that speaks wins, in the order of the arguments.

    :param decide: ``callable(status, exception)`` that answers a :class:`Decision`, or None for "no opinion".
    :param by_exception: exception class to decision; the class nearest in the exception's own MRO wins.
    :param by_status: response status to decision.
    :param release: statuses that leave the key free. 5xx do, named or not, unless an earlier rule speaks: an unknown
        failure must stay retryable.

    An exception that declares a ``status_code`` of its own is judged by that status, whatever the project's exception
    handler renders it as: a validation error stays one when it is sent as 422.
    """

    decide: Callable[[int, BaseException | None], Decision | None] | None = None
    by_exception: Mapping[type[BaseException], Decision] = field(default_factory=dict)
    by_status: Mapping[int, Decision] = field(default_factory=dict)
    release: Collection[int] = RELEASED_STATUSES

    def __post_init__(self) -> None:
        if self.decide is not None and not callable(self.decide):
            raise TypeError("OutcomeRules.decide must be a callable(status, exception) -> Decision | None.")
        for exception in self.by_exception:
            if not (isinstance(exception, type) and issubclass(exception, BaseException)):
                raise TypeError(f"OutcomeRules.by_exception: {exception!r} is not an exception class.")
        for status in (*self.by_status, *self.release):
            if not isinstance(status, int) or not 100 <= status <= 599:
                raise ValueError(f"OutcomeRules: {status!r} is not an HTTP status.")
        by_exception = {name: Decision(value) for name, value in self.by_exception.items()}
        by_status = {status: Decision(value) for status, value in self.by_status.items()}
        object.__setattr__(self, "by_exception", MappingProxyType(by_exception))
        object.__setattr__(self, "by_status", MappingProxyType(by_status))
        object.__setattr__(self, "release", frozenset(self.release))

    @property
    def released_successes(self) -> list[int]:
        """The 2xx that certainly leave the key free, with what they report undone. None that ``decide`` may turn."""
        return [] if self.decide else [each for each in range(200, 300) if self.decision(each) is Decision.RELEASE]

    def decision(self, status: int, exception: BaseException | None = None) -> Decision:
        """Judge a response ``status``, and the ``exception`` that the view raised to produce it, if any."""
        if self.decide is not None:
            decided = self.decide(status, exception)
            if decided is not None:
                return Decision(decided)
        for cls in type(exception).__mro__ if exception is not None else ():
            if cls in self.by_exception:
                return self.by_exception[cls]
        declared = getattr(exception, "status_code", None)
        judged = declared if isinstance(declared, int) else status
        if judged in self.by_status:
            return self.by_status[judged]
        if judged in self.release or judged >= 500 or status >= 500:
            return Decision.RELEASE
        return Decision.SEAL
