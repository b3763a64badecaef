"""The example's settings, with a database and views of the benchmark's own."""

from __future__ import annotations

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES, INSTALLED_APPS

from . import peers

INSTALLED_APPS = [*INSTALLED_APPS, "tests.bench", *peers.APPS]
# The defaults: a peer reads the same setting, and refuses what it does not know.
IDEMPOTENCY = {}
ROOT_URLCONF = "tests.bench.urls"
MIDDLEWARE = ["django.middleware.security.SecurityMiddleware", "django.middleware.common.CommonMiddleware"]

# Dropped at the end, so never the one that was named. "filled" is a copy with many sealed rows (growth.py).
DATABASES["default"] |= {"NAME": f"{DATABASES['default']['NAME']}_bench", "CONN_MAX_AGE": None}
DATABASES["default"]["ATOMIC_REQUESTS"] = False
DATABASES["filled"] = {**DATABASES["default"], "NAME": f"{DATABASES['default']['NAME']}_filled"}
