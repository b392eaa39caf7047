"""Pages of docs/data are what their programs write: tables with a date and a machine, and nothing else."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from source_tree import Problem, Tree

MUTANTS = "mutants"
"""A page in a form of its own, written by `tests/helpers/mutation.py`."""
MEASURED = re.compile(r"\d{4}-\d{2}-\d{2}, (?:NVIDIA|x86_64|aarch64)")


def load(path: Path) -> ModuleType:
    """Return a program of the tree as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def declared(tree: Tree, program: Path) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Return the title of a program's page and the columns of its tables, without importing the program."""
    calls = [x for x in tree.nodes(program) if isinstance(x, ast.Call) and isinstance(x.func, ast.Name)]
    tables = [call.args for call in calls if getattr(call.func, "id", "") == "Table"]
    (page,) = [call.args for call in calls if getattr(call.func, "id", "") == "Page"]
    return ast.literal_eval(page[1]), {ast.literal_eval(title): ast.literal_eval(columns) for title, columns in tables}


def check(tree: Tree) -> Iterator[Problem]:
    """Yield pages that differ from what their programs declare and write."""
    pages = tree.files("docs/data", ".md")
    if pages:
        results = load(tree.root / "benchmarks" / "results.py")
        for page in pages:
            if page.stem != MUTANTS:
                yield from _page(tree, results, page)
            else:
                yield from _mutants(tree, page)


def _page(tree: Tree, results: ModuleType, page: Path) -> Iterator[Problem]:
    try:
        parsed = results.parse(tree.text(page))
    except ValueError as error:
        yield tree.at(page, 0, str(error))
        return
    program = tree.root / parsed.program
    title, tables = declared(tree, program)
    titles = [table.title for table in parsed.tables]
    if parsed.text != tree.text(page):
        yield tree.at(page, 0, f"is not as {parsed.program} writes it")
    if (program.stem, title) != (page.stem, parsed.title):
        yield tree.at(page, 0, f"is called {parsed.title!r}; {parsed.program} calls its page {title!r}")
    if titles != [x for x in tables if x in titles]:
        yield tree.at(page, 0, f"has the tables {titles}; {parsed.program} has {list(tables)}")
    for table in parsed.tables:
        if not MEASURED.match(table.environment):
            yield tree.at(page, 0, f"{table.title!r} does not begin with day and machine: {table.environment!r}")
        if table.columns != tables.get(table.title) or {len(row) for row in table.rows} != {len(table.columns)}:
            yield tree.at(page, 0, f"{table.title!r} does not have the columns of {parsed.program}")
    for needed in ("--save", ".finish("):
        if needed not in tree.text(program):
            yield tree.at(program, 0, f"has the page {tree.name(page)}, and no {needed}")


def _mutants(tree: Tree, page: Path) -> Iterator[Problem]:
    folder = str(tree.root / "tests" / "helpers")
    sys.path.insert(0, folder)
    try:
        mutation = load(tree.root / "tests" / "helpers" / "mutation.py")
    finally:
        sys.path.remove(folder)
    if mutation.page(mutation.recorded()) != page.read_text():
        yield tree.at(page, 0, "is not as tests/helpers/mutation.py writes it")
