"""What the documentation of the kernels shows, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import kiln

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def test_the_page_runs(tmp_path):
    names: dict[str, Any] = {}
    with kiln.target("cpu"):
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)):
            file = tmp_path / f"block_{number}.py"  # programs are read from files
            file.write_text(code)
            exec(compile(code, str(file), "exec"), names)
    np.testing.assert_allclose(
        names["d"].astype(np.float64),
        (names["a"].astype(np.float64) @ names["b"].astype(np.float64)) * names["gate"],
        rtol=5e-3,
        atol=5e-3,
    )
    np.testing.assert_allclose(
        names["small"].astype(np.float64),
        names["a"].astype(np.float64) @ names["b"].astype(np.float64),
        rtol=5e-3,
        atol=5e-3,
    )
    assert names["best"] == names["choices"][0].config
