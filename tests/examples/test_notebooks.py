"""The notebooks of `examples/notebooks/` say what they said when they were saved, in text and pictures.

python tests/examples/test_notebooks.py      # run all notebooks and save what they say now
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from notebook_cells import Program, code_cells

import kiln

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
NAMES = ["composed_layouts", "data_types", "layouts", "printing", "tensors", "vectors"]


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
