"""What Prometheus is told, by processes of its own: with one process, and with two and a directory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.db import connection
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fixtures import committed, quick_flush
from tests.support.servers import url_of_tests

__all__ = ["committed", "quick_flush"]

PREPARE = """
import django
from django.conf import settings
from example_project import settings as example
values = {name: getattr(example, name) for name in dir(example) if name.isupper()}
settings.configure(**{**values, "IDEMPOTENCY": {"PROMETHEUS": True, "COUNTS": False}})
django.setup()
from prometheus_client import generate_latest
from django_idempotency.signals import Counted, tell
"""
SERVE = """
from django_idempotency import prometheus
print(generate_latest(prometheus.registry()).decode())
"""


def python(script, **environment):
    ran = subprocess.run(
        [sys.executable, "-c", PREPARE + script],
        env=os.environ | {"DATABASE_URL": url_of_tests()} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def samples(text):
    families = list(text_string_to_metric_families(text))
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


def outcome(route, outcome):
    return ("django_idempotency_outcomes_total", ("outcome", outcome), ("route", route))


def gauge(name):
    return (f"django_idempotency_{name}", ("database", "default"))


@pytest.fixture
def served(committed):
    if connection.vendor != "postgresql":
        pytest.skip("this is about the gauges of PostgreSQL")


def test_one_process(served):
    script = """
tell(Counted.NEW, "a")
tell(Counted.NEW, "a", age=30.0)
tell(Counted.REPLAYED, "b", age=7200.0)
"""
    found = samples(python(script + SERVE))
    assert found[outcome("a", "new")] == 2
    assert found[outcome("b", "replayed")] == 1
    age = "django_idempotency_request_age_seconds"
    assert found[(f"{age}_count", ("route", "a"))] == 1
    assert found[(f"{age}_bucket", ("le", "10.0"), ("route", "a"))] == 0
    assert found[(f"{age}_bucket", ("le", "60.0"), ("route", "a"))] == 1
    assert found[(f"{age}_sum", ("route", "b"))] == 7200
    assert found[gauge("in_flight")] == found[gauge("oldest_in_flight_seconds")] == found[gauge("held")] == 0
    assert found[gauge("partitions_ahead_seconds")] > 7 * 86_400
    assert found[gauge("size_bytes")] > 0
    assert found[gauge("stuck")] == found[gauge("left_to_a_person")] == 0
    assert gauge("sealed_records") in found


def test_several_processes_are_summed_and_have_the_gauges_once(served, tmp_path):
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for times in (2, 3):
        python(f"for _ in range({times}): tell(Counted.CONFLICT, 'a', age=5.0)", **environment)
    text = python("tell(Counted.CONFLICT, 'a')" + SERVE, **environment)
    found = samples(text)
    assert found[outcome("a", "conflict")] == 6
    assert found[("django_idempotency_request_age_seconds_count", ("route", "a"))] == 5
    assert found[gauge("partitions_ahead_seconds")] > 0
    assert text.count("\ndjango_idempotency_in_flight{") == 1


def test_a_database_that_does_not_answer_costs_only_the_gauges():
    text = python(
        "tell(Counted.NEW, 'a')" + SERVE, DATABASE_URL="postgres://nobody@127.0.0.1:1/nothing?connect_timeout=2"
    )
    found = samples(text)
    assert found[outcome("a", "new")] == 1
    assert gauge("in_flight") not in found


def test_a_scrape_leaves_no_connection_open(served):
    script = """
import threading
from django.db import connections
left = []
def scrape():
    generate_latest(prometheus.registry())
    left.append(connections["default"].connection)
from django_idempotency import prometheus
thread = threading.Thread(target=scrape)
thread.start(); thread.join()
print(left)
"""
    assert python(script).splitlines()[-1] == "[None]"


def test_without_the_package_the_setting_says_what_to_install():
    script = """
import sys
sys.modules["prometheus_client"] = None
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_idempotency"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3"}},
    IDEMPOTENCY={"PROMETHEUS": True},
)
django.setup()
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode != 0
    assert "django-idempotency[prometheus]" in ran.stderr
