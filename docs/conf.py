"""Sphinx: Markdown pages, the reference read from the package itself, and nothing from the network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

# The reference imports the package, the package wants settings, and no page wants a server.
os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
os.environ["DATABASE_URL"] = "sqlite://:memory:"

import django  # noqa: E402

django.setup()

import django_idempotency  # noqa: E402

project = "django-idempotency"
author = "The django-idempotency authors"
copyright = f"2026, {author}"
release = version = django_idempotency.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "diagrams", "from_source", "link_check"]
exclude_patterns = ["_build", "_generated"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"django-idempotency {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
# Pages name no address of their own: they are read from a folder as well as from a server.
html_baseurl = ""
