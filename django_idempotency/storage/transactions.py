"""What travels with a claim and spares it round trips: the BEGIN of its transaction, the savepoint that undoes a view's
writes and keeps the claim, and in LEASED mode the COMMIT of the claim and the next BEGIN. With a seal, its COMMIT.

That needs private bookkeeping, which is touched here and nowhere else. Of Django's, ``run_on_commit`` and
``savepoint_ids``: with our id on the connection, ``on_commit`` hooks that the view registered are dropped when its
writes are (as with a nested ``atomic``). Of psycopg's, ``_autocommit``, whose property refuses inside a transaction.
Where any of it is missing, or several statements cannot share a round trip, the driver sends its own BEGIN, and a
nested ``atomic`` sets the savepoint.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from django.db import Error as DatabaseFailure, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

Result = TypeVar("Result")


class TravellingSavepoint:
    """Set by a statement that somebody else sends: put ``statement`` behind theirs, then call ``began``."""

    blocks = 0
    """How many blocks of Django's it holds open."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        # Another one than the waiting hooks were registered under, and yet nearly always the same: the driver keeps
        # what it made of a statement by its text, and a new text each time would push out everybody else's.
        self._id = f"idempotency_{len(connection.run_on_commit)}"
        self.statement: str | None = connection.ops.savepoint_create_sql(self._id)

    def began(self) -> None:
        self._connection.savepoint_ids.append(self._id)

    def undo(self) -> None:
        """Roll back to the savepoint, which stays. The transaction is clean afterwards."""
        self._connection.needs_rollback = False
        self._connection.savepoint_rollback(self._id)

    def forget(self, *, rolling_back: bool = False) -> None:  # noqa: ARG002
        """End it without a statement: the COMMIT or ROLLBACK that follows ends it in the database."""
        if self._id in self._connection.savepoint_ids:
            self._connection.savepoint_ids.remove(self._id)


class NestedSavepoint:
    """The same promise by a nested ``atomic``, in a round trip of its own."""

    statement: str | None = None
    blocks = 1

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._atomic: transaction.Atomic | None = None

    def began(self) -> None:
        self._atomic = transaction.atomic(using=self._connection.alias)
        self._atomic.__enter__()

    def undo(self) -> None:
        self._exit(_Undone())
        self.began()

    def forget(self, *, rolling_back: bool = False) -> None:
        # Releasing it raises where the transaction is broken or the connection is gone; undoing it never does.
        self._exit(_Undone() if rolling_back else None)

    def _exit(self, reason: BaseException | None) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            atomic.__exit__(type(reason) if reason else None, reason, None)


class _Undone(Exception):
    pass


Savepoint = TravellingSavepoint | NestedSavepoint


def savepoint_on(connection: BaseDatabaseWrapper, *, travelling: bool = True) -> Savepoint:
    """The cheapest savepoint that this connection can set."""
    if not travelling or not takes_several(connection):
        return NestedSavepoint(connection)
    if not (hasattr(connection, "run_on_commit") and hasattr(connection, "savepoint_ids")):
        return NestedSavepoint(connection)
    return TravellingSavepoint(connection)


def takes_several(connection: BaseDatabaseWrapper) -> bool:
    """Whether several statements can share a round trip."""
    return (
        connection.vendor == "postgresql"
        # A cursor that leaves the parameters to the server cannot send a second statement. One that binds them can show
        # the result.
        and hasattr(getattr(connection.connection, "cursor_factory", None), "mogrify")
        # They may add statements of their own, and then take the answer of the last one for ours (pghistory does).
        and not connection.execute_wrappers
    )


def awaits_begin(connection: BaseDatabaseWrapper) -> bool:
    """Whether the driver has yet to begin the open transaction, and would send no more than BEGIN for it."""
    driver: Any = connection.connection
    return (
        getattr(driver, "_autocommit", None) is False
        and driver.pgconn.transaction_status == _IDLE
        and driver.isolation_level is driver.read_only is driver.deferrable is None
    )


def may_bring_commit(connection: BaseDatabaseWrapper) -> bool:
    """Whether a COMMIT in a statement of ours would end the open transaction as Django's own would.

    A session of which the server has said something meanwhile has probably ended. It says so to the next statement, and
    if that is no COMMIT, everybody knows that nothing was committed.
    """
    driver: Any = connection.connection
    return (
        takes_several(connection)
        and driver.pgconn.transaction_status == _IN_TRANSACTION
        # Somebody's block of the driver would have its COMMIT refused.
        and not getattr(driver, "_num_transactions", 1)
        and not _has_something_to_read(driver.pgconn.socket)
    )


