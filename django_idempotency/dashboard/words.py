"""Numbers and times as people read them, in the language of the request."""

from __future__ import annotations

from datetime import datetime, timezone as timezones

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _

from ..interventions.progress import moment, readable

__all__ = ["at", "day", "moment", "percent", "readable", "whole"]


def whole(n: int) -> str:
    if 0 <= n < 1000:
        return str(n)  # as in every language, and most of the thousands that a page has
    return number_format(n, force_grouping=True)


def percent(part: float | None) -> str:
    return _("none") if part is None else _("%s %%") % number_format(round(part * 100, 1), 1)


def at(epoch: float) -> str:
    """A time of day and its date, where the reader is."""
    return date_format(timezone.localtime(datetime.fromtimestamp(epoch, timezones.utc)), "SHORT_DATETIME_FORMAT")


def day(date: datetime) -> str:
    return date_format(timezone.localtime(date), "j M")
