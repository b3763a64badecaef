"""Keys for Django REST framework: a mixin for views and viewsets, a decorator for single handlers."""

from .decorator import idempotent
from .mixin import IdempotencyMixin

__all__ = ["IdempotencyMixin", "idempotent"]
