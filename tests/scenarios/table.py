"""What happens, as data: a scenario is what the handler does each time it is entered, and what a client hears."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from django.core.exceptions import BadRequest, PermissionDenied
from django.db import Error as DatabaseFailure, IntegrityError, connection, transaction
from django.http import Http404
from rest_framework import exceptions

from django_idempotency import FingerprintRules, IdempotencyMode
from django_idempotency.core.outcomes import RELEASED_STATUSES
from example_project.payments.models import Transfer
from tests.support.modes import TRANSACTIONAL

from .site import BODY, effect
from .ways import Call, Reply


class Kind(Enum):
    """What a step shows. Each says what became of the handler, of its row, and of the record."""

    FRESH = "entered, its row kept, its answer recorded"
    UNDONE = "entered, its row undone, its answer recorded all the same"
    REPLAYED = "not entered; the recorded answer again"
    RELEASED = "entered, its row undone, the project's own answer, the key free"
    REFUSED = "not entered; a problem of ours"
    FAILED = "entered, its row undone, a problem of ours in place of its answer, the key free"
    UNPROTECTED = "entered, its row kept, nothing recorded"


@dataclass(frozen=True)
class Step:
    kind: Kind
    status: int
    slug: str = ""
    says: str = ""
    send: Mapping[str, Any] = field(default_factory=dict)


def fresh(status: int = 201, **send: Any) -> Step:
    return Step(Kind.FRESH, status, send=send)


def undone(status: int, **send: Any) -> Step:
    return Step(Kind.UNDONE, status, send=send)


def replayed(status: int = 201, **send: Any) -> Step:
    """Of the last step that was recorded."""
    return Step(Kind.REPLAYED, status, send=send)


def released(status: int, **send: Any) -> Step:
    return Step(Kind.RELEASED, status, send=send)


def refused(status: int, slug: str, says: str = "", **send: Any) -> Step:
    return Step(Kind.REFUSED, status, slug, says, send)


def failed(status: int, slug: str, **send: Any) -> Step:
    return Step(Kind.FAILED, status, slug, send=send)


def unprotected(status: int = 201, **send: Any) -> Step:
    return Step(Kind.UNPROTECTED, status, send=send)


Behaviour = Callable[[Call], Reply]


def answers(status: int = 201, headers: Mapping[str, str] | None = None, body: bool = True) -> Behaviour:
    """Write a row and answer with its id, so that no two runs answer alike."""

    def behave(call: Call) -> Reply:
        row = effect()
        return Reply(status, {"transfer": str(row.pk)} if body else None, headers or {})

    return behave


def raises(make: Callable[[], BaseException]) -> Behaviour:
    """Write a row, then raise."""

    def behave(call: Call) -> Reply:
        effect()
        raise make()

    return behave


class Teapot(exceptions.APIException):
    """A status that nobody has heard of."""

    status_code = 418
    default_detail = "I am a teapot"


def api_exception(status: int) -> exceptions.APIException:
    error = exceptions.APIException("no")
    error.status_code = status
    return error


def swallows_database_error(status: int) -> Behaviour:
    """``try: audit() except Exception: pass`` around a statement that breaks the transaction."""

    def behave(call: Call) -> Reply:
        effect()
        with contextlib.suppress(DatabaseFailure):
            connection.cursor().execute("SELECT no_such_column FROM payments_transfer")
        return Reply(status, {"done": True})

    return behave


def catches_integrity_error(status: int) -> Behaviour:
    """A conflict that the database finds, caught without a savepoint, and answered."""

    def behave(call: Call) -> Reply:
        row = effect()
        try:
            Transfer(pk=row.pk, kind=Transfer.Kind.DEPOSIT).save(force_insert=True)
        except IntegrityError:
            return Reply(status, {"detail": "there is one already"})
        raise AssertionError("two rows of one id")

    return behave


def catches_in_savepoint(call: Call) -> Reply:
    """The same, done as Django's documentation says: the transaction lives on."""
    row = effect()
    try:
        with transaction.atomic():
            Transfer(pk=row.pk, kind=Transfer.Kind.DEPOSIT).save(force_insert=True)
    except IntegrityError:
        return Reply(409, {"transfer": str(row.pk)})
    raise AssertionError("two rows of one id")


