from django.urls import include, path
from rest_framework.authtoken.views import obtain_auth_token
from rest_framework.routers import DefaultRouter

from . import views, webhooks

router = DefaultRouter()
router.register("accounts", views.AccountViewSet, basename="account")
router.register("card-payments", views.CardPaymentViewSet, basename="card-payment")
router.register("charges", views.ChargeViewSet, basename="charge")

urlpatterns = [
    path("api/", include(router.urls)),
    path("api/moves/", views.move, name="move"),
    path("api/token/", obtain_auth_token, name="token"),
    path("webhooks/<slug:provider>/", webhooks.deposit, name="webhook"),
]
