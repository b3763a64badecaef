"""Settings of the workers and the beat that tests start: the example's, in a hurry, and with nothing but its queue."""

from example_project.settings import *  # noqa: F403

CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
