"""The files that the checks read, each parsed once, and the problems that they report."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SKIPPED = {".git", ".venv", "__pycache__", "__native__", "build", "dist", "node_modules"}


class Problem(NamedTuple):
    """A line that breaks a rule, and what to write instead; line 0 is the file as a whole."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


class Tree:
    """A working tree: its files, their texts and syntax trees, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._files: dict[tuple[str, str], list[Path]] = {}
        self._texts: dict[Path, str] = {}
        self._nodes: dict[Path, list[ast.AST]] = {}

    def files(self, folder: str, ending: str = ".py") -> list[Path]:
        """Return the files with this ending below a folder of the tree, sorted; a missing folder has none."""
        key = (folder, ending)
        if key not in self._files:
            paths = (self.root / folder).rglob(f"*{ending}")
            self._files[key] = sorted(x for x in paths if not SKIPPED & {*x.relative_to(self.root).parts})
        return self._files[key]

    def pages(self) -> list[Path]:
        """Return the documentation: all of docs, README and CONTRIBUTING."""
        own = [self.root / "README.md", self.root / "CONTRIBUTING.md"]
        return [*self.files("docs", ".md"), *(page for page in own if page.exists())]

    def name(self, file: Path) -> str:
        """Return a file's path in the tree, with slashes."""
        return file.relative_to(self.root).as_posix()

    def text(self, file: Path) -> str:
        """Return a file's text."""
        if file not in self._texts:
            self._texts[file] = file.read_text()
        return self._texts[file]

    def nodes(self, file: Path) -> list[ast.AST]:
        """Return all nodes of a program's syntax tree, the module first."""
        if file not in self._nodes:
            self._nodes[file] = list(ast.walk(ast.parse(self.text(file))))
        return self._nodes[file]

    def module(self, file: Path) -> ast.Module:
        """Return a program's syntax tree."""
        module = self.nodes(file)[0]
        assert isinstance(module, ast.Module)
        return module

    def at(self, file: Path, line: int, text: str) -> Problem:
        """Return a problem at a line of a file."""
        return Problem(self.name(file), line, text)


def functions(nodes: list[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions among the nodes of a program."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
