"""What was done twice under two keys, which no key could have prevented: found in the project's own rows.

A project says in a module named ``reconciliations`` of an installed app what its business takes for the same. Nothing
is changed, and the database does the comparing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db.models import Case, DateTimeField, DurationField, ExpressionWrapper, F, Model, Q, QuerySet, When, Window
from django.db.models.functions import Lag
from django.utils.module_loading import module_has_submodule

__all__ = ["Reconciliation"]

_MODULE, _NAME = "reconciliations", "RECONCILIATIONS"


@dataclass(frozen=True, eq=False)
class Reconciliation:
    """Rows of a model that are one thing to the business, if they agree and are close in time.

    :param model: whose rows are compared.
    :param fields: the natural key: what two rows agree in if they are one intent. A row that lacks one of them (NULL)
        is like no other.
    :param window: how far apart two of them are at most.
    :param at: the field that says when a row came about. By default the only one with ``auto_now_add``.
    :param where: which rows count; by default all of them.
    :raises ImproperlyConfigured: it cannot be asked of this model.
    """

    model: type[Model]
    fields: Sequence[str]
    window: timedelta
    at: str = ""
    where: Q | None = None

    def __post_init__(self) -> None:
        # What a project writes is looked at whatever its hints say.
        model: Any = self.model
        if not (isinstance(model, type) and issubclass(model, Model) and not self.options.abstract):
            raise ImproperlyConfigured(f"A Reconciliation is of a model that has a table, not of {model!r}.")
        fields: Any = self.fields
        if isinstance(fields, str) or not fields:
            raise ImproperlyConfigured(f"The fields of a Reconciliation are a list of names, not {fields!r}.")
        if not isinstance(self.window, timedelta) or self.window <= timedelta(0):
            raise ImproperlyConfigured(f"The window of a Reconciliation is a time span, not {self.window!r}.")
        object.__setattr__(self, "fields", tuple(fields))
        object.__setattr__(self, "at", self.at or self._made_at())
        for name in (*self.fields, self.at):
            self._column(name)
        if not isinstance(self._column(self.at), DateTimeField):
            raise ImproperlyConfigured(f"{self.label}: {self.at!r} is no DateTimeField.")

    @property
    def options(self) -> Any:
        return self.model._meta  # noqa: SLF001 - documented

    @property
    def label(self) -> str:
        return f"{self.options.label} by {', '.join(self.fields)}"

    def _column(self, name: str) -> Any:
        try:
            field = self.options.get_field(name)
        except FieldDoesNotExist as error:
            raise ImproperlyConfigured(f"{self.label}: {error}.") from error
        if not getattr(field, "concrete", False) or field.many_to_many:
            raise ImproperlyConfigured(f"{self.label}: {name!r} is no column.")
        return field

    def _made_at(self) -> str:
        names = [each.name for each in self.options.concrete_fields if getattr(each, "auto_now_add", False)]
        if len(names) != 1:
            raise ImproperlyConfigured(f"{self.label}: say with at=... which field tells when a row came about.")
        return str(names[0])


@dataclass(frozen=True)
class Duplicate:
    """A row, and the one before it that it agrees with."""

    pk: Any
    earlier: Any
    at: datetime
    apart: timedelta
    values: dict[str, Any]
    """Of the natural key."""


@dataclass(frozen=True)
class Duplicates:
    count: int
    first: list[Duplicate]
    """As many as were asked for, the oldest first."""


def declared() -> list[Reconciliation]:
    """What the installed apps list.

    :raises ImproperlyConfigured: one of their modules has no such list.
    """
    return [each for app in apps.get_app_configs() for each in _declared_by(app)]


def _declared_by(app: Any) -> Iterator[Reconciliation]:
    if not module_has_submodule(app.module, _MODULE):
        return
    module = import_module(f"{app.name}.{_MODULE}")
    listed = getattr(module, _NAME, None)
    if not isinstance(listed, list | tuple) or not all(isinstance(each, Reconciliation) for each in listed):
        raise ImproperlyConfigured(f"{module.__name__}.{_NAME} must be a list of Reconciliation.")
    yield from listed


def find(alias: str, reconciliation: Reconciliation, *, since: datetime, limit: int) -> Duplicates:
    """The rows that came about from ``since`` on and repeat an earlier one. Three in a row are two duplicates."""
    rows = _repeating(alias, reconciliation, since)
    found = list(rows[: limit + 1])
    count = rows.count() if len(found) > limit else len(found)
    return Duplicates(count, [_duplicate(reconciliation, row) for row in found[:limit]])


def _repeating(alias: str, of: Reconciliation, since: datetime) -> QuerySet[Any, dict[str, Any]]:
    def earlier(expression: str) -> Window:
        return Window(Lag(expression), partition_by=[F(name) for name in of.fields], order_by=[F(of.at), F("pk")])

    present = Q(**{f"{name}__isnull": False for name in of.fields})
    # Whatever a default manager hides. The row before the first may be older, by the window at most.
    everything: Any = of.model._base_manager.using(alias)  # noqa: SLF001 - documented
    rows = everything.filter(present, **{f"{of.at}__gte": since - of.window})
    if of.where:
        # By their keys, since a condition on related rows would show a row once for each of those.
        rows = rows.filter(pk__in=rows.filter(of.where).values("pk"))
    apart = ExpressionWrapper(F(of.at) - earlier(of.at), output_field=DurationField())
    # Not a filter of its own, which Django would apply before the rows are compared.
    counted = Case(When(**{f"{of.at}__gte": since}, then=apart))
    repeating = rows.annotate(idempotency_earlier=earlier("pk"), idempotency_apart=counted).filter(
        idempotency_apart__lte=of.window
    )
    return repeating.order_by(of.at, "pk").values(  # type: ignore[no-any-return]
        "pk", of.at, "idempotency_earlier", "idempotency_apart", *of.fields
    )


def _duplicate(of: Reconciliation, row: dict[str, Any]) -> Duplicate:
    values = {name: row[name] for name in of.fields}
    return Duplicate(row["pk"], row["idempotency_earlier"], row[of.at], row["idempotency_apart"], values)
