"""What becomes of claims whose owner is gone: found out, one by one, each under an owner token of the sweeper's own.

The conditional take-over is the guarantee that no record is resolved twice; skipping locked rows only saves the rivals
their time. Other systems are asked outside any transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from uuid import UUID, uuid4

from django.utils.module_loading import autodiscover_modules

from .conf import current
from .core.documents import as_document
from .core.operations import Definition, DidNotHappen, Happened, Strategy, Unknown, registry
from .core.policy import IdempotencyPolicy
from .core.progress import Progress, Step
from .core.states import Claim, IdempotencyMode, Record
from .modes import Phased, RequestTransactions
from .operations.run import MayNotSendAgain, run
from .ownership import PhasedKey, describe
from .storage import Store, store_for

logger = logging.getLogger("django_idempotency")

_FIRST_PAUSE = 30.0
_LONGEST_PAUSE = 3600.0


class Fate(str, Enum):
    RELEASED = "released"
    """Nothing had happened; the key is free."""

    FINISHED = "finished"
    """The operation went on and came to its end; its answer is sealed."""

    POSTPONED = "postponed"
    """Nobody knows yet; it is tried again later."""

    LEFT = "left"
    """It is for a person now."""


@dataclass(frozen=True)
class Swept:
    """What a sweep did to one record."""

    id: UUID
    operation: str | None
    fate: Fate
    reason: str = ""


class _ForAPerson(Exception):
    """Why nothing more can be done without one. The text is ours and safe to store."""


class _Later(Exception):
    """Why it is tried again later."""


def stale(alias: str, *, limit: int) -> list[Record]:
    """What :func:`sweep` would take up now, the longest lapsed first. Changes nothing."""
    return store_for(alias).stale(limit, stale_after=current().STALE_AFTER.total_seconds())


def sweep(alias: str, *, limit: int) -> Iterator[Swept]:
    """Take up at most ``limit`` stale claims, and tell what became of each as it is done.

    A record that fails is postponed and does not stop the others.
    """
    discover()
    store = store_for(alias)
    lease, stale_after = current().LEASE.total_seconds(), current().STALE_AFTER.total_seconds()
    for _ in range(limit):
        token = uuid4()
        record = store.take_stale(token, lease=lease, stale_after=stale_after)
        if record is None:
            return
        yield resolve(store, record, token)


def resolve(store: Store, record: Record, token: UUID) -> Swept:
    """Find out what became of a claim that is ours under ``token``."""
    key = own(store, record, token)
    name = record.progress.operation if record.progress else None
    try:
        fate = _settle(key, record)
        reason = ""
    except (_ForAPerson, MayNotSendAgain) as verdict:
        fate, reason = Fate.LEFT, str(verdict)
        logger.error("%s is left to a person: %s", record.id, reason)  # noqa: TRY400 - a verdict, not a fault
        key.hold(reason, sweep_after=None)
    except Exception as error:
        fate, reason = Fate.POSTPONED, str(error) if isinstance(error, _Later) else describe(error)
        logger.exception("%s could not be resolved and is tried again later.", record.id)
        key.hold(reason, sweep_after=min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(record.sweeps, 10)))
    return Swept(record.id, name, fate, reason)


def _settle(key: PhasedKey, record: Record) -> Fate:
    if record.mode is IdempotencyMode.ATOMIC:
        raise _ForAPerson("an ATOMIC claim was committed without its outcome: something in the view commits by itself")
    if record.progress is None:
        return Fate.RELEASED if key.store.release(record.id, key.claim.owner_token) else Fate.POSTPONED
    definition = _definition(record)
    if definition is None:
        raise _Later(
            f"no operation {record.progress.operation!r} is declared in this process; "
            "a module named 'operations' of an installed app is imported by itself"
        )
    key.mode.begin()
    try:
        _finish(key, record, definition, record.progress)
    finally:
        key.mode.before_seal()
    return Fate.FINISHED


def _finish(key: PhasedKey, record: Record, definition: Definition, progress: Progress) -> None:
    open_call = progress.open_call
    if open_call is None or definition.strategy is Strategy.RESUME:
        run(key, definition, progress.parameters)
    elif definition.resolver is not None:
        _look_up(key, record, definition, progress, open_call)
    elif definition.void is not None:
        run(key, definition, progress.parameters, compensating=True)
    else:
        raise _ForAPerson(f"the call {open_call.name!r} was sent to a system that takes no keys and cannot be asked")


def _look_up(key: PhasedKey, record: Record, definition: Definition, progress: Progress, open_call: Step) -> None:
    resolution = _asked(definition, record)
    if isinstance(resolution, Happened):
        result = as_document(resolution.result, f"the resolver's result for {open_call.name!r}")
        found = Step(**{**open_call.__dict__, "done": True, "declined": resolution.declined, "result": result})
        stale_after = definition.stale_after.total_seconds()
        key.advance(progress.with_step(found), stale_after=stale_after, durable=True)
        run(key, definition, progress.parameters)
    elif isinstance(resolution, DidNotHappen):
        # Not proof: the old owner may have been suspended just before sending. Under its derived key it can be sent
        # by both and act once; without keys, a person has to look.
        run(key, definition, progress.parameters)
    elif isinstance(resolution, Unknown):
        raise _Later(resolution.reason)
    else:
        raise TypeError(f"The resolver of {definition.name!r} must answer Happened, DidNotHappen or Unknown.")


def _asked(definition: Definition, record: Record) -> object:
    return definition.resolver(record) if definition.resolver is not None else Unknown()


def _definition(record: Record) -> Definition | None:
    discover()
    return registry.get(record.progress.operation) if record.progress else None


@cache
def discover() -> None:
    """Import the operations of all apps: a sweeper has loaded no view that would have done so."""
    autodiscover_modules("operations")


def own(store: Store, record: Record, token: UUID) -> PhasedKey:
    """A claim that is ours under ``token``, on the terms of its operation."""
    definition = _definition(record)
    policy = current().resolve(definition.policy if definition else IdempotencyPolicy())
    claim = Claim(
        id=record.id,
        scope=record.scope,
        key=record.key,
        fingerprint=record.fingerprint,
        fingerprint_scheme=record.fingerprint_scheme,
        owner_token=token,
        mode=IdempotencyMode.PHASED,
        lease=policy.lease.total_seconds(),
        max_wait=policy.max_wait.total_seconds(),
    )
    return PhasedKey(store, claim, policy, Phased(store, claim, RequestTransactions()), record.progress)
