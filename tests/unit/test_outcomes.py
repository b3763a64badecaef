"""Which outcomes are recorded, and which leave the key free."""

from __future__ import annotations

import pytest

from django_idempotency import Decision, OutcomeRules
from django_idempotency.core.outcomes import RELEASED_STATUSES

SEAL, RELEASE = Decision.SEAL, Decision.RELEASE


class Declined(Exception):
    status_code = 402


class Invalid(Exception):
    status_code = 400


class HardDeclined(Declined):
    pass


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 301, 303, 307, 402, 409, 410, 418, 422, 423, 424, 451])
def test_successes_redirects_and_business_errors_are_recorded(status):
    assert OutcomeRules().decision(status) is SEAL


@pytest.mark.parametrize("status", [*sorted(RELEASED_STATUSES), 500, 501, 502, 503, 504, 599])
def test_what_a_later_request_can_turn_into_another_answer_leaves_the_key_free(status):
    assert OutcomeRules().decision(status) is RELEASE


def test_the_released_statuses_are_those_that_the_documentation_lists():
    assert {400, 401, 403, 404, 405, 406, 408, 412, 413, 415, 425, 428, 429, 431} == RELEASED_STATUSES


def test_a_raised_error_is_judged_by_its_own_status_whatever_it_is_rendered_as():
    rules = OutcomeRules()
    assert rules.decision(422, Invalid()) is RELEASE
    assert rules.decision(200, Invalid()) is RELEASE
    assert rules.decision(402, Declined()) is SEAL


def test_an_unhandled_failure_is_never_recorded_though_it_declares_a_harmless_status():
    assert OutcomeRules().decision(500, Declined()) is RELEASE


def test_an_exception_without_a_status_is_judged_by_the_response():
    class Odd(Exception):
        status_code = "402"  # not a number

    assert OutcomeRules().decision(402, ValueError()) is SEAL
    assert OutcomeRules().decision(400, ValueError()) is RELEASE
    assert OutcomeRules().decision(409, Odd()) is SEAL


def test_the_status_rule_beats_the_default_and_is_asked_about_the_declared_status():
    rules = OutcomeRules(by_status={402: RELEASE, 503: SEAL, 400: SEAL})
    assert rules.decision(402) is RELEASE
    assert rules.decision(503) is SEAL
    assert rules.decision(422, Invalid()) is SEAL
    assert rules.decision(404) is RELEASE


def test_the_exception_rule_beats_the_status_and_the_nearest_class_wins():
    rules = OutcomeRules(by_exception={Declined: RELEASE, Exception: SEAL, HardDeclined: SEAL}, by_status={402: SEAL})
    assert rules.decision(402, Declined()) is RELEASE
    assert rules.decision(402, HardDeclined()) is SEAL
    assert rules.decision(400, Invalid()) is SEAL
    assert rules.decision(402) is SEAL


def test_the_callable_beats_all_and_may_have_no_opinion():
    seen = []

    def decide(status, exception):
        seen.append((status, exception))
        return {418: RELEASE, 500: SEAL}.get(status)

    error = Declined()
    rules = OutcomeRules(decide=decide, by_status={418: SEAL}, by_exception={Declined: SEAL})
    assert rules.decision(418, error) is RELEASE
    assert rules.decision(500) is SEAL
    assert rules.decision(404) is RELEASE
    assert seen == [(418, error), (500, None), (404, None)]


def test_a_callable_may_answer_in_words_but_not_in_other_words():
    assert OutcomeRules(decide=lambda status, exception: "release").decision(200) is RELEASE
    with pytest.raises(ValueError, match="keep"):
        OutcomeRules(decide=lambda status, exception: "keep").decision(200)


def test_a_set_of_statuses_of_ones_own_replaces_the_default():
    rules = OutcomeRules(release={402})
    assert rules.decision(402) is RELEASE
    assert rules.decision(404) is SEAL
    assert rules.decision(500) is RELEASE, "an unknown failure stays retryable"


def test_decisions_may_be_written_in_words():
    rules = OutcomeRules(by_status={402: "release"}, by_exception={ValueError: "seal"})
    assert rules.decision(402) is RELEASE
    assert rules.decision(400, ValueError()) is SEAL


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"decide": 402}, TypeError, "decide must be a callable"),
        ({"by_exception": {"ValueError": SEAL}}, TypeError, "'ValueError' is not an exception class"),
        ({"by_exception": {int: SEAL}}, TypeError, "is not an exception class"),
        ({"by_exception": {ValueError: "keep"}}, ValueError, "keep"),
        ({"by_status": {"402": SEAL}}, ValueError, "'402' is not an HTTP status"),
        ({"by_status": {99: SEAL}}, ValueError, "99 is not an HTTP status"),
        ({"by_status": {402: True}}, ValueError, "True"),
        ({"release": {600}}, ValueError, "600 is not an HTTP status"),
    ],
)
def test_wrong_rules_are_refused_when_they_are_made(arguments, error, message):
    with pytest.raises(error, match=message):
        OutcomeRules(**arguments)


def test_rules_cannot_be_changed_afterwards_not_even_through_what_they_were_made_of():
    given = {402: RELEASE}
    rules = OutcomeRules(by_status=given)
    given[402] = SEAL
    assert rules.decision(402) is RELEASE
    with pytest.raises(TypeError):
        rules.by_status[402] = SEAL
    with pytest.raises(TypeError):
        rules.by_exception[ValueError] = SEAL
    assert isinstance(OutcomeRules(release=[402]).release, frozenset)


def test_rules_can_be_part_of_something_that_is_hashed():
    rules = OutcomeRules(by_status={402: RELEASE})
    assert {rules: 1}[rules] == 1


def test_a_success_that_is_released_is_known_beforehand():
    rules = OutcomeRules(release={200, 206, 400}, by_status={200: Decision.SEAL, 202: Decision.RELEASE})
    assert rules.released_successes == [202, 206]
    assert OutcomeRules().released_successes == []


def test_what_a_callable_may_decide_is_not_known_beforehand():
    assert OutcomeRules(release={200}, decide=lambda status, exception: Decision.SEAL).released_successes == []
