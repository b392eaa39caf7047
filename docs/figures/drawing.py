"""SVG in two themes, written with the standard library: boxes, words, lines, arrows, and Kiln's own drawings."""

from __future__ import annotations

import dataclasses
import re
from html import escape
from pathlib import Path

THEMES = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1f2328",
        "muted": "#59636e",
        "line": "#8c959f",
        "soft": "#f0f3f6",
        "blue": "#b6d7ff",
        "green": "#b4e6be",
        "orange": "#ffd8a8",
        "red": "#ffc1ba",
        "violet": "#dcc8ff",
        "on": "#1f2328",
        "strong": "#0550ae",
        "bad": "#b3261e",
    },
    "dark": {
        "paper": "#14181d",
        "ink": "#e6edf3",
        "muted": "#9aa4ae",
        "line": "#6b7580",
        "soft": "#222931",
        "blue": "#8fbcf2",
        "green": "#8fd09d",
        "orange": "#eebb7e",
        "red": "#ef9f97",
        "violet": "#bfa5ee",
        "on": "#10151a",
        "strong": "#7ab4ff",
        "bad": "#ff8b82",
    },
}
"""Colours by name. `on` is the colour of words on a coloured box, `ink` that of words on paper."""
FONT = "DejaVu Sans, Verdana, sans-serif"
MONO = "DejaVu Sans Mono, Menlo, Consolas, monospace"


@dataclasses.dataclass
class Picture:
    """A picture of a size, with a description for those who cannot see it."""

    width: int
    height: int
    alt: str
    parts: list[str] = dataclasses.field(default_factory=list)

    def box(self, x: float, y: float, w: float, h: float, color: str, text: str = "", **style: object) -> None:
        """Draw a box with words in its middle; `\\n` begins a line."""
        radius = style.pop("radius", 3)
        frame = style.pop("frame", "{line}")
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius}" fill="{{{color}}}" stroke="{frame}"/>'
        )
        if text:
            on = "ink" if color in ("paper", "soft") else "on"
            self.text(x + w / 2, y + h / 2, text, color=on, **style)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        color: str = "ink",
        size: float = 13,
        anchor: str = "middle",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """Write words around a point; `\\n` begins a line."""
        lines = text.split("\n")
        style = ' font-weight="bold"' * bold + f' font-family="{MONO}"' * mono
        for i, line in enumerate(lines):
            down = y + size * 0.36 + (i - (len(lines) - 1) / 2) * size * 1.25
            self.parts.append(
                f'<text x="{x:g}" y="{down:g}" font-size="{size:g}" text-anchor="{anchor}"{style} '
                f'fill="{{{color}}}">{escape(line).replace("{", "&#123;")}</text>'
            )

    def line(self, x: float, y: float, to_x: float, to_y: float, *, color: str = "line", wide: float = 1.5) -> None:
        """Draw a line."""
        self.parts.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{{{color}}}" stroke-width="{wide:g}"/>'
        )

    def arrow(self, x: float, y: float, to_x: float, to_y: float, *, color: str = "ink", wide: float = 1.5) -> None:
        """Draw an arrow."""
        self.line(x, y, to_x, to_y, color=color, wide=wide)
        length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5 or 1.0
        dx, dy = (to_x - x) / length * 8, (to_y - y) / length * 8
        points = f"{to_x:g},{to_y:g} {to_x - dx - dy / 2:g},{to_y - dy + dx / 2:g} {to_x - dx + dy / 2:g},{to_y - dy - dx / 2:g}"
        self.parts.append(f'<polygon points="{points}" fill="{{{color}}}"/>')

    def svg(self, theme: str) -> str:
        """Return the picture in a theme."""
        body = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" role="img" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="{FONT}">',
            f"<title>{escape(self.alt)}</title>",
            f'<rect width="{self.width}" height="{self.height}" fill="{{paper}}"/>',
            *self.parts,
        ]
        return re.sub(r"\{(\w+)\}", lambda name: THEMES[theme][name[1]], "\n".join([*body, "</svg>", ""]))


def drawn(svg: str, theme: str) -> str:
    """Return a picture of `kiln.cute.pictures` in a theme: its cells keep their light colours and dark words."""
    if theme == "light":
        return svg
    colors = THEMES["dark"]
    svg = re.sub(r'(<rect width="\d+" height="\d+" fill=")#ffffff', rf"\g<1>{colors['paper']}", svg)
    svg = re.sub(r'(<text (?![^>]*fill=)[^>]*text-anchor="start")', rf'\1 fill="{colors["ink"]}"', svg)
    svg = re.sub(r'(fill="none" stroke=")#333333', rf"\g<1>{colors['ink']}", svg)
    svg = svg.replace('fill="#000000" text-anchor="start"', f'fill="{colors["ink"]}" text-anchor="start"')
    return svg.replace('fill="#6b6b6b"', f'fill="{colors["muted"]}"')


def save(folder: Path, name: str, picture: Picture | str) -> list[Path]:
    """Write a picture, or one of Kiln's own drawings, for both themes."""
    files: list[Path] = []
    for theme in THEMES:
        files.append(folder / f"{name}.{theme}.svg")
        files[-1].write_text(picture.svg(theme) if isinstance(picture, Picture) else drawn(picture, theme))
    return files
