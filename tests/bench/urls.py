from __future__ import annotations

from django.conf import settings
from django.urls import path

from django_idempotency.signals import counted

from . import views

if not settings.BENCH_COUNTING:  # type: ignore[misc]
    counted.disconnect(dispatch_uid="django_idempotency.numbers.counting")

urlpatterns = [
    path("unprotected/", views.Unprotected.as_view()),
    path("atomic/", views.Atomic.as_view()),
    path("leased/", views.Leased.as_view()),
    path("floor-atomic/", views.FloorAtomic.as_view()),
    path("floor-leased/", views.FloorLeased.as_view()),
]
