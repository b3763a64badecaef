"""``IdempotencyMixin``: the way of one request through a REST framework view.

``dispatch`` is called once and never copied. Between ``initial`` and the handler stands a guard around this request's
bound handler, so that authentication, permissions and throttles, also those that subclasses add, come before the key is
looked at. What comes out of ``finalize_response`` is sealed as the project made it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.views import View
from rest_framework.parsers import BaseParser, FileUploadParser, MultiPartParser
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.utils.mediatypes import media_type_matches
from rest_framework.versioning import QueryParameterVersioning, URLPathVersioning
from rest_framework.views import APIView

from ..conf import current
from ..core.errors import IdempotencyError
from ..core.fingerprint import Body, Content
from ..core.policy import SAFE_METHODS, UNSAFE_METHODS, IdempotencyPolicy, ResolvedPolicy
from ..core.scope import operation_name
from ..core.states import RecordedResponse
from ..http.atomic_requests import take_out, transactions_of
from ..http.capture import capture, put_into
from ..http.exchange import Asking, Exchange, rendered
from ..http.problems import problem_response
from ..http.requests import (
    body_bytes,
    counted_headers,
    has_key,
    principal_of,
    raw_body,
    read_key,
    text_kwargs,
    without_parameters,
)
from .bodies import uploaded
from .marks import check_marks, mark_of, marks_on, put_in_force

if TYPE_CHECKING:
    _Base = APIView
else:
    _Base = object

logger = logging.getLogger("django_idempotency")

Handler = Callable[..., HttpResponseBase]

_ACTING = tuple(method.lower() for method in sorted(UNSAFE_METHODS))


@dataclass
class _Passage:
    """What is remembered of one request between the guard and the end of ``dispatch``."""

    exchange: Exchange
    entered: bool = False
    """Once, also where a dispatch behind ours tries again."""
    running: bool = False
    unreadable: IdempotencyError | None = None
    answer: HttpResponse | None = None
    exception: Exception | None = None


class _Guarded:
    """A handler with the guard in front. Whoever looks at it, such as a permission class, sees the handler."""

    # functools.wraps would copy its attributes for each request, which costs several times as much.
    __slots__ = ("_guard", "_handler")

    def __init__(self, handler: Handler, guard: Handler) -> None:
        self._handler = handler
        self._guard = guard

    def __call__(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        return self._guard(request, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)


class _Chosen(list[str]):
    """The accepted methods of a view. Dispatch asks them for one right before it takes the handler."""

    def __init__(self, methods: Iterable[str], before: Callable[[], None]) -> None:
        super().__init__(methods)
        self._before = before

    def __contains__(self, method: object) -> bool:
        self._before()
        return super().__contains__(method)


class IdempotencyMixin(_Base):
    """Makes the unsafe methods of an ``APIView`` or viewset safe to retry. Name it before the view class.

    ``idempotency_policy`` covers the methods that it names. With None, only handlers under ``@idempotent`` are covered.
    """

    idempotency_policy: IdempotencyPolicy | None = IdempotencyPolicy()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _check_order(cls)
        if not isinstance(cls.idempotency_policy, IdempotencyPolicy | None):
            raise TypeError(f"{cls.__qualname__}.idempotency_policy must be an IdempotencyPolicy or None.")
        check_marks(cls)

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        view = super().as_view(*args, **initkwargs)
        _refuse_asynchronous(cls, getattr(view, "actions", None))
        take_out(view)
        return view

    # Override points, in the order in which a request meets them.

    def get_idempotency_policy(self) -> IdempotencyPolicy | None:
        """The terms of this request; None leaves it alone. A mark on the handler is laid over them."""
        return self.idempotency_policy

    def get_idempotency_key(self, request: Request) -> str | None:
        """The client's key in its stored form, or None.

        :raises MalformedKey: what is there is no key.
        """
        return read_key(_http(request))

    def get_idempotency_scope(self, request: Request, policy: ResolvedPolicy) -> str | None:
        """The principal that keys belong to. Empty refuses the request: it never means "everyone"."""
        return policy.scope(request) if policy.scope is not None else principal_of(request.user)

    def get_idempotency_fingerprint(self, request: Request, policy: ResolvedPolicy) -> Content:
        """What tells this request from another one under the same key."""
        http, scheme = _http(request), request.versioning_scheme
        # What chooses a format or a version of the same operation. Under another scheme a "version" is a thing's own.
        suffix, override = api_settings.FORMAT_SUFFIX_KWARG, api_settings.URL_FORMAT_OVERRIDE
        in_path = scheme.version_param if isinstance(scheme, URLPathVersioning) else None
        in_query = scheme.version_param if isinstance(scheme, QueryParameterVersioning) else None
        return Content(
            method=http.method or "",
            principal=principal_of(request.user) or "",
            body=_body(request),
            url_kwargs=text_kwargs(self.kwargs, (suffix, in_path)),
            query=without_parameters(http.META.get("QUERY_STRING", ""), (override, in_query)),
            headers=counted_headers(http, policy.fingerprint.headers),
        )

    def get_idempotency_error_response(self, error: IdempotencyError) -> HttpResponse:
        """A refusal as it is sent: RFC 9457, whatever renderers and exception handlers the project has."""
        renderer = getattr(self.request, "accepted_renderer", None)
        return problem_response(error, html=getattr(renderer, "media_type", None) == "text/html")

    def idempotent_transaction_began(self, request: Request) -> None:
        """LEASED mode began the transaction of the effect: repeat what ``SET LOCAL`` set during authentication."""

    # The way of a request.

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        reopened = lambda: self.idempotent_transaction_began(self.request)  # noqa: E731
        passage = _Passage(Exchange(request, transactions_of(request, reopened)))
        try:
            passage.exchange.open()
            try:
                if self._may_be_keyed(request):
                    passage.unreadable = _read_ahead(request, self.parser_classes)
                self._guard_handlers(passage, request)
                return self._conclude(passage, self._pass_on(passage, request, *args, **kwargs))
            except BaseException as error:
                passage.exchange.abandon(error)
                raise
        except IdempotencyError as error:
            return self._refusal(error)

    def _pass_on(self, passage: _Passage, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return super().dispatch(request, *args, **kwargs)
        except Exception:
            if passage.answer is None:
                raise
            # A finalize_response may rely on data that only the handler gives. The record stands all the same.
            logger.exception("finalize_response failed on a recorded answer or a refusal, which is sent without it.")
            return passage.answer

    def _may_be_keyed(self, request: HttpRequest) -> bool:
        if current().OBSERVE_ONLY:
            return False
        # A project may take the key from elsewhere, and even out of the body.
        return has_key(request) or type(self).get_idempotency_key is not IdempotencyMixin.get_idempotency_key

    def _guard_handlers(self, passage: _Passage, request: HttpRequest) -> None:
        accepted = self.http_method_names

        def guard() -> None:
            # All that act: a view may choose another method than the present one, such as that which a header names.
            for method in {*_ACTING, (request.method or "").lower()}:
                handler = getattr(self, method, None) if method in accepted else None
                if handler is not None and not isinstance(handler, _Guarded):
                    setattr(self, method, _Guarded(handler, partial(self._guard, method, handler, passage)))

        guard()
        # Once more when dispatch chooses, since initial() may have put another handler there.
        self.http_method_names = _Chosen(accepted, guard)

    def _guard(
        self, method: str, handler: Handler, passage: _Passage, request: Request, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        if passage.running:  # one handler passes the request on to another one
            return handler(request, *args, **kwargs)
        policy = None if passage.entered else self._policy_for(method, handler, request)
        passage.entered = True
        if policy is not None:
            try:
                passage.answer = passage.exchange.admit(policy, self._asking(passage, request, policy))
            except IdempotencyError as error:
                passage.answer = self._refusal(error)
        if passage.answer is not None:
            return _placeholder(passage.answer)
        passage.running, passage.exception = True, None
        try:
            return handler(request, *args, **kwargs)
        except IdempotencyError as error:
            # An operation's. The project's exception handler could only turn it into something else.
            return _placeholder(self._abandoned(passage, error))
        except Exception as error:
            passage.exception = error
            passage.exchange.undo()
            raise
        finally:
            passage.running = False

    def _abandoned(self, passage: _Passage, error: IdempotencyError) -> HttpResponse:
        try:
            passage.exchange.abandon(error)
        except IdempotencyError as better:
            error = better
        passage.answer = self._refusal(error)
        return passage.answer

    def _policy_for(self, method: str, handler: Handler, request: Request) -> ResolvedPolicy | None:
        policy, mark = self.get_idempotency_policy(), mark_of(handler)
        cls: type = type(self)
        names: dict[str, str] = getattr(self, "action_map", None) or {}
        marks = marks_on(cls, names.get(method, method))
        if mark is not None and mark not in marks:
            marks = (mark, *marks)
        if marks:
            put_in_force(request, marks)
            policy = marks[0].over(policy)
        # In capitals, also where something in front of the view took it from a header as it was written.
        method = (request.method or "").upper()
        if policy is None or method in SAFE_METHODS:
            return None
        resolved = current().resolve(policy)
        return resolved if method in resolved.methods else None

    def _asking(self, passage: _Passage, request: Request, policy: ResolvedPolicy) -> Asking:
        def content() -> Content:
            if passage.unreadable is not None:
                raise passage.unreadable
            return self.get_idempotency_fingerprint(request, policy)

        view = f"{type(self).__module__}.{type(self).__qualname__}"
        action = getattr(self, "action", None)
        return Asking(
            key=lambda: self.get_idempotency_key(request),
            principal=lambda: self.get_idempotency_scope(request, policy),
            operation=operation_name(view, action, request.method or "", policy.operation),
            content=content,
        )

    def _conclude(self, passage: _Passage, response: HttpResponseBase) -> HttpResponseBase:
        if passage.answer is not None:
            passage.exchange.conclude(response)
            return put_into(response, passage.answer)
        try:
            return passage.exchange.conclude(response, passage.exception, _rendered, self._recorded)
        except IdempotencyError as error:
            problem = self._refusal(error)
            patch_vary_headers(problem, [field.strip() for field in response.get("Vary", "").split(",") if field])
            return problem

    def _refusal(self, error: IdempotencyError) -> HttpResponse:
        answer = self.get_idempotency_error_response(error)
        if isinstance(answer, Response) and not answer.is_rendered:
            # An override that answers as views do, where no finalize_response follows.
            response = cast("Any", answer)
            renderer = _machine_readable(getattr(self.request, "accepted_renderer", None), self)
            response.accepted_renderer, response.accepted_media_type = renderer, renderer.media_type
            response.renderer_context = self.get_renderer_context()
            response.render()
        return answer

    def _recorded(self, response: HttpResponseBase, policy: ResolvedPolicy) -> RecordedResponse:
        """What a retry receives: of a browsable page, the representation that it was built around."""
        page = getattr(response, "accepted_renderer", None)
        if not isinstance(page, BrowsableAPIRenderer):
            return capture(response, policy)
        return capture(_representation(cast("Response", response), _machine_readable(page, self)), policy)


def _machine_readable(renderer: BaseRenderer | None, view: APIView) -> BaseRenderer:
    """The renderer that a page for people is built around, which may be the only one of the view."""
    if isinstance(renderer, BrowsableAPIRenderer):
        renderer = renderer.get_default_renderer(view)
    return renderer or JSONRenderer()


def _placeholder(answer: HttpResponse) -> Response:
    # Stands in for the answer in finalize_response, which a plain HttpResponse would crash in some projects.
    return Response({}, status=answer.status_code)


def _rendered(response: HttpResponseBase) -> HttpResponseBase:
    # A page holds a user's name and a CSRF token, and runs queries of its own: it is rendered after the commit.
    if isinstance(getattr(response, "accepted_renderer", None), BrowsableAPIRenderer):
        return response
    return rendered(response)


def _representation(response: Any, renderer: Any) -> HttpResponse:
    body = renderer.render(response.data, renderer.media_type, response.renderer_context)
    result = HttpResponse(body, status=response.status_code, content_type=renderer.media_type)
    for name, value in response.items():
        if name.lower() != "content-type":
            result[name] = value
    return result


def _read_ahead(request: HttpRequest, parsers: Iterable[type[BaseParser]]) -> IdempotencyError | None:
    """Keep the bytes of a request before anything parses them: once a parser read the stream they are gone.

    Uploads are left alone: their parsers keep what can be read again, and need no memory for it.
    """
    content_type = request.content_type or ""
    if request.method in SAFE_METHODS or _is_multipart(request):
        return None
    parser = next((each for each in parsers if _takes(each, content_type)), BaseParser)
    if issubclass(parser, FileUploadParser):
        return None
    try:
        body_bytes(request)
    except IdempotencyError as error:
        return error
    return None


def _is_multipart(request: HttpRequest) -> bool:
    return request.content_type == "multipart/form-data"


def _takes(parser: type[BaseParser], content_type: str) -> bool:
    return parser.media_type == content_type or media_type_matches(parser.media_type, content_type)


def _http(request: Request) -> HttpRequest:
    return request._request  # noqa: SLF001 - whose content_type and body are Django's, not the REST framework's


def _body(request: Request) -> Body:
    negotiator: Any = request.negotiator
    parser = negotiator.select_parser(request, request.parsers)
    if isinstance(parser, MultiPartParser | FileUploadParser) or (parser and _is_multipart(_http(request))):
        return uploaded(request)
    return raw_body(_http(request))


def _refuse_asynchronous(cls: type[APIView], actions: Mapping[str, str] | None) -> None:
    """:raises TypeError: what the guard would get of a handler is a coroutine, which has not run yet."""
    for name in {"get", *_ACTING, *(actions or {}).values()}:
        if iscoroutinefunction(getattr(cls, name, None)):
            raise TypeError(
                f"IdempotencyMixin does not protect asynchronous handlers, such as {cls.__qualname__}.{name}, yet."
            )


def _check_order(cls: type) -> None:
    """:raises TypeError: the base classes stand so that requests would pass the mixin by."""
    before = cls.__mro__[: cls.__mro__.index(IdempotencyMixin)]
    for base in before:
        if not issubclass(base, IdempotencyMixin) and (issubclass(base, View) or "as_view" in vars(base)):
            raise TypeError(
                f"{cls.__qualname__}: IdempotencyMixin must come before {base.__qualname__} among the base classes, "
                "or requests would run unprotected."
            )
    if issubclass(cls, View) and not issubclass(cls, APIView):
        raise TypeError(
            f"{cls.__qualname__} is not a REST framework view: use idempotent_view from django_idempotency.http."
        )
