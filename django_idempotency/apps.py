from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class IdempotencyConfig(AppConfig):
    name = "django_idempotency"
    verbose_name = _("Idempotency keys")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        import os

        # Importing the checks registers them, and importing what counts lets it listen.
        from . import checks, failpoints  # noqa: F401
        from .conf import current, problems
        from .numbers import counting  # noqa: F401

        # Faults of the settings are for the system check to report, with their hints.
        if problems():
            return
        if current().FAILPOINTS_ENABLED:
            failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
        if current().PROMETHEUS:
            from . import prometheus  # noqa: F401
