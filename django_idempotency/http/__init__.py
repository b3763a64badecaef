"""Keys over HTTP for plain Django views, and what the REST framework part shares with them."""

from .decorator import idempotent_view

__all__ = ["idempotent_view"]
