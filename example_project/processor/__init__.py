"""A card processor: the world outside, which the payments API can only ask over HTTP and never roll back.

    with ProcessorServer() as processor:
        processor.control.plan(Fault.NO_ANSWER_AFTER_EFFECT)
        httpx.post(f"{processor.url}/charges", ...)      # charges, and closes the connection without a word
        processor.control.charges_by_reference()         # {"order 17": 1}

It shares no line with the library that the example shows: what protects a payment has to work with a
processor that knows nothing of it.
"""

from .control import Effect, ProcessorControl, ProcessorServer, Request
from .faults import Fault, Planned

__all__ = ["Effect", "Fault", "Planned", "ProcessorControl", "ProcessorServer", "Request"]
