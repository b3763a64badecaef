"""What becomes of claims whose owner is gone: found out, one by one, each under an owner token of the sweeper's own.

The conditional take-over is the guarantee that no record is resolved twice; skipping locked rows only saves the rivals
their time. Other systems are asked outside any transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from uuid import UUID, uuid4

from django.db import Error as DatabaseFailure, connections
from django.utils.module_loading import autodiscover_modules

from .conf import current
from .core.counted import Counted
from .core.documents import as_document
from .core.errors import Explained, ForAPerson, LeaseLost, OutcomeUnknown
from .core.operations import Definition, DidNotHappen, Happened, Strategy, Unknown, overdue, registry
from .core.policy import IdempotencyPolicy
from .core.progress import Progress, Step
from .core.scope import operation_of
from .core.states import Claim, IdempotencyMode, Record
from .failpoints import hit
from .modes import Phased
from .numbers import readings
from .operations.answers import Misused
from .operations.run import run
from .phasing import PhasedKey, describe
from .request_transactions import RequestTransactions, refuse_outer_block
from .signals import tell
from .storage import Store, store_for
from .storage.transactions import also_if_broken

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


class _Later(Explained):
    """Why it is tried again later."""


def stale(alias: str, *, limit: int) -> list[Record]:
    """What :func:`sweep` would take up now, the longest lapsed first. Changes nothing."""
    return store_for(alias).stale(limit, stale_after=current().STALE_AFTER.total_seconds())


def sweep(alias: str, *, limit: int) -> Iterator[Swept]:
    """Take up at most ``limit`` stale claims, and tell what became of each as it is done.

    A record that fails is postponed and does not stop the others.

    :raises ImproperlyConfigured: a transaction is open, which could undo what becomes of them.
    """
    discover()
    refuse_outer_block(connections[alias])
    _keep_readings(alias)
    store = store_for(alias)
    # Also where there is nothing to sweep: that somebody looks is what ``status`` wants to know.
    tell(Counted.SWEEP, alias, using=alias)
    lease, stale_after = current().LEASE.total_seconds(), current().STALE_AFTER.total_seconds()
    for _ in range(limit):
        token = uuid4()
        try:
            record = store.take_stale(token, lease=lease, stale_after=stale_after)
            if record is None:
                return
            hit("after_taken")
            swept = resolve(store, record, token)
        except DatabaseFailure:
            raise
        except Exception:
            # Taken, and so nobody's for a while: the others come first.
            logger.exception(
                "A record on %r cannot be read, or not resolved. Another release may have written it, or the settings "
                "do not fit its operation.",
                alias,
            )
            continue
        yield swept


def _keep_readings(alias: str) -> None:
    if not current().COUNTS:
        return  # nor does the role need a right to their tables
    try:
        readings.note_oldest(alias)
        readings.coarsen(alias)
    except DatabaseFailure as error:
        # What is stale matters more than a picture of it.
        logger.warning(
            "The age of the oldest claim on %r could not be noted: %s", alias, type(error.__cause__ or error).__name__
        )


def resolve(store: Store, record: Record, token: UUID) -> Swept:
    """Find out what became of a claim that is ours under ``token``."""
    key, definition = own(store, record, token), _definition(record)
    reason = ""
    try:
        fate = _settle(key, record, definition)
    except Exception as error:
        if key.sealed is None:
            fate, reason = _put_off(key, record, definition, error), describe(error)
        else:
            logger.exception("%s is finished; what its operation did afterwards failed.", record.id)
            fate = Fate.FINISHED
    tell(Counted(f"swept_{fate.value}"), operation_of(record.scope), record_id=record.id, using=store.alias)
    return Swept(record.id, record.progress.operation if record.progress else None, fate, reason)


def _put_off(key: PhasedKey, record: Record, definition: Definition | None, error: Exception) -> Fate:
    """Say why it could not be ended, and when it is tried again, if ever."""
    if isinstance(error, LeaseLost):
        logger.warning("%s was taken over from this sweeper.", record.id)
        return Fate.POSTPONED
    if isinstance(error, ForAPerson) or _overdue(key, definition):
        logger.error("%s is left to a person.", record.id)
        key.hold(describe(error), sweep_after=None)
        return Fate.LEFT
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(record.sweeps - 1, 10))
    unexpected = None if isinstance(error, Explained | OutcomeUnknown) else error
    key.hold(describe(error), sweep_after=pause, cause=unexpected)
    return Fate.POSTPONED


def _overdue(key: PhasedKey, definition: Definition | None) -> bool:
    """Whether the other side may soon have forgotten the call that has no answer: a person needs the time that is
    left."""
    open_call = key.progress.open_call if key.progress else None
    if definition is None or open_call is None:
        return False
    try:
        now = also_if_broken(connections[key.store.alias], key.store.now)
    except DatabaseFailure:
        return False
    return overdue(definition, open_call, now=now)


def _settle(key: PhasedKey, record: Record, definition: Definition | None) -> Fate:
    if record.mode is IdempotencyMode.ATOMIC:
        raise ForAPerson("an ATOMIC claim was committed without its outcome: something in the view commits by itself")
    if record.progress is None:
        if not key.store.release(record.id, key.claim.owner_token):
            raise LeaseLost
        return Fate.RELEASED
    if definition is None:
        raise _Later(
            f"no operation {record.progress.operation!r} is declared in this process; "
            "a module named 'operations' of an installed app is imported by itself"
        )
    try:
        key.mode.begin()
        _finish(key, record, definition, record.progress)
    finally:
        key.mode.before_seal()
    return Fate.FINISHED


def _finish(key: PhasedKey, record: Record, definition: Definition, progress: Progress) -> None:
    open_call, strategy = progress.open_call, definition.strategy
    if open_call is None or progress.compensating or strategy is Strategy.RESUME:
        run(key, definition, progress.parameters)
    elif definition.resolver is not None:
        # A copy: what the resolver does to it must not be recorded with its answer.
        _look_up(key, definition, progress, open_call, definition.resolver(deepcopy(record)))
    elif strategy is Strategy.VOID:
        run(key, definition, progress.parameters, compensating=True)
    else:
        raise ForAPerson(f"the call {open_call.name!r} was sent to a system that takes no keys and cannot be asked")


def _look_up(key: PhasedKey, definition: Definition, progress: Progress, open_call: Step, resolution: object) -> None:
    hit("after_looked_up", open_call.name)
    if isinstance(resolution, Happened):
        result = as_document(resolution.result, f"the resolver's result for {open_call.name!r}")
        found = progress.with_step(replace(open_call, done=True, declined=resolution.declined, result=result))
        durable = not connections[key.store.alias].in_atomic_block
        key.advance(found, stale_after=definition.stale_after.total_seconds(), durable=durable)
        key.progress = found
        run(key, definition, progress.parameters)
    elif isinstance(resolution, DidNotHappen):
        # Not proof: the old owner may have been suspended just before sending. Sent again under its derived key it acts
        # once, whoever comes first; without keys, a person has to look.
        run(key, definition, progress.parameters, compensating=definition.void is not None)
    elif isinstance(resolution, Unknown):
        raise _Later(resolution.reason)
    else:
        raise Misused(f"The resolver of {definition.name!r} must answer Happened, DidNotHappen or Unknown.")


def _definition(record: Record) -> Definition | None:
    discover()
    return registry.get(record.progress.operation) if record.progress else None


def declared() -> Iterable[Definition]:
    """All operations of the project."""
    discover()
    return registry


@cache
def discover() -> None:
    """Import the operations of all apps: a sweeper has loaded no view that would have done so."""
    autodiscover_modules("operations")


def own(store: Store, record: Record, token: UUID) -> PhasedKey:
    """A claim that is ours under ``token``, taken for LEASE, on the terms of its operation otherwise."""
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
        # The operation's may be so long that the renewal would come after the end of the one that it was taken for.
        lease=current().LEASE.total_seconds(),
        max_wait=policy.max_wait.total_seconds(),
    )
    return PhasedKey(store, claim, policy, Phased(store, claim, RequestTransactions()), record.progress)
