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
        f'<svg viewBox="0 0 370 {24 * len(rows) + 4}" role="img" aria-label="{html.escape(words)}" '
        'xmlns="http://www.w3.org/2000/svg" font-size="12" fill="var(--pst-color-text-base)">'
    ]
    for i, (name, value) in enumerate(rows):
        y, width = 24 * i + 2, 150 * value / largest
        fill = "var(--pst-color-primary)" if name == "Kiln" else "var(--pst-color-text-muted)"
        parts.append(f'<text x="0" y="{y + 14}">{html.escape(name)}</text>')
        parts.append(f'<rect x="115" y="{y}" width="{width:.1f}" height="18" rx="2" fill="{fill}"/>')
        parts.append(f'<text x="{121 + width:.1f}" y="{y + 14}">{value:g} {unit}</text>')
    return "".join(parts) + "</svg>"


def chart(speed: speeds.Speed, found: speeds.Measured) -> list[str]:
    """Return the lines of a chart: Kiln and its peers."""
    better = "more is better" if speed.unit == "TFLOP/s" else "less is better"
    shown = [*found.peers.items(), ("Kiln", found.ours)]
    words = f"{speed.what}: {', '.join(f'{name} {value:g}' for name, value in shown)} {speed.unit}, {better}"
    drawn = bars(shown, speed.unit, words)
    return ["```{raw} html", drawn, "```", "", f"{speed.what}; {better}.", ""]


def card(each: speeds.Shown) -> list[str]:
    """Return the lines of a card: picture, sentence, speed or static profile, and links."""
    found, known = speeds.measured(each.speed), speeds.static(each.title)
    lines = [f":::{{grid-item-card}} {each.title}", ""]
    for theme in ("light", "dark"):
        lines += [f"```{{image}} pictures/gallery/{each.picture}.{theme}.svg"]
        lines += [f":alt: {each.alt}", f":class: only-{theme}", "```"]
    lines += ["", each.text, ""]
    lines += [f"Not measured on a GPU yet. For sm_90a, {known}.", ""] if found is None else chart(each.speed, found)
    links = [f"[source]({each.source})"] + [f"[call it]({each.page})"] * bool(each.page)
    date = "static profile" if found is None else f"H200, {found.date}"
    return [*lines, " · ".join([*links, f"[{date}](data/{each.speed.page}.md)"]), ":::", ""]


class KilnGallery(SphinxDirective):
    """Cards with a picture, a sentence, a chart, and links to source, page and measurement."""

    def run(self) -> list[nodes.Node]:
        lines = ["::::{grid} 1 1 2 2", ":gutter: 3", ""]
        for each in speeds.GALLERY:
            lines += card(each)
        return self.parse_text_to_nodes("\n".join([*lines, "::::"]))


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("kiln-gallery", KilnGallery)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