def marks_for_rollback(status: int) -> Behaviour:
    """``transaction.set_rollback(True)`` and an answer."""

    def behave(call: Call) -> Reply:
        effect()
        transaction.set_rollback(True)
        return Reply(status, {"done": True})

    return behave


@dataclass(frozen=True)
class Scenario:
    """:param does: what the handler does at its first entry, its second, and so on; the last repeats.
    :param steps: what the client sends and hears.
    :param policy: fields of the policy.
    :param open: anonymous callers get as far as the key.
    :param rest_only: raises what only the REST framework turns into an answer.
    :param transactional: runs with ATOMIC_REQUESTS too.
    :param modes: refused before the claim, a request is the same in all of them.
    :param in_test_case: runs inside a TestCase too.
    :param needs_postgres: SQLite undoes a failed statement alone, so its transactions do not break.
    """

    name: str
    does: tuple[Behaviour, ...]
    steps: tuple[Step, ...]
    policy: Mapping[str, Any] = field(default_factory=dict)
    open: bool = False
    rest_only: bool = False
    transactional: bool = False
    in_test_case: bool = False
    modes: tuple[IdempotencyMode, ...] = TRANSACTIONAL
    needs_postgres: bool = False

    def __str__(self) -> str:
        return self.name


def scenario(name: str, does: Behaviour | tuple[Behaviour, ...], *steps: Step, **options: Any) -> Scenario:
    return Scenario(name, does if isinstance(does, tuple) else (does,), steps, **options)


HEADERS = {"Location": "/things/7/", "ETag": '"v1"', "Link": "</next>; rel=next", "X-Balance": "58"}

REPLAYS = [
    *(
        scenario(
            f"a returned {status} is recorded with its row",
            answers(status, HEADERS),
            fresh(status),
            replayed(status),
            replayed(status),
            transactional=status in (201, 402),
            in_test_case=status in (201, 303, 402),
        )
        for status in (200, 201, 202, 303, 402, 409, 410, 422)
    ),
    scenario("no content", answers(204, body=False), fresh(204), replayed(204)),
    scenario("a status of the project's own", answers(499), fresh(499), replayed(499)),
    *(
        scenario(
            f"a raised {name} is recorded once and its writes are undone",
            raises(make),
            undone(status),
            replayed(status),
            replayed(status),
            rest_only=True,
            transactional=True,
            in_test_case=status == 402,
        )
        for name, status, make in [
            ("402", 402, lambda: api_exception(402)),
            ("409", 409, lambda: api_exception(409)),
            ("teapot", 418, Teapot),
        ]
    ),
]

LONG = "x" * 256

KEYS = [
    scenario("no key", answers(), refused(400, "missing-key", "Idempotency-Key", key=None), fresh()),
    *(
        scenario(
            f"a key that is {name}",
            answers(),
            refused(400, "malformed-key", says, key=key),
            refused(400, "malformed-key", "Idempotency-Key", key=key),
            modes=(IdempotencyMode.ATOMIC,),
        )
        for name, key, says in [
            ("empty", "", "empty"),
            ("an empty String", '""', "empty"),
            ("blank", "   ", "empty"),
            ("a String of spaces", '"   "', "empty"),
            ("too long", LONG, "255"),
            ("too long between quotes", f'"{LONG}"', "255"),
            ("a megabyte", "k" * 1024 * 1024, "255"),
            ("sent twice", "one,two", "more than once"),
            ("sent twice alike", "one, one", "more than once"),
            ("with a NUL", "a\x00b", "ASCII"),
            ("not ASCII", "clé".encode().decode("latin-1"), "ASCII"),
            ("half a String", '"abc', "quotes"),
        ]
    ),
    scenario(
        "equal in the first 254 characters",
        answers(),
        fresh(key="x" * 254 + "a"),
        replayed(key="x" * 254 + "a"),
        fresh(key="x" * 254 + "b"),
    ),
    scenario("quoted and bare are one key", answers(), fresh(key="abc"), replayed(key='"abc"'), in_test_case=True),
    scenario("case matters in keys", answers(), fresh(key="abc"), fresh(key="ABC")),
    scenario(
        "a key is optional where the policy says so",
        answers(),
        unprotected(key=None),
        unprotected(key=None),
        fresh(),
        replayed(),
        refused(400, "malformed-key", key=""),
        policy={"required": False},
        transactional=True,
    ),
]


