"""Which headers belong to an answer, and which to the exchange that it was given in."""

from __future__ import annotations

NEVER_REPLAYED = frozenset(
    {
        # Hop-by-hop (RFC 9110, section 7.6.1), and what servers compute for each message.
        "connection", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer", "transfer-encoding",
        "upgrade", "content-length", "date", "server", "age", "via",
        # About the exchange, not about the result.
        "set-cookie", "x-request-id", "x-correlation-id", "request-id", "traceparent", "server-timing",
        "x-runtime", "x-response-time",
    }
)  # fmt: skip
"""Headers of which a replay gets its own, or none."""

NEVER_REPLAYED_PREFIXES = ("access-control-", "ratelimit", "x-ratelimit", "x-rate-limit")


def may_be_replayed(name: str) -> bool:
    lowered = name.lower()
    return lowered not in NEVER_REPLAYED and not lowered.startswith(NEVER_REPLAYED_PREFIXES)
