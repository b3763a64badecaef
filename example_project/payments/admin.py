"""The books, open to staff and closed to editing: money moves through the services only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from rest_framework.authtoken.models import TokenProxy

from .models import Account, CardPayment, Charge, LedgerEntry, Refund, StagedJob, Subscription, Transfer

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


@admin.register(CardPayment)
class CardPaymentAdmin(ReadOnly, ModelAdmin):
    list_display = ("id", "account", "amount", "currency", "status", "reference", "processor_charge", "created_at")
    list_filter = ("status", "currency")
    list_select_related = ("account",)
    search_fields = ("reference", "processor_charge")


@admin.register(Subscription)
class SubscriptionAdmin(ModelAdmin):
    """A customer's wish, not a movement of money: staff may note it down, and end it."""

    list_display = ("account", "amount", "active")
    list_filter = ("active",)
    list_select_related = ("account",)
    raw_id_fields = ("account",)


@admin.register(StagedJob)
class StagedJobAdmin(ReadOnly, ModelAdmin):
    """What is still to be handed on. A long list, or an old one, means that nobody relays."""

    list_display = ("key", "name", "staged_at", "due_at", "attempts")
    list_filter = ("name",)


@admin.register(Transfer)
class TransferAdmin(ReadOnly, ModelAdmin):
    list_display = ("id", "kind", "charge", "card_payment", "memo", "created_at")
    list_filter = ("kind",)
    list_select_related = ("charge", "card_payment")
    inlines = (EntryInline,)
