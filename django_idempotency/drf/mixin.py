"""``IdempotencyMixin``: the way of one request through a REST framework view.

``dispatch`` is called once and never copied. Between ``initial`` and the handler stands a guard around this request's
bound handler, so that authentication, permissions and throttles, also those that subclasses add, come before the key is
looked at. What comes out of ``finalize_response`` is sealed as the project made it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.versioning import QueryParameterVersioning, URLPathVersioning
from rest_framework.views import APIView

from ..conf import current
from ..core.errors import IdempotencyError
from ..core.fingerprint import Content
from ..core.policy import SAFE_METHODS, IdempotencyPolicy, ResolvedPolicy
from ..core.scope import operation_name
from ..http.atomic_requests import take_out, transactions_of
from ..http.capture import put_into
from ..http.exchange import Asking, Exchange
from ..http.problems import problem_response
from ..http.requests import counted_headers, has_key, principal_of, read_key, text_kwargs, without_parameters
from .answers import placeholder, recorded, render_refusal, rendered_unless_page
from .attaching import check_marks, check_order, check_synchronous
from .bodies import read_ahead, read_body
from .guards import Handler, guard_handlers
from .marks import mark_of, marks_on, put_in_force

if TYPE_CHECKING:
    _Base = APIView
else:
    _Base = object

logger = logging.getLogger("django_idempotency")


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


class IdempotencyMixin(_Base):
    """Makes the unsafe methods of an ``APIView`` or viewset safe to retry. Name it before the view class.

    ``idempotency_policy`` covers the methods that it names. With None, only handlers under ``@idempotent`` are covered.
    """

    idempotency_policy: IdempotencyPolicy | None = IdempotencyPolicy()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_order(cls, IdempotencyMixin)
        if not isinstance(cls.idempotency_policy, IdempotencyPolicy | None):
            raise TypeError(f"{cls.__qualname__}.idempotency_policy must be an IdempotencyPolicy or None.")
        check_marks(cls)

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        view = super().as_view(*args, **initkwargs)
        check_synchronous(cls, getattr(view, "actions", None))
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
            body=read_body(request),
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
                    passage.unreadable = read_ahead(request, self.parser_classes)
                guard_handlers(self, request.method or "", partial(self._guard, passage))
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

    def _guard(
        self, passage: _Passage, method: str, handler: Handler, request: Request, *args: Any, **kwargs: Any
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
            return placeholder(passage.answer)
        passage.running, passage.exception = True, None
        try:
            return handler(request, *args, **kwargs)
        except IdempotencyError as error:
            # An operation's. The project's exception handler could only turn it into something else.
            return placeholder(self._abandoned(passage, error))
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
        record = partial(recorded, view=self)
        try:
            return passage.exchange.conclude(response, passage.exception, rendered_unless_page, record)
        except IdempotencyError as error:
            problem = self._refusal(error)
            patch_vary_headers(problem, [field.strip() for field in response.get("Vary", "").split(",") if field])
            return problem

    def _refusal(self, error: IdempotencyError) -> HttpResponse:
        answer = self.get_idempotency_error_response(error)
        render_refusal(answer, self)
        return answer


def _http(request: Request) -> HttpRequest:
    return request._request  # noqa: SLF001 - whose headers are Django's, not the REST framework's
