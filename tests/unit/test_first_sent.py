"""The times that clients name, in three forms, and in keys."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from django_idempotency.core.errors import MalformedFirstSent
from django_idempotency.core.first_sent import parse_first_sent, time_of_uuid7

SAME = 1659578233.0


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        ("@1659578233", SAME),
        (" @1659578233\t", SAME),
        ("@-1", -1.0),
        ("Thu, 04 Aug 2022 01:57:13 GMT", SAME),
        ("2022-08-04T01:57:13Z", SAME),
        ("2022-08-04t01:57:13z", SAME),
        ("2022-08-04 01:57:13+00:00", SAME),
        ("2022-08-04T03:57:13+02:00", SAME),
        ("2022-08-03T21:27:13-04:30", SAME),
        ("2022-08-04T01:57:13.250Z", SAME + 0.25),
        ("2022-08-04T01:57:13.123456789Z", SAME + 0.123456789),
        ("2016-12-31T23:59:60Z", 1483228799.0),
    ],
)
def test_three_forms_of_a_time(raw, seconds):
    assert parse_first_sent(raw) == pytest.approx(seconds, abs=1e-5)


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "1659578233",
        "@1659578233.5",
        "@1659578233;a=1",
        "@9999999999999999",
        "@१२३",
        "2022-08-04",
        "2022-08-04T01:57:13",
        "2022-08-04T01:57Z",
        "2022-02-30T01:57:13Z",
        "2022-08-04T25:57:13Z",
        "2022-08-04T01:57:61Z",
        "2022-08-04T01:57:13+0200",
        "2022-08-04T01:57:13+24:00",
        "0000-08-04T01:57:13Z",
        "Thu, 4 Aug 2022 01:57:13 GMT",
        "Thu, 04 Aug 2022 01:57:13 CET",
        "Thu, 04 Foo 2022 01:57:13 GMT",
        "Thursday, 04-Aug-22 01:57:13 GMT",
        "Thu, 04 Aug 2022 01:57:13 GMT, Thu, 04 Aug 2022 01:57:13 GMT",
        "yesterday",
        "\udcff",
    ],
)
def test_anything_else_is_no_time(raw):
    with pytest.raises(MalformedFirstSent):
        parse_first_sent(raw)


@given(st.text(max_size=60))
def test_no_text_does_anything_but_parse_or_be_refused(raw):
    with suppress(MalformedFirstSent):
        assert isinstance(parse_first_sent(raw), float)


@given(st.floats(-6e10, 2.5e11), st.integers(-1439, 1439))
def test_what_python_writes_is_read(seconds, minutes):
    zone = timezone(timedelta(minutes=minutes))
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)
    assert parse_first_sent(moment.astimezone(zone).isoformat()) == pytest.approx(seconds, abs=1e-3)


@pytest.mark.parametrize(
    ("key", "seconds"),
    [
        # The example of RFC 9562, appendix A.6.
        ("017F22E2-79B0-7CC3-98C4-DC0C0C07398F", 1645557742.0),
        ("017f22e279b07cc398c4dc0c0c07398f", 1645557742.0),
        ("3b241101-e2bb-4255-8caf-4136c566a962", None),
        ("017F22E2-79B0-7CC3-18C4-DC0C0C07398F", None),
        ("order-17", None),
        ("", None),
    ],
)
def test_the_time_in_a_key_of_version_7(key, seconds):
    assert time_of_uuid7(key) == seconds
