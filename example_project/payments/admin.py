"""The books, open to staff and closed to editing: money moves through the services only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from rest_framework.authtoken.models import TokenProxy

from .models import Account, Charge, LedgerEntry, Refund, Transfer

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    ModelAdmin = admin.ModelAdmin
    TabularInline = admin.TabularInline


# A list of tokens that work is a list of passwords.
admin.site.unregister(TokenProxy)


class ReadOnly:
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class EntryInline(ReadOnly, TabularInline):
    model = LedgerEntry


class RefundInline(ReadOnly, TabularInline):
    model = Refund


@admin.register(Account)
class AccountAdmin(ReadOnly, ModelAdmin):
    list_display = ("name", "kind", "owner", "currency", "created_at")
    list_filter = ("kind", "currency")
    list_select_related = ("owner",)
    search_fields = ("name", "owner__username")


@admin.register(Charge)
class ChargeAdmin(ReadOnly, ModelAdmin):
    list_display = ("id", "account", "amount", "currency", "status", "reference", "created_at")
    list_filter = ("status", "currency")
    list_select_related = ("account",)
    search_fields = ("reference",)
    inlines = (RefundInline,)


@admin.register(Transfer)
class TransferAdmin(ReadOnly, ModelAdmin):
    list_display = ("id", "kind", "charge", "memo", "created_at")
    list_filter = ("kind",)
    list_select_related = ("charge",)
    inlines = (EntryInline,)
