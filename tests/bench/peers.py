"""Other packages for the same purpose, where they are installed: what is measured beside ours."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_APPS = {"drf-idempotency": "drf_idempotency", "drf-idempotencykey": "drf_idempotencykey", "idemkit": None}
"""Of each distribution, the app that it brings, if it does."""


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


INSTALLED = {name: found for name in _APPS if (found := _version(name))}
"""With their versions."""

APPS = [app for name in INSTALLED if (app := _APPS[name])]
