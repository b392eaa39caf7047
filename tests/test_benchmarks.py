"""Benchmarks fit together, describe themselves, and report recorded choices without a GPU."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
MODULES = {file.stem: file for file in BENCHMARKS.glob("*.py")}
PROGRAMS = sorted(path for path in MODULES.values() if '__name__ == "__main__"' in path.read_text())


def defined(file: Path) -> set[str]:
    """Return the names that a module defines or imports at its top."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    return names


def test_imports_between_benchmarks_exist() -> None:
    wrong = []
    for file in BENCHMARKS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in MODULES and not node.level:
                known = defined(MODULES[node.module])
                wrong += [f"{file.name}: {node.module}.{x.name}" for x in node.names if x.name not in known]
    assert wrong == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_says_how_it_is_called(program: Path) -> None:
    text = ast.get_docstring(ast.parse(program.read_text())) or ""
    assert f"python benchmarks/{program.name}" in text


@pytest.mark.quick(2)
@pytest.mark.parametrize("family", ["attention", "decode", "mla", "backward"])
def test_recorded_choices_are_reported(family: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "fit.py", "report", family], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "% behind." in done.stdout
