"""What the page of the target shows, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nvidia_testing import needs_ptxas

PAGE = Path(__file__).parents[3] / "docs" / "nvidia-target.md"


@needs_ptxas
def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)):
        file = tmp_path / f"part_{number}.py"
        file.write_text(code)
        exec(compile(code, str(file), "exec"), names)
