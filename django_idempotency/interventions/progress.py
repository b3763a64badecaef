"""A claim's way so far, in words: what an operator needs in order to find out the rest elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone as timezones
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _, ngettext

from ..core.progress import StepKind
from ..core.states import State
from ..models import IdempotencyKey
from ..storage.base import first_never


def steps_of(key: IdempotencyKey) -> Iterator[str]:
    """One text a step. The derived key that a call went out under is no secret: it is there to be looked up by.

    Results are not told: they may be anybody's data.
    """
    # As they are stored, whichever release of this package did so.
    return (_described(step) for step in key.steps or ())


def _described(step: Mapping[str, Any]) -> str:
    name = str(step.get("name"))
    if step.get("kind") != StepKind.CALL.value:
        return _("%s: done") % name
    outcome = _("declined") if step.get("declined") else _("answered") if step.get("done") else _("no answer")
    parts = [_("%(name)s: %(outcome)s") % {"name": name, "outcome": outcome}]
    if sends := step.get("sends"):
        parts.append(ngettext("sent %d time", "sent %d times", sends) % sends)
    if started_at := step.get("started_at"):
        parts.append(_("first on %s") % moment(datetime.fromtimestamp(started_at, tz=timezones.utc)))
    if derived := step.get("key"):
        parts.append(_("under the key %s") % derived)
    return ", ".join(parts)


def next_sweep(key: IdempotencyKey) -> str:
    if is_for_a_person(key):
        return _("none: it is left to a person")
    return _("when the claim is stale") if key.sweep_after is None else moment(key.sweep_after)


def is_for_a_person(key: IdempotencyKey) -> bool:
    return key.sweep_after is not None and key.sweep_after >= first_never()


def state_of(key: Any) -> str:
    """:param key: a row of ``storage.ages``."""
    if key.state == State.SEALED.value:
        return _("expired") if key.kept_for <= timedelta(0) else _("sealed")
    if key.held_reason is not None:
        return _("left to a person") if is_for_a_person(key) else _("held")
    return _("stuck") if key.lease_left <= timedelta(0) else _("in flight")


def lease_of(key: Any) -> str:
    """:param key: a claim in flight, as a row of ``storage.ages``."""
    left: timedelta = key.lease_left
    return readable(left) if left > timedelta(0) else _("lapsed %s ago") % readable(-left)


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


def moment(when: datetime) -> str:
    return date_format(timezone.localtime(when) if timezone.is_aware(when) else when, "DATETIME_FORMAT")
