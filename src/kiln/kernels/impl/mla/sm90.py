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

from .... import Float16, Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .... import range as dynamic_range
from ....cute import arch
from ....cute.nvgpu import cpasync, warpgroup
from ....utils import LayoutEnum, sm90
from ...dispatch import devices
from ...parts.kv_source import PageTable
from ...parts.pipelines import tma_pipe
from . import split_kv_scheduler
from .combine import Combine
from .fp8_to_f16 import Widen, raw_layout, warp_pipe
from .sm90_config import EARLY, GROUP, NARROW_REGISTERS, REGISTERS, ROPE, ROPE_PART, ROWS, THREADS
from .sm90_kv_tiles import FOUND, PRIORITY, Forward, Which
from .sm90_mainloop import Steps
from .split_kv_scheduler import KEYS

_GROUPS = 7
"""Of products, that may be under way behind a wait: at most."""


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
        # All tiles have 64 columns, as many as the last ones, which are no values: so many of half of a block
        self.tiles = self.half // ROPE
        # Half of a block has a buffer of a pipeline for each of its tiles, and products begin with the first that is there; or one, if latents are widened
        self.stages = self.tiles if stored is None else 1
        # Scores of a block are begun tile by tile: of both halves, the one whose columns the block's own warp group has first, and of the last columns,
        # which come before the second half if latents are widened. Before the other warp group's weights are there nothing of the second half
        # is begun then: of three halves in turn, its buffer had one of the other's block, which is sure to have been there only then, and a
        # wait tells no more than two fillings apart. The other's block is let go when all is begun, or, for those who widen the next, before
        # the second half.
        halves = [(half, self.tiles) for half in range(2)]
        self.parts_of_scores = [*halves, (ROPE_PART, 1)] if stored is None else [halves[0], (ROPE_PART, 1), halves[1]]
        self.turns = 2 * self.tiles + 1
        if stored is None:
            self.early, self.let_go = min(-(-early * self.tiles // 4), 2 * self.tiles), self.turns
        else:
            self.early, self.let_go = (0, self.tiles, self.tiles + 1)[-(-early // 4)], self.tiles + 1
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
        maps = *self.map(q, self.rows), *self.map(cache, self.rows if self.stored is None else raw_layout)
        self.kernel(*maps, given, tiles, numbers).launch(
            grid=(tiles * numbers.shares, 1, 1), block=(self.threads, 1, 1), min_blocks_per_mp=1, stream=stream
        )
        Combine(self.dtype, self.dim_v, self.ways)(given, numbers, stream)

    def map(self, x: Any, layout_of: Any) -> Any:
        """What loads tiles, which lie as is said, with its tensor. Called on the host."""
        first, row, column = x.shape
        each = 128 // x.element_type.width
        strides = [cute.assume(s // each * each, divby=each) for s in x.stride[:2]]
        turned = cute.make_tensor(
            x.iterator, cute.make_layout((row, column, first), stride=(strides[1], 1, strides[0]))
        )
        tile = cute.slice_(layout_of(ROPE, 1), (None, None, 0))
        return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), turned, tile, (ROWS, ROPE))

    def pipes(self) -> tuple[Any, ...]:
        """Of queries; of latents, the buffers of halves and then two of last columns; and of latents as they come, if they are not used so."""
        of_queries = tma_pipe(1, 8, 2 * ROWS * (self.dim_v + ROPE))
        stages = self.halves * self.stages + 2
        if self.stored is None:
            return of_queries, tma_pipe(stages, 4, 2 * ROWS * ROPE), None
        return of_queries, warp_pipe(stages), tma_pipe(4, 4, ROWS * ROPE)

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self, load_q: cute.CopyAtom, q: cute.Tensor, load_k: cute.CopyAtom, k: cute.Tensor, given: Any, tiles: Int32, numbers: Any
    ):  # fmt: skip
        warp = arch.make_warp_uniform(arch.warp_idx())
        number = arch.block_idx()[0]
        tile, share = number % tiles, number // tiles
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        memory = utils.SmemAllocator()
        # tiles: of queries; of halves of latents, and twice of their last columns
        layouts = self.rows(ROPE, self.turns), self.rows(ROPE, self.halves * self.tiles + 2)
        queries, keys = (memory.allocate_tensor(self.operand, layout.outer, 1024, layout.inner) for layout in layouts)
        given_queries, scales, raw = queries, None, keys
        if const_expr(self.stored is not None):
            given_queries = self.as_given(queries)
            raw = memory.allocate_tensor(self.stored, raw_layout(ROPE, 2 * self.tiles + 2), 1024)
            scales = memory.allocate_tensor(Float32, cute.make_layout((ROWS,)), 16)
        references = memory.allocate_tensor(Float32, cute.make_layout((ROWS, 2)), 16)
        totals = memory.allocate_tensor(Float32, cute.make_layout((ROWS, 2, 2)), 16)
        found = memory.allocate_tensor(Int32, cute.make_layout((FOUND,)), 16)
        pipe_q, pipe, pipe_raw = self.pipes()
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        which = Which(found, q.shape[0], numbers)
        if warp == 0:
            for atom in (load_q, load_k):
                cpasync.prefetch_descriptor(atom)
            self.find(given, share, tile, which)
        arch.sync_threads()
        if warp < GROUP // 32:
            arch.setmaxregister_decrease(self.registers[0])
            if warp <= ROPE_PART:
                parts = self.parts(load_k, raw, k, (KEYS, ROPE))
                self.load(load_k, parts, pipe if pipe_raw is None else pipe_raw, given, which, Int32(warp))
            else:
                self.load_queries(load_q, self.parts(load_q, given_queries, q, (ROWS, ROPE)), pipe_q, given, which)
        elif warp < THREADS // 32:
            arch.setmaxregister_increase(self.registers[1])
            steps = Steps(
                self, warp // 4 - 1, (queries, given_queries, keys), (references, totals, scales), pipe, numbers.scale, given.factor
            )  # fmt: skip
            self.compute(steps, pipe_q, given, which)
        else:
            if const_expr(self.stored is not None):
                arch.setmaxregister_decrease(self.registers[2])
                widen = Widen(self, (keys, pipe), (raw, pipe_raw))
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
            start = split_kv_scheduler.following(start, own.count)
            sequence = sequence + 1
        return count

    def as_given(self, tile: Any) -> Any:
        """Memory of queries that are multiplied, as those that come."""
        return cute.make_tensor(cute.recast_ptr(tile.iterator, tile.iterator.swizzle, dtype=self.dtype), tile.layout)

    @cute.jit
    def load(self, atom: Any, parts: Any, pipe: Any, given: Any, which: Any, part: Int32):
        """Load a part of all blocks of a share. (Halves, if latents are widened: the one that is needed first, and the other.)"""
        to, of = parts
        sequence, start = (arch.make_warp_uniform(which.found[i]) for i in range(2))
        count = Int32(0)
        tiles = Int32(1) if part == ROPE_PART else Int32(self.tiles)
        while self.inside(given, sequence, start, which):
            _, own = self.own(given, sequence, start, which)
            pages = PageTable(given.table[sequence, None], KEYS, Int32(cute.size(of, mode=[3])))
            for i in range(own.last - own.first):
                page = pages.page((own.last - 1 - i) * KEYS)
                stage, phase, first, column = self.loaded(count, part)
                pipe.sync_object_empty.wait(stage, phase ^ 1)
                if const_expr(self.stored is not None):
                    pipe.sync_object_full.arrive_and_expect_tx(stage, tiles * (ROWS * ROPE))
                for tile in dynamic_range(0, tiles, 1, unroll=1):
                    if const_expr(self.stored is None):
                        pipe.sync_object_full.arrive(stage + tile)
                    barrier = pipe.sync_object_full.get_barrier(stage + tile if self.stored is None else stage)
                    source = of[None, 0, column + tile, page]
                    cute.copy(atom, source, to[None, first + tile], tma_bar_ptr=barrier, cache_policy=PRIORITY)
                count = count + 1
            start = split_kv_scheduler.following(start, own.count)
            sequence = sequence + 1

    @cute.jit
    def loaded(self, count: Int32, part: Int32):
        """Of a part of a block as it comes: the buffer of its pipeline and for which time there is one, the first tile, and the tile of its first column."""
        buffer, rope, column = count & 1, part == ROPE_PART, part * self.tiles
        if const_expr(self.stored is None):
            stage = self.stage_of_rope(buffer) if rope else self.place(count, buffer, part)[0] * self.tiles
            return stage, count >> 1 & 1, stage, column
        # the half that is widened first, then the other
        stage, phase = (2 + buffer if rope else part), (count >> 1 if rope else count) & 1
        first = 2 * self.tiles + buffer if rope else column
        return stage, phase, first, column if rope else (buffer ^ part) * self.tiles

    def stage_of_rope(self, buffer: Any) -> Any:
        """The buffer of the pipeline of latents that last columns are in."""
        return self.halves * self.stages + buffer

    def place(self, count: Any, buffer: Any, column: Any) -> tuple[Any, Any]:
        """Where half of a block of keys lies, the `count`th of all, and for which time there is one."""
        if self.stored is None:
            return buffer * 2 + column, count >> 1
        number = 2 * count + (buffer ^ column)
        return number % self.halves, number // self.halves

    @cute.jit
    def load_queries(self, atom: Any, parts: Any, pipe: Any, given: Any, which: Any):
        """Load the queries of all sequences of a share."""
        to, of = parts
        sequence, start = (arch.make_warp_uniform(which.found[i]) for i in range(2))
        producer, _ = pipe.make_participants()
        while self.inside(given, sequence, start, which):
            _, own = self.own(given, sequence, start, which)
            if own.first < own.last:
                stage, row = producer.acquire_and_advance(), which.tile
                for tile in range_constexpr(self.turns):
                    cute.copy(atom, of[None, row, tile, sequence], to[None, tile], tma_bar_ptr=stage.barrier)
            start = split_kv_scheduler.following(start, own.count)
            sequence = sequence + 1

    @cute.jit
    def compute(self, steps: Any, pipe_q: Any, given: Any, which: Any):
        """The outputs of all sequences of a share."""
        sequence, start = (arch.make_warp_uniform(which.found[i]) for i in range(2))
        count, pieces = Int32(0), Int32(0)
        _, consumer = pipe_q.make_participants()
        while self.inside(given, sequence, start, which):
            length, own = self.own(given, sequence, start, which)
            blocks = arch.make_warp_uniform(own.last - own.first)
            # what is needed of it at the end, as one number: sums leave no registers
            kept = arch.make_warp_uniform(own.count << 2 | Int32(own.whole) << 1 | Int32(own.first == 0))
            if blocks > 0:
                # Which of the blocks are this warp group's: the first or the second, and every other one from there on, the last of keys
                # in front. `number`: of all blocks; `there`: keys of the sequence from the block's first on.
                first = (steps.group ^ count) & 1
                number, end = count + first, count + blocks
                there = length - (own.last - 1 - first) * KEYS
                steps.begin()
                filled = consumer.wait_and_advance()
                if const_expr(self.operand is not self.dtype):
                    steps.convert_queries()
                while number < end:
                    # While the other has its softmax, the first scores; then its block, if there is `some` before this one: its buffer is to be
                    # filled again while this one is used.
                    some = number > count
                    steps.begin_scores(number, 0, self.early)
                    if some:
                        steps.begin_others(number - 1)
                    barriers = steps.barriers_of_others(number - 1)
                    steps.begin_scores(number, self.early, self.let_go)
                    steps.end_others(barriers, some, min(self.let_go - self.early, _GROUPS))
                    steps.begin_scores(number, self.let_go, self.turns)
                    steps.end_scores()
                    steps.weights(number, there, which)
                    steps.add_own(number)
                    there = there + 2 * KEYS
                    number = number + 2
                filled.release()
                if number == end:  # the other's was the last
                    steps.begin_others(number - 1)
                    steps.end_others(steps.barriers_of_others(number - 1), True, 0)
                count = end
                steps.finish(pieces, given, sequence, 2 * which.share + (kept & 1), kept & 2 != 0, which)
                pieces = pieces + 1
            start = split_kv_scheduler.following(start, kept >> 2)
            sequence = sequence + 1


latent_forward = functools.lru_cache(maxsize=64)(LatentForward)
