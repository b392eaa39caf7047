"""Reciprocals by the hardware as softmax and norms of libraries take them."""

from __future__ import annotations

import numpy as np
from nvidia_testing import compile_for

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack


@cute.kernel
def normalize(x: cute.Tensor, sums: cute.Tensor, y: cute.Tensor):
    row = arch.thread_idx()[0]
    total = sums[row]
    nothing = total == 0.0 or total != total
    scale = arch.rcp_approx(total if not nothing else 1.0)  # one path has a Python number
    y[row, None].store(x[row, None].load() * scale)


@cute.jit
def run(x: cute.Tensor, sums: cute.Tensor, y: cute.Tensor):
    normalize(x, sums, y).launch(grid=1, block=8)


def test_rows_are_divided_by_their_sums():
    sums = np.array([3, 0, np.nan, np.inf, -7, 1e-30, 1e-45, 0.1], np.float32)
    x, y = np.arange(1, 33, dtype=np.float32).reshape(8, 4), np.zeros((8, 4), np.float32)
    with kiln.target("cpu"):
        run(*map(from_dlpack, (x, sums, y)))
    divisors = np.where((sums == 0) | np.isnan(sums), 1, sums).astype(np.float64)
    divisors[6] = 0  # a subnormal number counts as 0
    with np.errstate(divide="ignore"):
        expected = x / divisors[:, None]
    np.testing.assert_allclose(y, expected, rtol=2**-21)
    ptx = compile_for(run, *map(from_dlpack, (x, sums, y))).__ptx__
    assert ptx.count("rcp.approx.ftz.f32") == 1 and "div." not in ptx
