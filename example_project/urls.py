from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/session/", include("rest_framework.urls")),
    path("", include("example_project.payments.urls")),
]
