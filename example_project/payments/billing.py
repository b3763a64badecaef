"""What customers pay each month. No request is behind it, and still each payment has a key."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from django_idempotency.operations import Answer

from .models import Subscription
from .operations import card_payment

logger = logging.getLogger(__name__)


def bill(month: str) -> Iterator[tuple[Subscription, Answer | Exception]]:
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
        except Exception as error:
            # Of this one nobody knows yet, somebody else is at it, or it cannot be paid at all. The others can.
            logger.exception("%s is not billed for %s.", subscription, month)
            yield subscription, error
