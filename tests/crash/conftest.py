from tests.support.fixtures import committed, crowd, payer, quick_flush, what_the_server_says

__all__ = ["committed", "crowd", "payer", "quick_flush", "what_the_server_says"]
