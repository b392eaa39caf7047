"""The tables of peers in README and on the front page say what docs/peers.md says, where each cell has its source."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from source_tree import Problem, Tree

PAGE = "docs/peers.md"
SHORT = ("README.md", "docs/index.md")
PROJECTS = ["Kiln", "CuTe DSL", "Triton", "Pallas (GPU)", "Helion", "TileLang", "cuTile", "Warp"]
SECTIONS = 14
ROW = re.compile(r"^\| (.+?) \| \*\*(.+?)\*\*.* \| (.+) \|$", re.MULTILINE)
"""A project, its answer in short, and the sources."""
HEAD = "| project | | source, read "


def sections(text: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return the rows below each heading whose table compares projects."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    return {title: ROW.findall(body) for title, body in zip(parts[::2], parts[1::2], strict=True) if HEAD in body}


def short_table(text: str) -> list[list[str]]:
    """Return the cells of the table below the heading "Kiln and its peers"."""
    body = text.split("## Kiln and its peers\n")[1].split("\n## ", maxsplit=1)[0]
    lines = [line for line in body.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def lines_of_code(path: Path, *names: str) -> int:
    """Return how many lines the functions take, without comments, docstrings and blank lines."""
    source = path.read_text()
    kept: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            kept.update(range(start, (node.end_lineno or start) + 1))
            if ast.get_docstring(node) is not None:
                kept.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in blank]
    return len(kept & {line for token in tokens for line in range(token.start[0], token.end[0] + 1)})


def check(tree: Tree) -> Iterator[Problem]:
    """Yield rows without a source, short tables that say something else, and counts of lines that are wrong."""
    page = tree.root / PAGE
    if page.exists():
        yield from _sources(tree, page)
        for name in SHORT:
            yield from _short(tree, tree.root / name, sections(tree.text(page)))
        yield from _lines_of_gemms(tree, page)


def _sources(tree: Tree, page: Path) -> Iterator[Problem]:
    text = tree.text(page)
    rows_by_title = sections(text)
    if len(rows_by_title) != SECTIONS:
        yield tree.at(page, 0, f"has {len(rows_by_title)} comparisons, not {SECTIONS}")
    if "has fourteen rows" not in tree.text(tree.root / "README.md"):
        yield Problem("README.md", 0, 'does not say that the comparison "has fourteen rows"')
    for title, rows in rows_by_title.items():
        if [project for project, _, _ in rows] != PROJECTS:
            yield tree.at(page, 0, f"{title} does not have all projects in their order")
        for project, _, source in rows:
            links = re.findall(r"\[[^]]+\](\[[\w-]+\]|\([^)]+\))", source)
            if not links:
                yield tree.at(page, 0, f"{title}, {project}: no source")
            for link in links:
                if not link.startswith("(") and f"\n{link}: https://" not in text:
                    yield tree.at(page, 0, f"{title}, {project}: {link} leads nowhere")


def _short(tree: Tree, page: Path, rows_by_title: dict[str, list[tuple[str, str, str]]]) -> Iterator[Problem]:
    answers = {(title.lower(), project): short for title, rows in rows_by_title.items() for project, short, _ in rows}
    head, *rows = short_table(tree.text(page))
    if [row[0] for row in rows] != PROJECTS:
        yield tree.at(page, 0, "the table of peers does not have all projects in their order")
    for row in rows:
        for title, cell in zip(head[1:], row[1:], strict=True):
            answer = answers.get((title.lower(), row[0]))
            if cell != answer:
                yield tree.at(page, 0, f"{row[0]}, {title}: {cell!r}; {PAGE} says {answer!r}")


def _lines_of_gemms(tree: Tree, page: Path) -> Iterator[Problem]:
    (cell,) = re.findall(r"^\| Kiln \| (\*\*\d+\*\*: whole tiles.*?) \|", tree.text(page), re.MULTILINE)
    template = tree.root / "src/kiln/workbench/scaffold/templates/gemm.py"
    fast = lines_of_code(tree.root / "examples/hopper/step_6_persistent.py", "gemm_kernel", "gemm")
    plain = lines_of_code(template, "fill", "my_kernel", "launch", "kernel_fn")
    if re.findall(r"\d+", cell) != [str(fast), str(plain)]:
        yield tree.at(page, 0, f"Kiln's GEMMs have {fast} and {plain} lines; the page says {cell!r}")
