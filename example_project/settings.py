"""Settings of the example: from the environment, with defaults that run on one machine."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import environ

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

# What each provider signs its webhooks with: WEBHOOK_SECRETS="acme=…,globex=…".
WEBHOOK_SECRETS = env.dict(
    "WEBHOOK_SECRETS", default={"acme": "only-for-the-example", "globex": "also-only-for-the-example"}
)

# The card processor's address. Without one there are no card payments.
PROCESSOR_URL = env.str("PROCESSOR_URL", default="")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", default="WARNING")},
    "loggers": {"django": {"handlers": [], "propagate": True}},
}
