"""The catalogues: complete, compiled, and part of what is installed."""

from __future__ import annotations

import gettext
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.packaging import installed_wheel
from tests.support.walkthrough import REPOSITORY

__all__ = ["installed_wheel"]

PACKAGE = REPOSITORY / "django_idempotency"
LANGUAGES = sorted(each.name for each in (PACKAGE / "locale").iterdir())


@pytest.fixture(autouse=True)
def tools() -> None:
    if shutil.which("xgettext") and shutil.which("msgfmt"):
        return
    if os.environ.get("CI") == "true":
        pytest.fail("gettext must be installed in CI")
    pytest.skip("gettext is not installed")


def compiled(catalogue: Path, to: Path) -> dict[Any, str]:
    """What a translation says for each message, as ``msgfmt`` reads it: without what is missing or doubtful."""
    subprocess.run(["msgfmt", "--check-format", "-o", to, catalogue], check=True, capture_output=True)
    return said_by(to)


def said_by(compiled: Path) -> dict[Any, str]:
    with compiled.open("rb") as file:
        said: dict[Any, str] = dict(gettext.GNUTranslations(file)._catalog)  # type: ignore[attr-defined]
    said.pop("")  # the header
    return said


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_message_of_the_code_is_translated_and_no_other(language: str, tmp_path: Path) -> None:
    copy = tmp_path / "package"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    catalogue = copy / f"locale/{language}/LC_MESSAGES/django.po"
    before = compiled(catalogue, tmp_path / "before.mo")
    # Not with -m, which would put this folder before everything that is imported.
    subprocess.run(
        [
            sys.executable, "-c", "from django.core.management import execute_from_command_line as run; run()",
            "makemessages", f"--locale={language}", "--no-obsolete",
        ],
        cwd=copy,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "", "PYTHONSAFEPATH": "1"},
        check=True,
        capture_output=True,
    )  # fmt: skip
    after = subprocess.run(
        ["msgfmt", "--statistics", "-o", tmp_path / "after.mo", catalogue], check=True, capture_output=True, text=True
    )
    assert "untranslated" not in after.stderr
    assert "fuzzy" not in after.stderr
    assert said_by(tmp_path / "after.mo") == before


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_is_compiled_as_it_is_written_and_installed(language: str, tmp_path: Path, installed_wheel: Path) -> None:
    folder = f"locale/{language}/LC_MESSAGES"
    written = compiled(PACKAGE / folder / "django.po", tmp_path / "fresh.mo")
    assert len(written) > 150
    assert said_by(PACKAGE / folder / "django.mo") == written
    assert said_by(installed_wheel / "django_idempotency" / folder / "django.mo") == written


def test_what_the_dashboard_needs_is_installed(installed_wheel: Path) -> None:
    for path in (
        "static/django_idempotency/dashboard.css",
        "templates/admin/django_idempotency/idempotencykey/dashboard.html",
    ):
        assert (installed_wheel / "django_idempotency" / path).is_file()