def _has_something_to_read(socket: int) -> bool:
    if not hasattr(select, "poll"):  # Windows, whose select takes any number
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def stopped_before_commit(connection: BaseDatabaseWrapper, savepoint: str) -> bool:
    """Whether a message that ends with COMMIT failed ahead of it. What it did behind the savepoint is undone then; else
    the transaction is broken, and the next statement says so."""
    driver: Any = connection.connection
    status = driver.pgconn.transaction_status
    if status == _IN_ERROR:
        with suppress(DatabaseFailure):
            connection.savepoint_rollback(savepoint)
    return status in {_IN_TRANSACTION, _IN_ERROR}


@contextmanager
def bringing_begin(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """For a statement that has the BEGIN in it: the driver adds none, and is inside a transaction when it is done."""
    driver: Any = connection.connection
    driver._autocommit = True  # noqa: SLF001
    try:
        yield
    finally:
        driver._autocommit = False  # noqa: SLF001


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE behind an error of Django's, if the driver gave one."""
    return getattr(error.__cause__, "sqlstate", None)


_PASSING = {
    "40001": "it could not be serialized with another transaction",
    "40P01": "it was in a deadlock with another transaction",
    "55P03": "it waited too long for a lock",
    "57014": "a statement of it was cancelled, or ran into statement_timeout",
    "25P04": "it took longer than transaction_timeout",
    "25P03": "it was silent for too long; raise what limits that: its lease in ATOMIC mode, RENEWAL_CAP otherwise",
}


def passing(error: BaseException) -> str | None:
    """What to tell an operator about an error of the database that a repetition of the whole request gets past."""
    state = sqlstate(error)
    if is_lost(state) and isinstance(error, OperationalError) and hasattr(error.__cause__, "sqlstate"):
        return "its session was ended: by a restart, a failover, an administrator, or the network"
    return _PASSING.get(state or "")


def is_lost(state: str | None) -> bool:
    """Whether this SQLSTATE, or none at all, is that of a session that is gone; what it was doing may be done."""
    return state is None or state.startswith(("08", "57P"))


def within_test_case(connection: BaseDatabaseWrapper) -> bool:
    """Whether the innermost open block is the one that Django's TestCase wraps around every test."""
    return bool(connection.atomic_blocks) and connection.atomic_blocks[-1]._from_testcase  # type: ignore[attr-defined]  # noqa: SLF001


def within_test_environment() -> bool:
    """Whether Django's test runner, or another that works as it does, has set this process up."""
    utilities = sys.modules.get("django.test.utils")
    return utilities is not None and hasattr(utilities._TestState, "saved_data")  # noqa: SLF001


def cannot_commit(connection: BaseDatabaseWrapper) -> bool:
    """Whether what was written in the open transaction is lost already, also where the error was swallowed."""
    if connection.needs_rollback or connection.closed_in_transaction or connection.connection is None:
        return True
    info = getattr(connection.connection, "info", None)  # psycopg's; SQLite undoes a failed statement alone
    return info is not None and info.transaction_status in _FAILED


# libpq's PQTRANS_IDLE, no transaction is open; PQTRANS_INTRANS, one is; PQTRANS_INERROR, it is broken; and
# PQTRANS_UNKNOWN, the connection is gone.
_IDLE, _IN_TRANSACTION, _IN_ERROR, _UNKNOWN = 0, 2, 3, 4
_FAILED = (_IN_ERROR, _UNKNOWN)


def drop_if_broken(connection: BaseDatabaseWrapper) -> None:
    """Let the next statement find a connection that works. Inside a transaction (a TestCase's) there is no other."""
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()


def also_if_broken(connection: BaseDatabaseWrapper, act: Callable[[], Result]) -> Result:
    """What ``act`` returns, tried again on a new connection: one that broke while another system was asked is noticed
    by the first statement after it. For what is the same if it is done twice."""
    try:
        return act()
    except DatabaseFailure:
        if connection.in_atomic_block:
            raise
        drop_if_broken(connection)
        return act()


@contextmanager
def own_connection(alias: str) -> Iterator[BaseDatabaseWrapper]:
    """A new connection to ``alias``, in autocommit, closed at the end."""
    connection = connections[alias].copy()
    # Taken from the project's pool, it would wait for a request to end, perhaps for the very one that it serves.
    connection.settings_dict.get("OPTIONS", {}).pop("pool", None)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def transaction_on(connection: BaseDatabaseWrapper) -> Iterator[None]:
    connection.set_autocommit(False)
    try:
        yield
        connection.commit()
        connection.set_autocommit(True)
    except BaseException:
        connection.rollback()
        connection.set_autocommit(True)
        raise
