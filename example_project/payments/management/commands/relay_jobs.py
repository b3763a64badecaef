"""``manage.py relay_jobs``: hand staged jobs on to Celery, or do them here where there is no broker."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ... import jobs


class Command(BaseCommand):
    help = "Hand on the jobs that are staged: to Celery, or, without CELERY_BROKER_URL, do them in this process."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--every",
            type=float,
            metavar="SECONDS",
            help="go on until stopped, and look this often; default: look once",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        while True:
            done, failed = jobs.relay(jobs.usual_hand())
            if done or failed or options["every"] is None:
                self.stdout.write(f"{done} handed on, {failed} to be tried again")
            if options["every"] is None:
                break
            time.sleep(options["every"])
        if failed:
            raise CommandError("Not everything was handed on.")
