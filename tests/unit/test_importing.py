"""Importing is free: no settings, no models, no work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import django_idempotency


def python(script, **environment):
    """Run in a process of its own, without settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "DATABASE_"))}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_package_imports_no_django_at_all():
    script = """
import sys, django_idempotency
loaded = {name.partition('.')[0] for name in sys.modules}
print(sorted(loaded & {'django', 'rest_framework', 'psycopg', 'celery'}))
print(sorted(name for name in sys.modules if name.startswith('django_idempotency')))
"""
    ran = python(script)
    assert ran.stderr == ""
    foreign, own = ran.stdout.splitlines()
    assert foreign == "[]"
    assert ".models" not in own
    assert ".conf" not in own


@pytest.mark.parametrize(
    "module",
    [
        "conf",
        "retention",
        "failpoints",
        "signals",
        "core.counted",
        "schedules",
        "storage",
        "storage.transactions",
        "storage.schema",
        "apps",
    ],
)
def test_doors_that_need_no_models_are_imported_without_settings(module):
    script = f"""
import django_idempotency.{module}
from django.conf import settings
assert not settings.configured, 'settings were read'
import sys
assert 'django_idempotency.models' not in sys.modules
"""
    ran = python(script)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_schedule_is_for_settings_so_it_needs_neither_django_nor_celery():
    script = """
import sys
from django_idempotency.schedules import beat_schedule
print(sorted(beat_schedule()), sorted({'django', 'celery'} & set(sys.modules)))
"""
    ran = python(script)
    names = ["idempotency-make_partitions", "idempotency-prune", "idempotency-sweep"]
    assert (ran.stdout, ran.stderr) == (f"{names} []\n", "")


def test_policies_can_be_made_before_there_are_settings():
    script = """
from datetime import timedelta
from django_idempotency import *
print(IdempotencyPolicy(mode=IdempotencyMode.LEASED, outcomes=OutcomeRules(by_status={402: Decision.RELEASE}),
    fingerprint=FingerprintRules(exclude=['sent_at']), body_codec=BodyCodec(bytes, bytes)).mode.value)
"""
    ran = python(script)
    assert (ran.stdout, ran.stderr) == ("leased\n", "")


def test_setting_up_opens_no_connection_and_starts_no_thread():
    script = """
import threading, django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=['django_idempotency'],
    DATABASES={'default': {'ENGINE': 'django.db.backends.postgresql', 'HOST': '192.0.2.1', 'NAME': 'nowhere'}},
)
django.setup()
import django_idempotency.service, django_idempotency.http, django_idempotency.renewal
from django.db import connections
assert all(each.connection is None for each in connections.all(initialized_only=True))
assert threading.active_count() == 1
"""
    ran = python(script)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_what_is_public_is_listed():
    assert all(hasattr(django_idempotency, name) for name in django_idempotency.__all__)
