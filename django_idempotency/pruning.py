"""What has expired goes: partitions are dropped, and rows deleted where there are none. What may go is said in
``core.pruning``, how it goes in ``storage``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from functools import partial

from django.db import Error as DatabaseFailure
from django.db.backends.base.base import BaseDatabaseWrapper

from .conf import current
from .core.intervals import Interval
from .core.pruning import MARGIN, Attachment, Decision, Leaf, Plan, decide
from .failpoints import hit
from .numbers import counting
from .storage import batches, pruning as steps, store_for
from .storage.base import as_kept
from .storage.partitions import SEALED, TOMBSTONES, Tree
from .storage.transactions import is_lost, own_connection, sqlstate

logger = logging.getLogger("django_idempotency")

Progress = Callable[[str, int, int], None]
"""Called during long work with what it is about, how many records are done, and about how many there are."""

# Between two attempts at a leaf that somebody holds.
_PAUSE = 0.2

# A record is sealed before its expiry, so a transaction that has one in a leaf that is due, and is still open, has been
# open for longer than this.
_OPEN_FOR = MARGIN.total_seconds()

# Somebody holds the leaf, or has done with it what we were about to do: locks, time-outs, deadlocks, a pending detach,
# a table that is gone or no partition any more, a row of the catalog that was changed at the same moment.
_PASSING = frozenset({"55P03", "57014", "40P01", "40001", "55000", "42P01", "XX000"})

# Nothing can be done on this database: a missing right, a replica.
_HOPELESS = frozenset({"42501", "25006"})


class AnotherPruner(Exception):
    """Somebody else is pruning this database."""


class Fate(str, Enum):
    DUE = "due"
    """It would be dropped or deleted, were this not a dry run."""

    DROPPED = "dropped"
    DELETED = "deleted"
    """Rows of a database without partitions."""

    WAITING = "waiting"
    """A transaction has used it, or somebody holds it. The next run goes on from there."""

    KEPT = "kept"
    LEFT = "left"
    """A person has to look at it."""


@dataclass(frozen=True)
class Pruned:
    """What became of one partition, or of rows of a table that stays. Where no row was to go, nothing is told of it."""

    name: str
    fate: Fate
    reason: str | None = None
    interval: Interval | None = None
    rows: int = 0
    """For a partition, about how many."""
    size: int = 0
    """In bytes."""
    buried: int = 0
    """How many tombstones were made."""
    partition: bool = False

    @property
    def number(self) -> int:
        """What it adds to a sum: one partition, or its rows."""
        return 1 if self.partition else self.rows


def prune(alias: str, *, dry_run: bool = False, progress: Progress = lambda *_: None) -> Iterator[Pruned]:
    """Drop or delete what has expired on one database, one partition after the other, the oldest first.

    It can be ended at any moment, and run again.

    :raises AnotherPruner: nothing was done here.
    :raises django.db.Error: this role may not, or the database cannot be reached.
    """
    if store_for(alias).partitioned:
        yield from _prune_leaves(alias, dry_run, progress)
    else:
        yield from _prune_rows(alias, dry_run, progress)
    if lines := counting.count_old(alias) if dry_run else counting.forget_old(alias):
        yield Pruned("idempotency_outcome_count", Fate.DUE if dry_run else Fate.DELETED, rows=lines)


# --- partitions ---


def _prune_leaves(alias: str, dry_run: bool, progress: Progress) -> Iterator[Pruned]:
    with own_connection(alias) as connection:
        if not dry_run and not steps.begin(connection, patience=current().DETACH_TIMEOUT):
            raise AnotherPruner
        for tree in (TOMBSTONES, SEALED):
            for decision in decide(steps.leaves(connection, tree), steps.trusted_now(connection)):
                pruned = _dry(decision) if dry_run else _carry_out(connection, tree, decision, progress)
                if pruned.fate is Fate.DROPPED:
                    logger.info("%s is dropped, with about %d records.", pruned.name, pruned.rows)
                elif pruned.fate is Fate.LEFT:
                    logger.error("%s stays: %s. A person must look.", pruned.name, pruned.reason)
                yield pruned


def _dry(decision: Decision) -> Pruned:
    fates = {Plan.DROP: Fate.DUE, Plan.FINALIZE: Fate.LEFT, Plan.KEEP: Fate.KEPT, Plan.LEAVE: Fate.LEFT}
    return _told(decision.leaf, fates[decision.plan], decision.reason)


def _told(leaf: Leaf, fate: Fate, reason: str | None) -> Pruned:
    return Pruned(leaf.name, fate, reason, leaf.interval, leaf.rows, leaf.size, partition=True)


def _carry_out(connection: BaseDatabaseWrapper, tree: Tree, decision: Decision, progress: Progress) -> Pruned:
    if decision.plan in (Plan.KEEP, Plan.LEAVE):
        return _dry(decision)
    try:
        removal = _Removal(connection, tree, decision, progress)
        return removal.finalize() if decision.plan is Plan.FINALIZE else removal.run()
    except DatabaseFailure as error:
        state = sqlstate(error)
        if state in _HOPELESS or is_lost(state):
            raise
        # One that cannot go (somebody's view may depend on it) must not keep the others.
        return _told(decision.leaf, Fate.LEFT, _said(error))


class _Removal:
    """One leaf on its way out. Each round looks how far it has come, and takes the next step, whoever took the last."""

    def __init__(self, connection: BaseDatabaseWrapper, tree: Tree, decision: Decision, progress: Progress) -> None:
        self._connection = connection
        self._tree = tree
        self._leaf = decision.leaf
        self._reason = decision.reason
        self._progress = progress
        self._buried = 0
        self._dropped = False
        self._deadline = self._later()

    def run(self) -> Pruned:
        return self._round_by_round(self._next)

    def finalize(self) -> Pruned:
        """End what keeps others from being detached, and no more."""
        return self._round_by_round(self._finalize)

    def _round_by_round(self, act: Callable[[], Pruned | None]) -> Pruned:
        while True:
            try:
                pruned = act()
            except DatabaseFailure as error:
                pruned = self._wait(error)
            if pruned is not None:
                return pruned

    def _next(self) -> Pruned | None:
        leaf = self._look()
        if leaf is None:
            return self._ended(Fate.DROPPED, self._reason if self._dropped else "somebody else dropped it")
        if steps.holds_unexpired(self._connection, self._tree, leaf.name):
            if leaf.attachment is Attachment.ATTACHED:
                return self._ended(Fate.KEPT, "records in it have not expired")
            return self._ended(Fate.LEFT, "it is detached, and records in it have not expired: they answer nobody")
        if self._to_bury(leaf) and (oldest := self._oldest()) is not None and oldest[1] >= _OPEN_FOR:
            # What it has sealed is seen by nobody yet. It would be dropped with the leaf, and not be buried.
            return self._pause(partial(_has_used, *oldest))
        self._step(leaf)
        return None

    def _finalize(self) -> Pruned | None:
        leaf = self._look()
        if leaf is not None and leaf.attachment is Attachment.PENDING:
            steps.finalize(self._connection, self._tree, leaf.name)
            return None
        bounds = self._leaf.interval
        again = (
            ""
            if bounds is None
            else (
                f". It is detached now; to undo that: ALTER TABLE {self._tree.table} ATTACH PARTITION {self._leaf.name}"
                f" FOR VALUES FROM ('{bounds.lower.isoformat()}') TO ('{bounds.upper.isoformat()}')"
            )
        )
        return self._ended(Fate.LEFT, f"{self._reason}{again}")

    def _look(self) -> Leaf | None:
        return steps.look(self._connection, self._tree, self._leaf.name)

    def _step(self, leaf: Leaf) -> None:
        if self._to_bury(leaf):
            self._bury(leaf)
        elif not leaf.leaving:
            steps.mark_as_leaving(self._connection, self._tree, leaf.name, buried_for=leaf.buried_for)
        elif leaf.attachment is Attachment.ATTACHED:
            hit("before_detach")
            steps.detach(self._connection, self._tree, leaf.name)
        elif leaf.attachment is Attachment.PENDING:
            steps.finalize(self._connection, self._tree, leaf.name)
        else:
            hit("before_drop")
            self._dropped = steps.drop(self._connection, self._tree, leaf.name)

    def _to_bury(self, leaf: Leaf) -> bool:
        wanted = current().TOMBSTONES
        return self._tree is SEALED and wanted is not None and (leaf.buried_for or 0.0) < wanted.total_seconds()

    def _bury(self, leaf: Leaf) -> None:
        seconds = current().TOMBSTONES.total_seconds()
        for added in steps.bury(self._connection, leaf.name, seconds):
            self._buried += added
            hit("after_batch")
            self._progress(f"burying {leaf.name}", self._buried, leaf.rows)
        steps.mark_as_leaving(self._connection, self._tree, leaf.name, buried_for=seconds)
        self._deadline = self._later()

    def _later(self) -> float:
        return time.monotonic() + float(current().DETACH_TIMEOUT.total_seconds())

    def _wait(self, error: DatabaseFailure) -> Pruned | None:
        """:raises DatabaseFailure: it does not pass by waiting."""
        if sqlstate(error) not in _PASSING:
            raise error
        return self._pause(lambda: self._obstacle(error))

    def _obstacle(self, error: DatabaseFailure) -> str:
        oldest = self._oldest()
        return _said(error) if oldest is None else _has_used(*oldest)

    def _pause(self, obstacle: Callable[[], str]) -> Pruned | None:
        if time.monotonic() >= self._deadline:
            return self._ended(Fate.WAITING, obstacle())
        time.sleep(_PAUSE)
        return None

    def _oldest(self) -> tuple[int, float] | None:
        return steps.oldest_transaction(self._connection, self._tree, self._leaf.name)

    def _ended(self, fate: Fate, reason: str) -> Pruned:
        return replace(_told(self._leaf, fate, reason), buried=self._buried)


def _has_used(backend: int, seconds: float) -> str:
    return f"the transaction of backend {backend}, open for {seconds:.0f} s, has used the table"


def _said(error: DatabaseFailure) -> str:
    """In one line, and without the server's hint, which is to drop what depends on a leaf as well."""
    return " ".join(f"{error}".partition("HINT:")[0].split())


# --- rows, where there are no partitions ---


def _prune_rows(alias: str, dry_run: bool, progress: Progress) -> Iterator[Pruned]:
    before = as_kept(datetime.now(timezone.utc) - MARGIN)
    if dry_run:
        yield from _gone(Fate.DUE, records=batches.count_expired(alias, before), tombstones=batches.over(alias, before))
        return
    deleted = buried = forgotten = 0
    while ids := batches.expired(alias, before):
        for start in range(0, len(ids), batches.SIZE):
            rows, tombstones = batches.remove(
                alias, ids[start : start + batches.SIZE], before, buried_for=current().TOMBSTONES
            )
            deleted, buried = deleted + rows, buried + tombstones
            hit("after_batch")
            progress("deleting", deleted, len(ids))
    while rows := batches.forget(alias, before):
        forgotten += rows
    yield from _gone(Fate.DELETED, records=deleted, tombstones=forgotten, buried=buried)


def _gone(fate: Fate, *, records: int, tombstones: int, buried: int = 0) -> Iterator[Pruned]:
    if records:
        yield Pruned("idempotency_key", fate, rows=records, buried=buried)
    if tombstones:
        yield Pruned("idempotency_tombstone", fate, rows=tombstones)
