"""``{diagram} name``: an SVG of ``_diagrams/`` inside the page, where it takes the page's colours, light or dark.

As an ``<img>`` it could not: a picture of its own does not see the switch of the theme.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective


class Diagram(SphinxDirective):
    required_arguments = 1
    has_content = True  # the caption
    option_spec: ClassVar = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        if not self.options.get("alt"):
            raise self.error("A diagram needs :alt:, for those who do not see it.")
        path = Path(self.env.srcdir, "_diagrams", f"{self.arguments[0]}.svg")
        self.env.note_dependency(str(path))
        try:
            svg = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SphinxError(f"There is no diagram {path.name}.") from error
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(self.options["alt"])}" ', 1)
        picture = nodes.raw("", f'<div class="diagram">{svg}</div>', format="html")
        caption = nodes.container(classes=["diagram-caption"])
        self.state.nested_parse(self.content, self.content_offset, caption)
        return [picture, caption]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("diagram", Diagram)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
