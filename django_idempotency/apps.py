from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class IdempotencyConfig(AppConfig):
    name = "django_idempotency"
    verbose_name = _("Idempotency keys")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        import os

        from . import checks, failpoints  # noqa: F401 - importing the checks registers them
        from .conf import current, problems

        # Faults of the settings are for the system check to report, with their hints.
        if not problems() and current().FAILPOINTS_ENABLED:
            failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
