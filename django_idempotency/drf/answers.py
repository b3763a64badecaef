"""Responses on their way out: what is sent now, what a retry receives, and what stands in for a recorded answer."""

from __future__ import annotations

from typing import Any, cast

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer, JSONRenderer
from rest_framework.response import Response
from rest_framework.views import APIView

from ..core.policy import ResolvedPolicy
from ..core.states import RecordedResponse
from ..http.capture import capture
from ..http.exchange import rendered


def placeholder(answer: HttpResponse) -> Response:
    """Stands in for the answer in finalize_response, which a plain HttpResponse would crash in some projects."""
    return Response({}, status=answer.status_code)


def rendered_unless_page(response: HttpResponseBase) -> HttpResponseBase:
    """Rendered before the commit, except a browsable page.

    That holds a user's name and a CSRF token, and runs queries of its own: it is rendered after the commit.
    """
    if isinstance(getattr(response, "accepted_renderer", None), BrowsableAPIRenderer):
        return response
    return rendered(response)


def recorded(response: HttpResponseBase, policy: ResolvedPolicy, view: APIView) -> RecordedResponse:
    """What a retry receives: of a browsable page, the representation that it was built around."""
    page = getattr(response, "accepted_renderer", None)
    if not isinstance(page, BrowsableAPIRenderer):
        return capture(response, policy)
    return capture(_representation(cast("Response", response), _machine_readable(page, view)), policy)


def render_refusal(answer: HttpResponse, view: APIView) -> None:
    """Render what an override answered as views do, where no finalize_response follows."""
    if isinstance(answer, Response) and not answer.is_rendered:
        response = cast("Any", answer)
        renderer = _machine_readable(getattr(view.request, "accepted_renderer", None), view)
        response.accepted_renderer, response.accepted_media_type = renderer, renderer.media_type
        response.renderer_context = view.get_renderer_context()
        response.render()


def _machine_readable(renderer: BaseRenderer | None, view: APIView) -> BaseRenderer:
    """The renderer that a page for people is built around, which may be the only one of the view."""
    if isinstance(renderer, BrowsableAPIRenderer):
        renderer = renderer.get_default_renderer(view)
    return renderer or JSONRenderer()


def _representation(response: Any, renderer: Any) -> HttpResponse:
    body = renderer.render(response.data, renderer.media_type, response.renderer_context)
    result = HttpResponse(body, status=response.status_code, content_type=renderer.media_type)
    for name, value in response.items():
        if name.lower() != "content-type":
            result[name] = value
    return result
