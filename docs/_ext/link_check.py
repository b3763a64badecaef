"""At the end of an HTML build: every link within the pages leads to an anchor that is there.

Sphinx warns of a missing page and of a missing label. It does not look at an anchor behind a ``#`` of a page, and those
are what the ``type`` URIs of problems point to.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from django_idempotency.conf import SETTINGS
from django_idempotency.core.errors import IdempotencyError
from django_idempotency.http.problems import STATUSES


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        if tag in ("script", "img", "link") and given.get("rel") != "canonical":
            self.loaded.add(given.get("src") or given.get("href", ""))


def check(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    root = Path(app.outdir)
    pages = {
        path.relative_to(root).as_posix(): _Page(path.read_text(encoding="utf-8")) for path in root.rglob("*.html")
    }
    faults = [
        fault
        for name, page in pages.items()
        for fault in (*_dead_links(root, name, page, pages), *_fetched(name, page))
    ]
    faults += _undocumented_problems(pages)
    if faults:
        raise SphinxError("\n".join(sorted(faults)))


def _dead_links(root: Path, name: str, page: _Page, pages: dict[str, _Page]) -> list[str]:
    faults = []
    for link in page.links:
        target, fragment = urldefrag(unquote(link))
        if urlsplit(link).scheme or not (target or fragment):
            continue
        path = (root / name).parent / target if target else root / name
        there = path.resolve().relative_to(root.resolve()).as_posix()
        if there not in pages:
            if not path.exists():
                faults.append(f"{name}: {link} leads to no file")
        elif fragment and fragment not in pages[there].anchors:
            faults.append(f"{name}: {link} leads to no anchor")
    return faults


def _fetched(name: str, page: _Page) -> list[str]:
    """What a reader without a network would miss."""
    return [f"{name} loads {url}" for url in page.loaded if urlsplit(url).scheme in ("http", "https")]


def _undocumented_problems(pages: dict[str, _Page]) -> list[str]:
    page, _ = urldefrag(SETTINGS["PROBLEM_BASE_URI"].default)
    name = page.partition("/stable/")[2]
    anchors = pages[name].anchors if name in pages else set()
    problems: list[type[IdempotencyError]] = list(STATUSES)
    return [f"{name} has no anchor #{each.slug}" for each in problems if each.slug not in anchors]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
