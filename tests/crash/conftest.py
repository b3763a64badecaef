from tests.support.fixtures import committed, crowd, payer, quick_flush, what_the_server_says
from tests.support.processors import control, processor, shared_processor

__all__ = [
    "committed",
    "control",
    "crowd",
    "payer",
    "processor",
    "quick_flush",
    "shared_processor",
    "what_the_server_says",
]
