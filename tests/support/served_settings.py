"""Settings of the servers that tests start: the example's, with a route for each mode."""

from datetime import timedelta

from example_project.settings import *  # noqa: F403
from example_project.settings import IDEMPOTENCY, env

IDEMPOTENCY = IDEMPOTENCY | {
    "RENEWAL_CAP": timedelta(seconds=env.float("IDEMPOTENCY_RENEWAL_CAP", default=900)),
    "STALE_AFTER": timedelta(seconds=env.float("IDEMPOTENCY_STALE_AFTER", default=20)),
}
ROOT_URLCONF = "tests.support.charges_urls"
