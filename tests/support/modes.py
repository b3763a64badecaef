"""The modes in which a view is protected as it is. In PHASED mode it has to run an operation."""

from __future__ import annotations

from django_idempotency import IdempotencyMode

ATOMIC, LEASED = TRANSACTIONAL = (IdempotencyMode.ATOMIC, IdempotencyMode.LEASED)
