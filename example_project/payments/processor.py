"""The card processor as this API sees it: a request that may take long, and an answer that may never come.

Nothing here is tried twice. Who retries has to know under which key, and whether it is still its turn.
"""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import httpx
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

# What this processor says where it has done nothing, or recorded a no. Any other error leaves it open.
DEFINITE = frozenset({400, 402, 404, 409, 422})


class Declined(Exception):
    """The processor answered no: as definite as a yes, and as little to be asked again."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return str(self.result.get("decline_code", "declined"))


class Refused(Exception):
    """The processor answered that the request is wrong, and did nothing. Sent again it is as wrong."""


class ProcessorUnavailable(Exception):
    """No answer, or none that says what happened: the money may have been taken or not."""


def charge(
    *, amount: int, currency: str, reference: str, key: str, timeout: float, card: str | None = None
) -> dict[str, Any]:
    """Take money from a card, once for each key.

    :param timeout: in seconds, for each step of the exchange: to connect, to send, to wait for the answer.
    :raises Declined: by the card's bank.
    :raises Refused: the parameters are wrong, or the key was sent with others.
    :raises ProcessorUnavailable: nobody knows yet what happened.
    """
    parameters = {"amount": amount, "currency": currency, "reference": reference}
    if card is not None:
        parameters["card"] = card
    return _ask("POST", "/charges", timeout, json=parameters, headers={"Idempotency-Key": key})


def look_up(*, key: str | None = None, reference: str | None = None, timeout: float = 10.0) -> list[dict[str, Any]]:
    """The charges that the processor knows of, declined ones too.

    None found is no proof that none will be: the request that makes one may be on its way still.

    :raises ProcessorUnavailable: as for a charge.
    """
    query = {name: value for name, value in (("key", key), ("reference", reference)) if value is not None}
    charges: list[dict[str, Any]] = _ask("GET", "/charges", timeout, params=query)["charges"]
    return charges


def void(charge_id: str, *, timeout: float = 10.0) -> dict[str, Any]:
    """Give the money of a charge back. Again is no harm.

    :raises Refused: there is no such charge, or it was declined.
    :raises ProcessorUnavailable: as for a charge.
    """
    return _ask("POST", f"/charges/{charge_id}/void", timeout)


def _ask(method: str, path: str, timeout: float, **request: Any) -> dict[str, Any]:
    if not settings.PROCESSOR_URL:
        raise ImproperlyConfigured("PROCESSOR_URL is not set: there is no card processor to ask.")
    try:
        # Without the environment: a proxy that is set for the world outside does not know our ports.
        with httpx.Client(trust_env=False, verify=_tls(), timeout=timeout) as client:
            response = client.request(method, settings.PROCESSOR_URL + path, **request)
        if not response.is_success and response.status_code not in DEFINITE:
            raise ProcessorUnavailable(f"{method} {path}: {response.status_code}")
        result: dict[str, Any] = response.json()
    except (httpx.RequestError, ValueError) as error:
        raise ProcessorUnavailable(f"{method} {path}: {type(error).__name__}: {error}") from error
    if response.status_code == 402:
        raise Declined(result)
    if not response.is_success:
        raise Refused(f"{method} {path}: {response.status_code} {result}")
    return result


@cache
def _tls() -> ssl.SSLContext:
    """Once a process: to read all certificates takes longer than a call."""
    return httpx.create_ssl_context(trust_env=False)
