from django.apps import AppConfig


class PaymentsConfig(AppConfig):
    name = "example_project.payments"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # So that a task that is called here goes to the broker of the settings, whichever process this is.
        from .. import celery  # noqa: F401
