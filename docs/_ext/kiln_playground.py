"""Sphinx extension: the directive `kiln-playground`, a form that draws layouts with Kiln's own code in the browser.

Where the package of Pyodide cannot be had, the page says so.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import playground

PAGE = "playground"
MISSING = """:::{note}
This copy of the site was built without access to the npm registry, so it has no playground. Build it with `make docs`
where there is one, or draw on your machine: `kiln draw '(4,(2,2)):(2,(1,8))' -o layout.svg`.
:::"""


class KilnPlayground(SphinxDirective):
    """The form, or a note that it is missing."""

    def run(self) -> list[nodes.Node]:
        if playground.package() is None:
            return self.parse_text_to_nodes(MISSING)
        return [nodes.raw("", playground.form(), format="html")]


def _install(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html" and (data := playground.package()) is not None:
        playground.install(Path(app.outdir) / "_static" / "playground", data)


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("kiln-playground", KilnPlayground)
    app.connect("env-get-outdated", lambda *_: [PAGE])  # the registry may have come or gone
    app.connect("build-finished", _install)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
