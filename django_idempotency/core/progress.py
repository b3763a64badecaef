"""How far an operation has come: what its record remembers of each phase and call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from .documents import sorted_by_name


class StepKind(str, Enum):
    PHASE = "phase"
    """A local transaction. Recorded once it is done, in the same commit."""

    CALL = "call"
    """A request to another system. Recorded before it is sent, and again with its answer."""


@dataclass(frozen=True)
class Step:
    """One named phase or call.

    :param done: whether ``result`` is definitive.
    :param declined: the other side answered, definitively, with a refusal.
    :param key: the derived key that a call is sent under.
    :param started_at: when a call was first started, in seconds since the epoch by the database's clock.
    :param sends: how often it was sent, or was about to be.
    :param compensating: it belongs to what reverses the others. From then on there is no way back.
    """

    name: str
    kind: StepKind
    done: bool = False
    result: Any = None
    declined: bool = False
    key: str | None = None
    started_at: float | None = None
    sends: int = 0
    compensating: bool = False


@dataclass(frozen=True)
class Progress:
    """There is none before the first phase or call of an operation: only then can a key be released.

    :param operation: the operation's name, by which a sweeper finds its code.
    :param parameters: what it was called with. A resumed run gets these, whatever the second request says.
    :param steps: in the order of their first start.
    """

    operation: str
    parameters: Mapping[str, Any]
    steps: tuple[Step, ...] = ()

    @property
    def recovery_point(self) -> str | None:
        """The last finished step."""
        return next((step.name for step in reversed(self.steps) if step.done), None)

    @property
    def open_call(self) -> Step | None:
        """The call that was started and has no answer: nobody knows whether it took effect."""
        return next((step for step in self.steps if not step.done), None)

    @property
    def compensating(self) -> bool:
        """Whether the effect is being reversed: then every run goes on with that."""
        return any(step.compensating for step in self.steps)

    def step(self, name: str) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)

    def with_step(self, step: Step) -> Progress:
        """This progress with ``step`` in the place of the one of its name, or behind the others."""
        if self.step(step.name) is None:
            return replace(self, steps=(*self.steps, step))
        return replace(self, steps=tuple(step if each.name == step.name else each for each in self.steps))

    def steps_document(self) -> list[dict[str, Any]]:
        return [vars(step) | {"kind": step.kind.value} for step in self.steps]

    @classmethod
    def from_documents(cls, operation: str, parameters: Mapping[str, Any], steps: list[dict[str, Any]]) -> Progress:
        made = (
            Step(**{**step, "kind": StepKind(step["kind"]), "result": sorted_by_name(step["result"])}) for step in steps
        )
        return cls(operation, sorted_by_name(parameters), tuple(made))
