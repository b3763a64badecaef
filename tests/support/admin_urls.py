"""The example's routes, and the files of the admin, which another server has otherwise."""

from __future__ import annotations

from django.contrib.staticfiles.views import serve
from django.http import HttpResponse
from django.urls import path, re_path

from example_project.urls import urlpatterns as example

urlpatterns = [
    re_path(r"^static/(?P<path>.*)$", serve, {"insecure": True}),
    path("favicon.ico", lambda request: HttpResponse(status=204)),
    *example,
]
