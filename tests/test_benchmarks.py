"""Benchmarks fit together, describe themselves, and report recorded choices without a GPU."""

from __future__ import annotations

import ast
import importlib
import os
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


@pytest.mark.skipif(not os.environ.get("KILN_LONG_TESTS"), reason="compiles kernels for half a minute")
def test_the_report_of_a_b200_is_written_without_one(tmp_path: Path) -> None:
    """Values, times and predictions, for small shapes on the CPU target."""
    pytest.importorskip("torch")
    command = [sys.executable, BENCHMARKS / "b200.py", "--small", "--seconds", "0.1", "--out", tmp_path / "b200.md"]
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_100a", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "b200.md").read_text()
    assert text.count("| right |") == 4 and "Sm100GroupedGemm" in text and "say nothing of a GPU" in text


def test_wrong_values_are_seen_in_the_report_of_a_b200(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    b200 = importlib.import_module("b200")
    for name in {"b200", "results"} - before:
        sys.modules.pop(name, None)
    left, right = torch.randn(8, 64).double(), torch.randn(16, 64).double()
    exact = left @ right.mT
    assert b200.excess(exact.float(), left, right) < 1.0 < b200.excess((exact + 0.01).float(), left, right)
    codes = torch.tensor([[0x21, 0xF8]], dtype=torch.uint8)
    assert b200.wide(codes, torch.full((1, 1), 2.0), 4).tolist() == [[1.0, 2.0, -0.0, -12.0]]
