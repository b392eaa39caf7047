"""Names say what a thing is, not that it was found or made; GEMMs and accumulators are called so."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from counted import over
from source_tree import Problem, Tree

EMPTY = frozenset({"found", "made", "known", "wanted"})
_WORDS = re.compile(r"[a-z]+")
_GEMM = re.compile(
    r"\b(?:sums(?! of squares)(?<!row sums)(?<!partial sums)(?<!prefix sums)"
    r"|(?<!inner )(?<!outer )(?<!dot )(?<!layout )products?(?!\())\b",
    re.IGNORECASE,
)
NAMES = "names that say found, made, known or wanted"
PROSE = "sums and products for accumulators and GEMMs"


def check(tree: Tree) -> Iterator[Problem]:
    """Yield the names and words of files that have more of them than they may."""
    yield from over(tree, NAMES, names(tree))
    yield from over(tree, PROSE, prose(tree))


def counts(tree: Tree) -> dict[str, dict[str, int]]:
    """Return how many each file has."""
    return {NAMES: Counter(one.path for one in names(tree)), PROSE: Counter(one.path for one in prose(tree))}


def names(tree: Tree) -> list[Problem]:
    """Return the variables, parameters and functions of which `found` or another empty word is a part."""
    return [
        tree.at(file, line, f"the name {name} does not say what the thing is")
        for file in tree.files("src")
        for line, name in _bound(tree, file)
        if EMPTY & {*_WORDS.findall(name)}
    ]


def _bound(tree: Tree, file: Path) -> Iterator[tuple[int, str]]:
    for node in tree.nodes(file):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def prose(tree: Tree) -> list[Problem]:
    """Return the lines of text in `src`, outside the kernels, that speak of sums and products."""
    return [
        tree.at(file, number, f"{match[0]!r}: say accumulators, partials, GEMM or MMA if it is one")
        for file in tree.files("src/kiln")
        if "kernels" not in file.parts
        for number, line in _text(tree, file)
        for match in _GEMM.finditer(line)
    ]


def _text(tree: Tree, file: Path) -> Iterator[tuple[int, str]]:
    text = tree.text(file)
    if not _GEMM.search(text):
        return
    for number, line in enumerate(text.splitlines(), 1):
        _, mark, comment = line.partition("# ")
        if mark:
            yield number, comment
    exported = {name for node in tree.nodes(file) if _is_all(node) for name in ast.walk(node)}
    for node in tree.nodes(file):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in exported:
            yield from enumerate(node.value.splitlines(), node.lineno)


def _is_all(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
