"""What becomes of requests and records, told to whoever listens."""

from __future__ import annotations

from uuid import UUID

from django.dispatch import Signal

from .core.counted import Counted

counted = Signal(use_caching=True)
"""Sent for everything that is counted. Its sender is the outcome, so that a receiver can listen to one alone.

:param outcome: a :class:`Counted`.
:param route: the operation: view, action and method, such as ``shop.views.Orders:create:POST``. Of a sweep the alias.
:param record_id: of the record, or None where no key was looked at.
:param using: the alias of the record's database, or None.
:param age: seconds since the client first sent the request, or None where it does not say. On arrival only.

It is sent once the transactions of the request have ended, in its thread and before its answer leaves. A receiver that
raises is logged, and changes nothing.
"""


def tell(
    outcome: Counted,
    route: str,
    *,
    record_id: UUID | None = None,
    using: str | None = None,
    age: float | None = None,
) -> None:
    counted.send_robust(outcome, outcome=outcome, route=route, record_id=record_id, using=using, age=age)


__all__ = ["Counted", "counted"]
