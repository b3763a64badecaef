"""Cases made by others: RFC 9651's from the HTTP working group, RFC 8785's from its author.

CONFORMANCE_DATA names their folder; they are not part of this project. Without it the parameters below are
empty and pytest skips them, and the test of completeness says whether that is allowed (in CI it is not).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from django_idempotency.core.canonical import canonical_json, parse_json
from django_idempotency.core.errors import MalformedKey
from django_idempotency.core.keys import MAX_KEY_LENGTH, parse_key

DATA = os.environ.get("CONFORMANCE_DATA")


def records(pattern: str):
    return [
        pytest.param(record, id=f"{path.stem}-{number}-{record['name']!a}")
        for path in files(f"structured-field-tests/{pattern}")
        for number, record in enumerate(json.loads(path.read_text(encoding="utf-8")))
        if record["header_type"] == "item"
    ]


def files(pattern: str) -> list[Path]:
    return sorted(Path(DATA).glob(pattern)) if DATA else []


def expected_key(record) -> str | None:
    """The key that RFC 9651 and our own limits find in a record, or None where it is to be refused."""
    if record.get("must_fail"):
        return None
    bare_item = record["expected"][0]
    if not isinstance(bare_item, str) or not bare_item.strip() or len(bare_item) > MAX_KEY_LENGTH:
        return None
    return bare_item


def parsed(raw: str, *, strict: bool) -> str | None:
    try:
        return parse_key(raw, strict=strict)
    except MalformedKey:
        return None


def field_values(record):
    # A server joins repeated fields with a comma, with or without a space (RFC 9110, section 5.3).
    return {", ".join(record["raw"]), ",".join(record["raw"])}


@pytest.mark.parametrize("record", records("*.json"))
def test_strict_mode_reads_what_rfc_9651_reads(record):
    for raw in field_values(record):
        key = parsed(raw, strict=True)
        if record.get("can_fail"):
            # Two lines that make one string: each parser decides, and a key is the joined text or nothing.
            assert key is None or raw == f'"{key}"'
        else:
            assert key == expected_key(record)


@pytest.mark.parametrize("record", records("*.json"))
def test_lenient_mode_adds_the_bare_form_and_nothing_else(record):
    for raw in field_values(record):
        strictly, leniently = parsed(raw, strict=True), parsed(raw, strict=False)
        if strictly is not None:
            assert leniently == strictly
        elif leniently is not None:
            assert leniently == raw.strip(" \t")
            assert re.fullmatch(r'[^\x00-\x20",;\\\x7f-\U0010ffff]{1,255}', leniently)


@pytest.mark.parametrize("record", records("serialisation/*.json"))
def test_a_string_that_no_client_may_send_is_refused(record):
    raw = '"' + record["expected"][0].replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert record["must_fail"]
    assert parsed(raw, strict=True) is None
    assert parsed(raw, strict=False) is None


def test_the_data_is_complete(conformance_data):
    # A folder that has moved would otherwise pass by having nothing to say.
    assert len(records("*.json")) > 800
    assert len(records("serialisation/*.json")) >= 33
    assert len(files("jcs/input/*.json")) == len(files("jcs/output/*.json")) == 6


@pytest.mark.parametrize("name", [path.stem for path in files("jcs/input/*.json")])
def test_the_canonical_form_is_that_of_rfc_8785_but_for_numbers(name, conformance_data):
    folder = conformance_data / "jcs"
    canonical = canonical_json(parse_json((folder / "input" / f"{name}.json").read_bytes()))
    published = (folder / "output" / f"{name}.json").read_text(encoding="utf-8")
    # Compared as text with every number's spelling blanked: order of members, escapes and nesting must agree.
    assert without_numbers(canonical) == without_numbers(published)
    # And numbers as JSON reads them: ours keep more digits, never other values.
    assert json.loads(canonical) == json.loads(published)


def without_numbers(text: str) -> str:
    return re.sub(
        r'("[^"\\]*(?:\\.[^"\\]*)*")|-?\d[\d.eE+-]*',
        lambda match: match.group(1) or "0",
        text,
        flags=re.DOTALL,
    )
