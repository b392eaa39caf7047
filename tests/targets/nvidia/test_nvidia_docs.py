"""What the page of the target shows, run; and that its table of errors is what is tested."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import test_nvidia_math
import test_nvidia_math64
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


def test_the_errors_are_those_that_are_tested():
    stated: dict[str, dict[str, float]] = {"f32": {}, "f64": {}}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3:
            continue
        names = [name.strip() for name in cells[0].replace(", of any argument", "").split(",")]
        for kind, text in zip(("f32", "f64"), cells[1:], strict=True):
            numbers = re.findall(r"\d+(?:\.\d+)?", text)
            if len(numbers) == len(names) and set(names) & {"exp", "log", "sin", "asin", "sinh", "asinh", "pow"}:
                stated[kind] |= dict(zip(names, map(float, numbers), strict=True))
    assert len(stated["f64"]) == 25
    for kind, module, slack in (("f32", test_nvidia_math, {}), ("f64", test_nvidia_math64, {"erf": 1.0, "erfc": 0.5})):
        for name, _, _, _, bound in module.CASES:
            if name in stated[kind]:
                # the C library's own error counts where there is no better reference
                assert bound - slack.get(name, 0.0) <= stated[kind][name], (kind, name)
