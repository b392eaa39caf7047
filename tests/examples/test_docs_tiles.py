"""Every example of `docs/tiles.md`, `docs/hopper.md` and `docs/blackwell.md` is run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kiln

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "examples"), [("tiles", 7), ("hopper", 3), ("blackwell", 4)])
def test_the_page_runs(page, examples, tmp_path, monkeypatch):
    program = ModuleType(f"docs_{page}")
    monkeypatch.setitem(sys.modules, program.__name__, program)
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= examples
    with kiln.target("cpu"):
        for number, code in enumerate(blocks):
            file = tmp_path / f"block_{number}.py"
            file.write_text(code)
            exec(compile(code, str(file), "exec"), program.__dict__)
