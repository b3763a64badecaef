"""Policies: frozen, validated where they are written, completed by the settings."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta

import pytest

from django_idempotency import BodyCodec, FingerprintRules, IdempotencyMode, IdempotencyPolicy, OutcomeRules
from django_idempotency.core.policy import FIELD_VALIDATORS, PolicyError, ResolvedPolicy, declared

SECOND = timedelta(seconds=1)
DEFAULTS = {
    "required": True,
    "methods": frozenset({"POST"}),
    "mode": IdempotencyMode.ATOMIC,
    "fingerprint": FingerprintRules(),
    "lease": 30 * SECOND,
    "max_wait": SECOND,
    "retention": timedelta(days=1),
    "outcomes": OutcomeRules(),
    "max_response_bytes": 1000,
}


def by_tenant(request):
    return "tenant"


def test_every_field_has_a_validator_and_may_be_left_open():
    policy = IdempotencyPolicy()
    assert {each.name for each in fields(policy)} == set(FIELD_VALIDATORS)
    assert policy.set_fields() == {}


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("required", False, False),
        ("methods", ["post", "Delete"], frozenset({"POST", "DELETE"})),
        ("methods", (), frozenset()),
        ("mode", "leased", IdempotencyMode.LEASED),
        ("mode", IdempotencyMode.ATOMIC, IdempotencyMode.ATOMIC),
        ("scope", by_tenant, by_tenant),
        ("lease", SECOND, SECOND),
        ("max_wait", timedelta(milliseconds=1), timedelta(milliseconds=1)),
        ("retention", SECOND, SECOND),
        ("max_response_bytes", 0, 0),
        ("replay_headers", ["Location", "X-Id"], ("location", "x-id")),
        ("replay_headers", (), ()),
        ("using", "orders", "orders"),
        ("using", by_tenant, by_tenant),
        ("operation", "charge card", "charge card"),
    ],
)
def test_a_sound_value_is_kept_in_one_form(field, given, kept):
    assert getattr(IdempotencyPolicy(**{field: given}), field) == kept


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("required", 1, "required must be True or False"),
        ("methods", "POST", "must be a collection of HTTP methods"),
        ("methods", 7, "must be a collection of HTTP methods"),
        ("methods", ["POST", "GET"], "no effect on GET, which are safe"),
        ("methods", ["HEAD", "OPTIONS", "TRACE"], "HEAD, OPTIONS, TRACE"),
        ("methods", ["PSOT"], "unknown HTTP method PSOT"),
        ("mode", "phased?", "one of IdempotencyMode"),
        ("scope", "tenant", "must be a callable"),
        ("fingerprint", ("amount",), "must be a FingerprintRules"),
        ("lease", 30, "must be a timedelta"),
        ("lease", timedelta(milliseconds=999), "lease must be at least 1 s"),
        ("max_wait", 1.5, "must be a timedelta"),
        ("max_wait", timedelta(0), "max_wait must be at least 0.001 s"),
        ("max_wait", timedelta(microseconds=999), "at least 0.001 s"),
        ("max_wait", timedelta(seconds=-1), "at least 0.001 s"),
        ("retention", 86400, "must be a timedelta"),
        ("retention", timedelta(0), "retention must be at least 1 s"),
        ("retention", timedelta(days=36_500, seconds=1), "retention must be at most 36500 days"),
        ("lease", timedelta.max, "lease must be at most 36500 days"),
        ("max_wait", timedelta.max, "max_wait must be at most 36500 days"),
        ("outcomes", {402}, "must be a OutcomeRules"),
        ("max_response_bytes", -1, "0 or more"),
        ("max_response_bytes", True, "0 or more"),
        ("max_response_bytes", 10.5, "0 or more"),
        ("replay_headers", "Location", "must be a collection of header names"),
        ("replay_headers", 3, "must be a collection of header names"),
        ("using", "", "must be a database alias or a callable"),
        ("using", 5, "must be a database alias or a callable"),
        ("operation", "", "non-empty printable string"),
        ("operation", "two\nlines", "non-empty printable string"),
        ("operation", 5, "non-empty printable string"),
        ("body_codec", (str, bytes), "must be a BodyCodec"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_written(field, value, message):
    with pytest.raises(PolicyError, match=message) as refused:
        IdempotencyPolicy(**{field: value})
    assert str(refused.value).startswith(field), "the message names the field"


def test_fields_are_keywords_so_that_no_two_durations_are_confused():
    with pytest.raises(TypeError, match="positional"):
        IdempotencyPolicy(True)


def test_it_cannot_be_changed_afterwards():
    with pytest.raises(FrozenInstanceError):
        IdempotencyPolicy().required = False


def test_it_can_be_a_key_and_travel_between_processes():
    policy = IdempotencyPolicy(lease=SECOND, scope=by_tenant, methods=["POST"])
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert len({policy, IdempotencyPolicy(lease=SECOND, scope=by_tenant, methods=["post"])}) == 1


@pytest.mark.parametrize("pair", [(None, bytes), (bytes, None), ("zlib", bytes)])
def test_a_codec_needs_both_directions(pair):
    with pytest.raises(PolicyError, match="pack and unpack"):
        BodyCodec(*pair)


def test_an_override_takes_only_what_it_sets():
    base = IdempotencyPolicy(lease=SECOND, required=False, mode="leased")
    over = IdempotencyPolicy(required=True, lease=2 * SECOND)
    merged = base.overridden(over)
    assert (merged.lease, merged.required, merged.mode) == (2 * SECOND, True, IdempotencyMode.LEASED)
    assert base.lease == SECOND, "the base is untouched"


def test_resolving_fills_what_is_open_and_leaves_nothing_else_open():
    resolved = IdempotencyPolicy(lease=2 * SECOND, required=False).resolved(DEFAULTS, max_retention=timedelta(days=7))
    assert isinstance(resolved, ResolvedPolicy)
    assert resolved.lease == 2 * SECOND
    assert resolved.required is False, "False is a choice, not an open field"
    assert resolved.retention == timedelta(days=1)
    assert (resolved.scope, resolved.using, resolved.operation, resolved.body_codec) == (None,) * 4


def test_a_retention_beyond_the_longest_is_refused_and_says_what_to_do():
    policy = IdempotencyPolicy(retention=timedelta(days=8))
    with pytest.raises(PolicyError, match=r"MAX_RETENTION=7 days.*Raise IDEMPOTENCY"):
        policy.resolved(DEFAULTS, max_retention=timedelta(days=7))
    assert policy.resolved(DEFAULTS, max_retention=timedelta(days=8)).retention == timedelta(days=8)


def test_a_decorator_takes_a_policy_or_fields_or_both_where_fields_win():
    base = IdempotencyPolicy(lease=SECOND, required=False)
    assert declared(None, {}) == IdempotencyPolicy()
    assert declared(base, {}) == base
    assert declared(None, {"lease": SECOND}) == IdempotencyPolicy(lease=SECOND)
    assert declared(base, {"lease": 2 * SECOND}) == IdempotencyPolicy(lease=2 * SECOND, required=False)


@pytest.mark.parametrize(
    ("field", "hint"), [("maxwait", "Did you mean 'max_wait'"), ("leese", "'lease'"), ("zzz", "Known: required, ")]
)
def test_an_unknown_field_is_answered_with_the_nearest(field, hint):
    with pytest.raises(PolicyError, match=f"no field '{field}'.*{hint}"):
        declared(None, {field: 1})


def test_fields_of_a_decorator_are_validated_as_well():
    with pytest.raises(PolicyError, match="lease must be at least"):
        declared(None, {"lease": timedelta(0)})
