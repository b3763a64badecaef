"""The page of the admin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from ..conf import current
from ..core.pruning import Decision
from ..core.signatures import ADVICE, SEEN, Kind
from ..models import IdempotencyKey
from ..storage.partitions import SEALED, TOMBSTONES, Tree
from . import data, figures, words
from .ranges import RANGES, USUAL, Range

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[IdempotencyKey]
else:
    _ModelAdmin = admin.ModelAdmin

AT_ONCE = 8
"""How many routes have pictures, unless one is asked for: a page of all of them could not be read."""

_PREFIX = "django_idempotency_idempotencykey"
_TITLES = {
    "1h": gettext_lazy("60 minutes"),
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
    "14d": gettext_lazy("14 days"),
}
_SIGNS = {
    Kind.MINTED: gettext_lazy("A new key for each attempt"),
    Kind.NEVER_REPLAYED: gettext_lazy("Nobody comes back for an answer"),
    Kind.REUSED: gettext_lazy("One key for different requests"),
    Kind.LATE: gettext_lazy("Retries when records are gone"),
}


@dataclass(frozen=True)
class Tile:
    n: str
    title: str
    url: str
    alarming: bool


class DashboardPages(_ModelAdmin):
    """For the admin of the keys."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.dashboard)
        return [path("dashboard/", view, name=f"{_PREFIX}_dashboard"), *super().get_urls()]

    def dashboard(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        page = _Page(request, self.get_queryset(request).db, self.admin_site.name)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("Dashboard of idempotency keys"),
            **page.claims(),
            **page.signs(),
            **page.routes(),
            **page.storage(),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_idempotency/idempotencykey/dashboard.html", context)


class _Page:
    """One rendering: what was asked for, and what every part of the page needs."""

    def __init__(self, request: HttpRequest, alias: str, site: str) -> None:
        self.alias = alias
        self.site = site
        self.now = datetime.now(timezone.utc)
        self.range: Range = RANGES.get(request.GET.get("range", ""), USUAL)
        self.route = request.GET.get("route", "")
        self.of_records = request.GET.get("signs") == "records"
        self.in_flight = data.in_flight(alias)

    def claims(self) -> dict[str, Any]:
        claims = self.in_flight
        return {
            "tiles": [
                self._tile(_("held: nobody knows yet"), "held", sum(each.held for each in claims)),
                self._tile(_("stuck: the lease has lapsed"), "stuck", sum(each.stuck for each in claims)),
                self._tile(_("left to a person"), "person", sum(each.for_a_person for each in claims)),
                self._tile(_("in flight"), "", sum(each.n for each in claims)),
            ],
            "claims": figures.table_rows(
                (each.route, *map(words.whole, (each.n, each.stuck, each.held)), words.readable(each.oldest))
                for each in claims[:AT_ONCE]
            ),
            "databases": self._databases(),
        }  # fmt: skip

    def signs(self) -> dict[str, Any]:
        return {
            "signs": [
                (_SIGNS[each.kind], each, _(SEEN[each.kind]) % each.numbers, _(ADVICE[each.kind]))
                for each in data.signs(self.alias, of_records=self.of_records)
            ],
            "of_records": self.of_records,
            "look": self._address("dashboard", {"signs": "records"}),
        }

    def routes(self) -> dict[str, Any]:
        every = data.history(self.alias, self.range, self.now)
        asked = [each for each in every if each.route == self.route]
        present = {each.route: each for each in self.in_flight}
        shown = asked or every[:AT_ONCE]
        begins = [words.at(begin) for begin in self.range.begins(self.now.timestamp())]
        return {
            "routes": [
                figures.route(number, series, begins, present.get(series.route))
                for number, series in enumerate(shown, 1)
            ],
            "choices": [(each.route, each in asked) for each in every],
            "left_out": len(every) - len(shown) if not asked else 0,
            "ranges": [(title, self._here(range=slug), slug == self.range.slug) for slug, title in _TITLES.items()],
            "range_title": _TITLES[self.range.slug],
            "range": self.range.slug,
            "database": self.alias if self.alias != current().DATABASES[0] else "",
            "piece": words.readable(timedelta(seconds=self.range.step)),
        }

    def storage(self) -> dict[str, Any]:
        partitions = data.partitions(self.alias)
        shares = data.shares(self.alias)
        total = None if partitions is None else sum(each.leaf.size for each in partitions[SEALED])
        sampled = sum(each.sampled for each in shares or ())
        return {
            "bars": self._bars(partitions or {}),
            "shares": None if shares is None else figures.storage(shares, total),
            "sampled": ngettext("%d sealed record", "%d sealed records", sampled) % sampled,
        }

    def _bars(self, partitions: Mapping[Tree, Sequence[Decision]]) -> list[figures.Bar]:
        bars = [figures.sealed(partitions[SEALED], self.now)] if partitions else []
        if graves := partitions.get(TOMBSTONES):
            bars.append(figures.tombstones(graves, self.now))
        return bars

    def _tile(self, title: str, state: str, n: int) -> Tile:
        query = {"state": state} if state else {}
        return Tile(words.whole(n), title, self._address("changelist", query), alarming=bool(state and n))

    def _databases(self) -> list[tuple[str, str, bool]]:
        aliases = current().DATABASES
        if len(aliases) == 1:
            return []
        return [(alias, f"?{urlencode({'db': alias})}", alias == self.alias) for alias in aliases]

    def _here(self, **query: str) -> str:
        return self._address("dashboard", {**query, **({"route": self.route} if self.route else {})})

    def _address(self, page: str, query: dict[str, str]) -> str:
        if self.alias != current().DATABASES[0]:
            query = {**query, "db": self.alias}
        url = reverse(f"admin:{_PREFIX}_{page}", current_app=self.site)
        return f"{url}?{urlencode(query)}" if query else url
