"""What somebody who waits for a long subcommand sees."""

from __future__ import annotations

import time

from django.core.management.base import BaseCommand

_SECONDS = 2.0


class Progress:
    """How far it has come, on the standard error, every two seconds."""

    def __init__(self, command: BaseCommand) -> None:
        self._command = command
        self._due = time.monotonic() + _SECONDS

    def tell(self, text: str) -> None:
        if time.monotonic() >= self._due:
            self._command.stderr.write(text)
            self._command.stderr.flush()
            self._due = time.monotonic() + _SECONDS
