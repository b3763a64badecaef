"""What a person can decide about a stuck claim: who may, what has to be filled in, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext as _, gettext_lazy

from .. import resolving
from ..core.documents import NotStorable, as_document
from ..core.states import IdempotencyMode, Seen
from ..models import IdempotencyKey
from ..resolving import Refusal
from ..sweeping import Fate, Swept

Note = Callable[[], object]
Told = tuple[int, str]
"""A level of django.contrib.messages, and what is said."""

_APP = "django_idempotency"


class DecisionForm(forms.Form):
    """The claim as the page showed it, and why something is to be done about it."""

    owner_token = forms.UUIDField(widget=forms.HiddenInput)
    lease_expires_at = forms.CharField(widget=forms.HiddenInput)
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
        help_text=gettext_lazy("For the history of this key, which others read."),
    )

    def clean_lease_expires_at(self) -> datetime:
        try:
            return datetime.fromisoformat(self.cleaned_data["lease_expires_at"])
        except ValueError as error:
            raise ValidationError(_("Open the page again.")) from error

    def seen(self, id: UUID) -> Seen:
        return Seen(id, self.cleaned_data["owner_token"], self.cleaned_data["lease_expires_at"])


class ResponseForm(DecisionForm):
    status = forms.IntegerField(
        label=gettext_lazy("Status"),
        min_value=resolving.STATUSES.start,
        max_value=resolving.STATUSES.stop - 1,
        help_text=gettext_lazy("Such as 201 where it took effect, and 402 or 409 where it did not."),
    )
    body = forms.CharField(
        label=gettext_lazy("Body"),
        required=False,
        strip=True,
        widget=forms.Textarea(attrs={"rows": 8, "class": "vLargeTextField"}),
        help_text=gettext_lazy("JSON, as the client expects it."),
    )

    field_order = ("status", "body", "reason")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        body, bodiless = cleaned.get("body", ""), cleaned.get("status") in resolving.NO_BODY
        if bodiless and body:
            self.add_error("body", _("A response with this status has no body."))
        elif not bodiless and "status" in cleaned:
            try:
                cleaned["data"] = as_document(json.loads(body), "body")
            except (ValueError, RecursionError, NotStorable) as error:
                self.add_error("body", _("This is not JSON that can be stored: %s") % error)
        return cleaned


class Intervention:
    """One kind of decision, with its pages."""

    slug: ClassVar[str]
    title: ClassVar[Any]
    explanation: ClassVar[Any]
    form: ClassVar[type[DecisionForm]] = DecisionForm

    def permitted(self, request: HttpRequest, key: IdempotencyKey) -> bool:
        raise NotImplementedError

    def in_history(self, cleaned: dict[str, Any]) -> str:
        """What the history says was done. Not translated: others read it in other languages."""
        raise NotImplementedError

    def carry_out(self, key: IdempotencyKey, seen: Seen, note: Note, cleaned: dict[str, Any]) -> Told:
        """:raises resolving.Refused: nothing was done."""
        raise NotImplementedError


class SweepNow(Intervention):
    slug = "sweep"
    title = gettext_lazy("Sweep now")
    explanation = gettext_lazy(
        "The operation goes on from where it stopped, as its sweeper would have it: other systems may be asked, and "
        "sent what can be sent again. Where nothing has begun, the key is released."
    )

    def permitted(self, request: HttpRequest, key: IdempotencyKey) -> bool:
        return request.user.has_perm(f"{_APP}.change_idempotencykey")

    def in_history(self, cleaned: dict[str, Any]) -> str:
        return "Swept."

    def carry_out(self, key: IdempotencyKey, seen: Seen, note: Note, cleaned: dict[str, Any]) -> Told:
        return _told(resolving.sweep_taken(resolving.take_up_by_person(_alias(key), seen, note)))


class Release(Intervention):
    slug = "release"
    title = gettext_lazy("Release")
    explanation = gettext_lazy(
        "The key becomes free, and the next request under it runs from the beginning. If this one took effect, "
        "somewhere, that is a second effect."
    )

    def permitted(self, request: HttpRequest, key: IdempotencyKey) -> bool:
        may_anyhow = request.user.has_perm(f"{_APP}.release_idempotencykey")
        return may_anyhow or (nothing_happened(key) and request.user.has_perm(f"{_APP}.change_idempotencykey"))

    def in_history(self, cleaned: dict[str, Any]) -> str:
        return "Released."

    def carry_out(self, key: IdempotencyKey, seen: Seen, note: Note, cleaned: dict[str, Any]) -> Told:
        resolving.release_by_person(_alias(key), seen, note, whatever_happened=not nothing_happened(key))
        return messages.SUCCESS, _("The key is released.")


class Resolve(Intervention):
    slug = "resolve"
    title = gettext_lazy("Mark resolved")
    explanation = gettext_lazy(
        "You know what became of it. This response is recorded for good, and every retry receives it."
    )
    form = ResponseForm

    def permitted(self, request: HttpRequest, key: IdempotencyKey) -> bool:
        return request.user.has_perm(f"{_APP}.resolve_idempotencykey")

    def in_history(self, cleaned: dict[str, Any]) -> str:
        return f"Resolved with {cleaned['status']}."

    def carry_out(self, key: IdempotencyKey, seen: Seen, note: Note, cleaned: dict[str, Any]) -> Told:
        resolving.resolve_by_person(_alias(key), seen, note, status=cleaned["status"], data=cleaned.get("data"))
        return messages.SUCCESS, _("The response is recorded.")


INTERVENTIONS: dict[str, Intervention] = {each.slug: each for each in (SweepNow(), Release(), Resolve())}


def nothing_happened(key: IdempotencyKey) -> bool:
    """Of a row what :func:`resolving.nothing_happened` is of a record."""
    return key.steps is None and key.mode != IdempotencyMode.ATOMIC.value


def _alias(key: IdempotencyKey) -> str:
    return str(key._state.db)  # noqa: SLF001 - documented


def why_refused(reason: Refusal) -> str:
    return {
        Refusal.GONE: _("Nothing was done: there is no such key, or it is free already."),
        Refusal.SEALED: _("Nothing was done: it has its answer already."),
        Refusal.ALIVE: _("Nothing was done: somebody works under this key. Wait until the lease has lapsed."),
        Refusal.CHANGED: _(
            "Nothing was done: something has happened to this key since the page was shown. Look again."
        ),
        Refusal.BEGUN: _("Nothing was done: something may have happened under this key. Look again."),
    }[reason]


def _told(swept: Swept) -> Told:
    return {
        Fate.FINISHED: (messages.SUCCESS, _("The operation has come to its end.")),
        Fate.RELEASED: (messages.SUCCESS, _("Nothing had happened; the key is released.")),
        Fate.POSTPONED: (messages.WARNING, _("Nobody knows yet; it is tried again later: %s") % swept.reason),
        Fate.LEFT: (messages.WARNING, _("It takes a person: %s") % swept.reason),
    }[swept.fate]
