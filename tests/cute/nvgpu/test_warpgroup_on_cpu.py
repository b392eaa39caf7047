"""Matrix products of warpgroups, run on the CPU target, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from warpgroup_products import CASES, F16, TILE, exact, name_of, numbers, product, restarted

import kiln
from kiln import cute
from kiln.cute.nvgpu import warpgroup
from kiln.cute.nvgpu.warpgroup import Field


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


@pytest.mark.quick(7)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_products(case: Any) -> None:
    a, b, _, _, (m, n, k), *_ = case
    left, right = numbers((m, k), a, 0), numbers((n, k), b, 1)
    np.testing.assert_array_equal(product(*case)(left, right).astype(np.float64), exact(left, right))


@pytest.mark.parametrize("t", [0, 2, 3, 4])
def test_the_flag_in_dynamic_control_flow(t: int) -> None:
    left, right = numbers((64, 64), F16, 2), numbers((64, 64), F16, 3)
    first = 16 * min(t, 3)
    np.testing.assert_array_equal(
        product(*TILE, steps=restarted)(left, right, t), exact(left[:, first:], right[:, first:])
    )


@cute.jit
def whole(mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, t: kiln.Int32):
    acc.fill(1)
    warpgroup.fence()
    mma.set(Field.ACCUMULATE, True)
    cute.gemm(mma, acc, a, b, acc)


def test_one_call_for_all_steps() -> None:
    left, right = numbers((64, 64), F16, 4), numbers((64, 64), F16, 5)
    np.testing.assert_array_equal(product(*TILE, steps=whole)(left, right), exact(left, right) + 1)


@pytest.mark.parametrize("case", [TILE, CASES[-5], CASES[-3]], ids=name_of)
def test_the_sanitizer_finds_nothing(case: Any) -> None:
    """Sums that nobody sets before a product overwrites them, several calls of them, A from registers."""
    a, b, _, _, (m, n, k), *_ = case
    with kiln.sanitize():
        product(*case)(numbers((m, k), a, 0), numbers((n, k), b, 1))
