"""Metrics for Prometheus, through prometheus-client. The setting PROMETHEUS imports this module in every process.

Counters live in the process, or in the files of PROMETHEUS_MULTIPROC_DIR where that is set. Gauges are asked of the
databases when somebody looks, so that no process has to keep them; :func:`registry` has both.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from .conf import current
from .core.counted import Counted
from .signals import counted
from .storage.gauges import gauges

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImproperlyConfigured(
        'IDEMPOTENCY["PROMETHEUS"] needs prometheus-client: install "django-idempotency[prometheus]".'
    ) from error

logger = logging.getLogger("django_idempotency")

_HOUR, _DAY = 3600, 86_400

OUTCOMES = Counter("django_idempotency_outcomes", "What became of requests and of their records.", ("route", "outcome"))
AGES = Histogram(
    "django_idempotency_request_age_seconds",
    "Time since the client first sent the request, where it says so.",
    ("route",),
    buckets=(1, 10, 60, 600, _HOUR, 6 * _HOUR, _DAY, 3 * _DAY, 7 * _DAY, 30 * _DAY),
)
GAUGES = {
    "in_flight": ("django_idempotency_in_flight", "Claims in flight that are visible to others."),
    "oldest_in_flight": (
        "django_idempotency_oldest_in_flight_seconds",
        "Time since the oldest claim in flight was made; 0 without one.",
    ),
    "held": ("django_idempotency_held", "Claims of which nobody knows whether they took effect."),
    "stuck": ("django_idempotency_stuck", "Claims that a sweeper could take up now, and did not yet."),
    "left_to_a_person": ("django_idempotency_left_to_a_person", "Claims that no sweeper takes up again."),
    "cover": ("django_idempotency_partitions_ahead_seconds", "Time until the partitions end."),
    "size": ("django_idempotency_size_bytes", "Size of the keys and tombstones, with their indexes."),
    "sealed": ("django_idempotency_sealed_records", "Sealed records, estimated."),
}
"""Of each field of Gauges, its metric and what it says."""


class GaugesOfDatabases(Collector):
    """Asks each of the setting DATABASES. One that does not answer is logged, and has no values in this scrape."""

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return [GaugeMetricFamily(name, about, labels=["database"]) for name, about in GAUGES.values()]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = {field: GaugeMetricFamily(*named, labels=["database"]) for field, named in GAUGES.items()}
        for alias in current().DATABASES:
            connection = connections[alias]
            was_closed = connection.connection is None
            try:
                found = gauges(connection, stale_after=current().STALE_AFTER.total_seconds())
            except Exception as error:  # noqa: BLE001 - the other metrics are worth having
                logger.warning("No gauges of %r: %s", alias, type(error.__cause__ or error).__name__)
                continue
            finally:
                # Servers of metrics answer in threads of their own, whose connections nobody else would close.
                if was_closed:
                    connection.close()
            for field, family in families.items():
                value = getattr(found, field)
                if value is not None or field == "oldest_in_flight":
                    family.add_metric([alias], value or 0)
        return families.values()


def registry() -> CollectorRegistry:
    """What to serve: the default registry or, in multiprocess mode, the sum over all processes with the gauges."""
    if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        return REGISTRY
    summed = CollectorRegistry()
    MultiProcessCollector(summed)  # type: ignore[no-untyped-call]
    summed.register(GaugesOfDatabases())
    return summed


def _observe(sender: object, *, outcome: Counted, route: str, age: float | None, **_: Any) -> None:  # noqa: ARG001
    OUTCOMES.labels(route, outcome.value).inc()
    if age is not None:
        AGES.labels(route).observe(age)


REGISTRY.register(GaugesOfDatabases())
counted.connect(_observe, dispatch_uid="django_idempotency.prometheus")

__all__ = ["registry"]
