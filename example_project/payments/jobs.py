"""Work that belongs to an effect and cannot be rolled back with it: staged in its transaction, handed on after it.

A job that is staged and committed is done at least once, one that was rolled back never. Whatever hands it on may be
killed at any line and hand it on again, so each job has a key, by which doing it is idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from .models import StagedJob
from .receipts import receipt

logger = logging.getLogger(__name__)

JOBS = {"receipt": receipt}
"""What there is to do, each an operation of its own, under the key of the job."""

PATIENCE = timedelta(minutes=1)
"""When a job is tried again that was taken and not handed on: longer than handing one on takes."""


def stage(name: str, *, key: str, **arguments: Any) -> None:
    """Write a job down, in the transaction of the effect that it belongs to.

    :param key: derived from that of the effect. Whoever does the job twice knows it by this.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError(f"The job {name!r} was staged outside the transaction that it belongs to.")
    StagedJob.objects.create(key=key, name=name, arguments=arguments)


def relay(hand_on: Callable[[StagedJob], None], *, limit: int = 1000) -> tuple[int, int]:
    """Hand on what is due, one by one, and delete each that was. Any number of relays may run at once.

    :returns: how many were handed on, and how many were not and are tried again later.
    """
    done = failed = 0
    for _ in range(limit):
        job = _take()
        if job is None:
            break
        try:
            hand_on(job)
        except Exception:
            failed += 1
            logger.exception("The job %s was not handed on (attempt %d).", job, job.attempts)
        else:
            done += 1
            job.delete()
    return done, failed


def _take() -> StagedJob | None:
    """The job that is longest due, put off for everybody else. In a transaction that ends before it is handed on:
    brokers and mail servers think for as long as they like."""
    with transaction.atomic():
        due = StagedJob.objects.select_for_update(skip_locked=True).filter(due_at__lte=timezone.now())
        job = due.order_by("due_at").first()
        if job is not None:
            job.due_at = timezone.now() + PATIENCE * 2 ** min(job.attempts, 10)
            job.attempts += 1
            job.save(update_fields=("due_at", "attempts"))
        return job


def perform(name: str, key: str, arguments: dict[str, Any]) -> None:
    """Do a job, once for each key.

    :raises IdempotencyError: somebody else is at it, or nobody knows how the last attempt ended.
    """
    JOBS[name].run(scope="staged-jobs", key=key, parameters=arguments)


def here(job: StagedJob) -> None:
    """Hand a job on to this very process, where there is no broker."""
    perform(job.name, str(job.key), job.arguments)


def to_celery(job: StagedJob) -> None:
    """Hand a job on to Celery. Its key is the number of the task, so that it comes with every delivery."""
    from ..celery import app

    app.send_task("payments.perform", args=(job.name, job.arguments), task_id=str(job.key))


def usual_hand() -> Callable[[StagedJob], None]:
    return to_celery if settings.CELERY_BROKER_URL else here
