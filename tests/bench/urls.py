from __future__ import annotations

from django.urls import path

from . import counting, peer_views, views

urlpatterns = [
    path("unprotected/", views.Unprotected.as_view()),
    path("atomic/", views.Atomic.as_view()),
    path("leased/", views.Leased.as_view()),
    path("floor-atomic/", views.FloorAtomic.as_view()),
    path("floor-leased/", views.FloorLeased.as_view()),
    path("listen/", counting.listen),
    *peer_views.urls(),
]
