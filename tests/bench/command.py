"""What the benchmarks have in common: a server, a database that is gone afterwards, and a report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from example_project.postgres import database_url

from .database import database


def run(
    parser: argparse.ArgumentParser,
    report: Callable[[argparse.Namespace], Iterable[str]],
    *,
    durable: bool = True,
    settings: str = "tests.bench.settings",
    within: Callable[[], AbstractContextManager[None]] = database,
) -> None:
    """Print a report, and write it where ``--output`` says.

    :param durable: commits are waited for as in production, by PostgreSQL's own settings.
    """
    parser.add_argument("--output", type=Path, help="file for the report")
    options = parser.parse_args()
    database_url(durable=durable)
    os.environ["DJANGO_SETTINGS_MODULE"] = settings

    import django

    django.setup()
    with within():
        text = "\n".join(report(options)) + "\n"
    print(text)
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
