"""Kernels whose body has a guard and a loop of unknown length."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Float32, Int32, cute


@cute.kernel
def sums(x: cute.Tensor, y: cute.Tensor, n: Int32, rounds: Int32):
    i = cute.arch.block_idx()[0] * 32 + cute.arch.thread_idx()[0]
    if i < n:
        total = Float32(0.0)
        for k in range(rounds):
            total = total + x[i, k]
        y[i] = total


@cute.jit
def run_sums(x: cute.Tensor, y: cute.Tensor, n: Int32, rounds: Int32):
    sums(x, y, n, rounds).launch(grid=3, block=32)


@pytest.mark.parametrize("n", [1, 40, 64, 96])
def test_every_thread_inside_the_guard_makes_all_rounds(n: int) -> None:
    x, y = np.arange(96 * 5, dtype=np.float32).reshape(96, 5), np.zeros(96, np.float32)
    with kiln.target("cpu"):
        run_sums(x, y, n, 5)
    assert np.array_equal(y, np.where(np.arange(96) < n, x.sum(1), 0))
