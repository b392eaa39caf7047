"""The kernel of `mla_decode` for Hopper: latents come by the copy engine, a page at a time; two warp groups multiply.

A tile has 64 rows, queries of one sequence and their heads. Its outputs are too many for one warp group: each has one half of their
columns. Of the blocks of keys each warp group has every other one: it computes its scores and weights, uses them for its half, and
gives them, by way of shared memory, to the other, which uses them for its own. So one has its softmax while the tensor cores work for
the other. Weights lie where the last columns of the block's keys were, which nobody needs any more.

Buffers are two blocks of keys, each in two halves and the last 64 columns; a half is loaded again as soon as the warp group that has
its columns is done with it. Latents of 8 bits come into buffers of their own, one block, and are widened into three halves, which go round:
the half whose columns the block's own warp group has comes first.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from ... import Constexpr, Float16, Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from ...cute import arch
from ...cute.nvgpu import cpasync, warpgroup
from ...utils import LayoutEnum, sm90
from .. import devices
from ..attentions.pages import Pages
from ..attentions.tile import only_here
from ..common.pipes import tma_pipe
from . import shares
from .combine import Combine
from .forward import FOUND, PRIORITY, Forward, Which
from .hopper_steps import Steps
from .plan import EARLY, GROUP, NARROW_REGISTERS, REGISTERS, ROWS, THREADS
from .shares import KEYS
from .widening import Widen, raw_layout, warp_pipe

ROPE = 64
"""Columns of keys that are no values: as many as keys of a block, so that the weights of a block fit there."""
PIECES = 4
"""Of half of a block: columns that are waited for together."""
_WARP_OF_ROPE = 2
"""Warps before it load halves of latents, the one after it queries."""


class Numbers(NamedTuple):
    """The factor of the scores (in powers of two), heads, keys hidden from the first query at the end, shares of the keys."""

    scale: Any
    heads: Any
    hidden: Any
    shares: Any


class Given(NamedTuple):
    """Pages of sequences (batch, pages), their lengths, shares as `shares.find` leaves them; pieces (slot, row, column), outputs (batch,
    row, column), logarithms (batch, head, query) or None; the factor of latents (one number) or None."""

    table: Any
    lengths: Any
    found: Any
    pieces: Any
    out: Any
    lse: Any
    factor: Any = None


class LatentForward(Forward):
    """The kernel for queries of some type, values of so many columns. `stored`: the type of latents in the cache, if that is another, of 8
    bits: one more warp group then makes f16 of them, and queries are made f16, too. `ways`: of the second kernel. `early`: parts of the scores
    of a block that are begun before the other warp group's weights of the block before are there."""

    tile_rows = ROWS

    def __init__(self, dtype: Any, value_dim: int, stored: Any = None, ways: int = 1, early: int = EARLY) -> None:
        self.dtype, self.dim_v, self.stored, self.ways = dtype, value_dim, stored, ways
        # what is multiplied: latents of 8 bits are such of f16 without a loss
        self.operand = dtype if stored is None else Float16
        self.half = value_dim // 2
        self.halves = 4 if stored is None else 3
        # columns of a half come in so many pieces, and products begin with the first that is there
        self.pieces = min(PIECES, self.half // 64) if stored is None else 1
        self.across = self.half // self.pieces
        # parts of scores: halves, of which the block's own warp group has the columns of the first, and last columns (2), in pieces
        first, second = ([(half, piece) for piece in range(self.pieces)] for half in range(2))
        self.parts_of_scores = [*first, *second, (2, 0)] if stored is None else [*first, (2, 0), *second]
        # Before the other warp group's weights are there nothing of the second half is begun: of three halves in turn, its buffer had one of the
        # other's block, which is sure to have been there only then, and a wait tells no more than two fillings apart.
        begun = -(-early * self.pieces // 4)
        self.early = min(begun, self.parts_of_scores.index((2, 0)) + (stored is not None))
        # Where there are four warp groups, none may have more than 128 registers at the beginning: products of 256 columns do not fit.
        self.columns_at_once = self.half if stored is None else 128 if self.half % 128 == 0 else 64
        self.threads, self.registers = THREADS, REGISTERS
        if stored is not None:
            self.threads, self.registers = THREADS + GROUP, NARROW_REGISTERS

    # --- how tiles lie ---

    def mma_scores(self) -> Any:
        """The product of 64 rows and a block of keys."""
        major = warpgroup.OperandMajorMode.K
        return sm90.make_trivial_tiled_mma(self.operand, self.operand, major, major, Float32, (1, 1, 1), (ROWS, KEYS))

    def mma_outputs(self, own: bool) -> Any:
        """The product of weights, one's own in registers or the other's in shared memory, and half of the values of a block."""
        majors = warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN
        source = warpgroup.OperandSource.RMEM if own else warpgroup.OperandSource.SMEM
        return sm90.make_trivial_tiled_mma(
            self.operand, self.operand, *majors, Float32, (1, 1, 1), (ROWS, self.columns_at_once), source
        )

    def rows(self, columns: int, buffers: int) -> Any:
        """Rows and columns of a tile, buffers."""
        return sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (ROWS, KEYS, columns), self.operand, buffers)

    def columns(self, buffers: int) -> Any:
        """Half of the values of a block (element, key, buffer): the same memory as `rows`."""
        return sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, (ROWS, self.half, KEYS), self.operand, buffers)

    @cute.jit
    def __call__(self, q: cute.Tensor, cache: cute.Tensor, given: Any, tiles: Int32, numbers: Any, stream: Int64):
        """Launch it for queries (batch, row, column) and latents (page, row, column)."""
        maps = (
            *self.maps(q, self.half, self.rows),
            *self.maps(cache, self.across, self.layout_of_latents()),
        )
        self.kernel(*maps, given, tiles, numbers).launch(
            grid=(tiles * numbers.shares, 1, 1), block=(self.threads, 1, 1), min_blocks_per_mp=1, stream=stream
        )
        Combine(self.dtype, self.dim_v, self.ways)(given, numbers, stream)

    def layout_of_latents(self) -> Any:
        """What says how tiles of latents lie as they come."""
        return self.rows if self.stored is None else raw_layout

    def maps(self, x: Any, across: int, layout_of: Any) -> list[Any]:
        """What loads tiles of so many columns, and of the last, each with its tensor. Called on the host."""
        first, row, column = x.shape
        each = 128 // x.element_type.width
        strides = [cute.assume(s // each * each, divby=each) for s in x.stride[:2]]
        turned = cute.make_tensor(
            x.iterator, cute.make_layout((row, column, first), stride=(strides[1], 1, strides[0]))
        )
        made: list[Any] = []
        for columns in (across, ROPE):
            tile = cute.slice_(layout_of(columns, 1), (None, None, 0))
            made += cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), turned, tile, (ROWS, columns))
        return made

    def pipes(self) -> tuple[Any, ...]:
        """Of queries, halves and last columns of latents; and of the latter two as they come, if they are not used so."""
        of_queries = tma_pipe(1, 8, 2 * ROWS * (self.dim_v + ROPE))
        if self.stored is None:
            halves = tma_pipe(4 * self.pieces, 4, 2 * ROWS * self.half // self.pieces)
            return of_queries, halves, tma_pipe(2, 4, 2 * ROWS * ROPE), None, None
        return (
            of_queries, warp_pipe(self.halves), warp_pipe(2), tma_pipe(2, 4, ROWS * self.half), tma_pipe(2, 4, ROWS * ROPE)
        )  # fmt: skip

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self, load_q: cute.CopyAtom, q: cute.Tensor, load_q_rope: cute.CopyAtom, q_rope: cute.Tensor,
        load_k: cute.CopyAtom, k: cute.Tensor, load_k_rope: cute.CopyAtom, k_rope: cute.Tensor, given: Any,
        tiles: Int32, numbers: Any,
    ):  # fmt: skip
        warp = arch.make_warp_uniform(arch.warp_idx())
        number = arch.block_idx()[0]
        tile, share = number % tiles, number // tiles
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        memory = utils.SmemAllocator()
        # queries lie in tiles of 64 columns, as halves of them do
        layouts = self.rows(ROPE, self.dim_v // ROPE + 1), self.rows(self.half, self.halves), self.rows(ROPE, 2)
        queries, ring, ring_rope = (
            memory.allocate_tensor(self.operand, layout.outer, 1024, layout.inner) for layout in layouts
        )
        given_queries, scales, raw, raw_rope = queries, None, None, None
        if const_expr(self.stored is not None):
            given_queries = self.as_given(queries)
            raw, raw_rope = (
                memory.allocate_tensor(self.stored, raw_layout(columns, 2), 1024) for columns in (self.half, ROPE)
            )
            scales = memory.allocate_tensor(Float32, cute.make_layout((ROWS,)), 16)
        references = memory.allocate_tensor(Float32, cute.make_layout((ROWS, 2)), 16)
        totals = memory.allocate_tensor(Float32, cute.make_layout((ROWS, 2, 2)), 16)
        found = memory.allocate_tensor(Int32, cute.make_layout((FOUND,)), 16)
        pipe_q, pipe_half, pipe_rope, pipe_raw, pipe_raw_rope = self.pipes()
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        which = Which(found, q.shape[0], numbers)
        if warp == 0:
            for atom in (load_q, load_q_rope, load_k, load_k_rope):
                cpasync.prefetch_descriptor(atom)
            self.find(given, share, tile, which)
        arch.sync_threads()
        if warp < GROUP // 32:
            arch.setmaxregister_decrease(self.registers[0])
            if warp < _WARP_OF_ROPE:
                in_pieces = cute.make_tensor(ring.iterator, self.rows(self.across, 4 * self.pieces).outer)
                parts = self.parts(load_k, in_pieces if raw is None else raw, k, (KEYS, self.across))
                self.load(load_k, parts, pipe_half if raw is None else pipe_raw, given, which, Int32(warp), 2)
            elif warp == _WARP_OF_ROPE:
                parts = self.parts(load_k_rope, ring_rope if raw is None else raw_rope, k_rope, (KEYS, ROPE))
                pipe, column = pipe_rope if raw is None else pipe_raw_rope, Int32(self.dim_v // ROPE)
                self.load(load_k_rope, parts, pipe, given, which, column, 1)
            else:
                tile_q, tile_q_rope = self.of_queries(given_queries)
                parts = self.parts(load_q, tile_q, q, (ROWS, self.half))
                rope = self.parts(load_q_rope, tile_q_rope, q_rope, (ROWS, ROPE))
                self.load_queries((load_q, load_q_rope), (parts, rope), pipe_q, given, which)
        elif warp < THREADS // 32:
            arch.setmaxregister_increase(self.registers[1])
            values = cute.make_tensor(ring.iterator, self.columns(self.halves).outer)
            steps = Steps(
                self, warp // 4 - 1, (*self.of_queries(queries), ring, ring_rope, values), (references, totals), (pipe_half, pipe_rope),
                numbers.scale, given.factor, (queries, given_queries, scales),
            )  # fmt: skip
            self.compute(steps, pipe_q, given, which)
        else:
            if const_expr(self.stored is not None):
                arch.setmaxregister_decrease(self.registers[2])
                widen = Widen(self, ((ring, raw, pipe_half, pipe_raw), (ring_rope, raw_rope, pipe_rope, pipe_raw_rope)))
                for count in range(self.blocks_of(given, which)):
                    widen.block(count)

    @cute.jit
    def blocks_of(self, given: Any, which: Any):
        """Blocks of keys of a share."""
        sequence, start = (arch.make_warp_uniform(which.found[i]) for i in range(2))
        count = Int32(0)
        while self.inside(given, sequence, start, which):
            _, own = self.own(given, sequence, start, which)
            count = count + own.last - own.first
            start = shares.following(start, own.count)
            sequence = sequence + 1
        return count

    def of_queries(self, tiles: Any) -> tuple[Any, Any]:
        """Halves of queries, and their last columns."""
        rope = cute.domain_offset((0, 0, self.dim_v // ROPE), tiles)
        layouts = self.rows(self.half, 2).outer, self.rows(ROPE, 1).outer
        halves, last = (cute.make_tensor(x.iterator, layout) for x, layout in zip((tiles, rope), layouts, strict=True))
        return halves, last

    def as_given(self, tile: Any) -> Any:
        """Memory of queries that are multiplied, as those that come."""
        return cute.make_tensor(cute.recast_ptr(tile.iterator, tile.iterator.swizzle, dtype=self.dtype), tile.layout)

    @cute.jit
    def load(
        self, atom: Any, parts: Any, pipe: Any, given: Any, which: Any, column: Int32, buffers: Constexpr
    ):  # fmt: skip
        """Load some columns of all blocks of a share; a block of keys has so many `buffers` of the pipeline. `column`: which ones, or of
        latents that are widened whether the half that comes first, or the other."""
        to, of = parts
        sequence, start = (arch.make_warp_uniform(which.found[i]) for i in range(2))
        count = Int32(0)
        while self.inside(given, sequence, start, which):
            _, own = self.own(given, sequence, start, which)
            pages = Pages(given.table[sequence, None], KEYS, Int32(cute.size(of, mode=[3])))
            for i in range(own.last - own.first):
                page = pages.number((own.last - 1 - i) * KEYS)
                pieces = self.pieces if const_expr(buffers == 2) else 1
                for piece in range_constexpr(pieces):
                    if const_expr(self.stored is None):
                        state, own_column = self.state(count, count & 1, buffers, column, 1, piece), column
                    else:
                        state, own_column = self.raw_state(count, buffers, column, 1)
                    pipe.producer_acquire(state)
                    source = of[None, 0, own_column * pieces + piece, page]
                    barrier = pipe.producer_get_barrier(state)
                    cute.copy(atom, source, to[None, state.index], tma_bar_ptr=barrier, cache_policy=PRIORITY)
                count = count + 1
            start = shares.following(start, own.count)
            sequence = sequence + 1

    def state(self, count: Any, buffer: Any, buffers: int, column: Any, loads: int = 0, piece: int = 0) -> Any:
        """Some columns of a block of keys, the `count`th of all, in a `buffer`; who `loads` (1) waits for the phase before."""
        pieces = self.pieces if buffers == 2 else 1
        if buffers == 1:
            index, turn = buffer, count >> 1
        else:
            index, turn = self.place(count, buffer, column)
        return pipeline.PipelineState(2 * buffers * pieces, 0, index * pieces + piece, (turn & 1) ^ loads)

    def place(self, count: Any, buffer: Any, column: Any) -> tuple[Any, Any]:
        """Where half of a block of keys lies, and for which time there is one."""
        if self.stored is None:
            return buffer * 2 + column, count >> 1
        number = 2 * count + (buffer ^ column)
        return number % self.halves, number // self.halves

    def raw_state(self, count: Any, buffers: int, column: Any, loads: int = 0) -> tuple[Any, Any]:
        """Columns of a block of keys as they come, the first half that is needed (0), the other (1), or the last columns; and which these are."""
        if buffers == 1:
            return pipeline.PipelineState(2, 0, count & 1, (count >> 1 & 1) ^ loads), column
        return pipeline.PipelineState(2, 0, column, (count & 1) ^ loads), (count & 1) ^ column

    @cute.jit
    def load_queries(self, atoms: Any, parts: Any, pipe: Any, given: Any, which: Any):
        """Load the queries of all sequences of a share."""
        (to, of), (to_rope, of_rope) = parts
        sequence, start = (arch.make_warp_uniform(which.found[i]) for i in range(2))
        producer, _ = pipe.make_participants()
        while self.inside(given, sequence, start, which):
            _, own = self.own(given, sequence, start, which)
            if own.first < own.last:
                stage, tile = producer.acquire_and_advance(), which.tile
                for half in range_constexpr(2):
                    cute.copy(atoms[0], of[None, tile, half, sequence], to[None, half], tma_bar_ptr=stage.barrier)
                column = self.dim_v // ROPE
                cute.copy(atoms[1], of_rope[None, tile, column, sequence], to_rope[None, 0], tma_bar_ptr=stage.barrier)
            start = shares.following(start, own.count)
            sequence = sequence + 1

    @cute.jit
    def compute(self, steps: Any, pipe_q: Any, given: Any, which: Any):
        """The outputs of all sequences of a share."""
        sequence, start = (arch.make_warp_uniform(which.found[i]) for i in range(2))
        count, pieces = Int32(0), Int32(0)
        _, consumer = pipe_q.make_participants()
        parts, early = len(self.parts_of_scores), self.early
        while self.inside(given, sequence, start, which):
            length, own = self.own(given, sequence, start, which)
            blocks = arch.make_warp_uniform(own.last - own.first)
            if blocks > 0:
                # Which of the blocks are this warp group's: the first or the second, and every other one from there on, the last of keys
                # in front. `number`: of all blocks; `there`: keys of the sequence from the block's first on.
                first = (steps.group ^ count) & 1
                begun, end = count, count + blocks
                there = length - (own.last - 1 - first) * KEYS
                steps.begin()
                filled = consumer.wait_and_advance()
                if const_expr(self.operand is not self.dtype):
                    steps.convert_queries()
                for number in range(begun + first, end, 2):
                    # While the other has its softmax, the first scores; then its block, if there is `some` before this one: its buffer is to be
                    # filled again while this one is used.
                    some = number > begun
                    if const_expr(early > 0):
                        steps.begin_scores(number, range(early))
                    if some:
                        steps.begin_others(number - 1)
                    steps.begin_scores(number, range(early, parts))
                    steps.end_others(number - 1, some, 1)
                    steps.end_scores()
                    steps.weights(number, there, which)
                    steps.add_own(number)
                    there = there + 2 * KEYS
                filled.release()
                # found again: sums leave no registers to keep it in
                _, own = self.own(given, only_here(sequence), start, which)
                blocks = arch.make_warp_uniform(own.last - own.first)
                if (blocks - (steps.group ^ count)) & 1 == 0:  # the other's was the last
                    steps.begin_others(count + blocks - 1)
                    steps.end_others(count + blocks - 1)
                count = count + blocks
                slot = 2 * which.share + Int32(own.first == 0)
                steps.finish(pieces, given, sequence, slot, own.whole, which)
                pieces = pieces + 1
            _, own = self.own(given, only_here(sequence), start, which)
            start = shares.following(start, own.count)
            sequence = sequence + 1


latent_forward = functools.lru_cache(maxsize=64)(LatentForward)
