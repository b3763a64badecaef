"""What a customer gets by mail. No transaction can hold it: see ``jobs``."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from django.conf import settings
from django.core.mail import EmailMessage

from django_idempotency.operations import Answer, Op, operation

from .models import CardPayment


@operation(
    "payments.receipt",
    # A mail server takes no keys. The key becomes the number of the message instead, by which mail programs know one
    # that came twice; and a receipt that comes twice is better than none.
    downstream_takes_keys=True,
    call_timeout=timedelta(seconds=settings.MAIL_TIMEOUT),
)
def receipt(op: Op, *, payment: str) -> Answer:
    """Mail the owner of an account what was taken from the card."""
    op.call("mail", partial(_mail, payment))
    return op.finish(lambda: {"payment": payment}, status=200)


def _mail(payment: str, key: str) -> None:
    paid = CardPayment.objects.select_related("account__owner").get(pk=payment)
    owner = paid.account.owner
    if owner is None or not owner.email:
        return
    EmailMessage(
        f"Your payment of {paid.amount / 100:.2f} {paid.currency}",
        f"We have received your payment for {paid.account.name}. Reference: {paid.reference or paid.pk}",
        to=[owner.email],
        headers={"Message-ID": f"<{key}@example.com>"},
    ).send()
