"""Tests lie where their sources do, under names of their own, and share nothing but fixtures and the modules of `helpers`."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from source_tree import Problem, Tree

OF_NO_ROOM = {"examples", "gpu", "helpers", "targets/cpu/sanitizer/mutants", "typing", "typing/programs"}
"""Programs that are run whole, what needs a GPU, modules that tests import, programs that tests change or pyright reads."""

_MAY_IMPORT = re.compile(r"^\s*(?:from|import)\b.*\b(?:test_|conftest)|\.path\.", re.MULTILINE)


def check(tree: Tree) -> Iterator[Problem]:
    """Yield folders of tests without a source, rooms without tests, names used twice, and tests that import tests."""
    tests = tree.root / "tests"
    source = tree.root / "src" / "kiln"
    files = tree.files("tests")
    for folder in sorted({file.parent.relative_to(tests).as_posix() for file in files} - OF_NO_ROOM):
        if not (source / folder).is_dir():
            yield Problem(f"tests/{folder}", 0, "there is no such folder in src/kiln")
    for pattern in ("*", "interop/*", "targets/*"):
        for room in sorted(file.parent.relative_to(source) for file in source.glob(f"{pattern}/__init__.py")):
            if not (tests / room).is_dir():
                yield Problem(f"src/kiln/{room.as_posix()}", 0, "the room has no folder of tests")
    names = Counter(file.name for file in files if file.name != "conftest.py")
    for file in files:
        if names[file.name] > 1:
            yield tree.at(file, 0, "another test has this name")
    yield from _imports(tree)


def _imports(tree: Tree) -> Iterator[Problem]:
    """Yield imports of tests by tests: what they share is in `helpers`, where pytest finds it without a path."""
    tests = [file for file in tree.files("tests") if file.name.startswith(("test_", "conftest"))]
    names = {file.stem for file in tests}
    for file in tests:
        for node in tree.nodes(file) if _MAY_IMPORT.search(tree.text(file)) else ():
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported = [node.module or ""]
            elif isinstance(node, ast.Attribute) and node.attr in ("insert", "append"):
                is_path = isinstance(node.value, ast.Attribute) and node.value.attr == "path"
                imported = [ast.unparse(node.value)] if is_path else []
            else:
                continue
            for name in imported:
                if name in names or name == "sys.path":
                    yield tree.at(file, node.lineno, f"uses {name}: what tests share is in tests/helpers")
