"""Every example of `docs/tiles.md` is run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import kiln

PAGE = Path(__file__).parents[2] / "docs" / "tiles.md"


def test_the_page_runs(tmp_path, monkeypatch):
    program = ModuleType("docs_tiles")
    monkeypatch.setitem(sys.modules, "docs_tiles", program)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 6
    with kiln.target("cpu"):
        for number, code in enumerate(blocks):
            file = tmp_path / f"block_{number}.py"
            file.write_text(code)
            exec(compile(code, str(file), "exec"), program.__dict__)
