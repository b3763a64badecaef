"""``manage.py bill 2026-12``: from cron, and again whenever it did not come to its end."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...billing import bill


class Command(BaseCommand):
    help = "Take from cards what subscriptions cost a month. A second run for the same month takes nothing more."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("month", type=_month, help="such as 2026-12")

    def handle(self, *args: Any, **options: Any) -> None:
        unknown = 0
        for subscription, outcome in bill(options["month"]):
            if isinstance(outcome, Exception):
                unknown += 1
                self.stderr.write(f"{subscription}: {getattr(outcome, 'title', type(outcome).__name__)}")
            else:
                known = " already" if outcome.replayed else ""
                self.stdout.write(f"{subscription}: {outcome.data['status']}{known}")
        if unknown:
            raise CommandError(f"The outcome of {unknown} payment(s) is not known yet. Run this again later.")


def _month(text: str) -> str:
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", text):
        raise ArgumentTypeError("a month is a year, a hyphen and two digits")
    return text
