"""What a person decides about a claim that is stuck: only on what that person was shown, and never over a live lease.

A claim that an owner, its renewer or a sweeper has touched since is refused: whoever decided knew less than there is to
know. Each decision is written down in the transaction that carries it out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import uuid4

from django.db import connections, transaction

from .conf import current
from .core.counted import Counted
from .core.documents import as_document
from .core.scope import operation_of
from .core.states import IdempotencyMode, Record, RecordedResponse, Seen, State
from .signals import tell
from .storage import Store, store_for
from .sweeping import Swept, discover, own, resolve

logger = logging.getLogger("django_idempotency")

STATUSES = range(200, 500)
"""What a client can be told for good. A 5xx says that the same request may succeed later, which it cannot any more."""

NO_BODY = frozenset({204, 205, 304})


class Refusal(str, Enum):
    GONE = "gone"
    """The key is free already."""

    SEALED = "sealed"
    """It has its answer already."""

    ALIVE = "alive"
    """An owner or a sweeper works under it. Its lease ends by itself, or it comes to an end."""

    CHANGED = "changed"
    """Something has happened to it since it was shown."""

    BEGUN = "begun"
    """Something may have happened under it, so that a release could be a second effect."""


class Refused(Exception):
    """A decision was not carried out, and nothing has changed."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason)
        self.reason = reason


class _NotAsSeen(Exception):
    """:param or_begun: it may be as it was seen, and not to be released."""

    def __init__(self, *, or_begun: bool = False) -> None:
        super().__init__()
        self.or_begun = or_begun


def nothing_happened(record: Record) -> bool:
    """Whether a key that is released leaves no effect behind: what was written under it is rolled back."""
    return record.progress is None and record.mode is not IdempotencyMode.ATOMIC


def release_by_person(alias: str, seen: Seen, note: Callable[[], object], *, whatever_happened: bool = False) -> None:
    """Free the key: the next request under it runs from the beginning.

    :param note: writes down who did so and why, in the same transaction.
    :param whatever_happened: also where an operation has begun. Calls of the next run have the same derived keys.
    :raises Refused: nothing was released.
    """
    store = store_for(alias)
    record = store.find(seen.id)
    with _decided(store, seen):
        if not store.release_seen(seen, whatever_happened=whatever_happened):
            raise _NotAsSeen(or_begun=not whatever_happened)
        note()
    logger.warning("%s is released by a person.", seen.id)
    if record is not None:
        _tell(Counted.RELEASED, store, record)


def resolve_by_person(alias: str, seen: Seen, note: Callable[[], object], *, status: int, data: Any) -> None:
    """Record what became of it: every retry receives that.

    The body is stored as that of its operation is. A claim without one follows the settings, whatever its view says.

    :param note: writes down who did so and why, in the same transaction.
    :param status: one of STATUSES.
    :param data: the body, as JSON; without effect where the status has none.
    :raises Refused: nothing was recorded. :raises NotStorable: ``data`` is not JSON.
    """
    if status not in STATUSES:
        raise ValueError(f"A response that is recorded for good has a status of {STATUSES}, not {status}.")
    document = as_document(data, "the body")
    store = store_for(alias)
    with _decided(store, seen) as durable:
        record = _take(store, seen)
        key = own(store, record, record.owner_token)
        if status in NO_BODY:
            response = RecordedResponse(status, (), key.policy.stored_body(b""))
        else:
            body = json.dumps(document, separators=(",", ":")).encode()
            response = RecordedResponse(status, (("Content-Type", "application/json"),), key.policy.stored_body(body))
        key.seal(response, durable=durable)
        note()
    logger.warning("%s is resolved by a person, with %d.", seen.id, status)
    _tell(Counted.RESOLVED, store, record)


def _tell(outcome: Counted, store: Store, record: Record) -> None:
    tell(outcome, operation_of(record.scope), record_id=record.id, using=store.alias)


@dataclass(frozen=True)
class TakenUp:
    """A claim that is ours, for :func:`sweep_taken`."""

    store: Store
    record: Record


def take_up_by_person(alias: str, seen: Seen, note: Callable[[], object]) -> TakenUp:
    """Own the claim in order to sweep it now, also where a sweeper has left it to a person.

    :param note: writes down who did so and why, in the same transaction.
    :raises Refused: it is not ours.
    """
    discover()
    store = store_for(alias)
    with _decided(store, seen):
        record = _take(store, seen)
        note()
    logger.warning("%s is swept on behalf of a person.", seen.id)
    return TakenUp(store, record)


def sweep_taken(taken: TakenUp) -> Swept:
    """Find out what became of it. Outside any transaction: other systems may be asked."""
    return resolve(taken.store, taken.record, taken.record.owner_token)


def _take(store: Store, seen: Seen) -> Record:
    record = store.take_seen(seen, uuid4(), lease=current().LEASE.total_seconds())
    if record is None:
        raise _NotAsSeen
    return record


@contextmanager
def _decided(store: Store, seen: Seen) -> Iterator[bool]:
    """The transaction of a decision, and whether a COMMIT ends it and not the savepoint of a TestCase."""
    outermost = not connections[store.alias].in_atomic_block
    try:
        with transaction.atomic(using=store.alias, durable=True):
            yield outermost
    except _NotAsSeen as error:
        raise Refused(_why(store.find(seen.id), seen, error)) from None


def _why(record: Record | None, seen: Seen, error: _NotAsSeen) -> Refusal:
    if record is None:
        return Refusal.GONE
    if record.state is State.SEALED:
        return Refusal.SEALED
    if record.lease_left is not None and record.lease_left > 0:
        return Refusal.ALIVE
    if error.or_begun and record.owner_token == seen.owner_token and not nothing_happened(record):
        return Refusal.BEGUN
    return Refusal.CHANGED
