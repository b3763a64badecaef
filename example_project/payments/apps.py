from django.apps import AppConfig


class PaymentsConfig(AppConfig):
    name = "example_project.payments"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # A sweeper finds an operation by its name, in a process that may have loaded no view.
        from . import operations  # noqa: F401
