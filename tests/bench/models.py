"""The effect that is measured with: two rows that belong together."""

from __future__ import annotations

from django.db import models


class Payment(models.Model):
    amount = models.PositiveBigIntegerField()
    currency = models.CharField(max_length=3)
    reference = models.CharField(max_length=100)

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"


class Entry(models.Model):
    payment = models.ForeignKey(Payment, models.CASCADE, related_name="entries")
    amount = models.BigIntegerField()

    def __str__(self) -> str:
        return str(self.amount)
