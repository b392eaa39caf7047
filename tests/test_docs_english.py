"""Pages are in plain English: sentences have fewer than 18 words on average, and none has more than 35."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ("docs/data/", "docs/dialect.md", "docs/settings.md", "docs/reference/api", "docs/reference/examples/")
"""Made by programs from tables and docstrings."""
PAGES = sorted(
    name
    for page in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    if not (name := page.relative_to(ROOT).as_posix()).startswith(GENERATED)
)
TO_REWRITE: dict[str, tuple[int, int]] = {}
"""Pages that are still too hard to read: mean words of a sentence, rounded up, and sentences of more than 35 words.

Numbers only shrink, and a page that is plain leaves the list.
"""


def sentences(text: str) -> list[str]:
    """Return the sentences of a page; code, tables, headings, quoted output and front matter are not counted."""
    text = re.sub(r"\A---\n.*?^---$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ *(```+|:::+).*?^ *\1 *$", "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *(?:\||#|>|\[\^).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"^ *(?:[-*+]|\d+\.) +", "\n\n", text, flags=re.MULTILINE)
    parts = [part for block in re.split(r"\n\s*\n", text) for part in re.split(r"(?<=[.!?:])[\"*_)]*\s+", block)]
    return [" ".join(part.split()) for part in parts if len(part.split()) > 1]


def measured(name: str) -> tuple[float, list[str]]:
    """Return the mean words of a page's sentences, and the sentences that are too long."""
    found = sentences((ROOT / name).read_text())
    lengths = [len(each.split()) for each in found]
    return sum(lengths) / max(len(lengths), 1), [each for each, n in zip(found, lengths, strict=True) if n > 35]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_plain(name: str) -> None:
    mean, long = measured(name)
    most_mean, most_long = TO_REWRITE.get(name, (18, 0))
    assert mean < most_mean, f"{mean:.1f} words a sentence"
    assert len(long) <= most_long, long
    if name in TO_REWRITE:
        assert (int(mean) + 1, len(long)) == (most_mean, most_long), "the page has improved: write that into TO_REWRITE"
        assert most_mean > 18 or most_long > 0, "the page is plain: take it out of TO_REWRITE"


def test_pages_to_rewrite_exist() -> None:
    assert [name for name in TO_REWRITE if name not in PAGES] == []


def test_sentences_are_found() -> None:
    text = "---\ntitle: a b\n---\n# Head line\n\nOne two. Three\nfour: five `x = 1` six!\n\n- a b\n- c d\n\n| x y |\n\n```python\na b\n```\n"
    assert sentences(text) == ["One two.", "Three four:", "five code six!", "a b", "c d"]
