"""Tiles of sequences of different lengths, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Int32, cute, range_constexpr, utils
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.utils import schedulers

TILE_ROWS = 4
HEADS = 3
GROUP = 2


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


@cute.kernel
def _write_tiles(cu_seqlens: cute.Tensor, rows: Int32, out: cute.Tensor, counter: cute.Tensor, dynamic: kiln.Constexpr):
    lane, cta, num_ctas = arch.lane_idx(), Int32(arch.block_idx()[0]), Int32(arch.grid_dim()[0])
    number, turn = cta, Int32(0)
    batch, rest, search = schedulers.find_sequence(
        number, cu_seqlens, rows, TILE_ROWS, HEADS, schedulers.SequenceSearch(Int32(0), Int32(0))
    )
    batches = cu_seqlens.shape[0] - 1
    while batch < batches:
        first, length = schedulers.sequence_range(cu_seqlens, batch, rows)
        head, tile = schedulers.head_group_tile(rest, cute.ceil_div(length, TILE_ROWS), HEADS, GROUP)
        work = (batch, head, tile, first, length, cta)
        if lane == 0:
            for i in range_constexpr(6):
                out[number, i] = work[i]
        if dynamic:
            number = arch.shuffle_sync(schedulers.fetch_tile(counter, num_ctas), 0)
        else:
            number = schedulers.next_snake_tile(number, turn, num_ctas)
        turn = turn + 1
        batch, rest, search = schedulers.find_sequence(number, cu_seqlens, rows, TILE_ROWS, HEADS, search)
    _, none = schedulers.head_group_tile(rest, 1, HEADS, GROUP, batch < batches)
    out[out.shape[0] - 1, 0] = none


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_tile_of_every_sequence_is_taken_once(dynamic: bool) -> None:
    lengths = np.random.default_rng(0).integers(0, 14, 77)
    cu_seqlens = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    expected = []
    for batch, length in enumerate(lengths.tolist()):
        tiles = -(-length // TILE_ROWS)
        for first_head in range(0, HEADS, GROUP):
            heads = range(first_head, min(first_head + GROUP, HEADS))
            expected += [
                (batch, head, tile, int(cu_seqlens[batch]), length) for tile in reversed(range(tiles)) for head in heads
            ]
    out = np.full((len(expected) + 1, 6), -7, np.int32)

    @cute.jit
    def run(cu_seqlens: cute.Tensor, rows: Int32, out: cute.Tensor, counter: cute.Tensor):
        _write_tiles(cu_seqlens, rows, out, counter, dynamic).launch(grid=5, block=32)

    given = from_dlpack(cu_seqlens).mark_layout_dynamic(), Int32(int(cu_seqlens[-1]))
    run(*given, from_dlpack(out), from_dlpack(np.zeros(1, np.int32)))
    assert [tuple(row[:5]) for row in out[:-1].tolist()] == expected
    assert out[-1, 0] == -1
    if not dynamic:  # there and back again
        order = [*range(5), *reversed(range(5))]
        assert out[:-1, 5].tolist() == [order[i % 10] for i in range(len(expected))]


def test_offsets_outside_of_the_array_are_clamped() -> None:
    @cute.kernel
    def kernel(cu_seqlens: cute.Tensor, out: cute.Tensor):
        for i in range_constexpr(3):
            out[i, 0], out[i, 1] = schedulers.sequence_range(cu_seqlens, Int32(i), Int32(10))

    @cute.jit
    def run(cu_seqlens: cute.Tensor, out: cute.Tensor):
        kernel(cu_seqlens, out).launch(grid=1, block=1)

    out = np.zeros((3, 2), np.int32)
    run(from_dlpack(np.array([-5, 4, 99, 2], np.int32)), from_dlpack(out))
    assert out.tolist() == [[0, 4], [4, 6], [10, 0]]


@pytest.mark.parametrize("num_splits", [1, 4, 7])
def test_splits_of_kv_blocks_are_equal_and_cover_every_sequence(num_splits: int) -> None:
    block_k, overhead, max_keys = 8, 3, 60
    scheduler = schedulers.SplitKVScheduler(block_k, overhead)
    seqlens = np.random.default_rng(1).integers(0, 70, 150).astype(np.int32)
    batch = len(seqlens)
    out = np.full((num_splits, batch, 4), -1, np.int32)
    kept = np.full((num_splits, 4), -1, np.int32)

    @cute.kernel
    def kernel(seqlens: cute.Tensor, out: cute.Tensor, kept: cute.Tensor):
        split = Int32(arch.block_idx()[0])
        found = utils.SmemAllocator().allocate_tensor(Int32, cute.make_layout(scheduler.FIELDS), 16)
        scheduler.find(seqlens, Int32(max_keys), split, Int32(num_splits), found, kept, True)
        sequence, start, split_blocks = found[0], found[1], found[2]
        begin = split * split_blocks
        while sequence < seqlens.shape[0] and start < begin + split_blocks:
            length = scheduler.length(seqlens, sequence, Int32(max_keys))
            piece = scheduler.piece(length, Int32(0), start, begin, split_blocks)
            if arch.lane_idx() == 0:
                for i in range_constexpr(4):
                    out[split, sequence, i] = Int32(piece[i])
            start, sequence = scheduler.next_start(start, piece.count), sequence + 1

    @cute.jit
    def run(seqlens: cute.Tensor, out: cute.Tensor, kept: cute.Tensor):
        kernel(seqlens, out, kept).launch(grid=num_splits, block=32)

    run(from_dlpack(seqlens).mark_layout_dynamic(), from_dlpack(out), from_dlpack(kept))
    blocks = [max(1, -(-min(int(n), max_keys) // block_k)) for n in seqlens]
    split_blocks = -(-(sum(blocks) + overhead * batch) // num_splits)
    assert (kept[:, 2] == split_blocks).all()
    for sequence, count in enumerate(blocks):
        pieces = [row for row in out[:, sequence].tolist() if row[0] >= 0]
        assert [b for first, last, *_ in pieces for b in range(first, last)] == list(range(count))
        assert all(row[2] == count and row[3] == (row[0] == 0 and row[1] == count) for row in pieces)
