"""What Celery does for the example. Staged jobs arrive here with their key as the number of the task."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from django_idempotency.core.errors import IdempotencyError

from . import jobs


@shared_task(bind=True, name="payments.perform", acks_late=True, reject_on_worker_lost=True, max_retries=None)
def perform(self: Task, name: str, arguments: dict[str, Any]) -> None:
    """Do a staged job. Delivered twice, to two workers even, it is done once.

    A worker that is killed has not acknowledged, so the broker delivers again; whoever comes second is told to come
    again later, and then finds it done. Nothing else is a reason to give up either: this message is all that is left of
    the job, and Celery acknowledges what failed.
    """
    try:
        jobs.perform(name, self.request.id, arguments)
    except Exception as error:
        later = error.retry_after if isinstance(error, IdempotencyError) else None
        raise self.retry(exc=error, countdown=later or 60) from error


@shared_task(name="payments.relay")
def relay() -> None:
    """Hand on what is staged: often, see CELERY_BEAT_SCHEDULE. It is no harm if two do so at once."""
    jobs.relay(jobs.to_celery)
