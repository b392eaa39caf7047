"""Helpers of kernels: the order of tiles, reductions over threads, under the names of `kiln.utils`."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import kiln
from kiln import cute, utils
from kiln.cute.runtime import from_dlpack


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


@pytest.mark.parametrize(("tiles_m", "tiles_n", "group"), [(7, 5, 3), (4, 4, 8), (1, 9, 2), (8, 1, 4), (6, 3, 1)])
def test_each_tile_is_taken_once_and_neighbours_share_operands(tiles_m, tiles_n, group):
    places = [utils.swizzled_tile(number, tiles_m, tiles_n, group) for number in range(tiles_m * tiles_n)]
    assert sorted(places) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]
    for (m, n), (next_m, next_n) in zip(places, places[1:], strict=False):
        down = (next_m, next_n) == (m + 1, n)
        across = next_n == n + 1 and next_m // group == m // group
        assert down or across or (next_n == 0 and next_m == (m // group + 1) * group)


def test_tiles_of_blocks():
    @cute.kernel
    def take(out: cute.Tensor, tiles_m: cute.Int32, tiles_n: cute.Int32):
        number, _, _ = cute.arch.block_idx()
        m, n = utils.swizzled_tile(number, tiles_m, tiles_n, 2)
        if cute.arch.thread_idx()[0] == 0:
            out[m, n] = number

    @cute.jit
    def run(out: cute.Tensor, tiles_m: cute.Int32, tiles_n: cute.Int32):
        take(out, tiles_m, tiles_n).launch(grid=tiles_m * tiles_n, block=32)

    out = np.full((3, 4), -1, np.int32)
    run(out, 3, 4)
    np.testing.assert_array_equal(out, [[0, 2, 4, 6], [1, 3, 5, 7], [8, 9, 10, 11]])


def test_groups_are_numbers():
    with pytest.raises(kiln.DSLUserCodeTypeError, match="group is 0"):
        utils.swizzled_tile(0, 2, 2, 0)


def test_reductions_over_threads():
    @cute.kernel
    def reduce(x: cute.Tensor, out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        out[thread, 0] = utils.reduce_in_warp(x[thread], operator.add, 8)
        out[thread, 1] = utils.reduce_in_block(x[thread], cute.arch.fmax, 64, 64)

    @cute.jit
    def run(x: cute.Tensor, out: cute.Tensor):
        reduce(x, out).launch(grid=1, block=64)

    x, out = np.arange(64, dtype=np.float32), np.zeros((64, 2), np.float32)
    run(from_dlpack(x), from_dlpack(out))
    np.testing.assert_array_equal(out[:, 0], np.repeat(x.reshape(8, 8).sum(1), 8))
    assert (out[:, 1] == 63).all()


@pytest.mark.parametrize(("threads", "block"), [(128, 64), (64, 96), (48, 96), (64, 2048)])
def test_reductions_that_do_not_fit_the_block(threads, block):
    @cute.kernel
    def reduce(x: cute.Tensor):
        x[0] = utils.reduce_in_block(x[0], operator.add, threads, block)

    @cute.jit
    def run(x: cute.Tensor):
        reduce(x).launch(grid=1, block=64)

    with pytest.raises(kiln.DSLUserCodeTypeError, match=f"reduction over {threads} threads"):
        run(np.zeros(1, np.float32))
