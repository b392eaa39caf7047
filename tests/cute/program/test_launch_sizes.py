"""Sizes of a launch keep all their bits until they are checked, on every target."""

from __future__ import annotations

import numpy as np
import pytest

from kiln import cute
from kiln.base_dsl.diagnostics import DSLRuntimeError, DSLUserCodeTypeError
from kiln.base_dsl.typing import Int64, Int128, Uint32, Uint64


@cute.kernel
def count(out: cute.Tensor):
    x, _, _ = cute.arch.block_idx()
    out[x] = out[x] + 1


@cute.jit
def by_grid(out: cute.Tensor, n: Int64):
    count(out).launch(grid=(n, 1, 1), block=(1, 1, 1))


@cute.jit
def by_unsigned_grid(out: cute.Tensor, n: Uint32):
    count(out).launch(grid=n, block=1)


@cute.jit
def by_unsigned_wide_grid(out: cute.Tensor, n: Uint64):
    count(out).launch(grid=n, block=1)


@cute.jit
def by_widest_grid(out: cute.Tensor, n: Int128):
    count(out).launch(grid=n, block=1)


@cute.jit
def by_block(out: cute.Tensor, n: Int64):
    count(out).launch(grid=1, block=[1, n, 1])


@cute.jit
def by_cluster(out: cute.Tensor, n: Int64):
    count(out).launch(grid=4, block=1, cluster=(n, 1, 1))


@cute.jit
def by_smem(out: cute.Tensor, n: Int64):
    count(out).launch(grid=4, block=1, smem=n)


WRONG = [
    (by_grid, 2**32 + 5, "grid x is 4294967301"),
    (by_grid, 2**40, "grid x is 1099511627776"),
    (by_grid, 2**31, "grid x is 2147483648"),
    (by_grid, -(2**32) + 5, "grid x is -4294967291"),
    (by_unsigned_grid, 2**32 - 1, "grid x is 4294967295"),
    (by_unsigned_wide_grid, 2**32 + 1, "grid x is 4294967297"),
    (by_unsigned_wide_grid, 2**63 + 5, "grid x is 9223372036854775807"),
    (by_widest_grid, 2**64 + 5, "grid x is 9223372036854775807"),
    (by_widest_grid, -(2**64) + 5, "grid x is -9223372036854775808"),
    (by_block, 2**32 + 1, "block y is 4294967297"),
    (by_cluster, 2**32 + 1, "cluster=\\(4294967297, 1, 1\\)"),
    (by_smem, 2**32 + 16, "smem=4294967312"),
    (by_smem, 2**63 - 1, "smem=9223372036854775807"),
]


@pytest.mark.parametrize(("function", "n", "words"), WRONG)
def test_a_size_beyond_32_bits_is_reported_as_it_is(function, n, words):
    out = np.zeros(8, np.int32)
    with pytest.raises(DSLRuntimeError, match=words):
        function(out, n)
    assert not out.any()


def test_sizes_of_64_bits_work():
    out = np.zeros(8, np.int32)
    by_grid(out, 5)
    assert out.tolist() == [1, 1, 1, 1, 1, 0, 0, 0]
    by_cluster(out, 2)
    by_smem(out, 1000)
    assert out.tolist() == [3, 3, 3, 3, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grid": 2**32 + 5, "block": 1}, "grid.x is 4294967301"),
        ({"grid": 2**40, "block": 1}, "grid.x is 1099511627776"),
        ({"grid": 1, "block": (1, 2**70)}, f"block.y is {2**70}"),
        ({"grid": 1, "block": 1, "cluster": 2**32 + 1}, "cluster.x is 4294967297"),
        ({"grid": 1, "block": 1, "smem": 2**32 + 16}, "smem is 4294967312"),
        ({"grid": 1, "block": 1, "smem": 1.5}, "smem is 1.5"),
        ({"grid": 1, "block": 1, "max_number_threads": 2**40}, "max_number_threads is 1099511627776"),
        ({"grid": 1, "block": 1, "min_blocks_per_mp": 2**32 + 1}, "min_blocks_per_mp is 4294967297"),
    ],
)
def test_a_known_size_beyond_32_bits_is_refused(options, words):
    @cute.jit
    def f(out: cute.Tensor):
        count(out).launch(**options)

    with pytest.raises(DSLUserCodeTypeError, match=words):
        f(np.zeros(8, np.int32))
