"""The Celery app of the example: ``celery -A example_project worker``, and one ``celery -A example_project beat``.

Without CELERY_BROKER_URL there are no workers, and a task runs where it is called.
"""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

app = Celery("example_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
