"""What the documentation of the kernels shows, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import kiln

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def test_the_page_runs(tmp_path):
    rng = np.random.default_rng(0)
    names: dict[str, Any] = {
        name: rng.standard_normal(shape).astype(np.float16)
        for name, shape in (
            ("a", (16, 24)),
            ("b", (24, 8)),
            ("c", (16, 8)),
            ("gate", (16, 8)),
            ("row", (8,)),
            ("x", (4, 8)),
            ("dy", (4, 8)),
            ("residual", (4, 8)),
            ("weight", (8,)),
            ("bias", (8,)),
            ("q", (1, 12, 2, 32)),
            ("k", (1, 12, 1, 32)),
            ("v", (1, 12, 1, 32)),
            ("k_pages", (5, 4, 1, 32)),
            ("v_pages", (5, 4, 1, 32)),
            ("compressed_kv", (5, 64, 576)),
            ("absorbed", (1, 1, 16, 576)),
            ("packed", (3, 16, 576)),
            ("kv_rows", (9, 576)),
        )
    }
    names["starts"] = np.array([0, 5, 12], np.int32)
    names["lengths"] = np.array([9], np.int32)
    names["cu_seqlens_q"], names["cu_seqlens_k"] = np.array([0, 3], np.int32), np.array([0, 9], np.int32)
    names["page_table"] = np.array([[4, 0, 2]], np.int32)
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
