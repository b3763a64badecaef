"""One line for each decision, with the record's id, and nothing about anybody."""

from __future__ import annotations

import logging
import re

import pytest

from django_idempotency import OutcomeRules
from django_idempotency.models import IdempotencyKey

from .site import Handling
from .table import answers, api_exception, catches_integrity_error, raises, swallows_database_error
from .ways import WAYS, every_way_and_mode

pytestmark = pytest.mark.usefixtures("committed")

KEY = "key-of-ann-4711"
BODY = {"card": "4111-1111-1111-1111"}


@pytest.fixture
def lines(caplog):
    """What was logged since the last look, as it would be written."""
    caplog.set_level(logging.INFO, logger="django_idempotency")
    formatter = logging.Formatter("%(levelname)s %(message)s")

    def take():
        taken = [formatter.format(record) for record in caplog.records if record.name == "django_idempotency"]
        caplog.clear()
        return taken

    return take


def assert_about_nobody(lines):
    for line in lines:
        # Where there is no record, the operation is named: it is the project's, and a name of views here.
        line = re.sub(r"^INFO A request to tests\.scenarios\.\S+:POST is", "", line)  # noqa: PLW2901
        for personal in (KEY, "4111-1111", "ann", "auth.user", "things", "Things", "127.0.0.1"):
            assert personal not in line, line


@every_way_and_mode
def test_a_line_for_each_decision(site, lines, way, mode):
    site.add(way(Handling(answers()), {"mode": mode}))
    site.client("ann")

    site.send(KEY, BODY)
    record = str(IdempotencyKey.objects.get().pk)
    assert lines() == [f"INFO {record} is claimed.", f"INFO {record} is sealed with 201."]
    site.send(KEY, BODY)
    assert lines() == [f"INFO {record} is replayed."]
    site.send(KEY, {"other": 1})
    (refused,) = lines()
    assert refused.startswith(f"INFO {record} is refused")


@every_way_and_mode
def test_a_release_says_so(site, lines, way, mode):
    site.add(way(Handling(answers(400), answers(500), answers()), {"mode": mode}))
    for _ in range(2):
        site.send(KEY, BODY)
        claimed, released = lines()
        record = claimed.split()[1]
        assert (claimed, released.split()[:4]) == (f"INFO {record} is claimed.", ["INFO", record, "is", "released."])
        assert_about_nobody([claimed, released])


@pytest.mark.parametrize(
    "behave",
    [
        answers(),
        answers(400),
        swallows_database_error(201),
        catches_integrity_error(409),
        raises(lambda: api_exception(402)),
        raises(RuntimeError),
    ],
    ids=["success", "refusal", "swallowed error", "conflict", "decline", "failure"],
)
@pytest.mark.parametrize("way", ["viewset", "function"])
def test_nobody_is_spoken_of(site, lines, mode, way, behave):
    site.add(WAYS[way](Handling(behave), {"mode": mode}))
    for body in (BODY, BODY, {"other": 1}):
        site.send(KEY, body)
    for key in ("", KEY * 30, "ann,ann"):
        site.send(key, BODY)
    site.send(KEY, b'{"card": "4111-1111-1111-1111", "card": NaN')
    said = lines()
    assert said
    assert_about_nobody(said)


def test_requests_that_no_key_is_looked_at_for_are_silent(site, lines):
    site.add(WAYS["viewset"](Handling(answers()), {"required": False}))
    site.send(None)
    site.send(method="GET")
    assert lines() == []


def fails(*_):
    raise LookupError


FAILURES = {"using": {"using": fails}, "outcomes": {"outcomes": OutcomeRules(decide=fails)}, "scope": {"scope": fails}}


@every_way_and_mode
@pytest.mark.parametrize("terms", FAILURES.values(), ids=FAILURES)
def test_reports_of_errors_that_show_local_variables_show_no_body(site, way, mode, terms):
    site.add(way(Handling(answers()), {"mode": mode, **terms}))
    site.client("ann").raise_request_exception = True
    with pytest.raises(LookupError) as raised:
        site.send(KEY, BODY)
    ours = [entry for entry in raised.traceback if "django_idempotency" in str(entry.path)]
    assert ours
    for entry in ours:
        for name, value in entry.frame.f_locals.items():
            assert "4111-1111" not in repr(value), (entry, name)
