"""What goes over the wire: each round trip of one connection, as libpq itself saw it."""

from __future__ import annotations

import re
import tempfile
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import psycopg
import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import Trace

if TYPE_CHECKING:
    from typing_extensions import Self

_MESSAGE = re.compile(r"^([FB])\t\d+\t(\w+)\t?", re.MULTILINE)
_WORD = re.compile(
    r"\bBEGIN\b|\bCOMMIT\b|\bROLLBACK TO SAVEPOINT\b|\bROLLBACK\b|\bRELEASE SAVEPOINT\b|\bSAVEPOINT\b"
    r"|idempotency_(\w+?)(?:_v\d+)?\(|DELETE FROM idempotency_key_in_flight|(?:INSERT INTO|FROM) \"(\w+)\""
)


class Wire:
    """Between ``with`` and its end, the round trips of a connection to PostgreSQL.

    A round trip is what the client sent until the server was ready for the next query, as words: those of transactions,
    names of our functions (``claim``, ``seal``), and of the project's tables.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__

    def __enter__(self) -> Self:
        self._connection.ensure_connection()
        driver: Any = self._connection.connection
        self._traced: Any = driver.pgconn
        try:
            self._traced.trace(self._file.fileno())
        except psycopg.NotSupportedError as reason:
            pytest.skip(str(reason))
        self._traced.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        driver: Any = self._connection.connection
        same = getattr(driver, "pgconn", None) is self._traced
        assert same, "the connection was closed meanwhile"
        self._traced.untrace()
        self._file.seek(0)
        self._log = self._file.read().decode()
        self._file.close()

    @property
    def round_trips(self) -> list[list[str]]:
        trips: list[list[str]] = []
        words: list[str] = []
        _, *parts = _MESSAGE.split(self._log)
        for sender, kind, content in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if sender == "F" and kind in ("Query", "Parse"):
                words += _words(content)
            elif kind == "ReadyForQuery":
                trips.append(words)
                words = []
        return trips


def _words(sent: str) -> list[str]:
    found = [
        function or table or match for match, function, table in ((m[0], m[1], m[2]) for m in _WORD.finditer(sent))
    ]
    return found or [sent.strip()]
