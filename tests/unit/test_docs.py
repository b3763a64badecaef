"""The code in README and documentation speaks of this package as it is: each name, field and setting in it exists."""

from __future__ import annotations

import ast
import gc
import importlib
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

import django_idempotency
from django_idempotency.conf import SETTINGS
from django_idempotency.core.policy import IdempotencyPolicy
from django_idempotency.drf import IdempotencyMixin
from django_idempotency.operations import derive_key, operation
from django_idempotency.signals import Counted, counted, tell
from tests.support.walkthrough import REPOSITORY, blocks_of

PAGES = [
    page
    for page in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")))
    if "```python" in page.read_text(encoding="utf-8")
]
# What takes fields of a policy as keywords, beside the policy itself.
DECORATORS = {"idempotent", "idempotent_view"}


def code_of(page: Path) -> list[ast.Module]:
    return [
        ast.parse(block.text) for block in blocks_of(page.read_text(encoding="utf-8")) if block.language == "python"
    ]


def nodes(page: Path, kind: type[Any]) -> Iterator[Any]:
    return (node for module in code_of(page) for node in ast.walk(module) if isinstance(node, kind))


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_is_code_to_look_at() -> None:
    assert sum(len(code_of(page)) for page in PAGES) > 30


def test_what_is_imported_from_the_package_is_public(page: Path) -> None:
    for node in nodes(page, ast.ImportFrom):
        if (node.module or "").partition(".")[0] == "django_idempotency":
            public = importlib.import_module(node.module).__all__
            assert {alias.name for alias in node.names} <= set(public), ast.unparse(node)


def test_keywords_are_fields(page: Path) -> None:
    for node in nodes(page, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        cls = IdempotencyPolicy if name in DECORATORS else getattr(django_idempotency, name, None)
        fields = getattr(cls, "__dataclass_fields__", None)
        if fields is not None:
            assert {keyword.arg for keyword in node.keywords} <= set(fields), ast.unparse(node)


def test_settings_exist(page: Path) -> None:
    for node in nodes(page, ast.Assign):
        if ast.unparse(node.targets[0]) == "IDEMPOTENCY":
            assert {ast.literal_eval(key) for key in node.value.keys} <= set(SETTINGS), ast.unparse(node)


def test_overridden_methods_are_hooks(page: Path) -> None:
    for node in nodes(page, ast.FunctionDef):
        if node.name.startswith("get_idempotency_"):
            assert hasattr(IdempotencyMixin, node.name), node.name


def test_the_recipe_for_derived_keys_makes_the_keys_of_this_package() -> None:
    page = REPOSITORY / "docs/how-to/derived-keys.md"
    (recipe,) = [block.text for block in blocks_of(page.read_text(encoding="utf-8")) if "sha256" in block.text]
    names: dict[str, Any] = {}
    exec(recipe, names)
    for parts in (
        ("a", "b", "c"),
        ("auth.user:5 payments.card_payment:POST", "order-1", "authorise"),
        ("Zoë ✓", "ключ", "😀"),
    ):
        assert names["derived"](*parts) == (derive_key(*parts), derive_key(*parts, hexadecimal=True))


def test_the_receiver_of_the_guide_is_still_there_when_ready_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    page = REPOSITORY / "docs/how-to/metrics.md"
    (example,) = [block.text for block in blocks_of(page.read_text(encoding="utf-8")) if ".connect(" in block.text]
    before = list(counted.receivers)
    names: dict[str, Any] = {}
    exec(f"def ready():\n{indent(example, '    ')}", names)
    try:
        names["ready"]()
        gc.collect()
        tell(Counted.MISMATCH, "shop.charge:POST")
        assert capsys.readouterr().out == "shop.charge:POST: another request under the key of None\n"
    finally:
        counted.receivers = before
        counted.sender_receivers_cache.clear()


def test_what_operations_are_declared_with_exists(page: Path) -> None:
    known = set(signature(operation).parameters) - {"fields"} | set(IdempotencyPolicy.__dataclass_fields__)
    for node in nodes(page, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "operation":
            assert {keyword.arg for keyword in node.keywords} <= known, ast.unparse(node)
