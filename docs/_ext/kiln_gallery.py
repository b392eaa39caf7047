"""Sphinx extension: the directive `kiln-gallery` draws a card for each kernel of `tools/speeds.py`, with its speed."""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import speeds


def bars(rows: list[tuple[str, float]], unit: str, words: str) -> str:
    """Return horizontal bars as SVG in the colours of the theme; `words` describe them to who does not see them."""
    largest = max(value for _, value in rows)
    parts = [
        f'<svg viewBox="0 0 320 {24 * len(rows) + 4}" role="img" aria-label="{html.escape(words)}" '
        'xmlns="http://www.w3.org/2000/svg" font-size="12" fill="var(--pst-color-text-base)">'
    ]
    for i, (name, value) in enumerate(rows):
        y, width = 24 * i + 2, 150 * value / largest
        fill = "var(--pst-color-primary)" if name == "Kiln" else "var(--pst-color-text-muted)"
        parts.append(f'<text x="0" y="{y + 14}">{html.escape(name)}</text>')
        parts.append(f'<rect x="70" y="{y}" width="{width:.1f}" height="18" rx="2" fill="{fill}"/>')
        parts.append(f'<text x="{76 + width:.1f}" y="{y + 14}">{value:g} {unit}</text>')
    return "".join(parts) + "</svg>"


class KilnGallery(SphinxDirective):
    """Cards with a chart, a sentence, and links to source, page and measurement."""

    def run(self) -> list[nodes.Node]:
        lines = ["::::{grid} 1 1 2 2", ":gutter: 3", ""]
        for each in speeds.GALLERY:
            found = speeds.measured(each.speed)
            better = "more is better" if each.speed.unit == "TFLOP/s" else "less is better"
            words = f"{each.speed.what}: Kiln {found.ours}, {each.speed.peer} {found.peer} {each.speed.unit}, {better}"
            chart = bars([(each.speed.peer, found.peer), ("Kiln", found.ours)], each.speed.unit, words)
            lines += [f":::{{grid-item-card}} {each.title}", "", each.text, "", "```{raw} html", chart, "```", ""]
            lines += [f"{each.speed.what}; {better}.", ""]
            links = [f"[source]({each.source})", f"[call it]({each.page})"]
            lines += [" · ".join([*links, f"[H200, {found.date}](data/{each.speed.page}.md)"]), ":::", ""]
        return self.parse_text_to_nodes("\n".join([*lines, "::::"]))


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("kiln-gallery", KilnGallery)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
