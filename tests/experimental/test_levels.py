"""The page docs/experimental.md: its levels compute the same thing."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import kiln
from kiln.cute.runtime import from_dlpack

PAGE = Path(__file__).parents[2] / "docs" / "experimental.md"


@pytest.fixture(scope="module")
def levels(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "levels.py"
    file.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)))
    spec = importlib.util.spec_from_file_location("levels_of_the_page", file)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("level", ["by_primitives", "by_atoms", "by_tasks", "by_slices"])
def test_levels_compute_the_same(levels, level):
    memory = np.zeros((2, 16 * 64 + 64), np.float16)
    x, out = (m[-m.ctypes.data % 128 // 2 :][: 16 * 64].reshape(16, 64) for m in memory)
    x[:] = np.random.default_rng(0).random((16, 64))
    with kiln.target("cpu"), kiln.sanitize():
        getattr(levels, level)(from_dlpack(x, assumed_align=128), from_dlpack(out, assumed_align=128))
    np.testing.assert_array_equal(out, 2 * x)
