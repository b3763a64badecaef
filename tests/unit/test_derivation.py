"""Derived keys: the same for ever, in any language, and never two alike."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from django_idempotency.core.derivation import derive_key

VECTORS = json.loads(Path(__file__).with_name("vectors").joinpath("derived_keys.json").read_text(encoding="utf-8"))

texts = st.text(st.characters(codec="utf-8"), min_size=1)


def from_the_description(scope, key, step):
    """Written again from the docstring alone, as one would in another language."""
    framed = b"".join(
        len(part).to_bytes(8, "big") + part
        for part in (text.encode("utf-8") for text in ("django-idempotency derived key 1", scope, key, step))
    )
    digest = hashlib.sha256(framed).digest()
    number = int.from_bytes(digest[:16], "big") & ~(0xF << 76) & ~(0x3 << 62) | (8 << 76) | (2 << 62)
    digits = f"{number:032x}"
    return digest.hex(), "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['scope']} {vector['step']}"[:40])
def test_keys_that_were_once_sent_are_still_derived(vector):
    parts = vector["scope"], vector["key"], vector["step"]
    assert derive_key(*parts) == vector["uuid"]
    assert derive_key(*parts, hexadecimal=True) == vector["hexadecimal"]


@given(texts, texts, texts)
def test_the_description_is_enough_to_derive_them_elsewhere(scope, key, step):
    hexadecimal, as_uuid = from_the_description(scope, key, step)
    assert derive_key(scope, key, step) == as_uuid
    assert derive_key(scope, key, step, hexadecimal=True) == hexadecimal


@given(texts, texts, texts)
def test_every_vendor_takes_them(scope, key, step):
    derived = derive_key(scope, key, step)
    assert len(derived) == 36
    assert (uuid.UUID(derived).version, uuid.UUID(derived).variant) == (8, uuid.RFC_4122)
    assert str(uuid.UUID(derived)) == derived
    assert key not in derived or len(key) < 36


def test_parts_cannot_run_into_each_other():
    derived = {
        derive_key("ab", "c", "d"),
        derive_key("a", "bc", "d"),
        derive_key("a", "b", "cd"),
        derive_key("a", "c", "b"),
        derive_key("b", "a", "c"),
    }
    assert len(derived) == 5


@pytest.mark.parametrize("empty", ["scope", "key", "step"])
def test_an_empty_part_is_refused_by_name(empty):
    parts = {"scope": "a", "key": "b", "step": "c"} | {empty: ""}
    with pytest.raises(ValueError, match=f"needs a {empty} that is not empty"):
        derive_key(**parts)
