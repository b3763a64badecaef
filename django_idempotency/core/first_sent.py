"""When a client first sent a request, by what it says of that. Times are seconds since the epoch."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from uuid import UUID

from .errors import MalformedFirstSent

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

# Date of RFC 9651, section 3.3.7; no parameters are defined for it here.
_EPOCH = re.compile(r"@(-?[0-9]{1,15})")
# IMF-fixdate of RFC 9110, section 5.6.7. Not with strptime, which reads the names of the server's locale.
_IMF = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), (?P<day>[0-9]{2}) (?P<month>[A-Z][a-z]{2}) (?P<year>[0-9]{4}) "
    r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2}) GMT"
)
# RFC 3339, section 5.6. Not with fromisoformat, which knows other forms besides, and fewer on Python 3.10.
_RFC3339 = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})[Tt ]"
    r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?P<fraction>\.[0-9]+)?"
    r"(?:[Zz]|(?P<sign>[+-])(?P<off_hours>[01][0-9]|2[0-3]):(?P<off_minutes>[0-5][0-9]))"
)


def parse_first_sent(raw: str) -> float:
    """``@1659578233``, ``Thu, 04 Aug 2022 01:57:13 GMT`` or ``2022-08-04T01:57:13Z``.

    :raises MalformedFirstSent: it is none of them, or no time at all.
    """
    value = raw.strip(" \t")
    try:
        if match := _EPOCH.fullmatch(value):
            return float(match[1])
        if match := _IMF.fullmatch(value):
            return _time(match, _MONTHS.index(match["month"]) + 1, timedelta())
        if match := _RFC3339.fullmatch(value):
            offset = timedelta(hours=int(match["off_hours"] or 0), minutes=int(match["off_minutes"] or 0))
            fraction = float(match["fraction"] or 0)
            return _time(match, int(match["month"]), -offset if match["sign"] == "-" else offset) + fraction
    except (ValueError, OverflowError):
        raise MalformedFirstSent("there is no such time") from None
    raise MalformedFirstSent(
        "it is none of a Date of RFC 9651 (@1659578233), an HTTP date (Thu, 04 Aug 2022 01:57:13 GMT) and a time of "
        "RFC 3339 (2022-08-04T01:57:13Z)"
    )


def _time(match: re.Match[str], month: int, offset: timedelta) -> float:
    second = int(match["second"])
    # A leap second, which both forms allow and Python has no name for.
    fields = int(match["year"]), month, int(match["day"]), int(match["hour"]), int(match["minute"])
    local = datetime(*fields, 59 if second == 60 else second, tzinfo=timezone.utc)
    return local.timestamp() - offset.total_seconds()


def time_of_uuid7(key: str) -> float | None:
    """When a key was made that is a UUID of version 7 (RFC 9562, section 5.7); None for any other key."""
    try:
        uuid = UUID(key)
    except ValueError:
        return None
    return (uuid.int >> 80) / 1000 if uuid.version == 7 else None
