"""The notebooks of `examples/notebooks/` say what they said when they were saved, in text and pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from notebook_cells import Program, code_cells

import kiln

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
NAMES = ["composed_layouts", "data_types", "printing", "tensors", "vectors"]


def test_every_notebook_is_there():
    assert [path.stem for path in NOTEBOOKS] == NAMES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("in_order")
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
