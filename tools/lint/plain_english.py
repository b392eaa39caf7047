"""Pages are in plain English: sentences have fewer than 18 words on average, and none has more than 35."""

from __future__ import annotations

import re
from collections.abc import Iterator

from source_tree import Problem, Tree

GENERATED = ("docs/data/", "docs/dialect.md", "docs/settings.md", "docs/reference/api", "docs/reference/examples/")
"""Made by programs from tables and docstrings."""
MEAN = 18
LONGEST = 35


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


def check(tree: Tree) -> Iterator[Problem]:
    """Yield pages whose sentences are long on average, and sentences that are too long."""
    for page in tree.pages():
        if not tree.name(page).startswith(GENERATED):
            every = sentences(tree.text(page))
            lengths = [len(each.split()) for each in every]
            mean = sum(lengths) / max(len(lengths), 1)
            if mean >= MEAN:
                yield tree.at(page, 0, f"{mean:.1f} words a sentence: write fewer than {MEAN} on average")
            for sentence, length in zip(every, lengths, strict=True):
                if length > LONGEST:
                    yield tree.at(page, 0, f"a sentence of {length} words, {LONGEST} are the most: {sentence}")
