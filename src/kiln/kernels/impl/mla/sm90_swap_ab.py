"""The kernel of `mla_decode` for Hopper and few rows: latents are the rows of products, queries their columns.

A tile has up to 32 queries and heads of a sequence. As rows of products they would leave most of the 64 rows that the tensor
cores multiply at once empty; latents, 64 to a block, fill them: S^T = C q^T, and O^T = V^T P^T from the same memory. Of the blocks each
of two warp groups has every other one, from its scores to its outputs, so that one has its softmax while the tensor cores work for the
other. Where a sequence ends, both put what they have summed into the memory of their last blocks, and write the sum of the two.

Latents come in pieces of 64 columns, which lie in two rings, one of each warp group.
"""

from __future__ import annotations

import functools
from typing import Any

from .... import Float16, Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from ....cute import arch
from ....cute.nvgpu import cpasync
from ....utils import LayoutEnum, sm90
from ...dispatch import devices
from ...parts.kv_source import PageTable
from ...parts.pipelines import tma_pipe
from ...parts.rematerialize import rematerialized as only_here
from . import split_kv_scheduler
from .combine import Combine
from .sm90_config import GROUP, REGISTERS, THREADS
from .sm90_kv_tiles import FOUND, PRIORITY, Forward, Which
from .sm90_swap_ab_fp8 import NarrowSteps
from .sm90_swap_ab_mainloop import TurnedSteps
from .split_kv_scheduler import KEYS

PIECE = 64
"""Columns of a piece."""
_ROOM = 224 * 1024
"""Bytes of shared memory for queries, weights and latents; what is left is for small things."""


