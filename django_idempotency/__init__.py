"""Idempotency keys for Django: a retried POST neither acts twice nor loses its answer."""

from .core.errors import IdempotencyError
from .core.fingerprint import FingerprintRules
from .core.outcomes import Decision, OutcomeRules
from .core.policy import BodyCodec, IdempotencyPolicy
from .core.states import IdempotencyMode

__version__ = "0.1.0"

__all__ = [
    "BodyCodec",
    "Decision",
    "FingerprintRules",
    "IdempotencyError",
    "IdempotencyMode",
    "IdempotencyPolicy",
    "OutcomeRules",
]
