"""The programs of docs/workbench.md that stand alone: those that check themselves."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kiln
from kiln.hardware import toolchain

PAGE = Path(__file__).parents[2] / "docs" / "workbench.md"
PROGRAMS = [text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "assert " in text]


@pytest.mark.skipif(toolchain.find("ptxas") is None, reason="needs ptxas")
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_of_the_page(number, tmp_path, monkeypatch):
    program = ModuleType(f"docs_workbench_{number}")
    monkeypatch.setitem(sys.modules, program.__name__, program)
    path = tmp_path / f"{program.__name__}.py"
    path.write_text(PROGRAMS[number])
    program.__file__ = str(path)
    with kiln.target("cpu"):
        exec(compile(PROGRAMS[number], str(path), "exec"), vars(program))


def test_there_are_programs():
    assert len(PROGRAMS) >= 2
