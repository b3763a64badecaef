"""One run of an operation, whoever asks for it: a view, a task, a retry or a sweeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from inspect import signature
from typing import Any

from ..core.documents import as_document
from ..core.operations import Definition
from ..core.progress import Progress
from ..phasing import PhasedKey
from .answers import Answer, Misused, OperationChanged
from .steps import Op


def run(key: PhasedKey, definition: Definition, parameters: Mapping[str, Any], *, compensating: bool = False) -> Answer:
    """Run an operation under a key that is ours, from its beginning or from where an earlier run stopped.

    :param compensating: reverse what may have happened. Once that has begun, every later run does the same.
    :raises OperationChanged: the record belongs to other code.
    :raises NotStorable: the parameters are not JSON.
    """
    if key.sealed is not None:
        raise Misused(f"{definition.name!r} was called under a key whose operation has finished: one key, one effect.")
    progress = key.progress
    if progress is None:
        progress = Progress(definition.name, as_document(dict(parameters), "parameters"))
    elif progress.operation != definition.name:
        raise OperationChanged(f"The key belongs to the operation {progress.operation!r}, not {definition.name!r}.")
    compensating = compensating or progress.compensating
    function = definition.void if compensating else definition.function
    if function is None:
        raise OperationChanged(f"{definition.name!r} is being reversed, and has no void any more.")
    op = Op(key, definition, progress, compensating=compensating)
    # A copy: what the function does to them must not be recorded with its steps.
    given = deepcopy(dict(progress.parameters))
    if key.progress is not None:
        _check_still_fits(function, op, given, definition.name)
    answer = function(op, **given)
    if key.sealed is None or not isinstance(answer, Answer):
        raise Misused(f"The operation {definition.name!r} must return op.finish(...).")
    return answer


def _check_still_fits(function: Callable[..., Any], op: Op, parameters: Mapping[str, Any], name: str) -> None:
    try:
        signature(function).bind(op, **parameters)
    except TypeError as error:
        raise OperationChanged(f"What was recorded does not fit {name!r} any more: {error}.") from error
