"""One assignment a statement, and no exception from the formatter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from source_tree import Problem, Tree

FORMATTED = (
    ("src", ".py"),
    ("src", ".pyi"),
    ("tools", ".py"),
    ("benchmarks", ".py"),
    ("examples", ".py"),
    ("docs", ".md"),
)
_EXCEPTION = re.compile(r"#\s*fmt:\s*(?:skip|off)\b")


def check(tree: Tree) -> Iterator[Problem]:
    """Yield tuples that assign unrelated things in `src`, and comments that switch the formatter off."""
    for file in tree.files("src"):
        for node in tree.nodes(file):
            if isinstance(node, ast.Assign) and is_several(node):
                yield tree.at(file, node.lineno, "assigns unrelated things in one tuple: write a statement for each")
    for folder, ending in FORMATTED:
        for file in tree.files(folder, ending):
            text = tree.text(file)
            for number, line in enumerate(text.splitlines() if "fmt:" in text else (), 1):
                if _EXCEPTION.search(line) and "`# fmt:" not in line:
                    yield tree.at(file, number, "switches the formatter off: write it so that it needs no exception")


def is_several(node: ast.Assign) -> bool:
    """Return whether an assignment is several: a tuple to a tuple, and no element needs another's old or new value.

    `a, b = b, a` and `a, b = b, a + b` are one assignment; `m, n, _ = shape` has no tuple on the right.
    """
    value = node.value
    if not isinstance(value, ast.Tuple) or not all(isinstance(each, ast.Tuple) for each in node.targets):
        return False
    (target, *_) = node.targets
    assert isinstance(target, ast.Tuple)
    written = [{*_written(each)} for each in target.elts]
    read = [{*_read(each)} for each in value.elts]
    if len(written) != len(read) or any(isinstance(each, ast.Starred) for each in (*target.elts, *value.elts)):
        return not set[str]().union(*written) & set[str]().union(*read)
    return not any(w & r for i, w in enumerate(written) for k, r in enumerate(read) if i != k)


def _written(target: ast.expr) -> Iterator[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for each in target.elts:
            yield from _written(each)
    else:
        yield ast.unparse(target.value if isinstance(target, ast.Starred) else target)


def _read(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            yield ast.unparse(node)
