"""Settings of the example: from the environment, with defaults that run on one machine."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import django
import environ

from django_idempotency.schedules import beat_schedule

from .postgres import database_url

BASE_DIR = Path(__file__).resolve().parent

env = environ.Env()

# Fit for the example only, as are the other secrets here; beyond this machine, set your own.
SECRET_KEY = env.str("SECRET_KEY", default="only-for-the-example-and-known-to-everybody")
DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "django_idempotency",
    "example_project.payments",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"

DATABASES = {"default": env.db_url_config(database_url())}
DATABASES["default"]["ATOMIC_REQUESTS"] = env.bool("ATOMIC_REQUESTS", default=False)
DATABASES["default"]["CONN_MAX_AGE"] = env.int("CONN_MAX_AGE", default=0)
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # SQLite has one writer. A transaction that reads first and writes later is refused when another one wrote
    # meanwhile; one that says at its beginning that it will write waits for its turn.
    DATABASES["default"].setdefault("OPTIONS", {}).update(transaction_mode="IMMEDIATE", timeout=20)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS: list[dict[str, str]] = []
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"

REST_FRAMEWORK = {
    # The first one names the challenge of a 401, so a token comes first.
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PAGINATION_CLASS": "rest_framework.pagination.PageNumberPagination",
    "PAGE_SIZE": 50,
}

IDEMPOTENCY = {
    "REQUIRED": env.bool("IDEMPOTENCY_REQUIRED", default=True),
    "LEASE": timedelta(seconds=env.float("IDEMPOTENCY_LEASE", default=30)),
    "MAX_WAIT": timedelta(seconds=env.float("IDEMPOTENCY_MAX_WAIT", default=1.5)),
    "RETENTION": timedelta(seconds=env.float("IDEMPOTENCY_RETENTION", default=24 * 3600)),
    "FAILPOINTS_ENABLED": env.bool("IDEMPOTENCY_FAILPOINTS_ENABLED", default=False),
}

# Without a broker there are no workers: tasks run where they are called, and `manage.py idempotency sweep` and
# `manage.py relay_jobs` do by hand what is due otherwise.
CELERY_BROKER_URL = env.str("CELERY_BROKER_URL", default="")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    **({"confirm_publish": True} if CELERY_BROKER_URL.startswith("amqp") else {}),
    **env.json("CELERY_BROKER_TRANSPORT_OPTIONS", default={}),
}
CELERY_TASK_ALWAYS_EAGER = not CELERY_BROKER_URL
CELERY_TASK_DEFAULT_QUEUE = env.str("CELERY_TASK_DEFAULT_QUEUE", default="celery")
CELERY_TASK_IGNORE_RESULT = True
CELERY_BEAT_SCHEDULE = {
    **beat_schedule(sweep_every=timedelta(seconds=env.float("IDEMPOTENCY_SWEEP_EVERY", default=60))),
    "relay": {"task": "payments.relay", "schedule": 5.0},
}

# What each provider signs its webhooks with: WEBHOOK_SECRETS="acme=…,globex=…".
WEBHOOK_SECRETS = env.dict(
    "WEBHOOK_SECRETS", default={"acme": "only-for-the-example", "globex": "also-only-for-the-example"}
)

# The card processor's address, and how many seconds it is given for an answer. Without one there are no card payments.
PROCESSOR_URL = env.str("PROCESSOR_URL", default="")
PROCESSOR_TIMEOUT = env.float("PROCESSOR_TIMEOUT", default=10)

# Receipts are printed, unless there is a way to send them.
MAIL_BACKEND = env.str("MAIL_BACKEND", default="django.core.mail.backends.console.EmailBackend")
MAIL_TIMEOUT = 10
if django.VERSION >= (6, 1):
    MAILERS: dict[str, dict[str, Any]] = {"default": {"BACKEND": MAIL_BACKEND}}
    if MAIL_BACKEND == "django.core.mail.backends.smtp.EmailBackend":
        MAILERS["default"]["OPTIONS"] = {"host": env.str("MAIL_HOST", default="localhost"), "timeout": MAIL_TIMEOUT}
else:
    EMAIL_BACKEND, EMAIL_TIMEOUT = MAIL_BACKEND, MAIL_TIMEOUT
    EMAIL_HOST = env.str("MAIL_HOST", default="localhost")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", default="WARNING")},
    "loggers": {"django": {"handlers": [], "propagate": True}},
}