class TurnedForward(Forward):
    """The kernel for queries of some type, values of so many columns, so many `rows` (queries and heads, 16 or 32). `stored`: the type of
    latents in the cache, if that is another, of 8 bits. `ways`: of the second kernel."""

    def __init__(self, dtype: Any, value_dim: int, rows: int, ways: int = 1, stored: Any = None) -> None:
        self.dtype, self.dim_v, self.rows, self.ways, self.stored = dtype, value_dim, rows, ways, stored
        self.tile_rows = rows
        # what is multiplied: latents of 8 bits are such of f16 without a loss
        self.operand = dtype if stored is None else Float16
        self.pieces = value_dim // PIECE + 1
        self.piece_bytes = KEYS * PIECE * (2 if stored is None else 1)
        queries = 2 * rows * self.pieces * PIECE
        used = queries * (1 if stored is None else 2) + 2 * 2 * rows * KEYS
        # of each warp group as many; of 8 bits whole blocks, since who widens them has no time to divide
        alike = 2 if stored is None else 2 * self.pieces
        self.buffers = min(5 * self.pieces, (_ROOM - used) // self.piece_bytes) // alike * alike

    # --- how tiles lie ---

    def queries(self, dtype: Any) -> Any:
        """Rows and columns of queries."""
        return sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (KEYS, self.rows, self.pieces * PIECE), dtype, 1)

    def weights(self) -> Any:
        """Rows and keys, for each warp group."""
        return sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (KEYS, self.rows, KEYS), self.operand, 2)

    def latents(self) -> Any:
        """Keys and columns of a piece, buffers."""
        dtype = self.dtype if self.stored is None else self.stored
        return sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (KEYS, self.rows, PIECE), dtype, self.buffers)

    def values(self) -> Any:
        """The same memory: columns and keys of a piece, buffers."""
        return sm90.make_smem_layout_a(LayoutEnum.COL_MAJOR, (PIECE, self.rows, KEYS), self.dtype, self.buffers)

    def place(self, count: Any, piece: Any) -> tuple[Any, Any]:
        """The buffer of a piece of a block of keys, the `count`th of all, and how often it was filled before.

        Each warp group has half of the buffers. Who waits for a buffer sees the last bit of how often it was filled: one that did not see
        every filling, because the other had some of them, could take the one before the last for the one it waits for.
        """
        own = self.buffers // 2
        blocks, rest = divmod(own, self.pieces)
        if rest:
            number = (count >> 1) * self.pieces + piece
            index, turn = number % own, number // own
        else:
            index, turn = (count >> 1) % blocks * self.pieces + piece, (count >> 1) // blocks
        return (count & 1) * own + index, turn

    def state(self, count: Any, piece: Any, loads: int = 0) -> Any:
        """Of a piece of a block of keys; who `loads` (1) waits for the phase before."""
        index, turn = self.place(count, piece)
        return pipeline.PipelineState(self.buffers, 0, index, (turn & 1) ^ loads)

    @cute.jit
    def __call__(self, q: cute.Tensor, cache: cute.Tensor, given: Any, tiles: Int32, numbers: Any, stream: Int64):
        """Launch it for queries (batch, row, column) and latents (page, row, column)."""
        load = cpasync.CopyBulkTensorTileG2SOp()
        maps: list[Any] = []
        shapes = (self.rows, self.pieces * PIECE), (KEYS, PIECE)
        for x, layout, shape in zip((q, cache), (self.queries(self.dtype), self.latents()), shapes, strict=True):
            first, row, column = x.shape
            each = 128 // x.element_type.width
            strides = [cute.assume(s // each * each, divby=each) for s in x.stride[:2]]
            turned = cute.make_layout((row, column, first), stride=(strides[1], 1, strides[0]))
            tile = cute.slice_(layout, (None, None, 0))
            maps += cpasync.make_tiled_tma_atom(load, cute.make_tensor(x.iterator, turned), tile, shape)
        self.kernel(*maps, given, tiles, numbers).launch(
            grid=(tiles * numbers.shares, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1, stream=stream
        )
        Combine(self.dtype, self.dim_v, self.ways)(given, numbers, stream)

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self, load_q: cute.CopyAtom, q: cute.Tensor, load_k: cute.CopyAtom, k: cute.Tensor, given: Any, tiles: Int32,
        numbers: Any,
    ):  # fmt: skip
        warp = arch.make_warp_uniform(arch.warp_idx())
        number = arch.block_idx()[0]
        tile, share = number % tiles, number // tiles
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        memory = utils.SmemAllocator()
        cached, layout_q = self.dtype if self.stored is None else self.stored, self.queries(self.dtype)
        tile_q, ring, tile_p = (
            memory.allocate_tensor(dtype, layout.outer, 1024, layout.inner)
            for dtype, layout in ((self.dtype, layout_q), (cached, self.latents()), (self.operand, self.weights()))
        )
        factors = tile_halves = None
        if const_expr(self.stored is not None):
            layout = self.queries(self.operand)
            tile_halves = memory.allocate_tensor(self.operand, layout.outer, 1024, layout.inner)
            factors = memory.allocate_tensor(Float32, cute.make_layout((self.rows,)), 16)
        # of each row, by warp (two warp groups of four): highest scores, sums of weights; and references by warp group
        highest, totals = (memory.allocate_tensor(Float32, cute.make_layout((self.rows, 4, 2)), 16) for _ in range(2))
        references = memory.allocate_tensor(Float32, cute.make_layout((self.rows, 2)), 16)
        found = memory.allocate_tensor(Int32, cute.make_layout((FOUND,)), 16)
        pipe_q = tma_pipe(1, 8, 2 * self.rows * self.pieces * PIECE)
        pipe = tma_pipe(self.buffers, 4, self.piece_bytes)
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        which = Which(found, q.shape[0], numbers)
        if warp == 0:
            for atom in (load_q, load_k):
                cpasync.prefetch_descriptor(atom)
            self.find(given, share, tile, which)
        arch.sync_threads()
        if warp < GROUP // 32:
            arch.setmaxregister_decrease(REGISTERS[0])
            if warp == 0:
                self.load(load_k, self.parts(load_k, ring, k, (KEYS, PIECE)), pipe, given, which)
            elif warp == 1:
                parts = self.parts(load_q, tile_q, q, (self.rows, self.pieces * PIECE))
                self.load_queries(load_q, parts, pipe_q, given, which)
        else:
            arch.setmaxregister_increase(REGISTERS[1])
            exchanged = highest, totals, references
            if const_expr(self.stored is None):
                steps: Any = TurnedSteps(self, warp // 4 - 1, (tile_q, ring, tile_p), exchanged, pipe, numbers.scale)
            else:
                operands = tile_halves, ring, tile_p
                steps = NarrowSteps(self, warp // 4 - 1, operands, exchanged, pipe, numbers.scale)
                steps.take(tile_q, factors, given.factor)
            self.compute(steps, pipe_q, given, which)

    @cute.jit
    def load(self, atom: Any, parts: Any, pipe: Any, given: Any, which: Any):
        """Load all blocks of a share."""
        to, of = parts
        sequence, start = (arch.make_warp_uniform(which.found[i]) for i in range(2))
        count = Int32(0)
        while self.inside(given, sequence, start, which):
            _, own = self.own(given, sequence, start, which)
            pages = PageTable(given.table[sequence, None], KEYS, Int32(cute.size(of, mode=[3])))
            for i in range(own.last - own.first):
                page = pages.page((own.last - 1 - i) * KEYS)
                for piece in range_constexpr(self.pieces):
                    state = self.state(count, piece, 1)
                    pipe.producer_acquire(state)
                    barrier = pipe.producer_get_barrier(state)
                    source = of[None, 0, piece, page]
                    cute.copy(atom, source, to[None, state.index], tma_bar_ptr=barrier, cache_policy=PRIORITY)
                count = count + 1
            start = split_kv_scheduler.following(start, own.count)
            sequence = sequence + 1

    @cute.jit
    def load_queries(self, atom: Any, parts: Any, pipe: Any, given: Any, which: Any):
        """Load the queries of all sequences of a share."""
        to, of = parts
        sequence, start = (arch.make_warp_uniform(which.found[i]) for i in range(2))
        producer, _ = pipe.make_participants()
        while self.inside(given, sequence, start, which):
            _, own = self.own(given, sequence, start, which)
            if own.first < own.last:
                stage = producer.acquire_and_advance()
                cute.copy(atom, of[None, which.tile, 0, sequence], to[None, 0], tma_bar_ptr=stage.barrier)
            start = split_kv_scheduler.following(start, own.count)
            sequence = sequence + 1

    @cute.jit
    def compute(self, steps: Any, pipe_q: Any, given: Any, which: Any):
        """The outputs of all sequences of a share."""
        sequence, start = (arch.make_warp_uniform(which.found[i]) for i in range(2))
        count = Int32(0)
        _, consumer = pipe_q.make_participants()
        while self.inside(given, sequence, start, which):
            length, own = self.own(given, sequence, start, which)
            blocks = arch.make_warp_uniform(own.last - own.first)
            if blocks > 0:
                # which of the blocks are this warp group's: the first or the second, and every other one from there on
                first = (steps.group ^ count) & 1
                # keys of the sequence from the block's first on
                there = length - (own.last - 1 - first) * KEYS
                steps.begin()
                filled = consumer.wait_and_advance()
                if const_expr(self.stored is not None):
                    steps.convert_queries()
                    filled.release()
                number, count = count + first, count + blocks
                # Which way of counting fits into registers was tried.
                if const_expr(self.stored is None):
                    for numbered in range(number, count, 2):
                        steps.block(numbered, there, which, numbered + 2 < count)
                        there = there + 2 * KEYS
                    filled.release()
                else:
                    for _ in range(first, blocks, 2):
                        steps.block(number, there, which, number + 2 < count)
                        number, there = number + 2, there + 2 * KEYS
                # found again: sums leave no registers to keep it in
                _, own = self.own(given, only_here(sequence), start, which)
                blocks = arch.make_warp_uniform(own.last - own.first)
                slot = 2 * which.share + Int32(own.first == 0)
                steps.finish(count - blocks, blocks, given, sequence, slot, own.whole, which)
            _, own = self.own(given, only_here(sequence), start, which)
            start = split_kv_scheduler.following(start, own.count)
            sequence = sequence + 1


turned_forward = functools.lru_cache(maxsize=64)(TurnedForward)
