"""The notebooks of `examples/notebooks/` say what they said when they were saved.

The code cells of a notebook run in order as parts of one program, without Jupyter: what a cell prints and the value of
its last expression, as text and as a picture, are compared with the outputs in the file. Addresses are left out.

    python tests/examples/test_notebooks.py      # run all notebooks and save what they say now
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kiln
from kiln.base_dsl.diagnostics import DSLOptimizationWarning

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
NAMES = ["composed_layouts", "data_types", "layouts", "printing", "tensors", "vectors"]


def lines(text: str) -> list[str]:
    """A text as it is saved in a notebook, addresses masked."""
    return re.sub(r"0x[0-9a-f]{10,}", "0x...", text).splitlines(keepends=True)


def shown(value: Any) -> dict[str, list[str]]:
    """What Jupyter shows of a value."""
    data = {"text/plain": lines(repr(value))}
    picture = value._repr_svg_() if hasattr(value, "_repr_svg_") and not isinstance(value, type) else None
    return data if picture is None else {"image/svg+xml": lines(picture), **data}


class Program:
    """The cells that have run."""

    def __init__(self, name: str) -> None:
        self.module = ModuleType(f"notebook_{name}")
        self.count = 0

    def outputs(self, source: str) -> list[dict[str, Any]]:
        """Run a cell; what is saved below it."""
        self.count += 1
        file = f"{self.module.__name__}_cell_{self.count}.py"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        tree = ast.parse(source, file)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("error", DSLOptimizationWarning)
            exec(compile(tree, file, "exec"), self.module.__dict__)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), file, "eval"), self.module.__dict__)
        found: list[dict[str, Any]] = []
        if printed.getvalue():
            found.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
        if value is not None:
            found.append(
                {
                    "data": shown(value),
                    "execution_count": self.count,
                    "metadata": {},
                    "output_type": "execute_result",
                }
            )
        return found


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def test_every_notebook_is_there():
    assert [path.stem for path in NOTEBOOKS] == NAMES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_what_it_said(path: Path, monkeypatch: pytest.MonkeyPatch):
    program = Program(path.stem)
    monkeypatch.setitem(sys.modules, program.module.__name__, program.module)
    choice = sys.modules["kiln.base_dsl.target"]  # a notebook chooses a target for its process; the next test does not
    monkeypatch.setattr(choice, "_process_choice", vars(choice)["_process_choice"])
    with kiln.target("cpu"):
        for cell in code_cells(path):
            found = program.outputs("".join(cell["source"]))
            where = f"{path.name}, cell {program.count}"
            assert cell["execution_count"] == program.count, where
            assert found == cell["outputs"], where


def save(path: Path) -> None:
    """Run a notebook and put what it says into the file."""
    notebook = json.loads(path.read_text())
    program = Program(path.stem)
    sys.modules[program.module.__name__] = program.module
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = program.outputs("".join(cell["source"]))
            cell["execution_count"] = program.count
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for path in NOTEBOOKS:
        save(path)
