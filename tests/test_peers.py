"""The tables of peers in README and on the front page say what docs/peers.md says, where each cell has its source."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "peers.md").read_text()
PROJECTS = ["Kiln", "CuTe DSL", "Triton", "Pallas (GPU)", "Helion", "TileLang", "cuTile", "Warp"]
ROW = re.compile(r"^\| (.+?) \| \*\*(.+?)\*\*.* \| (.+) \|$", re.MULTILINE)
"""A project, its answer in short, and the sources."""
HEAD = "| project | | source, read "


def sections(text: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return the rows below each heading whose table compares projects."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    return {title: ROW.findall(body) for title, body in zip(parts[::2], parts[1::2], strict=True) if HEAD in body}


def short_table(text: str) -> list[list[str]]:
    """Return the cells of the table below the heading "Kiln and its peers"."""
    body = text.split("## Kiln and its peers\n")[1].split("\n## ")[0]
    lines = [line for line in body.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def lines_of_code(path: str, *names: str) -> int:
    """Return how many lines the functions take, without comments, docstrings and blank lines."""
    source = (ROOT / path).read_text()
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


def test_every_section_has_all_projects_with_their_sources() -> None:
    found = sections(PAGE)
    assert len(found) == 14
    assert "has fourteen rows" in (ROOT / "README.md").read_text()
    for title, rows in found.items():
        assert [project for project, _, _ in rows] == PROJECTS, title
        for project, _, source in rows:
            links = re.findall(r"\[[^]]+\](\[[\w-]+\]|\([^)]+\))", source)
            assert links, f"{title}, {project}: no source"
            for link in links:
                assert link.startswith("(") or f"\n{link}: https://" in PAGE, (
                    f"{title}, {project}: {link} leads nowhere"
                )


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_short_tables_say_what_the_page_says(name: str) -> None:
    answers = {title.lower(): {project: short for project, short, _ in rows} for title, rows in sections(PAGE).items()}
    head, *rows = short_table((ROOT / name).read_text())
    assert [row[0] for row in rows] == PROJECTS
    for row in rows:
        for title, cell in zip(head[1:], row[1:], strict=True):
            assert cell == answers[title.lower()][row[0]], f"{row[0]}, {title}: docs/peers.md says otherwise"


def test_lines_of_kilns_gemms_are_counted() -> None:
    (cell,) = re.findall(r"^\| Kiln \| (\*\*\d+\*\*: whole tiles.*?) \|", PAGE, re.MULTILINE)
    fast = lines_of_code("examples/hopper/step_6_persistent.py", "gemm_kernel", "gemm")
    plain = lines_of_code("src/kiln/workbench/scaffold/templates/gemm.py", "fill", "my_kernel", "launch", "kernel_fn")
    assert re.findall(r"\d+", cell) == [str(fast), str(plain)]


def test_lines_are_counted_without_comments(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        'import x\n\n\n@x\ndef f():\n    """A.\n\n    B.\n    """\n    # c\n\n    return (\n        1\n    )\n'
    )
    assert lines_of_code(str(path), "f") == 5