def other(**send: Any) -> tuple[Step, ...]:
    """A key that was used; then with something else; then as it was."""
    return (fresh(), refused(422, "key-reused", **send), replayed())


def raw(text: str | bytes) -> dict[str, Any]:
    return {"body": text if isinstance(text, bytes) else text.encode()}


def pair(name: str, one: dict[str, Any], two: dict[str, Any], *, same: bool) -> Scenario:
    """Two requests under one key that mean the same, or do not."""
    second = replayed(**two) if same else refused(422, "key-reused", **two)
    return scenario(name, answers(), fresh(**one), second, replayed(**one), modes=(IdempotencyMode.ATOMIC,))


def unreadable(name: str, text: str | bytes, says: str, **send: Any) -> Scenario:
    """A body that cannot be compared leaves the key free for one that can."""
    step = refused(400, "malformed-body", says, **raw(text), **send)
    return scenario(name, answers(), step, fresh(), replayed(), modes=(IdempotencyMode.ATOMIC,))


FORM = "application/x-www-form-urlencoded"
DEEP = "[" * 10_000 + "]" * 10_000

CONTENT = [
    scenario("another body", answers(), *other(body={**BODY, "amount": "2.10"}), in_test_case=True, transactional=True),
    scenario("no body in place of one", answers(), *other(body=b"")),
    scenario("another query", answers(), *other(to="/things/?dry=1")),
    scenario("another URL argument", answers(), *other(to="/things/7/")),
    pair("members in another order", raw('{"a":1,"b":[1,2]}'), raw('{ "b": [1, 2],\n "a": 1}'), same=True),
    pair("a list in another order", raw("[1,2]"), raw("[2,1]"), same=False),
    pair("one number written in two ways", raw('{"n":1.0}'), raw('{"n":1e0}'), same=True),
    pair("an integer and a decimal", raw('{"n":1}'), raw('{"n":1.0}'), same=False),
    pair("2^53 and one more", raw('{"n":9007199254740992}'), raw('{"n":9007199254740993}'), same=False),
    pair(
        "decimals that a double cannot tell apart",
        raw('{"n":0.10000000000000000001}'),
        raw('{"n":0.1}'),
        same=False,
    ),
    pair("text in two escapes", raw('{"n":"\\u00e9"}'), raw('{"n":"é"}'), same=True),
    pair("a lone surrogate", raw('{"n":"\\ud800"}'), raw('{"n":"\\ud801"}'), same=False),
    pair(
        "parameters in another order",
        {"to": "/things/?a=1&b=2"},
        {"to": "/things/?b=2&a=1"},
        same=True,
    ),
    pair(
        "values of one parameter in another order",
        {"to": "/things/?a=&a=b&c="},
        {"to": "/things/?a=&b=c&b="},
        same=False,
    ),
    pair(
        "fields of a form in another order",
        {"content_type": FORM} | raw("a=1&b=2"),
        {"content_type": FORM} | raw("b=2&a=1"),
        same=True,
    ),
    pair(
        "another field of a form",
        {"content_type": FORM} | raw("a=1&b=2"),
        {"content_type": FORM} | raw("a=1&b=3"),
        same=False,
    ),
    pair(
        "a form and a document",
        {"content_type": FORM} | raw("a=1"),
        raw('{"a":"1"}'),
        same=False,
    ),
    unreadable("not JSON", '{"amount": 1', "not valid JSON"),
    unreadable("NaN", '{"amount": NaN}', "NaN"),
    unreadable("Infinity", '{"amount": -Infinity}', "Infinity"),
    unreadable("a member twice", '{"amount": 1, "amount": 100}', "same name"),
    unreadable("ten thousand levels", DEEP, "deep"),
    unreadable("not UTF-8", b'{"amount": "\xff"}', "UTF-8"),
    unreadable("a byte order mark", b"\xef\xbb\xbf{}", "byte order mark"),
    scenario(
        "a field that is declared volatile",
        answers(),
        fresh(body={"amount": 1, "sent_at": "noon"}),
        replayed(body={"amount": 1, "sent_at": "one"}),
        refused(422, "key-reused", body={"amount": 2, "sent_at": "noon"}),
        policy={"fingerprint": FingerprintRules(exclude=("sent_at",))},
    ),
    scenario(
        "a header that counts",
        answers(),
        fresh(headers={"X-Tenant": "one"}),
        replayed(headers={"X-Tenant": "one"}),
        refused(422, "key-reused", headers={"X-Tenant": "two"}),
        policy={"fingerprint": FingerprintRules(headers=("X-Tenant",))},
    ),
]


