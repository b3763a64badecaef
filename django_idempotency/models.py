"""The keys, what is left of those that have expired, how often what became of requests, and how long the oldest was in
flight. Behaviour lives elsewhere; this is the shape.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from .core.counted import ROUTE_LENGTH
from .core.states import State


class IdempotencyKey(models.Model):
    """A key and what became of it.

    On PostgreSQL the table is partitioned by state and then by expiry, so no foreign key can point to it. Write through
    ``storage`` only: each of its functions is conditional on the state that it leaves.
    """

    id = models.UUIDField(
        primary_key=True, editable=False, help_text=_("The first 16 bytes of a SHA-256 over scope and key.")
    )
    state = models.CharField(_("state"), max_length=16)
    scope = models.TextField(_("scope"), help_text=_("Whose key it is, and for which operation."))
    key = models.CharField(_("key"), max_length=255, help_text=_("What the client sent."))
    fingerprint = models.BinaryField(_("fingerprint"))
    fingerprint_scheme = models.SmallIntegerField(
        _("fingerprint scheme"), help_text=_("The version of the rules that made the fingerprint.")
    )
    mode = models.CharField(_("mode"), max_length=16)
    owner_token = models.UUIDField(
        _("owner token"), help_text=_("The fencing token that every write of the owner is conditioned on.")
    )
    attempts = models.SmallIntegerField(_("attempts"), default=1)
    claimed_at = models.DateTimeField(_("claimed at"))
    lease_expires_at = models.DateTimeField(_("lease expires at"), null=True)
    sealed_at = models.DateTimeField(_("sealed at"), null=True)
    expires_at = models.DateTimeField(_("expires at"), null=True)
    response_status = models.SmallIntegerField(_("response status"), null=True)
    response_headers = models.JSONField(_("response headers"), null=True)
    response_body = models.BinaryField(
        _("response body"),
        null=True,
        help_text=_("Empty where the policy keeps no body, or it was over the limit."),
    )
    operation = models.CharField(_("operation"), max_length=255, null=True, help_text=_("Set once it has begun."))
    parameters = models.JSONField(_("parameters"), null=True)
    steps = models.JSONField(_("steps"), null=True, help_text=_("What became of each phase and call."))
    recovery_point = models.CharField(
        _("recovery point"), max_length=255, null=True, help_text=_("The last finished phase or call.")
    )
    held_reason = models.TextField(_("held because"), null=True)
    held_at = models.DateTimeField(_("held since"), null=True)
    sweeps = models.SmallIntegerField(_("sweeps"), default=0, help_text=_("How often a sweeper tried."))
    sweep_after = models.DateTimeField(_("sweep after"), null=True)
    stale_after = models.FloatField(
        _("stale after"), null=True, help_text=_("Seconds from the end of the lease until a sweeper may take over.")
    )

    class Meta:
        db_table = "idempotency_key"
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        permissions: ClassVar = [
            ("release_idempotencykey", "Can release a key under which something may have happened"),
            ("resolve_idempotencykey", "Can say what became of a stuck key"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                name="idempotency_key_state",
                condition=Q(
                    state=State.IN_FLIGHT.value,
                    lease_expires_at__isnull=False,
                    sealed_at__isnull=True,
                    response_status__isnull=True,
                )
                | Q(
                    state=State.SEALED.value,
                    lease_expires_at__isnull=True,
                    sealed_at__isnull=False,
                    expires_at__isnull=False,
                    response_status__isnull=False,
                ),
            )
        ]

    def __str__(self) -> str:
        return str(self.id)


class Tombstone(models.Model):
    """That there was a key which has expired, where the setting ``TOMBSTONES`` wants that known: no response, no scope.

    On PostgreSQL the table is partitioned by the time at which it may be forgotten.
    """

    id = models.UUIDField(primary_key=True, editable=False, help_text=_("That of the key."))
    fingerprint = models.BinaryField(_("fingerprint"))
    fingerprint_scheme = models.SmallIntegerField(_("fingerprint scheme"))
    forget_at = models.DateTimeField(_("forget at"))

    class Meta:
        db_table = "idempotency_tombstone"
        verbose_name = _("tombstone")
        verbose_name_plural = _("tombstones")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.id)


class OutcomeCount(models.Model):
    """How often something became of requests to one route within one minute. ``counting`` adds to it, and later
    ``readings`` makes one row of ten minutes, and of an hour."""

    pk = models.CompositePrimaryKey("minute", "route", "outcome")
    minute = models.DateTimeField(_("minute"), help_text=_("When it began, by the clock of the process that counted."))
    route = models.CharField(
        _("route"),
        max_length=ROUTE_LENGTH,
        help_text=_("The operation: view, action and method. Cut off where it is longer."),
    )
    outcome = models.CharField(_("outcome"), max_length=32, help_text=_("One of core.counted.Counted."))
    n = models.BigIntegerField(_("how often"))

    class Meta:
        db_table = "idempotency_outcome_count"
        verbose_name = _("count of outcomes")
        verbose_name_plural = _("counts of outcomes")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.minute:%Y-%m-%d %H:%M} {self.route} {self.outcome}: {self.n}"


class OldestInFlight(models.Model):
    """How long the oldest claim of one route had been in flight when a sweeper came by. ``readings`` writes it, and
    later keeps the longest of ten minutes, and of an hour."""

    pk = models.CompositePrimaryKey("minute", "route")
    minute = models.DateTimeField(_("minute"), help_text=_("When it was read, by the clock of the process that did."))
    route = models.CharField(_("route"), max_length=ROUTE_LENGTH)
    seconds = models.BigIntegerField(_("age in seconds"), help_text=_("By the clock of the database."))

    class Meta:
        db_table = "idempotency_oldest_in_flight"
        verbose_name = _("age of the oldest in flight")
        verbose_name_plural = _("ages of the oldest in flight")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.minute:%Y-%m-%d %H:%M} {self.route}: {self.seconds} s"
