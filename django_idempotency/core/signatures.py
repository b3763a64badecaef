"""What broken clients look like from here, by counts alone. Each kind with its threshold, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from .counted import Counted

Counts = Mapping[str, Mapping[str, int]]
"""Of each route, how often each outcome occurred."""


class Kind(str, Enum):
    MINTED = "minted"
    """A new key for each attempt: keys that protect from nothing."""

    NEVER_REPLAYED = "never_replayed"
    """Nobody comes back with the key of a request that failed."""

    REUSED = "reused"
    """One key for different requests, such as one for a whole session."""

    LATE = "late"
    """Retries that come when their records are gone, or nearly so."""


TWIN_SECONDS = 10.0
"""How far apart two equal requests under two keys are at most, to be taken for two attempts: time-outs of clients and
the patience of users are of that order. Somebody who wants the same thing twice takes longer to say so."""

# One impatient user presses twice; from five on it is a habit. And a client that makes new keys does so in each of its
# retries, which are some in a hundred of all requests wherever there are networks.
_TWINS, _TWIN_SHARE = 5, 0.02

# If only one in ten of those who are told to come back did, not one of 50 would be a coincidence of 1 in 200.
_TOLD_TO_RETRY = 50

# A mismatch is a fault of the client each time. A few are somebody's tests; one in ten is how it makes its keys.
_MISMATCHES, _MISMATCH_SHARE = 20, 0.10

# One that is late may have been a second effect. One that nearly is had an outage of its own; five are a queue of
# retries that is longer than the records live.
_LATE, _NEARLY_LATE = 1, 5


def gettext_noop(text: str) -> str:
    """Marks what the dashboard says in the language of its reader. By its name makemessages finds it."""
    return text


SEEN: dict[Kind, str] = {
    Kind.MINTED: gettext_noop(
        "%(cases)d of the last %(of)d records repeat, within %(seconds)d s, another one's request under a new key"
    ),
    Kind.NEVER_REPLAYED: gettext_noop(
        "%(cases)d of %(of)d requests in a day were told to come back, and none was answered with what is recorded"
    ),
    Kind.REUSED: gettext_noop("%(cases)d of %(of)d requests in a day had the key of another one"),
    Kind.LATE: gettext_noop(
        "%(cases)d of %(of)d requests in a day came after the end of the retention, or in the last quarter of it"
    ),
}

ADVICE: dict[Kind, str] = {
    Kind.MINTED: gettext_noop(
        "A client makes a new key for each attempt, so each of them runs. The key belongs to the intent: to be made "
        "once, stored with it, and sent with every attempt. What was done twice: manage.py idempotency reconcile."
    ),
    Kind.NEVER_REPLAYED: gettext_noop(
        "Clients do not retry, or not under the same key, and never hear what became of a request whose answer they "
        "missed. They have to send it again, with its key, after the seconds of Retry-After."
    ),
    Kind.REUSED: gettext_noop(
        "A client sends different requests under one key, such as one for a whole session, and is refused. Each intent "
        "needs a key of its own. If the difference is no other intent, such as a time stamp, exclude that field from "
        "the fingerprint."
    ),
    Kind.LATE: gettext_noop(
        "Retries come when their records are gone, and can run a second time. Raise the retention of the route above "
        "the longest time for which its clients retry, or refuse late ones (refuse_late)."
    ),
}


@dataclass(frozen=True)
class Signature:
    """One kind of broken client on one route."""

    kind: Kind
    route: str
    cases: int
    of: int
    """Out of how many requests with a key in a day; MINTED: of the latest records."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """What SEEN has places for."""
        return {"cases": self.cases, "of": self.of, "seconds": int(TWIN_SECONDS)}

    @property
    def seen(self) -> str:
        return SEEN[self.kind] % self.numbers

    @property
    def advice(self) -> str:
        return ADVICE[self.kind]


@dataclass(frozen=True)
class Twins:
    """Of the records of a route that were made lately, those that repeat another one's content under another key."""

    route: str
    twins: int
    records: int


def in_counts(counts: Counts) -> Iterator[Signature]:
    """:param counts: of about a day."""
    for route, outcomes in sorted(counts.items()):

        def n(*which: Counted, of: Mapping[str, int] = outcomes) -> int:
            return sum(of.get(each.value, 0) for each in which)

        keyed = n(
            Counted.NEW, Counted.TAKEOVER, Counted.REPLAYED, Counted.CONFLICT, Counted.MISMATCH, Counted.LATE,
            Counted.UNAVAILABLE,
        )  # fmt: skip
        told = n(Counted.CONFLICT, Counted.UNAVAILABLE)
        if told >= _TOLD_TO_RETRY and not n(Counted.REPLAYED):
            yield Signature(Kind.NEVER_REPLAYED, route, told, keyed)
        if (mismatches := n(Counted.MISMATCH)) >= max(_MISMATCHES, _MISMATCH_SHARE * keyed):
            yield Signature(Kind.REUSED, route, mismatches, keyed)
        late, nearly = n(Counted.LATE), n(Counted.NEARLY_LATE)
        if late >= _LATE or nearly >= _NEARLY_LATE:
            yield Signature(Kind.LATE, route, late + nearly, keyed)


def in_twins(found: Twins) -> Iterator[Signature]:
    if found.twins >= max(_TWINS, _TWIN_SHARE * found.records):
        yield Signature(Kind.MINTED, found.route, found.twins, found.records)