def by_tenant(request: Any) -> str | None:
    """A scope of the project's own. Works on a request of either framework."""
    tenant: str | None = request.headers.get("X-Tenant")
    return tenant


ISOLATION = [
    scenario(
        "one key of two users",
        answers(),
        fresh(user="ann"),
        fresh(user="ben"),
        replayed(user="ben"),
        in_test_case=True,
    ),
    scenario("one key on two endpoints", answers(), fresh(), fresh(to="/others/"), replayed(to="/others/")),
    scenario("one key for two methods", answers(), fresh(), fresh(method="PATCH"), replayed(method="PATCH")),
    scenario(
        "one key of two tenants",
        answers(),
        fresh(headers={"X-Tenant": "one"}),
        fresh(headers={"X-Tenant": "two"}),
        replayed(headers={"X-Tenant": "two"}),
        policy={"scope": by_tenant},
    ),
    scenario(
        "nobody is not everybody",
        answers(),
        refused(403, "anonymous-scope", user=None),
        refused(403, "anonymous-scope", user=None, headers={"X-Forwarded-For": "10.0.0.1"}),
        open=True,
    ),
    scenario(
        "nobody, with a scope of the project's own",
        answers(),
        fresh(user=None, headers={"X-Tenant": "one"}),
        replayed(user=None, headers={"X-Tenant": "one"}),
        refused(403, "anonymous-scope", user=None),
        policy={"scope": by_tenant},
        open=True,
    ),
    scenario(
        "every unsafe method that is asked for",
        answers(200),
        fresh(200, method="PUT"),
        replayed(200, method="PUT"),
        fresh(200, method="DELETE"),
        replayed(200, method="DELETE"),
        policy={"methods": ("PUT", "DELETE")},
    ),
    scenario(
        "methods that are not asked for",
        answers(),
        unprotected(method="PATCH"),
        unprotected(method="PATCH"),
        fresh(),
        policy={"methods": ("POST",)},
    ),
    scenario("reading", answers(200), unprotected(200, method="GET"), unprotected(200, method="GET")),
    scenario("reading with a malformed key", answers(200), unprotected(200, method="GET", key="")),
]

CORRECTED = {**BODY, "currency": "USD"}


