"""A server whose database is filled, and a browser that somebody is logged in with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.utils import timezone

from django_idempotency.core.counted import Counted
from django_idempotency.core.intervals import Interval
from django_idempotency.models import OldestInFlight, OutcomeCount
from django_idempotency.storage.base import NEVER
from django_idempotency.storage.partitions import SEALED, create_leaves
from django_idempotency.storage.pruning import leaves
from tests.support.browser import Browser, browsing
from tests.support.commits import delete_everything
from tests.support.records import claim, held, seal_many, stuck
from tests.support.servers import served

PAY, REFUND, EXPORT = (
    "shop.views.ChargeViewSet:create:POST",
    "shop.views.RefundViewSet:create:POST",
    "shop.views.export:POST",
)


@pytest.fixture(scope="module")
def filled(django_db_setup, django_db_blocker) -> Iterator[None]:
    """A day of a shop: most requests are new, some are retried, and a call to another system has not been answered."""
    if connection.vendor != "postgresql":
        pytest.skip("a browser and a server need a database that both can use at once")
    yesterday = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    with django_db_blocker.unblock(), leaf_of(yesterday - timedelta(days=1), yesterday):
        fill()
        yield
        delete_everything()


@contextmanager
def leaf_of(lower: datetime, upper: datetime) -> Iterator[None]:
    """A partition with records that have expired, which is gone afterwards."""
    before = {each.name for each in leaves(connection, SEALED)}
    create_leaves(connection, [Interval(lower, upper)])
    (made,) = {each.name for each in leaves(connection, SEALED)} - before
    for _ in range(400):
        claim(
            route=PAY, state="sealed", lease_expires_at=None, sealed_at=lower - timedelta(hours=5),
            expires_at=lower + timedelta(hours=5), response_status=201, response_headers=[], response_body=b"{}",
        )  # fmt: skip
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {made}")


@pytest.fixture(scope="module")
def opened(filled, tmp_path_factory) -> Iterator[Browser]:
    user = User.objects.create_user("operator", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_idempotencykey"))
    client = Client()
    client.force_login(user)
    with (
        served({"DJANGO_SETTINGS_MODULE": "tests.support.admin_settings"}, workers=1) as api,
        browsing(api.url, tmp_path_factory.mktemp("profile")) as opened,
    ):
        opened.log_in(client.cookies[settings.SESSION_COOKIE_NAME].value)
        yield opened


@pytest.fixture
def browser(opened: Browser) -> Browser:
    """Logged in as somebody who may view keys and nothing else."""
    opened.resize(1280, 900)
    opened.prefer("light")
    opened.speak("en")
    return opened


def fill() -> None:
    claim(route=PAY, age=timedelta(seconds=4))
    stuck(route=PAY, age=timedelta(minutes=31))
    held(route=REFUND, age=timedelta(hours=3))
    held(route=REFUND, age=timedelta(hours=5), sweep_after=NEVER)
    seal_many(6000, routes=(PAY, PAY, PAY, REFUND, EXPORT), body=40)
    now = timezone.now().replace(second=0, microsecond=0)
    counts, readings = [], []
    for step in range(1, 47):
        minute = now - timedelta(minutes=30 * step)
        busy = 1 + math.sin(step / 7)
        for route, much in ((PAY, 300), (REFUND, 40), (EXPORT, 9)):
            n = {
                Counted.NEW: round(much * (0.6 + busy)),
                Counted.REPLAYED: round(much * (0.03 + 0.02 * busy)) * (4 if step == 11 and route == PAY else 1),
                Counted.CONFLICT: round(much * busy / 40),
                Counted.MISMATCH: 3 if route == REFUND and step % 9 == 4 else 0,
            }
            counts += [
                OutcomeCount(minute=minute, route=route, outcome=outcome.value, n=times)
                for outcome, times in n.items()
                if times
            ]
        readings.append(OldestInFlight(minute=minute, route=PAY, seconds=round(5 + 9 * busy) if step != 11 else 95))
        if step <= 10:
            readings.append(OldestInFlight(minute=minute, route=REFUND, seconds=18_000 - 1800 * step))
    OutcomeCount.objects.bulk_create(counts)
    OldestInFlight.objects.bulk_create(readings)
