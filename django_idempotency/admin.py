"""The keys, to be looked at, and decisions about those that are stuck. Nothing else here changes one, and no page costs
more when a million are sealed.

Claims in flight are a few rows in a leaf of their own. Sealed records are many: the first of them are shown, by primary
key, and any one is found by its id. So there is no count of all, no free filter and no sorting by a column.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.db.models.functions import Length, Now
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html_join
from django.utils.http import urlencode
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from .conf import current
from .core.states import State
from .interventions.pages import InterventionPages
from .interventions.progress import lease_of, next_sweep, readable, state_of, steps_of
from .models import IdempotencyKey
from .storage.ages import with_ages
from .storage.base import first_never

if TYPE_CHECKING:
    Keys = QuerySet[IdempotencyKey]
    _Paginator = Paginator[Any]
else:
    _Paginator = Paginator

AT_MOST = 1000
"""How many keys a list goes through. Pages are offsets, and what a page skips has to be read."""

_DATABASE = "db"
_STATE = "state"
_STUCK = "stuck"
_HELD = "held"
_FOR_A_PERSON = "person"


class StateFilter(admin.SimpleListFilter):
    title = gettext_lazy("state")
    parameter_name = _STATE

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            (_STUCK, _("stuck: the lease has lapsed")),
            (_HELD, _("held: nobody knows yet")),
            (_FOR_A_PERSON, _("left to a person")),
            (State.SEALED.value, _("sealed: the first %d") % AT_MOST),
        ]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        everything, *others = super().choices(changelist)
        yield {**everything, "display": _("in flight")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: Keys) -> Keys | None:
        if self.value() == State.SEALED.value:
            return queryset.filter(state=State.SEALED.value)
        if self.value() == _STUCK:
            return _in_flight(queryset).filter(lease_expires_at__lte=Now())
        if self.value() == _HELD:
            return _in_flight(queryset).filter(held_reason__isnull=False)
        if self.value() == _FOR_A_PERSON:
            return _in_flight(queryset).filter(sweep_after__gte=first_never())
        # A search says itself where to look.
        return None if request.GET.get(SEARCH_VAR) else _in_flight(queryset)


class DatabaseFilter(admin.SimpleListFilter):
    title = gettext_lazy("database")
    parameter_name = _DATABASE

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        aliases = current().DATABASES
        return [(alias, alias) for alias in aliases] if len(aliases) > 1 else []

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        chosen = alias_of(self.request)
        for choice, (alias, _title) in zip(list(super().choices(changelist))[1:], self.lookup_choices, strict=True):
            yield {**choice, "selected": alias == chosen}

    def queryset(self, request: HttpRequest, queryset: Keys) -> Keys:
        return queryset  # get_queryset() has chosen already, for the pages of single keys too


class Keyset(ChangeList):
    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        """Not by any column that the query string names: most are not indexed."""
        return list(self.model_admin.get_ordering(request))

    def url_for_result(self, result: Any) -> str:
        url = super().url_for_result(result)
        alias = self.queryset.db
        return url if alias == current().DATABASES[0] else f"{url}?{urlencode({_DATABASE: alias})}"


class FirstFew(_Paginator):
    @cached_property
    def count(self) -> int:
        keys: Any = self.object_list
        return int(keys.order_by("pk").values("pk")[:AT_MOST].count())


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(InterventionPages):
    list_display = ("id", "state_now", "scope", "age", "lease_left", "attempts", "mode")
    list_filter = (StateFilter, DatabaseFilter)
    list_per_page = 100
    list_max_show_all = 0
    sortable_by = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = FirstFew
    search_fields = ("id",)
    search_help_text = gettext_lazy("The id of a record, or the exact key of a claim that is in flight.")
    actions = None
    fields = (
        "id", "state_now", "scope", "key", "mode", "attempts", "owner_token",
        "claimed_at", "age", "lease_expires_at", "lease_left",
        "operation", "recovery_point", "steps_so_far", "held_reason", "held_at", "sweeps", "next_sweep",
        "sealed_at", "expires_at",
        "response_status", "response_size", "header_names", "fingerprint_scheme", "fingerprint_hex",
    )  # fmt: skip
    readonly_fields = fields

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        return lookup in (_STATE, _DATABASE)

    def get_queryset(self, request: HttpRequest) -> Keys:
        return with_ages(super().get_queryset(request).using(alias_of(request)))

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        claims = request.GET.get(_STATE) != State.SEALED.value and not request.GET.get(SEARCH_VAR)
        return ("lease_expires_at", "pk") if claims else ("pk",)

    def get_search_results(self, request: HttpRequest, queryset: Keys, search_term: str) -> tuple[Keys, bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        # Two questions rather than one OR, which no index could answer: many keys are UUIDs, as all ids are.
        claims = _in_flight(self.get_queryset(request)).filter(key=term).values_list("pk", flat=True)
        ids = list(claims.order_by("pk")[:AT_MOST])
        with suppress(ValueError):
            ids.append(UUID(term))
        return queryset.filter(pk__in=ids), False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return Keyset

    @admin.display(description=gettext_lazy("state"))
    def state_now(self, key: Any) -> str:
        return state_of(key)

    @admin.display(description=gettext_lazy("age"))
    def age(self, key: Any) -> str:
        return readable(key.age)

    @admin.display(description=gettext_lazy("lease left"))
    def lease_left(self, key: Any) -> str | None:
        return None if key.lease_left is None else lease_of(key)

    @admin.display(description=gettext_lazy("steps"))
    def steps_so_far(self, key: IdempotencyKey) -> str | None:
        return format_html_join(mark_safe("<br>"), "{}", ((step,) for step in steps_of(key))) or None

    @admin.display(description=gettext_lazy("next sweep"))
    def next_sweep(self, key: IdempotencyKey) -> str | None:
        return None if key.state == State.SEALED.value else next_sweep(key)

    @admin.display(description=gettext_lazy("response body"))
    def response_size(self, key: IdempotencyKey) -> str | None:
        """What it says may be anybody's secret: only its size is shown."""
        if key.state != State.SEALED.value:
            return None
        stored = IdempotencyKey.objects.using(key._state.db).filter(pk=key.pk)  # noqa: SLF001 - documented
        size = stored.values_list(Length("response_body"), flat=True).first()
        return _("not kept") if size is None else ngettext("%d byte", "%d bytes", size) % size

    @admin.display(description=gettext_lazy("response headers"))
    def header_names(self, key: IdempotencyKey) -> str | None:
        return ", ".join(name for name, _value in key.response_headers or ()) or None

    @admin.display(description=gettext_lazy("fingerprint"))
    def fingerprint_hex(self, key: IdempotencyKey) -> str:
        return bytes(key.fingerprint).hex()


def alias_of(request: HttpRequest) -> str:
    """The database that a page is about: what it asks for, if that is one that holds keys, or the first one."""
    aliases: tuple[str, ...] = current().DATABASES
    asked = request.GET.get(_DATABASE)
    return asked if asked in aliases else aliases[0]


def _in_flight(keys: Keys) -> Keys:
    return keys.filter(state=State.IN_FLIGHT.value)
