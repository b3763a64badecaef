"""What the processor keeps, in a database of its own, and what it does once and not again."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

DECLINED_CARD = "declined"
HIGHEST_AMOUNT = 1_000_000

SCHEMA = """
CREATE TABLE IF NOT EXISTS charges (
    id TEXT PRIMARY KEY, status TEXT NOT NULL, amount INTEGER NOT NULL, currency TEXT NOT NULL,
    reference TEXT NOT NULL, card TEXT NOT NULL, decline_code TEXT, created_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS charges_by_reference ON charges (reference);
CREATE TABLE IF NOT EXISTS keys (
    key TEXT PRIMARY KEY, parameters TEXT NOT NULL, charge TEXT NOT NULL REFERENCES charges,
    status INTEGER NOT NULL, body TEXT NOT NULL, recorded_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY, operation TEXT NOT NULL, key TEXT, reference TEXT, fault TEXT, status INTEGER
);
CREATE TABLE IF NOT EXISTS effects (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, charge TEXT NOT NULL REFERENCES charges,
    request INTEGER NOT NULL REFERENCES requests
);
"""


@dataclass(frozen=True)
class Answer:
    """What a request is answered, and what a key stands for from then on."""

    status: int
    body: dict[str, Any]
    replayed: bool = False


@dataclass(frozen=True)
class Parameters:
    """What a merchant asks for. A key stands for these, too: other ones under it are a mistake of the merchant's."""

    amount: int
    currency: str
    reference: str
    card: str = "good"

    def __post_init__(self) -> None:
        if type(self.amount) is not int or not 0 < self.amount < 2**63:
            raise ValueError("amount is a positive whole number of minor units")
        if not all(isinstance(text, str) and text for text in (self.currency, self.reference, self.card)):
            raise ValueError("currency, reference and card are texts")

    @property
    def decline_code(self) -> str | None:
        if self.card == DECLINED_CARD:
            return "card_declined"
        return "over_limit" if self.amount > HIGHEST_AMOUNT else None


class Book:
    """One transaction a method, one at a time: of two requests with one key the second finds what the first did.

    :param key_retention: after it a key is forgotten, and what is sent under it is done once more.
    """

    def __init__(self, path: Path, *, key_retention: timedelta, clock: Callable[[], float] = time.time) -> None:
        self._retention = key_retention.total_seconds()
        self._clock = clock
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        # Others may read the file meanwhile, and what was answered survives a kill of this process.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(SCHEMA)

    def charge(self, parameters: Parameters, key: str | None, request: int) -> Answer:
        """Take the money or decline, once a key."""
        asked = json.dumps(asdict(parameters), sort_keys=True)
        with self._transaction() as database:
            kept = self._kept(database, key)
            if kept is not None and kept["parameters"] != asked:
                return Answer(422, {"error": "key_reused", "detail": "This key was sent with other parameters."})
            if kept is not None:
                return Answer(kept["status"], json.loads(kept["body"]), replayed=True)
            charge = self._new_charge(database, parameters)
            answer = Answer(402 if parameters.decline_code else 201, charge)
            if not parameters.decline_code:
                _record_effect(database, "charge", charge["id"], request)
            if key is not None:
                database.execute(
                    "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?)",
                    (key, asked, charge["id"], answer.status, json.dumps(answer.body), self._clock()),
                )
            return answer

    def void(self, charge_id: str, request: int) -> Answer:
        """Give the money back. A charge can be voided once, so this needs no key."""
        with self._transaction() as database:
            charge = self._charge(database, charge_id)
            if charge is None:
                return Answer(404, {"error": "no_such_charge"})
            if charge["status"] == "declined":
                return Answer(409, {"error": "nothing_to_void"})
            if charge["status"] == "voided":
                return Answer(200, charge, replayed=True)
            database.execute("UPDATE charges SET status = 'voided' WHERE id = ?", (charge_id,))
            _record_effect(database, "void", charge_id, request)
            return Answer(200, charge | {"status": "voided"})

    def find(self, *, key: str | None = None, reference: str | None = None) -> list[dict[str, Any]]:
        """The charges of a reference, or the one that a key stands for as long as it is known."""
        with self._transaction() as database:
            if key is not None:
                kept = self._kept(database, key)
                charge = kept and self._charge(database, kept["charge"])
                return [charge] if charge and reference in (None, charge["reference"]) else []
            rows = database.execute("SELECT * FROM charges WHERE reference = ? ORDER BY rowid", (reference,))
            return [_as_json(row) for row in rows]

    def reference_of(self, charge_id: str) -> str | None:
        with self._transaction() as database:
            charge = self._charge(database, charge_id)
            return None if charge is None else str(charge["reference"])

    def forget_keys(self) -> None:
        with self._transaction() as database:
            database.execute("DELETE FROM keys")

    # --- the log, which merchants do not see ------------------------------------------------------------

    def received(self, operation: str, key: str | None, reference: str | None, fault: str | None) -> int:
        """Note a request before anything is done about it, and return its number."""
        with self._transaction() as database:
            sql = "INSERT INTO requests (operation, key, reference, fault) VALUES (?, ?, ?, ?)"
            number = database.execute(sql, (operation, key, reference, fault)).lastrowid
            assert number is not None
            return number

    def answered(self, request: int, status: int) -> None:
        with self._transaction() as database:
            database.execute("UPDATE requests SET status = ? WHERE number = ?", (status, request))

    def log(self) -> dict[str, list[dict[str, Any]]]:
        """Every request, and every movement of money with the key that it was made under."""
        with self._transaction() as database:
            requests = database.execute("SELECT * FROM requests ORDER BY number")
            effects = database.execute(
                "SELECT effects.kind, effects.charge, charges.amount, requests.key, requests.reference, effects.request"
                " FROM effects JOIN requests ON requests.number = request JOIN charges ON charges.id = charge"
                " ORDER BY effects.number"
            )
            return {"requests": [dict(row) for row in requests], "effects": [dict(row) for row in effects]}

    # --- inside a transaction ---------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def _kept(self, database: sqlite3.Connection, key: str | None) -> sqlite3.Row | None:
        database.execute("DELETE FROM keys WHERE recorded_at <= ?", (self._clock() - self._retention,))
        row: sqlite3.Row | None = database.execute("SELECT * FROM keys WHERE key = ?", (key,)).fetchone()
        return row

    def _charge(self, database: sqlite3.Connection, charge_id: str) -> dict[str, Any] | None:
        row = database.execute("SELECT * FROM charges WHERE id = ?", (charge_id,)).fetchone()
        return None if row is None else _as_json(row)

    def _new_charge(self, database: sqlite3.Connection, parameters: Parameters) -> dict[str, Any]:
        charge_id, code = f"ch_{uuid4().hex}", parameters.decline_code
        status = "declined" if code else "succeeded"
        database.execute(
            "INSERT INTO charges VALUES (:id, :status, :amount, :currency, :reference, :card, :code, :now)",
            {**asdict(parameters), "id": charge_id, "status": status, "code": code, "now": self._clock()},
        )
        charge = self._charge(database, charge_id)
        assert charge is not None
        return charge


def _record_effect(database: sqlite3.Connection, kind: str, charge_id: str, request: int) -> None:
    database.execute("INSERT INTO effects (kind, charge, request) VALUES (?, ?, ?)", (kind, charge_id, request))


def _as_json(charge: sqlite3.Row) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(charge["created_at"], tz=timezone.utc)
    return {**dict(charge), "created_at": created_at.isoformat()}
