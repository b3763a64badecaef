"""``settings.IDEMPOTENCY``: read late, checked whole, and answered with the nearest right name."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_idempotency import FingerprintRules, IdempotencyMode, IdempotencyPolicy, OutcomeRules
from django_idempotency.conf import SETTINGS, current, problems
from django_idempotency.core.policy import ResolvedPolicy

DAY = timedelta(days=1)


@pytest.fixture
def configure(settings):
    """Replace the whole of IDEMPOTENCY."""

    def replace(value):
        settings.IDEMPOTENCY = value

    return replace


def messages():
    return [message for message, _ in problems()]


def test_every_setting_has_a_default_that_is_sound_and_a_line_of_help(configure):
    configure({})
    assert problems() == []
    for name, setting in SETTINGS.items():
        assert name.isupper()
        assert setting.help.endswith(".")
        if setting.default is not None:
            assert setting.validate(name, setting.default) == setting.default


def test_a_project_without_the_setting_has_the_defaults(settings):
    del settings.IDEMPOTENCY
    assert problems() == []
    expected = {
        "REQUIRED": True,
        "METHODS": {"POST", "PATCH"},
        "MODE": IdempotencyMode.ATOMIC,
        "LEASE": timedelta(seconds=30),
        "MAX_WAIT": timedelta(seconds=1.5),
        "RETENTION": DAY,
        "MAX_RETENTION": 7 * DAY,
        "MAX_RESPONSE_BYTES": 2**20,
        "HEADER": "Idempotency-Key",
        "DATABASES": ("default",),
        "USING": None,
        "FAILPOINTS_ENABLED": False,
    }
    assert {name: getattr(current(), name) for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RETENSION", "Did you mean 'RETENTION'?"),
        ("retention", "Did you mean 'RETENTION'?"),
        ("MAXWAIT", "Did you mean 'MAX_WAIT'?"),
        ("HEADER_NAME", "Did you mean 'HEADER'?"),
        ("DATABASE", "Did you mean 'DATABASES'?"),
        ("ZZZ", "Known: BODY_CODEC, COUNTS, "),
        (5, "Known: BODY_CODEC, COUNTS, "),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_name(configure, name, hint):
    configure({name: 1})
    ((message, found_hint),) = problems()
    assert repr(name) in message
    assert found_hint.startswith(hint)
    with pytest.raises(ImproperlyConfigured, match="unknown key"):
        _ = current().REQUIRED


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("REQUIRED", "yes", "must be True or False"),
        ("REQUIRED", None, "must be True or False"),
        ("METHODS", "POST", "must be a collection"),
        ("METHODS", ["GET"], "safe to repeat"),
        ("MODE", "eventually", "one of IdempotencyMode"),
        ("SCOPE", "user", "must be a callable"),
        ("FINGERPRINT", ["amount"], "must be a FingerprintRules"),
        ("LEASE", 30, "must be a timedelta"),
        ("LEASE", timedelta(0), "at least 1 s"),
        ("MAX_WAIT", timedelta(0), "at least 0.001 s"),
        ("RETENTION", timedelta(0), "at least 1 s"),
        ("RETENTION", None, "must be a timedelta"),
        ("MAX_RETENTION", 7, "must be a timedelta"),
        ("OUTCOMES", {}, "must be a OutcomeRules"),
        ("MAX_RESPONSE_BYTES", "1M", "number of bytes"),
        ("REPLAY_HEADERS", "Location", "collection of header names"),
        ("BODY_CODEC", bytes, "must be a BodyCodec"),
        ("USING", 5, "database alias"),
        ("DATABASES", "default", "collection of database aliases"),
        ("DATABASES", 5, "collection of database aliases"),
        ("DATABASES", [], "nothing"),
        ("DATABASES", ["default", "nowhere"], "nowhere"),
        ("HEADER", "", "non-empty"),
        ("HEADER", "Idempotency Key", "letters, digits and hyphens"),
        ("HEADER", "Schlüssel", "letters, digits and hyphens"),
        ("HEADER", "X_Key", "letters, digits and hyphens"),
        ("STRICT_KEYS", 1, "must be True or False"),
        ("REPLAYED_HEADER", "a:b", "letters, digits and hyphens"),
        ("PROBLEM_BASE_URI", "", "non-empty"),
        ("RENEWAL_CAP", 900, "must be a timedelta"),
        ("FAILPOINTS_ENABLED", "1", "must be True or False"),
    ],
)
def test_a_wrong_value_names_its_key_and_nothing_runs_under_it(configure, name, value, message):
    configure({name: value})
    ((found, hint),) = problems()
    assert found.startswith(f"IDEMPOTENCY['{name}']")
    assert message in found
    assert hint == SETTINGS[name].help
    with pytest.raises(ImproperlyConfigured, match="IDEMPOTENCY"):
        _ = current().REQUIRED


def test_all_faults_are_told_at_once(configure):
    configure({"LEESE": 1, "MODE": "x", "REQUIRED": "x"})
    assert len(problems()) == 3


@pytest.mark.parametrize("name", ["SCOPE", "REPLAY_HEADERS", "USING", "BODY_CODEC"])
def test_none_is_a_value_where_it_is_the_default(configure, name):
    configure({name: None})
    assert problems() == []
    assert getattr(current(), name) is None


@pytest.mark.parametrize("value", [None, [], "LEASE", ("LEASE",)])
def test_anything_but_a_dictionary_is_refused(configure, value):
    configure(value)
    assert messages() == ["IDEMPOTENCY must be a dictionary."]
    with pytest.raises(ImproperlyConfigured, match=type(value).__name__):
        current()


@pytest.mark.parametrize(
    "configured",
    [
        {"RETENTION": 8 * DAY},
        {"MAX_RETENTION": timedelta(hours=1)},
        {"RETENTION": 3 * DAY, "MAX_RETENTION": 2 * DAY},
    ],
)
def test_the_usual_retention_cannot_exceed_the_longest(configure, configured):
    configure(configured)
    ((message, hint),) = problems()
    assert "exceeds MAX_RETENTION" in message
    assert hint == "Raise MAX_RETENTION."


def test_values_are_brought_into_one_form(configure):
    configure({"METHODS": ["post"], "MODE": "leased", "REPLAY_HEADERS": ["Location"], "DATABASES": ["default"]})
    resolved = current().resolve(IdempotencyPolicy())
    assert resolved.methods == {"POST"}
    assert resolved.mode is IdempotencyMode.LEASED
    assert resolved.replay_headers == ("location",)
    assert current().DATABASES == ("default",)


def test_override_settings_is_noticed_and_forgotten(configure):
    configure({"HEADER": "X-One"})
    assert current().HEADER == "X-One"
    with override_settings(IDEMPOTENCY={"HEADER": "X-Two"}):
        assert current().HEADER == "X-Two"
        with override_settings(IDEMPOTENCY={}):
            assert current().HEADER == "Idempotency-Key"
    assert current().HEADER == "X-One"


def test_other_settings_do_not_cost_a_new_reading(configure):
    configure({})
    before = current()
    with override_settings(DEBUG=True):
        assert current() is before


def test_a_setting_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no IDEMPOTENCY setting 'LEESE'"):
        _ = current().LEESE


def test_a_policy_is_completed_field_by_field(configure):
    rules = OutcomeRules()
    configure({"LEASE": timedelta(seconds=5), "OUTCOMES": rules, "USING": "default", "REQUIRED": False})
    resolved = current().resolve(IdempotencyPolicy(max_wait=timedelta(seconds=2), required=True))
    assert isinstance(resolved, ResolvedPolicy)
    assert resolved.lease == timedelta(seconds=5)
    assert resolved.max_wait == timedelta(seconds=2)
    assert resolved.required is True
    assert resolved.outcomes is rules
    assert resolved.using == "default"
    assert resolved.fingerprint == FingerprintRules()
    assert resolved.operation is None


def test_a_policy_is_completed_once(configure):
    configure({})
    policy = IdempotencyPolicy(lease=timedelta(seconds=5))
    assert current().resolve(policy) is current().resolve(IdempotencyPolicy(lease=timedelta(seconds=5)))


def test_changed_settings_complete_a_known_policy_anew(configure):
    policy = IdempotencyPolicy()
    configure({"LEASE": timedelta(seconds=5)})
    assert current().resolve(policy).lease == timedelta(seconds=5)
    configure({"LEASE": timedelta(seconds=6)})
    assert current().resolve(policy).lease == timedelta(seconds=6)


def test_a_policy_that_keeps_longer_than_the_longest_is_refused(configure):
    configure({"MAX_RETENTION": 2 * DAY})
    with pytest.raises(ImproperlyConfigured, match="exceeds MAX_RETENTION"):
        current().resolve(IdempotencyPolicy(retention=3 * DAY))
