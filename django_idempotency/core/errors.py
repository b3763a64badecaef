"""What can stand between a keyed request and its answer.

Errors carry data and know nothing of HTTP: ``http.problems`` gives each ``slug`` its status. They travel through
Celery and multiprocessing, so each pickles by its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class IdempotencyError(Exception):
    """Base of every refusal, such as a key that is in use."""

    slug = "error"
    """Names the problem for good: clients branch on it."""

    title = "The idempotency key could not be honoured"

    @property
    def detail(self) -> str:
        """One sentence for the client: what happened and the way out. Never contains the key or the body."""
        return self.title

    @property
    def retry_after(self) -> float | None:
        """Seconds after which the same request can succeed; None where repeating it cannot help."""
        return None

    @property
    def members(self) -> Mapping[str, object]:
        """Extension members of the problem document (RFC 9457, section 3.2)."""
        return {}


class Explained(Exception):
    """An error whose text is ours, and may be stored and logged. That of others may quote somebody's data."""


class ForAPerson(Explained):
    """Why an operation that has begun can be ended by a person only: to guess might be a second effect."""


class _Reasoned(IdempotencyError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    @property
    def detail(self) -> str:
        return f"{self.title}: {self.reason}."


class _Passing(IdempotencyError):
    """A refusal that ends by itself: the same request under the same key is worth repeating."""

    def __init__(self, retry_after: float = 1.0) -> None:
        super().__init__(retry_after)
        self._retry_after = retry_after

    @property
    def retry_after(self) -> float:
        return self._retry_after


class MissingKey(IdempotencyError):
    slug = "missing-key"
    title = "This operation requires an idempotency key"

    def __init__(self, header: str) -> None:
        super().__init__(header)
        self.header = header

    @property
    def detail(self) -> str:
        return f"Send the {self.header} header with a value that is unique to this intent, such as a UUID."


class MalformedKey(_Reasoned):
    slug = "malformed-key"
    title = "The idempotency key is malformed"


class MalformedFirstSent(_Reasoned):
    slug = "malformed-first-sent"
    title = "The time at which the request was first sent is malformed"


class TooLate(IdempotencyError):
    """No record stands under the key, and one that did may be gone: to run could be a second time."""

    slug = "too-late"
    title = "This request was first sent too long ago"

    def __init__(self, age: float, retention: float) -> None:
        super().__init__(age, retention)
        self.age = age
        self.retention = retention

    @property
    def detail(self) -> str:
        return (
            "Nothing was executed. Keys are kept for as long as retention_seconds says, and what became of an earlier "
            "attempt may be forgotten: find out by other means, and send a new intent under a new key."
        )

    @property
    def members(self) -> Mapping[str, object]:
        return {"age_seconds": round(self.age), "retention_seconds": round(self.retention)}


class MalformedBody(_Reasoned):
    slug = "malformed-body"
    title = "The request body cannot be compared with a retry"


class BodyTooLarge(IdempotencyError):
    slug = "body-too-large"
    title = "The request body is larger than this server reads into memory"

    @property
    def detail(self) -> str:
        return "Nothing was executed. Send fewer or smaller fields; large files belong in multipart/form-data."


class AnonymousScope(IdempotencyError):
    slug = "anonymous-scope"
    title = "An idempotency key needs a caller that it belongs to"

    @property
    def detail(self) -> str:
        return "The caller is not authenticated, and this operation declares no scope for anonymous callers."


class KeyReused(IdempotencyError):
    slug = "key-reused"
    title = "This idempotency key was used for a different request"

    @property
    def detail(self) -> str:
        return "The first request under this key had other content. Send a new key for a new intent."


class KeyExpired(IdempotencyError):
    slug = "key-expired"
    title = "This idempotency key was used before, and its outcome is no longer kept"

    @property
    def detail(self) -> str:
        return (
            "Nothing was executed now. Find out what became of the first request by other means; "
            "only if it should happen again, send it with a new key."
        )


class InProgress(_Passing):
    slug = "in-progress"
    title = "A request with this idempotency key is still running"

    @property
    def detail(self) -> str:
        return "Repeat the same request with the same key after the time in Retry-After."


class Held(_Passing):
    slug = "held"
    title = "Nobody knows yet whether the first request with this key took effect"

    @property
    def detail(self) -> str:
        return "The outcome is being looked into. Keep the key, do not send a new one, and repeat the request later."


class LeaseLost(_Passing):
    slug = "lease-lost"
    title = "Another attempt took over this idempotency key"

    @property
    def detail(self) -> str:
        return "This attempt kept nothing. Repeat the request with the same key to receive the outcome."


class StoreUnavailable(_Passing):
    """The key cannot be looked up or recorded, so nothing may run. ``reason`` is for the log, not the client."""

    slug = "store-unavailable"
    title = "Idempotency keys cannot be recorded at the moment"

    def __init__(self, reason: str, retry_after: float = 1.0) -> None:
        super().__init__(retry_after)
        self.args = (reason, retry_after)
        self.reason = reason

    @property
    def detail(self) -> str:
        return "Nothing was executed. Repeat the request with the same key after the time in Retry-After."


class OutcomeUnknown(_Passing):
    slug = "outcome-unknown"
    title = "It is not known whether this request took effect"

    @property
    def detail(self) -> str:
        return "Repeat the request with the same key: it will not be executed a second time."


class ResponseNotStored(IdempotencyError):
    """The effect happened once and its response was too large, or too secret, to keep."""

    slug = "response-not-stored"
    title = "This request was executed; its response was not kept"

    def __init__(self, original_status: int, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(original_status, headers)
        self.original_status = original_status
        self.headers = tuple(headers)

    @property
    def detail(self) -> str:
        return "The first request with this key took effect and is not executed again. Read its result by other means."

    @property
    def members(self) -> Mapping[str, object]:
        return {"original_status": self.original_status}


class TransactionConflict(_Passing):
    """The database ended the transaction of the view: a deadlock, a serialization failure, or one of its time-outs."""

    slug = "transaction-conflict"
    title = "The database rolled this request back"

    @property
    def detail(self) -> str:
        return "Nothing was kept, and the key is free. Repeat the request with the same key."


class BrokenTransaction(IdempotencyError):
    """The view answered with success over a transaction that can no longer commit."""

    slug = "broken-transaction"
    title = "The request failed and left nothing behind"

    @property
    def detail(self) -> str:
        return "The server met an error inside its database transaction. Nothing was kept, and the key is free."
