"""Operations of a test's own, on any kind of store, and a system that they call: what each has done can be counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connections
from django.utils import timezone

from django_idempotency import sweeping
from django_idempotency.core.derivation import derive_key
from django_idempotency.core.keys import record_id
from django_idempotency.core.operations import registry
from django_idempotency.core.states import Claim, IdempotencyMode, Record
from django_idempotency.models import IdempotencyKey
from django_idempotency.operations import Answer, Operation, operation
from django_idempotency.storage import Store, store_for
from django_idempotency.sweeping import Fate, Swept

SCOPE = "nightly"

_numbers = itertools.count(1)


class Workshop:
    """One database with operations. What they do there is rows of a table; what they do elsewhere is in ``sent``."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.store: Store = store_for(alias)
        self.key = str(uuid4())
        self.sent: list[tuple[str, str]] = []
        """Step and derived key of each request to the other system."""
        self._ask("CREATE TABLE IF NOT EXISTS effect (memo text)")
        self._ask("DELETE FROM effect")
        IdempotencyKey.objects.using(alias).filter(state="in_flight").delete()

    # What operations are made of.

    def declare(self, function: Callable[..., Answer], **how: Any) -> Operation:
        name = how.pop("name", None) or f"tests.{function.__name__}.{next(_numbers)}"
        return operation(name, using=self.alias, **how)(function)

    def redeclare(self, old: Operation, function: Callable[..., Answer], **how: Any) -> Operation:
        """As a deployment does: other code by the same name."""
        registry._definitions.pop(old.definition.name)
        return self.declare(function, name=old.definition.name, **how)

    def effect(self, memo: str, result: Any = None) -> Any:
        self._ask("INSERT INTO effect (memo) VALUES (%s)", memo)
        return result

    def send(self, step: str, answer: Any = "yes") -> Callable[[str], Any]:
        """The function of a call. An ``answer`` that is an exception is raised, a callable is called."""

        def sent(key: str) -> Any:
            self.sent.append((step, key))
            if isinstance(answer, BaseException):
                raise answer
            return answer() if callable(answer) else answer

        return sent

    # What came of them.

    @property
    def effects(self) -> list[str]:
        return sorted(memo for (memo,) in self._ask("SELECT memo FROM effect"))

    def run(self, called: Operation, **parameters: Any) -> Answer:
        return called.run(scope=SCOPE, key=self.key, parameters=parameters)

    def full_scope(self, called: Operation) -> str:
        return f"{SCOPE} {called.definition.name}:RUN"

    def derived_key(self, called: Operation, step: str) -> str:
        return derive_key(self.full_scope(called), self.key, step)

    def record(self, called: Operation) -> Record | None:
        return self.store.find(record_id(self.full_scope(called), self.key))

    def row(self) -> IdempotencyKey:
        """The only one that is in flight."""
        return IdempotencyKey.objects.using(self.alias).get(state="in_flight")

    def lapse(self, ago: timedelta = timedelta(hours=1)) -> None:
        """Every lease is over, and has been for a while."""
        self.change(lease_expires_at=timezone.now() - ago)

    def change(self, **columns: Any) -> None:
        assert IdempotencyKey.objects.using(self.alias).filter(state="in_flight").update(**columns)

    def sweep(self, limit: int = 100) -> list[Swept]:
        return list(sweeping.sweep(self.alias, limit=limit))

    def swept(self) -> Swept:
        (swept,) = self.sweep()
        return swept

    def fates(self) -> list[Fate]:
        return [swept.fate for swept in self.sweep()]

    def abandoned(
        self, called: Operation, *, mode: IdempotencyMode = IdempotencyMode.PHASED, ago: float = 3600
    ) -> Claim:
        """A claim under which nothing was recorded, and whose owner is gone."""
        scope = self.full_scope(called)
        key = str(uuid4())
        claim = Claim(record_id(scope, key), scope, key, b"f" * 32, 1, uuid4(), mode, -ago, 1.0)
        self.store.claim(claim, limit_silence=False, savepoint=None)
        return claim

    def _ask(self, question: str, *arguments: str) -> list[Any]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(question, arguments)
            return cursor.fetchall() if cursor.description else []


on_both_stores = pytest.mark.parametrize("backend", ["postgresql", "sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)


@pytest.fixture
def workshop(keys, settings) -> Iterator[Workshop]:
    settings.IDEMPOTENCY = {"DATABASES": (keys.alias,)}
    known = dict(registry._definitions)
    yield Workshop(keys.alias)
    registry._definitions.clear()
    registry._definitions.update(known)
    assert not connections[keys.alias].in_atomic_block, "a transaction was left open"


# What may happen to a COMMIT.


@contextmanager
def commits(alias: str, *, on: int = 1, really: bool, error: BaseException | None = None) -> Iterator[None]:
    """The COMMIT of the given number from here on fails for its client, and is done or not.

    :param error: with which it fails; that of a connection that broke unless given.
    """
    connection, count = connections[alias], itertools.count(1)
    commit = connection.commit

    def fail() -> None:
        if next(count) != on:
            commit()
            return
        if really:
            commit()
        else:
            connection.rollback()
        raise error or OperationalError("server closed the connection unexpectedly")

    connection.commit = fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        del connection.commit


def break_connection(alias: str) -> None:
    """As an idle time-out on the way does: noticed by the next statement alone."""
    connections[alias].connection.close()


def taken_over(workshop: Workshop, rival: Any) -> Record:
    """A sweeper on another session owns what is in flight, before its owner knows of anything."""
    workshop_keys = IdempotencyKey.objects.using(rival.alias).filter(state="in_flight")
    workshop_keys.update(lease_expires_at=timezone.now() - timedelta(hours=1))
    record: Record | None = rival.store.take_stale(uuid4(), lease=30.0, stale_after=0.0)
    assert record is not None
    return record
