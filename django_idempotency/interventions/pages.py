"""The pages of the admin on which a decision is confirmed and carried out."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import Error as DatabaseFailure
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _

from ..conf import current
from ..core.errors import IdempotencyError
from ..http.atomic_requests import take_out
from ..models import IdempotencyKey
from ..resolving import Refusal, Refused
from .decisions import INTERVENTIONS, DecisionForm, Intervention, nothing_happened, why_refused
from .progress import moment, next_sweep, steps_of

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[IdempotencyKey]
else:
    _ModelAdmin = admin.ModelAdmin

_PREFIX = "django_idempotency_idempotencykey"


class InterventionPages(_ModelAdmin):
    """For the admin of the keys: a page for each decision, offered where a claim is stuck and the user may take it."""

    def get_urls(self) -> list[Any]:
        return [*(self._url_of(each) for each in INTERVENTIONS.values()), *super().get_urls()]

    def _url_of(self, intervention: Intervention) -> Any:
        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            return self.intervene(request, object_id, intervention)

        guarded = self.admin_site.admin_view(view)
        # Out of ATOMIC_REQUESTS: a sweep asks other systems, and a decision is told of when it is committed.
        take_out(guarded)
        return path(f"<path:object_id>/{intervention.slug}/", guarded, name=f"{_PREFIX}_{intervention.slug}")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        key = self.get_object(request, unquote(object_id))
        offered = [
            {"title": each.title, "url": self._address(key, each.slug)}
            for each in INTERVENTIONS.values()
            if key is not None and _is_stuck(key) and each.permitted(request, key)
        ]
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), "interventions": offered})

    def intervene(self, request: HttpRequest, object_id: str, intervention: Intervention) -> HttpResponse:
        key = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, key) or (key is not None and not intervention.permitted(request, key)):
            raise PermissionDenied
        if key is None:
            self.message_user(request, why_refused(Refusal.GONE), messages.ERROR)
            return HttpResponseRedirect(reverse(f"admin:{_PREFIX}_changelist", current_app=self.admin_site.name))
        shown = {"owner_token": key.owner_token, "lease_expires_at": f"{key.lease_expires_at}"}
        form = intervention.form(request.POST or None, initial=shown)
        if request.method == "POST" and form.is_valid():
            self._carry_out(request, key, intervention, form)
        elif request.method == "POST" or _is_stuck(key):
            return self._ask(request, key, intervention, form)
        else:
            refusal = Refusal.SEALED if key.lease_expires_at is None else Refusal.ALIVE
            self.message_user(request, why_refused(refusal), messages.ERROR)
        return HttpResponseRedirect(self._address(key, "change"))

    def _carry_out(self, request: HttpRequest, key: Any, intervention: Intervention, form: DecisionForm) -> None:
        done = f"{intervention.in_history(form.cleaned_data)} {form.cleaned_data['reason']}"
        try:
            level, text = intervention.carry_out(
                key, form.seen(key.pk), lambda: self.log_change(request, key, done), form.cleaned_data
            )
        except Refused as refused:
            level, text = messages.ERROR, why_refused(refused.reason)
        except IdempotencyError as error:
            level, text = messages.ERROR, _("Nothing was done: %s") % type(error).__name__
        except DatabaseFailure as error:
            # Perhaps of the COMMIT, and only its answer was lost.
            level, text = (
                messages.ERROR,
                _("It is not known whether that was done: %s. Look again.") % type(error).__name__,
            )
        self.message_user(request, text, level)

    def _ask(self, request: HttpRequest, key: Any, intervention: Intervention, form: DecisionForm) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": key,
            "title": intervention.title,
            "intervention": intervention,
            "form": form,
            "key_url": self._address(key, "change"),
            "something_may_have_happened": not nothing_happened(key),
            "facts": _facts(key),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_idempotency/idempotencykey/intervene.html", context)

    def _address(self, key: IdempotencyKey, page: str) -> str:
        url = reverse(f"admin:{_PREFIX}_{page}", args=[key.pk], current_app=self.admin_site.name)
        alias = key._state.db  # noqa: SLF001 - documented
        return url if alias == current().DATABASES[0] else f"{url}?{urlencode({'db': alias})}"


def _facts(key: IdempotencyKey) -> list[tuple[str, Any]]:
    return [
        (_("scope"), key.scope),
        (_("owner token"), key.owner_token),
        (_("operation"), key.operation),
        *((_("step"), step) for step in steps_of(key)),
        (_("held because"), key.held_reason),
        (_("held since"), key.held_at and moment(key.held_at)),
        (_("sweeps"), key.sweeps),
        (_("next sweep"), next_sweep(key)),
    ]


def _is_stuck(key: Any) -> bool:
    """By the clock of the database."""
    return key.lease_left is not None and key.lease_left <= timedelta(0)
