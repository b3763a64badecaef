"""``manage.py idempotency show | release | forget``: what somebody does who has a customer on the telephone."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections

from django_idempotency.core.errors import OutcomeUnknown
from django_idempotency.core.intervals import Interval, fill
from django_idempotency.core.states import RecordedResponse, Verdict
from django_idempotency.management.databases import FOR_A_PERSON
from django_idempotency.models import Tombstone
from django_idempotency.operations import Answer, Op
from django_idempotency.storage import partitions, sections
from django_idempotency.storage.transactions import own_connection
from tests.support.keys import CREATED, Keys, new_claim, rival_of
from tests.support.workshops import on_both_stores

pytestmark = on_both_stores

SECRET = "4111-1111"


def command(*arguments):
    """What it prints, and what it fails with."""
    out = StringIO()
    try:
        call_command("idempotency", *arguments, stdout=out, stderr=StringIO())
    except CommandError as failure:
        return out.getvalue(), failure
    return out.getvalue(), None


def as_json(*arguments):
    out, failure = command(*arguments, "--json")
    return json.loads(out), failure


@pytest.fixture
def keys(backend, settings, monkeypatch):
    keys = backend.session()
    settings.IDEMPOTENCY = {"DATABASES": (keys.alias,)}
    # So small that a handful of records are in many of them.
    monkeypatch.setattr(sections, "_BLOCKS", 1)
    monkeypatch.setattr(sections, "_ROWS", 2)
    return keys


@pytest.fixture
def person():
    """Somebody whom no other test knows."""
    return f"auth.user:{uuid4().int}"


def some(keys, scope, number):
    """Sealed records, of which four fill a page: too large for more, too small to lie elsewhere, and of no pattern."""
    answers = RecordedResponse(201, CREATED.headers, os.urandom(1700))
    return [keys.sealed(new_claim(scope=scope), answers) for _ in range(number)]


def called(op: Op) -> Answer:
    op.phase("reserve", lambda: SECRET)
    answer = op.call("send", _no_answer)
    return op.finish(lambda: answer)


def _no_answer(key):
    raise TimeoutError("silence")


@pytest.fixture
def held(workshop, keys):
    """The claim of an operation whose call had no answer, an hour ago."""
    operation = workshop.declare(called)
    with pytest.raises(OutcomeUnknown):
        workshop.run(operation)
    workshop.lapse()
    return workshop.row()


# --- show ---


def test_a_claim_in_flight_is_found_by_its_key_alone(keys):
    claim = keys.own(new_claim())
    document, failure = as_json("show", claim.key)
    assert failure is None
    (database,) = document["databases"]
    (record,) = database["records"]
    assert (database["database"], database["error"]) == (keys.alias, None)
    assert (record["id"], record["scope"], record["key"]) == (str(claim.id), claim.scope, claim.key)
    assert (record["state"], record["now"], record["mode"], record["attempts"]) == (
        "in_flight", "in flight", "leased", 1,
    )  # fmt: skip
    assert 25 < record["lease_left"] <= 30
    assert 0 <= record["age"] < 5


@pytest.mark.parametrize("form", ["{}", '"{}"', ' "{}";v=1'])
def test_the_key_may_be_written_as_in_the_header(keys, form):
    claim = keys.own(new_claim(key=f"order-{uuid4()}"))
    assert f"{claim.id} in flight" in command("show", form.format(claim.key))[0]


def test_what_is_no_key(keys):
    out, failure = command("show", "naïve")
    assert out == ""
    assert "neither a key nor an id" in str(failure)
    assert failure.returncode == 1


def test_a_sealed_record_is_found_in_whatever_part_of_the_table_it_lies(keys, person):
    records = some(keys, person, 12)
    for claim in (records[0], records[6], records[-1]):
        out, failure = command("show", claim.key)
        assert failure is None
        assert out.startswith(f"{keys.alias}: {claim.id} sealed\n")
        assert "response     201, 1700 bytes as stored" in out
        assert "kept         for 59 min" in out


def test_one_that_has_expired_is_found_too(keys):
    claim = keys.expired(new_claim())
    assert as_json("show", claim.key)[0]["databases"][0]["records"][0]["now"] == "expired"


def test_all_whose_key_it_is_are_told(keys):
    key = f"1-{uuid4()}"
    claims = [keys.sealed(new_claim(key=key, scope="a shop:POST")), keys.own(new_claim(key=key, scope="b shop:POST"))]
    document, _ = as_json("show", key)
    assert {record["id"] for record in document["databases"][0]["records"]} == {str(claim.id) for claim in claims}


def test_with_a_scope_it_is_one_look_up(keys, monkeypatch):
    key = f"1-{uuid4()}"
    wanted, _ = (keys.sealed(new_claim(key=key, scope=f"{whose} shop:POST")) for whose in "ab")
    monkeypatch.setattr(sections, "sections", lambda connection: pytest.fail("it searched"))
    document, _ = as_json("show", key, "--scope", wanted.scope)
    assert [record["id"] for record in document["databases"][0]["records"]] == [str(wanted.id)]
    assert command("show", key, "--scope", "c shop:POST")[1].returncode == FOR_A_PERSON


def test_an_id_is_one_look_up_as_well(keys, monkeypatch):
    claim = keys.sealed(new_claim())
    monkeypatch.setattr(sections, "sections", lambda connection: pytest.fail("it searched"))
    assert str(claim.id) in command("show", str(claim.id))[0]


@pytest.mark.parametrize("named", ["by its id", "by its scope", "by its key alone"])
def test_one_that_has_gone_is_known_by_its_tombstone(keys, named):
    claim, until = new_claim(), datetime.now(timezone.utc) + timedelta(days=3)
    bury(keys.alias, claim.id, until)
    bury(keys.alias, uuid4(), until)
    arguments = {"by its id": [str(claim.id)], "by its scope": [claim.key, "--scope", claim.scope]}
    document, failure = as_json("show", *arguments.get(named, [claim.key]))
    (database,) = document["databases"]
    if named in arguments:
        assert (database["buried"]["id"], failure) == (str(claim.id), None)
        assert f"refused until {until:%b}" in command("show", *arguments[named])[0]
    else:
        assert (database["buried"], failure.returncode) == (None, FOR_A_PERSON)


def test_a_tombstone_whose_time_is_over_is_none(keys):
    claim = new_claim()
    bury(keys.alias, claim.id, datetime.now(timezone.utc) - timedelta(minutes=1))
    assert command("show", str(claim.id))[1].returncode == FOR_A_PERSON


def bury(alias, number, until):
    if connections[alias].vendor == "postgresql":
        day = Interval(until - timedelta(hours=1), until + timedelta(hours=1))
        with own_connection(alias) as connection, partitions.creating(connection):
            for each in fill(partitions.taken(connection, partitions.TOMBSTONES), day, timedelta(days=1)):
                partitions.create_leaves(connection, [each], partitions.TOMBSTONES)
    Tombstone.objects.using(alias).create(id=number, fingerprint=b"", fingerprint_scheme=1, forget_at=until)


def test_there_is_none(keys):
    document, failure = as_json("show", str(uuid4()))
    assert document["databases"] == [{"database": keys.alias, "records": [], "buried": None, "error": None}]
    assert failure.returncode == FOR_A_PERSON
    assert str(failure).startswith("There is no such record.")


def test_the_steps_are_told_and_their_results_are_not(held):
    out, _ = command("show", str(held.pk))
    assert "held" in out.splitlines()[0]
    assert "step         reserve: done" in out
    assert "step         send: no answer, sent 1 time, " in out
    assert "held because" in out
    document, _ = as_json("show", held.key)
    (record,) = document["databases"][0]["records"]
    assert [(step["name"], step["kind"], step["done"]) for step in record["steps"]] == [
        ("reserve", "phase", True), ("send", "call", False),
    ]  # fmt: skip
    assert SECRET not in out + json.dumps(document)


def test_a_body_is_printed_on_request_only(keys):
    claim = keys.sealed(new_claim(), RecordedResponse(200, (("X-Secret", SECRET),), f'{{"card": "{SECRET}"}}'.encode()))
    assert SECRET not in "".join(command("show", claim.key)[0] + json.dumps(as_json("show", claim.key)[0]))
    assert command("show", claim.key, "--body")[0].endswith(f'\n{{"card": "{SECRET}"}}\n')
    assert as_json("show", claim.key, "--body")[0]["databases"][0]["records"][0]["body"] == f'{{"card": "{SECRET}"}}'


def test_a_body_that_is_no_text(keys):
    claim = keys.sealed(new_claim(), RecordedResponse(200, (), b"\x00\xff"))
    (record,) = as_json("show", claim.key, "--body")[0]["databases"][0]["records"]
    assert record["body_base64"] == "AP8="


# --- release ---


def free(keys, claim):
    return keys.store.find(claim.id) is None


def test_a_claim_whose_owner_is_gone_is_released(keys, caplog):
    claim = keys.lapsed(new_claim())
    with caplog.at_level(logging.WARNING, "django_idempotency"):
        out, failure = command("release", claim.key, "--reason", "Ticket 7.")
    assert (out, failure) == (f"{keys.alias}: {claim.id} is released: {claim.scope}\n", None)
    assert free(keys, claim)
    assert f"{claim.id} is released by command: Ticket 7." in caplog.messages
    assert claim.key not in caplog.text


def test_a_dry_run_asks_the_same_rule_and_releases_nothing(keys, held, caplog):
    claim = keys.lapsed(new_claim())
    assert command("release", claim.key, "--dry-run")[0] == (
        f"{keys.alias}: {claim.id} would be released: {claim.scope}\n"
    )
    assert not free(keys, claim)
    document, failure = as_json("release", held.key, "--dry-run")
    assert (document["released"], document["would_release"]) == (False, False)
    assert (document["refusal"], document["dry_run"]) == ("begun", True)
    assert failure.returncode == 1
    document, failure = as_json("release", held.key, "--dry-run", "--whatever-happened", "--reason", "it did not")
    assert (document["released"], document["would_release"], failure) == (False, True, None)
    assert keys.store.find(held.pk) is not None
    assert "released" not in caplog.text


def test_nobody_takes_a_key_from_its_owner(keys):
    claim = keys.own(new_claim())
    _, failure = command("release", claim.key, "--whatever-happened", "--reason", "now")
    assert "is not released: somebody works under it (lease left: 29 s)" in str(failure)
    assert not free(keys, claim)


def test_where_something_has_begun_it_takes_a_reason(held, keys):
    document, failure = as_json("release", held.key)
    assert document["refusal"] == "begun"
    assert "--whatever-happened --reason" in str(failure)
    assert keys.store.find(held.pk) is not None
    for empty in ([], ["--reason", " "]):
        assert "needs a --reason" in str(command("release", held.key, "--whatever-happened", *empty)[1])
    document, failure = as_json("release", held.key, "--whatever-happened", "--reason", "The processor knows nothing.")
    assert (document["released"], document["would_release"]) == (True, False)
    assert (document["refusal"], failure) == (None, None)
    assert keys.store.find(held.pk) is None


def test_what_is_sealed_stays(keys):
    claim = keys.sealed(new_claim())
    document, failure = as_json("release", str(claim.id))
    assert document["refusal"] == "sealed"
    assert "it has its answer" in str(failure)
    assert keys.store.find(claim.id).response == CREATED


def test_by_the_key_alone_sealed_records_are_not_searched(keys):
    claim = keys.sealed(new_claim())
    _, failure = command("release", claim.key)
    assert "No claim is in flight" in str(failure)
    assert "show" in str(failure)


def test_a_key_of_several_has_to_be_told_apart(keys):
    key = f"1-{uuid4()}"
    mine, other = (keys.lapsed(new_claim(key=key, scope=f"{whose} shop:POST")) for whose in "ab")
    out, failure = command("release", key)
    assert out == ""
    assert "--scope" in str(failure)
    assert all(f"{keys.alias}: {claim.id} {claim.scope}" in str(failure) for claim in (mine, other))
    assert command("release", key, "--scope", mine.scope)[1] is None
    assert (free(keys, mine), free(keys, other)) == (True, False)


def test_one_that_came_alive_meanwhile_is_left_alone(keys, rival, monkeypatch):
    """Between what was found and the release, a retry took over."""
    from django_idempotency.management import release

    claim = keys.lapsed(new_claim())

    def later(alias, seen, note, **how):
        assert rival.take_over(claim, rival_of(claim))
        return carry_out(alias, seen, note, **how)

    carry_out = release.release_by_person
    monkeypatch.setattr(release, "release_by_person", later)
    document, _ = as_json("release", claim.key)
    assert document["refusal"] == "alive"
    assert not free(keys, claim)


# --- forget ---


def test_an_answer_that_comes_while_others_are_forgotten_is_told_of(keys, person, monkeypatch):
    """It may have come too late for the part that it lies in, and too early for the look at what is in flight."""
    some(keys, f"{person} shop.charge:POST", 3)
    claim = keys.own(new_claim(scope=f"{person} shop.charge:POST"))
    parts = sections.sections

    def sealed_meanwhile(connection):
        found = parts(connection)
        keys.seal(claim)
        return found[:1]

    monkeypatch.setattr(sections, "sections", sealed_meanwhile)
    document, _ = as_json("forget", "--scope", person)
    assert document["databases"][0]["in_flight"] == [str(claim.id)]


def response_of(keys, claim):
    return keys.store.find(claim.id).response


def test_a_persons_answers_are_forgotten_and_no_others(keys, person, caplog):
    mine = [*some(keys, f"{person} shop.charge:POST", 9), *some(keys, f"{person} shop.refund:POST", 2)]
    others = [*some(keys, f"{person}0 shop.charge:POST", 2), *some(keys, f"x{person} shop.charge:POST", 2)]
    before = [keys.store.find(claim.id) for claim in mine]
    with caplog.at_level(logging.WARNING, "django_idempotency"):
        out, failure = command("forget", "--scope", person)
    assert (out, failure) == (f"{keys.alias}: the answers of 11 records are forgotten\n", None)
    for claim, record in zip(mine, before, strict=True):
        assert keys.store.find(claim.id) == replace(record, response=RecordedResponse(201, (), None))
    assert all(response_of(keys, claim).body for claim in others)
    assert person not in caplog.text
    assert "The answers of 11 records" in caplog.text


def test_a_whole_scope_is_one_operation(keys, person):
    charge, refund = (some(keys, f"{person} shop.{what}:POST", 1)[0] for what in ("charge", "refund"))
    assert as_json("forget", "--scope", charge.scope)[0]["databases"][0]["forgotten"] == 1
    assert (response_of(keys, charge).body, bool(response_of(keys, refund).body)) == (None, True)


def test_the_key_stays_used(keys, person):
    (claim,) = some(keys, f"{person} shop.charge:POST", 1)
    command("forget", "--scope", person)
    answer = keys.claim(rival_of(claim))
    assert answer.verdict is Verdict.FOUND
    assert answer.record.fingerprint == claim.fingerprint


def test_it_may_be_said_twice(keys, person):
    some(keys, f"{person} shop.charge:POST", 3)
    for forgotten in (3, 0):
        assert as_json("forget", "--scope", person)[0]["databases"][0]["forgotten"] == forgotten


def test_a_dry_run_says_the_same_and_changes_nothing(keys, person):
    claims = some(keys, f"{person} shop.charge:POST", 5)
    out, _ = command("forget", "--scope", person, "--dry-run")
    assert out == f"{keys.alias}: the answers of 5 records would be forgotten\n"
    assert all(response_of(keys, claim).body for claim in claims)


def test_what_is_in_flight_is_told_and_not_touched(keys, person):
    claim = keys.own(new_claim(scope=f"{person} shop.charge:POST"))
    document, failure = as_json("forget", "--scope", person)
    assert document["databases"] == [
        {"database": keys.alias, "forgotten": 0, "in_flight": [str(claim.id)], "error": None}
    ]
    assert failure is None
    assert "1 in flight, of which the answers are kept" in command("forget", "--scope", person)[0]
    assert keys.seal(claim).value == "sealed"


def test_nobody_is_everybody(keys):
    assert "nobody is everybody" in str(command("forget", "--scope", " ")[1])
    assert command("forget")[1] is not None


def test_letters_that_a_pattern_would_read_otherwise(keys, person):
    """``_`` and ``%`` of LIKE; upper and lower case, which it does not tell apart on SQLite."""
    (claim,) = some(keys, f"{person}-ab shop:POST", 1)
    for other in (f"{person}-a_", f"{person}-%", f"{person.upper()}-ab"):
        command("forget", "--scope", other)
    assert response_of(keys, claim).body


def test_one_that_is_interrupted_can_go_on(keys, person, monkeypatch):
    claims = some(keys, f"{person} shop.charge:POST", 12)
    forget, done = sections.forget, []

    def interrupted(connection, section, scope):
        if sum(done) >= 2:
            raise KeyboardInterrupt
        done.append(forget(connection, section, scope))
        return done[-1]

    monkeypatch.setattr(sections, "forget", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command("forget", "--scope", person)
    monkeypatch.setattr(sections, "forget", forget)
    left = [claim for claim in claims if response_of(keys, claim).body]
    assert len(left) == 12 - sum(done) < 12
    assert as_json("forget", "--scope", person)[0]["databases"][0]["forgotten"] == len(left)


def test_a_database_that_fails_is_told_and_the_status_says_so(keys, settings):
    settings.IDEMPOTENCY = {"DATABASES": (keys.alias, "default")}
    document, failure = as_json("show", str(uuid4()), "--database", keys.alias)
    assert failure.returncode == FOR_A_PERSON
    assert [each["database"] for each in document["databases"]] == [keys.alias]
    assert "not in IDEMPOTENCY" in str(command("show", "x", "--database", "elsewhere")[1])


def test_the_same_session_works_on_after_it(keys):
    """Nothing is left open or changed by what a command did."""
    command("show", str(uuid4()))
    assert isinstance(keys, Keys)
    assert keys.claim(new_claim()).verdict is Verdict.CLAIMED
