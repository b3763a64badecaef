"""What is counted of requests and records, for each route. The words are for good: they are stored and exported."""

from __future__ import annotations

from enum import Enum


class Counted(str, Enum):
    """A request has one of the first group, and one more of the second where its key did not end with an answer."""

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
    """400: what it named as its key, or as the time at which it was first sent, is none."""

    REFUSED = "refused"
    """Its caller or its body cannot be told from others, so that its key was not looked at."""

    LATE = "late"
    """It came when its record, if there was one, may be gone: refused, or run and counted as new besides."""

    UNAVAILABLE = "unavailable"
    """503: its key could not be looked up or recorded, and nothing was kept."""

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
