"""Settings of a server whose admin is looked at in a browser: with its style sheets, under a strict policy for content,
and in the language that is asked for.
"""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from tests.support.served_settings import *  # noqa: F403
from tests.support.served_settings import MIDDLEWARE

MIDDLEWARE = ["tests.support.admin_settings.strict", *MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
ROOT_URLCONF = "tests.support.admin_urls"
LANGUAGE_CODE = "en"


def strict(answer: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Nothing inline, and nothing from elsewhere."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = answer(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    return middleware
