"""What comes out of an operation: its answer, a refusal by the other side, or why it cannot go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from ..core.errors import Explained, ForAPerson


@dataclass(frozen=True)
class Answer:
    """What a finished operation tells its caller. ``data`` is as it was recorded."""

    status: int
    data: Any
    replayed: bool = False


class Declined(Exception):
    """A definitive refusal by the other side. Raise it in the function of a call; it is recorded, and raised again by
    each later run, so that the operation takes the same way.

    :param result: what it said, as JSON.
    """

    def __init__(self, result: Any = None) -> None:
        super().__init__(result)
        self.result = result


class CallInTransaction(Explained, RuntimeError):
    """A call to another system inside a transaction, which could undo what recorded it."""


class Misused(Explained, ImproperlyConfigured):
    """An operation, or the view around it, is not written as it has to be."""


class MayNotSendAgain(ForAPerson, RuntimeError):
    """A call that may have taken effect, and would take effect once more."""


class OperationChanged(ForAPerson, RuntimeError):
    """The record of a run that is under way does not fit the code of today. It is held for a person, not guessed."""