def free(name: str, *does: Behaviour, status: int, **options: Any) -> Scenario:
    """The first answer leaves the key free: the corrected request, which is another one, runs under it."""
    return scenario(
        name,
        (*does, answers()),
        released(status),
        fresh(body=CORRECTED),
        replayed(body=CORRECTED),
        **options,
    )


RAISED: list[tuple[str, int, bool, Callable[[], BaseException]]] = [
    ("Http404", 404, False, Http404),
    ("PermissionDenied", 403, False, PermissionDenied),
    ("BadRequest", 400, False, BadRequest),
    ("RuntimeError", 500, False, RuntimeError),
    ("IntegrityError", 500, False, IntegrityError),
    ("ValidationError", 400, True, lambda: exceptions.ValidationError({"amount": "no"})),
    ("ParseError", 400, True, exceptions.ParseError),
    ("NotAuthenticated", 401, True, exceptions.NotAuthenticated),
    ("MethodNotAllowed", 405, True, lambda: exceptions.MethodNotAllowed("POST")),
    ("NotAcceptable", 406, True, exceptions.NotAcceptable),
    ("UnsupportedMediaType", 415, True, lambda: exceptions.UnsupportedMediaType("x/y")),
    ("Throttled", 429, True, lambda: exceptions.Throttled(wait=3)),
]
"""What is raised, the status that it comes to, whether only the REST framework knows that, and how it is made."""

OUTCOMES = [
    *(
        free(
            f"a returned {status}",
            answers(status),
            status=status,
            in_test_case=status in (400, 500),
            transactional=status in (400, 500),
        )
        for status in sorted(RELEASED_STATUSES | {500, 502, 503, 504})
    ),
    *(
        free(
            f"a raised {status}",
            raises(partial(api_exception, status)),
            status=status,
            rest_only=True,
            transactional=status in (412, 503),
        )
        for status in sorted(RELEASED_STATUSES | {500, 503})
    ),
    *(
        free(
            f"a raised {name}",
            raises(make),
            status=status,
            rest_only=rest_only,
            transactional=name in ("Http404", "RuntimeError", "IntegrityError", "ValidationError"),
            in_test_case=name in ("Http404", "RuntimeError", "ValidationError"),
        )
        for name, status, rest_only, make in RAISED
    ),
    scenario(
        "two wrong requests, then a right one",
        (answers(400), answers(404), answers()),
        released(400),
        released(404, body=CORRECTED),
        fresh(),
        replayed(),
        refused(422, "key-reused", body=CORRECTED),
        transactional=True,
    ),
]

BROKEN = [
    *(
        scenario(
            f"a success over a swallowed database error ({status})",
            (swallows_database_error(status), answers()),
            failed(500, "broken-transaction"),
            fresh(),
            replayed(),
            transactional=True,
            in_test_case=status == 201,
            needs_postgres=True,
        )
        for status in (200, 201, 303)
    ),
    scenario(
        "a refusal over a swallowed database error",
        (swallows_database_error(400), answers()),
        released(400),
        fresh(),
        transactional=True,
        needs_postgres=True,
    ),
    scenario(
        "a conflict that the database found, caught and returned",
        catches_integrity_error(409),
        undone(409),
        replayed(409),
        transactional=True,
        in_test_case=True,
        needs_postgres=True,
    ),
    scenario(
        "a conflict that was caught inside a savepoint",
        catches_in_savepoint,
        fresh(409),
        replayed(409),
        transactional=True,
        in_test_case=True,
    ),
    scenario(
        "a success that is marked for rollback",
        (marks_for_rollback(201), answers()),
        failed(500, "broken-transaction"),
        fresh(),
        transactional=True,
        in_test_case=True,
    ),
    scenario(
        "a decline that is marked for rollback",
        marks_for_rollback(402),
        undone(402),
        replayed(402),
        transactional=True,
        in_test_case=True,
    ),
]

SCENARIOS = [*REPLAYS, *KEYS, *CONTENT, *ISOLATION, *OUTCOMES, *BROKEN]
