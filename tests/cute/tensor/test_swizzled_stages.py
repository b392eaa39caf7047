"""Rings of swizzled buffers: a stage chosen at run time, also carried through a loop, leaves elements where they belong."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute, utils
from kiln.cute.runtime import from_dlpack

ROWS, COLUMNS, STAGES = 8, 64, 3
SWIZZLE = (3, 3, 3)
"""On offsets of 16-bit elements."""
PERIOD = 512


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def place(row: int, column: int, stage: int) -> int:
    """Where an element lies, by the definition of a swizzle."""
    offset = stage * ROWS * COLUMNS + row * COLUMNS + column
    return offset ^ ((offset & (7 << 6)) >> 3)


def ring(kind: str, first: int):
    """A ring of tiles (row, column, stage), `first` elements past the start of shared memory, and the raw memory."""
    layout = cute.make_layout((ROWS, COLUMNS, STAGES), stride=(COLUMNS, 1, ROWS * COLUMNS))
    count = ROWS * COLUMNS * STAGES
    raw = utils.SmemAllocator().allocate_array(cute.Int16, count + first, byte_alignment=16)
    if kind == "layout":
        return cute.make_tensor(raw + first, cute.make_composed_layout(cute.make_swizzle(*SWIZZLE), 0, layout)), raw
    swizzle = cute.make_swizzle(3, 4, 3)  # on bytes
    return cute.make_tensor(cute.recast_ptr(raw + first, swizzle, cute.Int16), layout), raw


@pytest.mark.parametrize("first", [0, PERIOD, 2 * PERIOD])
@pytest.mark.parametrize("kind", ["layout", "pointer"])
def test_a_stage_carried_through_a_loop(kind, first):
    count = ROWS * COLUMNS * STAGES

    @cute.kernel
    def fill(out: cute.Tensor):
        thread = cute.arch.thread_idx()[0]
        tiles, raw = ring(kind, first)
        own = tiles[thread % ROWS, None, None]  # a thread's row, then the stage: the order of partitions
        stage = cute.Int32(0)
        current = own[None, stage]
        for turn in range(STAGES):
            for column in range(COLUMNS):
                current[column] = cute.Int16(turn * 1000 + (thread % ROWS) * 100 + column)
            stage = stage + 1 if stage + 1 < STAGES else cute.Int32(0)
            current = own[None, stage]
        cute.arch.sync_threads()
        if thread == 0:
            for i in range(count):
                out[i] = (raw + (first + i)).load()

    @cute.jit
    def run(out: cute.Tensor):
        fill(out).launch(grid=1, block=ROWS)

    out = np.zeros(count, np.int16)
    run(from_dlpack(out))
    for stage in range(STAGES):
        for row in range(ROWS):
            for column in range(COLUMNS):
                assert out[place(row, column, stage)] == stage * 1000 + row * 100 + column


@pytest.mark.parametrize("kind", ["layout", "pointer"])
def test_branches_that_choose_different_slices(kind):
    """One arm is sliced by a constant, the other at run time: both become the same kind of tensor."""

    @cute.kernel
    def choose(out: cute.Tensor, which: cute.Int32):
        tiles, raw = ring(kind, 0)
        thread = cute.arch.thread_idx()[0]
        for i in range(ROWS * COLUMNS * STAGES):
            (raw + i).store(cute.Int16(i))
        part = tiles[0, None, 1]
        if which > 0:
            part = tiles[which, None, which]
        out[thread] = part[thread]

    @cute.jit
    def run(out: cute.Tensor, which: cute.Int32):
        choose(out, which).launch(grid=1, block=COLUMNS)

    for which in (0, 2):
        out = np.zeros(COLUMNS, np.int16)
        with kiln.sanitize("memory"):
            run(from_dlpack(out), which)
        row, stage = (0, 1) if which == 0 else (which, which)
        assert out.tolist() == [place(row, column, stage) for column in range(COLUMNS)]


def test_the_period_of_a_swizzle():
    for bits, base, shift in [(3, 3, 3), (2, 4, 3), (1, 0, 5), (2, 1, -3)]:
        swizzle = cute.make_swizzle(bits, base, shift)
        assert all(
            swizzle(x + 3 * swizzle.period) == swizzle(x) + 3 * swizzle.period for x in range(2 * swizzle.period)
        )
        smaller = swizzle.period // 2
        assert any(swizzle(x + smaller) != swizzle(x) + smaller for x in range(swizzle.period))


def test_whole_periods_are_told_apart():
    from kiln.cute.layout.layout import crd2idx_apart

    layout = cute.make_layout((ROWS, COLUMNS, STAGES), stride=(COLUMNS, 1, ROWS * COLUMNS))
    assert crd2idx_apart((3, None, 2), layout, PERIOD) == (2 * PERIOD, 3 * COLUMNS)
    assert crd2idx_apart((None, 7, 1), layout, PERIOD) == (PERIOD, 7)
    assert crd2idx_apart((3, 5, 2), layout, 0) == (0, 2 * PERIOD + 3 * COLUMNS + 5)


def test_whole_periods_share_a_swizzle():
    """A thread's row in every stage, copied at once: elements that are periods apart need one swizzle between them."""
    count = ROWS * COLUMNS * STAGES

    @cute.kernel
    def fill(out: cute.Tensor):
        thread = cute.arch.thread_idx()[0]
        tiles, raw = ring("layout", 0)
        held = cute.make_rmem_tensor((COLUMNS, STAGES), cute.Int16)
        for i in kiln.range_constexpr(COLUMNS * STAGES):
            held[i] = cute.Int16(i // COLUMNS * 1000 + thread * 100 + i % COLUMNS)
        cute.autovec_copy(held, tiles[thread, None, None])
        cute.arch.sync_threads()
        if thread == 0:
            for i in range(count):
                out[i] = (raw + i).load()

    @cute.jit
    def program(out: cute.Tensor):
        fill(out).launch(grid=1, block=ROWS)

    out = np.zeros(count, np.int16)
    compiled = cute.compile(program, from_dlpack(out))
    compiled(from_dlpack(out))
    expected = np.zeros(count, np.int16)
    for stage in range(STAGES):
        for row in range(ROWS):
            for column in range(COLUMNS):
                expected[place(row, column, stage)] = stage * 1000 + row * 100 + column
    np.testing.assert_array_equal(out, expected)
    assert compiled.__mlir__.count("arith.xori") == COLUMNS // 8
