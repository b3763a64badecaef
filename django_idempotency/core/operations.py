"""What an operation is: its code, and what may be done about one that stopped half-way. Plain data and a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from .policy import IdempotencyPolicy
from .progress import Step
from .states import Record


class Strategy(str, Enum):
    """What a sweeper does with an operation whose call was started and has no answer."""

    RESUME = "resume"
    """Send again, under the same derived key: the other side answers a key that it knows from its record."""

    LOOK_UP = "look_up"
    """Ask the other side first. Of what it knows nothing, the effect is reversed where that can be done, and sent again
    otherwise."""

    VOID = "void"
    """Reverse the effect, then tell the client that it did not come about."""

    PERSON = "person"
    """The other side takes no keys and cannot be asked: nobody but a person can know."""


@dataclass(frozen=True)
class Happened:
    """A resolver's word: the other side acted on the call, and this is its definitive answer.

    :param declined: the answer was a refusal, as if the call had raised ``Declined`` with this result.
    """

    result: Any
    declined: bool = False


@dataclass(frozen=True)
class DidNotHappen:
    """A resolver's word: the other side knows nothing of it.

    Never an answer by itself: the old owner may have been suspended just before sending. The effect is reversed, where
    the operation has a ``void``; else the call is sent again under its derived key, where the other side takes keys;
    otherwise a person decides.
    """


@dataclass(frozen=True)
class Unknown:
    """A resolver's word: ask again later."""

    reason: str = "the other side does not know yet"


Resolution = Happened | DidNotHappen | Unknown
Resolver = Callable[[Record], Resolution]


@dataclass(frozen=True, eq=False)
class Definition:
    """An operation as it was declared. See :func:`django_idempotency.operations.operation` for the fields."""

    name: str
    function: Callable[..., Any]
    downstream_takes_keys: bool
    resolver: Resolver | None
    void: Callable[..., Any] | None
    call_timeout: timedelta
    downstream_retention: timedelta
    stale_after: timedelta
    policy: IdempotencyPolicy

    @property
    def strategy(self) -> Strategy:
        if self.resolver is not None:
            return Strategy.LOOK_UP
        if self.void is not None:
            return Strategy.VOID
        return Strategy.RESUME if self.downstream_takes_keys else Strategy.PERSON

    @property
    def last_resend(self) -> timedelta:
        """How long after a call was first started it may still be sent again.

        Three quarters of what the other side remembers: past that, a key that it has forgotten would be a second
        effect, and a person needs the rest of the time.
        """
        return self.downstream_retention * 3 / 4


def may_send_again(definition: Definition, call: Step, *, now: float) -> bool:
    """Whether a call that was started and has no answer can act no second time: the other side takes keys, and
    certainly remembers this one.

    :param now: by the clock that ``started_at`` was read from.
    """
    return definition.downstream_takes_keys and not overdue(definition, call, now=now)


def overdue(definition: Definition, call: Step, *, now: float) -> bool:
    """Whether the other side may soon have forgotten a call that has no answer."""
    return call.started_at is None or now - call.started_at >= definition.last_resend.total_seconds()


class Registry:
    """Operations by name, filled as the modules that declare them are imported."""

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}

    def add(self, definition: Definition) -> None:
        """:raises ValueError: another function has this name, so a record could be resumed by the wrong code."""
        known = self._definitions.get(definition.name)
        if known is not None and _origin(known) != _origin(definition):
            raise ValueError(
                f"Two operations are named {definition.name!r}: {_origin(known)} and {_origin(definition)}."
            )
        self._definitions[definition.name] = definition

    def get(self, name: str) -> Definition | None:
        return self._definitions.get(name)

    def __iter__(self) -> Iterator[Definition]:
        return iter(list(self._definitions.values()))


def _origin(definition: Definition) -> str:
    return f"{definition.function.__module__}.{definition.function.__qualname__}"


registry = Registry()
