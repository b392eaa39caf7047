"""Operations, types and attributes of Kiln's dialects are named in the dialects alone: ask a declaration, or use its class."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from counted import over
from source_tree import Problem, Tree

RULE = "operations of Kiln's dialects named by text"
_NAMES = re.compile(r"\s*(?:!?cute(?:_nvgpu)?\.[a-z0-9_]*\s*)+")
"""A text of names such as `cute.load`, and of prefixes."""


def check(tree: Tree) -> Iterator[Problem]:
    """Yield the texts of files that name more operations than they may."""
    yield from over(tree, RULE, names(tree))


def counts(tree: Tree) -> dict[str, dict[str, int]]:
    """Return how many each file has."""
    return {RULE: Counter(one.path for one in names(tree))}


def names(tree: Tree) -> list[Problem]:
    """Return the texts outside `dialects` that are names of operations, or the parts of texts that are their prefixes."""
    return [
        tree.at(
            file,
            node.lineno,
            f"{node.value!r} names an operation: ask `analysis` what its declaration says, or use its class",
        )
        for file in tree.files("src/kiln")
        if not tree.name(file).startswith("src/kiln/dialects/") and "cute" in tree.text(file)
        for node in tree.nodes(file)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMES.fullmatch(node.value)
    ]
