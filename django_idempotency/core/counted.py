"""What is counted of requests and records, for each route. The words are for good: they are stored and exported."""

from __future__ import annotations

from enum import Enum

from . import errors

ROUTE_LENGTH = 255
"""Of a route as it is kept, in characters. What is longer is cut off."""


class Counted(str, Enum):
    """What became of a request: one word on its arrival, and RELEASED, FENCED, HELD or UNAVAILABLE besides where the
    key that it owned did not end with an answer. Sweepers and persons have their own."""

    NEW = "new"
    """Its key was free; it ran."""

    TAKEOVER = "takeover"
    """The owner of its key was gone, with its lease; it ran, or went on."""

    REPLAYED = "replayed"
    """It was answered with what is recorded."""

    CONFLICT = "conflict"
    """409: the first request under its key is running, or nobody knows yet how that ended."""

    MISMATCH = "mismatch"
    """422: the first request under its key had other content."""

    MISSING_KEY = "missing_key"
    """It came without a key: refused where the policy requires one, and unprotected elsewhere."""

    MALFORMED_KEY = "malformed_key"
    """400: what it sent as its key, or as the time at which it was first sent, is none."""

    REFUSED = "refused"
    """Its caller or its body cannot be told from others, so that its key was not looked at."""

    LATE = "late"
    """No record stands under its key, and one that did may be gone, or is buried. It was refused, or ran, as its policy
    says, or the setting TOMBSTONES."""

    NEARLY_LATE = "nearly_late"
    """It came in the last quarter of the time for which its record is kept. Counted beside what became of it."""

    UNAVAILABLE = "unavailable"
    """503: the database of the keys did not answer. Beside NEW: it did not at the end, and the retry finds out."""

    OBSERVED = "observed"
    """It came with a key under the setting OBSERVE_ONLY, and was let through."""

    RELEASED = "released"
    """Nothing happened under the key, which is free again."""

    FENCED = "fenced"
    """Its owner had lost the lease, and all that it wrote was rolled back."""

    HELD = "held"
    """Nobody knows what became of it; a sweeper or a person finds out."""

    SWEPT_RELEASED = "swept_released"
    """A sweeper found that nothing had happened, and freed the key."""

    SWEPT_FINISHED = "swept_finished"
    """A sweeper brought the operation to its end."""

    SWEPT_POSTPONED = "swept_postponed"
    """A sweeper could not find out yet."""

    SWEPT_LEFT = "swept_left"
    """A sweeper left it to a person."""

    RESOLVED = "resolved"
    """A person recorded what became of it."""

    SWEEP = "sweep"
    """A sweep of a database began, whose alias stands in the place of the route."""


_REFUSALS: dict[type[BaseException], Counted] = {
    errors.InProgress: Counted.CONFLICT,
    errors.Held: Counted.CONFLICT,
    errors.KeyReused: Counted.MISMATCH,
    errors.MissingKey: Counted.MISSING_KEY,
    errors.MalformedKey: Counted.MALFORMED_KEY,
    errors.MalformedFirstSent: Counted.MALFORMED_KEY,
    errors.TooLate: Counted.LATE,
    errors.KeyExpired: Counted.LATE,
    errors.AnonymousScope: Counted.REFUSED,
    errors.MalformedBody: Counted.REFUSED,
    errors.BodyTooLarge: Counted.REFUSED,
    errors.LeaseLost: Counted.FENCED,
    errors.StoreUnavailable: Counted.UNAVAILABLE,
    errors.OutcomeUnknown: Counted.UNAVAILABLE,
}


def counted_as(error: BaseException) -> Counted | None:
    """What a request is counted as that ended in ``error``; None where that is the project's own."""
    return _REFUSALS.get(type(error))
