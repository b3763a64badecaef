"""The package as users get it: a wheel, built from this checkout and installed away from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .walkthrough import REPOSITORY


@pytest.fixture(scope="session")
def installed_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the built wheel in it, and nothing that it depends on."""
    built = tmp_path_factory.mktemp("wheel")
    _run("-m", "hatchling", "build", "-t", "wheel", "-d", str(built))
    (wheel,) = built.glob("django_idempotency-*.whl")
    site = tmp_path_factory.mktemp("site")
    _run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    return site


def _run(*arguments: str) -> None:
    result = subprocess.run([sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{arguments}\n{result.stdout}\n{result.stderr}"
