"""The README's quickstart, pasted into a new project that has the package from its wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.walkthrough import REPOSITORY, Walkthrough, assert_printed, section

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
LOOK = "import django_idempotency; print(django_idempotency.__file__)"


@pytest.mark.timeout(120)
def test_the_quickstart_replays_a_post(tmp_path: Path, installed_wheel: Path) -> None:
    reader = Walkthrough(tmp_path, installed_wheel, own_curl=True)
    try:
        reader.follow(section(README, "Quickstart"))
        # Not the checkout, which every import of this test run finds.
        reader.follow(f"```sh\npython -c '{LOOK}'\n```")
        assert_printed(f"{installed_wheel}/…", reader.printed)
    finally:
        reader.close()


def test_the_wheel_has_what_the_package_reads(installed_wheel: Path) -> None:
    package = installed_wheel / "django_idempotency"
    assert (package / "py.typed").exists()
    there = {path.relative_to(package) for path in package.rglob("*.sql")}
    source = REPOSITORY / "django_idempotency"
    assert there == {path.relative_to(source) for path in source.rglob("*.sql")} != set()
