"""Lessons: MyST notebooks in docs/learn, read without Jupyter or YAML, and written as .ipynb files.

A lesson is Markdown with a head (`minutes: 12`, `can: what the reader can do afterwards`), code cells, and below a cell
what it prints (`output`) or the error that it raises (`refused`). Tests run every cell and compare.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INSTALLED = Path(__file__).parents[1] / "kb" / "docs" / "learn"
"""Where a wheel has the lessons, among the pages of `kiln kb`."""
CHECKOUT = Path(__file__).parents[4] / "docs" / "learn"

_HEAD = re.compile(r"\A---\n(.*?)^---\n", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(
    r"^```(\{code-cell\}|output|refused)[^\n]*\n((?::[^\n]*\n)*)\n?(.*?)^```\n", re.DOTALL | re.MULTILINE
)
_PICTURE = re.compile(r"^```\{image\} (\S+)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^]\n]+)\]\((?!https?:)[^)\s]+\)")


@dataclasses.dataclass(frozen=True)
class Lesson:
    """A lesson: its number, its file, and what the head of the file says."""

    number: int
    path: Path
    title: str
    minutes: int
    can: str

    @functools.cached_property
    def text(self) -> str:
        """The body as Markdown that any viewer shows: pictures as images, links to other pages as plain text."""
        body = _HEAD.sub("", self.path.read_text(encoding="utf-8"))
        return _LINK.sub(r"\1", _PICTURE.sub(_image, body)).lstrip()

    @property
    def pictures(self) -> list[Path]:
        """The pictures that the text shows."""
        return [self.path.parent / name for name in re.findall(r"!\[[^]]*\]\(([^)\s]+\.svg)\)", self.text)]


def lessons() -> list[Lesson]:
    """Return all lessons in order: those of a checkout, else those that the wheel brought."""
    folder = CHECKOUT if CHECKOUT.is_dir() else INSTALLED
    return [_read(path) for path in sorted(folder.glob("[0-9][0-9]-*.md"))]


def _read(path: Path) -> Lesson:
    text = path.read_text(encoding="utf-8")
    head = _HEAD.match(text)
    title = re.search(r"^# (?:\d+\. )?(.+)$", text, re.MULTILINE)
    if head is None or title is None:
        raise ValueError(f"{path}: a lesson begins with a head between --- and a title")
    fields = dict(re.findall(r"^(\w+): (.+)$", head[1], re.MULTILINE))
    return Lesson(int(path.name[:2]), path, title[1], int(fields["minutes"]), fields["can"])


def _image(match: re.Match[str]) -> str:
    """Return a picture in plain Markdown; that of the dark theme is left out."""
    name, options = match.groups()
    if "only-dark" in options:
        return ""
    alt = re.search(r"^:alt: (.+)$", options, re.MULTILINE)
    return f"![{alt[1] if alt else ''}]({name})\n"


def notebook(lesson: Lesson) -> str:
    """Return a lesson as a Jupyter notebook, with the outputs that the page shows."""
    cells: list[dict[str, Any]] = []
    for kind, text in _parts(lesson.text):
        if kind == "markdown":
            cells.append({"cell_type": "markdown", "metadata": {}, "source": _lines(text)})
        elif kind in ("output", "refused"):
            name = "stdout" if kind == "output" else "stderr"
            cells[-1]["outputs"].append({"output_type": "stream", "name": name, "text": _lines(text)})
        else:
            tags = {"tags": ["raises-exception"]} if "raises-exception" in kind else {}
            code = {"cell_type": "code", "metadata": tags, "source": _lines(text)}
            cells.append({**code, "execution_count": None, "outputs": []})
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield a page's cells in order: kind and text. The kind of a code cell has its tags."""
    end = 0
    for match in _FENCE.finditer(text):
        if between := text[end : match.start()].strip():
            yield "markdown", between + "\n"
        kind, options, source = match.groups()
        yield f"{kind} {options}" if kind == "{code-cell}" else kind, source
        end = match.end()
    if rest := text[end:].strip():
        yield "markdown", rest + "\n"


def _lines(text: str) -> list[str]:
    return text.rstrip("\n").splitlines(keepends=True)
