"""The payments API surviving retries, races, killed workers and a card processor that does not answer.

    python -m example_project.demo            # shows it, checks each claim, ends with 0 if all were seen
    python -m example_project.demo --serve    # and leaves the API and the admin running until Ctrl-C

It brings its own PostgreSQL unless DATABASE_URL names one, and takes everything down again that it started.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from django.db import OperationalError

from .postgres import PostgresUnavailable, database_url
from .processor import ProcessorServer
from .serving import ApiServer
from .story import Story

if TYPE_CHECKING:
    from .scenes import Stage

PROCESSOR_TIMEOUT = 2
"""Seconds. Short, so that nobody waits long where it does not answer; a claim is stale after twice that."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--serve", action="store_true", help="leave the API and the admin running until Ctrl-C")
    serve: bool = parser.parse_args().serve
    # As an exception, a request to end passes through every "with" below, and each stops what it started.
    signal.signal(signal.SIGTERM, _end)
    try:
        return _run(serve=serve)
    except PostgresUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    except OperationalError as error:
        print(f"The database of DATABASE_URL does not answer: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n   Stopped.")
        return 128 + signal.SIGINT


def _run(*, serve: bool) -> int:
    story = Story()
    story.title("A payments API, served by two gunicorn workers")
    if not os.environ.get("DATABASE_URL"):
        story.say("Starting a PostgreSQL of its own; DATABASE_URL would name another.")
    database_url()
    story.say("Making the tables.")
    with ProcessorServer() as processor:
        _set_up_django(processor)
        # Not before: the scenes know the models.
        from .scenes import Stage

        story.say(f"The card processor listens on {processor.url}")
        with ApiServer() as api:
            story.say(f"The API listens on {api.url}")
            return _tell(story, Stage(story, api, processor), serve=serve)


def _tell(story: Story, stage: Stage, *, serve: bool) -> int:
    for title, scene in stage.scenes():
        story.tell(title, scene)
    all_seen = story.end()
    if not all_seen:
        last_lines = "\n".join(stage.api.log().splitlines()[-40:])
        print(f"\nThe last that the API printed:\n{last_lines}", file=sys.stderr)
    if serve:
        with suppress(KeyboardInterrupt):
            story.title("Yours until Ctrl-C")
            for line in stage.invitation():
                story.say(line)
            signal.pause()
    return 0 if all_seen else 1


def _set_up_django(processor: ProcessorServer) -> None:
    """For this process, which looks into the books, and by inheritance for the API's."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    os.environ["IDEMPOTENCY_FAILPOINTS_ENABLED"] = "true"
    os.environ.setdefault("SECRET_KEY", secrets.token_urlsafe(32))
    os.environ["WEBHOOK_SECRETS"] = f"acme={secrets.token_hex(16)}"
    os.environ["PROCESSOR_URL"] = processor.url
    os.environ["PROCESSOR_TIMEOUT"] = str(PROCESSOR_TIMEOUT)
    # Kept in this process, to be counted.
    os.environ["MAIL_BACKEND"] = "django.core.mail.backends.locmem.EmailBackend"

    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _end(signum: int, frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
