"""Numbers and times as people read them, in the language of the request."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone as timezones

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _


def readable(span: timedelta) -> str:
    """``3 h``: one number is enough to see what has been going on for long."""
    seconds = int(span.total_seconds())
    if seconds < 120:
        return _("%d s") % seconds
    if seconds < 2 * 3600:
        return _("%d min") % (seconds // 60)
    if seconds < 2 * 86400:
        return _("%d h") % (seconds // 3600)
    return _("%d d") % (seconds // 86400)


def whole(n: int) -> str:
    if 0 <= n < 1000:
        return str(n)  # as in every language, and most of the thousands that a page has
    return number_format(n, force_grouping=True)


def percent(part: float | None) -> str:
    return _("none") if part is None else _("%s %%") % number_format(round(part * 100, 1), 1)


def at(epoch: float) -> str:
    """A time of day and its date, where the reader is."""
    return date_format(timezone.localtime(datetime.fromtimestamp(epoch, timezones.utc)), "SHORT_DATETIME_FORMAT")


def day(moment: datetime) -> str:
    return date_format(timezone.localtime(moment), "j M")


def date_and_time(moment: datetime) -> str:
    return date_format(timezone.localtime(moment), "DATETIME_FORMAT")
