"""What customers pay each month. No request is behind it, and still each payment has a key."""

from __future__ import annotations

from collections.abc import Iterator

from django_idempotency.core.errors import IdempotencyError
from django_idempotency.operations import Answer

from .models import Subscription
from .operations import card_payment


def bill(month: str) -> Iterator[tuple[Subscription, Answer | IdempotencyError]]:
    """Take what is due for a month. Run it again after whatever befell it: nobody pays twice.

    :param month: such as ``2026-12``. With the subscription it is the key, which is why a second run is a retry.
    """
    for subscription in Subscription.objects.filter(active=True).select_related("account"):
        try:
            yield (
                subscription,
                card_payment.run(
                    scope="billing",
                    key=f"{subscription.pk}:{month}",
                    parameters={
                        "account": str(subscription.account_id),
                        "amount": subscription.amount,
                        "reference": f"{month}",
                        "card": subscription.card,
                    },
                ),
            )
        except IdempotencyError as error:
            # Of this one nobody knows yet, or somebody else is at it. The others can be billed.
            yield subscription, error
