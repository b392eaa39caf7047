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
from .fp8_to_f16 import Fp8Converter, raw_layout, warp_pipe
from .sm90_config import DEFAULT_EARLY, FP8_REGISTERS, Q_TILE, REGISTERS, ROPE_DIM, ROPE_PART, THREADS, WARPGROUP
from .sm90_kv_tiles import KV_PRIORITY, WORK_FIELDS, CtaWork, MlaKernel
from .sm90_mainloop import MlaWarpgroup
from .split_kv_scheduler import KV_TILE

_GROUPS = 7
"""Of products, that may be under way behind a wait: at most."""


class MlaScalars(NamedTuple):
    """The factor of the scores (in powers of two), heads, keys hidden from the first query at the end, shares of the keys."""

    scale: Any
    heads: Any
    hidden: Any
    num_splits: Any


class MlaTensors(NamedTuple):
    """Pages of sequences (batch, pages), their lengths, shares as `shares.find` leaves them; pieces (slot, row, column), outputs (batch,
    row, column), logarithms (batch, head, query) or None; the factor of latents (one number) or None."""

    page_table: Any
    lengths: Any
    splits: Any
    partial: Any
    out: Any
    lse: Any
    kv_scale: Any = None


class Sm90MlaKernel(MlaKernel):
    """The kernel for queries of some type, values of so many columns. `stored`: the type of latents in the cache, if that is another, of 8
    bits: one more warp group then makes f16 of them, and queries are made f16, too. `ways`: of the second kernel. `early`: parts of the scores
    of a block that are begun before the other warp group's weights of the block before are there."""

    tile_rows = Q_TILE

    def __init__(
        self, dtype: Any, value_dim: int, cache_dtype: Any = None, ways: int = 1, early: int = DEFAULT_EARLY
    ) -> None:
        self.dtype, self.value_dim, self.cache_dtype, self.ways = dtype, value_dim, cache_dtype, ways
        # what is multiplied: latents of 8 bits are such of f16 without a loss
        self.mma_dtype = dtype if cache_dtype is None else Float16
        self.half = value_dim // 2
        self.halves = 4 if cache_dtype is None else 3
        # All tiles have 64 columns, as many as the last ones, which are no values: so many of half of a block
        self.tiles = self.half // ROPE_DIM
        # Half of a block has a buffer of a pipeline for each of its tiles, and products begin with the first that is there; or one, if latents are widened
        self.stages = self.tiles if cache_dtype is None else 1
        # Scores of a block are begun tile by tile: of both halves, the one whose columns the block's own warp group has first, and of the last columns,
        # which come before the second half if latents are widened. Before the other warp group's weights are there nothing of the second half
        # is begun then: of three halves in turn, its buffer had one of the other's block, which is sure to have been there only then, and a
        # wait tells no more than two fillings apart. The other's block is let go when all is begun, or, for those who widen the next, before
        # the second half.
        halves = [(half, self.tiles) for half in range(2)]
        self.qk_parts = [*halves, (ROPE_PART, 1)] if cache_dtype is None else [halves[0], (ROPE_PART, 1), halves[1]]
        self.qk_tiles = 2 * self.tiles + 1
        if cache_dtype is None:
            self.early, self.release_at = min(-(-early * self.tiles // 4), 2 * self.tiles), self.qk_tiles
        else:
            self.early, self.release_at = (0, self.tiles, self.tiles + 1)[-(-early // 4)], self.tiles + 1
        # Where there are four warp groups, none may have more than 128 registers at the beginning: products of 256 columns do not fit.
        self.pv_columns = self.half if cache_dtype is None else 128 if self.half % 128 == 0 else 64
        self.threads, self.registers = THREADS, REGISTERS
        if cache_dtype is not None:
            self.threads, self.registers = THREADS + WARPGROUP, FP8_REGISTERS

    # --- how tiles lie ---

    def mma_qk(self) -> Any:
        """The product of 64 rows and a block of keys."""
        major = warpgroup.OperandMajorMode.K
        return sm90.make_trivial_tiled_mma(
            self.mma_dtype, self.mma_dtype, major, major, Float32, (1, 1, 1), (Q_TILE, KV_TILE)
        )

    def mma_pv(self, own: bool) -> Any:
        """The product of weights, one's own in registers or the other's in shared memory, and half of the values of a block."""
        majors = warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN
        source = warpgroup.OperandSource.RMEM if own else warpgroup.OperandSource.SMEM
        return sm90.make_trivial_tiled_mma(
            self.mma_dtype, self.mma_dtype, *majors, Float32, (1, 1, 1), (Q_TILE, self.pv_columns), source
        )

    def tile_layout(self, columns: int, buffers: int) -> Any:
        """Rows and columns of a tile, buffers."""
        return sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (Q_TILE, KV_TILE, columns), self.mma_dtype, buffers)

    def v_layout(self, buffers: int) -> Any:
        """Half of the values of a block (element, key, buffer): the same memory as `rows`."""
        return sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, (Q_TILE, self.half, KV_TILE), self.mma_dtype, buffers)

    @cute.jit
    def __call__(self, q: cute.Tensor, cache: cute.Tensor, tensors: Any, tiles: Int32, scalars: Any, stream: Int64):
        """Launch it for queries (batch, row, column) and latents (page, row, column)."""
        maps = (
            *self.map(q, self.tile_layout),
            *self.map(cache, self.tile_layout if self.cache_dtype is None else raw_layout),
        )
        self.kernel(*maps, tensors, tiles, scalars).launch(
            grid=(tiles * scalars.num_splits, 1, 1), block=(self.threads, 1, 1), min_blocks_per_mp=1, stream=stream
        )
        Combine(self.dtype, self.value_dim, self.ways)(tensors, scalars, stream)

    def map(self, x: Any, layout_of: Any) -> Any:
        """What loads tiles, which lie as is said, with its tensor. Called on the host."""
        first, row, column = x.shape
        each = 128 // x.element_type.width
        strides = [cute.assume(s // each * each, divby=each) for s in x.stride[:2]]
        swap_ab = cute.make_tensor(
            x.iterator, cute.make_layout((row, column, first), stride=(strides[1], 1, strides[0]))
        )
        tile = cute.slice_(layout_of(ROPE_DIM, 1), (None, None, 0))
        return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), swap_ab, tile, (Q_TILE, ROPE_DIM))

    def pipes(self) -> tuple[Any, ...]:
        """Of queries; of latents, the buffers of halves and then two of last columns; and of latents as they come, if they are not used so."""
        of_queries = tma_pipe(1, 8, 2 * Q_TILE * (self.value_dim + ROPE_DIM))
        stages = self.halves * self.stages + 2
        if self.cache_dtype is None:
            return of_queries, tma_pipe(stages, 4, 2 * Q_TILE * ROPE_DIM), None
        return of_queries, warp_pipe(stages), tma_pipe(4, 4, Q_TILE * ROPE_DIM)

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self, load_q: cute.CopyAtom, q: cute.Tensor, load_k: cute.CopyAtom, k: cute.Tensor, tensors: Any, tiles: Int32, scalars: Any
    ):  # fmt: skip
        warp = arch.make_warp_uniform(arch.warp_idx())
        number = arch.block_idx()[0]
        tile, share = number % tiles, number // tiles
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        memory = utils.SmemAllocator()
        # tiles: of queries; of halves of latents, and twice of their last columns
        layouts = self.tile_layout(ROPE_DIM, self.qk_tiles), self.tile_layout(ROPE_DIM, self.halves * self.tiles + 2)
        queries, keys = (memory.allocate_tensor(self.mma_dtype, layout.outer, 1024, layout.inner) for layout in layouts)
        raw_q, scales, raw = queries, None, keys
        if const_expr(self.cache_dtype is not None):
            raw_q = self.as_raw(queries)
            raw = memory.allocate_tensor(self.cache_dtype, raw_layout(ROPE_DIM, 2 * self.tiles + 2), 1024)
            scales = memory.allocate_tensor(Float32, cute.make_layout((Q_TILE,)), 16)
        smem_neg_max = memory.allocate_tensor(Float32, cute.make_layout((Q_TILE, 2)), 16)
        row_sum = memory.allocate_tensor(Float32, cute.make_layout((Q_TILE, 2, 2)), 16)
        fields = memory.allocate_tensor(Int32, cute.make_layout((WORK_FIELDS,)), 16)
        pipe_q, pipe, pipe_raw = self.pipes()
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        work = CtaWork(fields, q.shape[0], scalars)
        if warp == 0:
            for atom in (load_q, load_k):
                cpasync.prefetch_descriptor(atom)
            self.init_work(tensors, share, tile, work)
        arch.sync_threads()
        if warp < WARPGROUP // 32:
            arch.setmaxregister_decrease(self.registers[0])
            if warp <= ROPE_PART:
                parts = self.parts(load_k, raw, k, (KV_TILE, ROPE_DIM))
                self.load(load_k, parts, pipe if pipe_raw is None else pipe_raw, tensors, work, Int32(warp))
            else:
                self.load_q(load_q, self.parts(load_q, raw_q, q, (Q_TILE, ROPE_DIM)), pipe_q, tensors, work)
        elif warp < THREADS // 32:
            arch.setmaxregister_increase(self.registers[1])
            steps = MlaWarpgroup(
                self, warp // 4 - 1, (queries, raw_q, keys), (smem_neg_max, row_sum, scales), pipe, scalars.scale, tensors.kv_scale
            )  # fmt: skip
            self.consume(steps, pipe_q, tensors, work)
        else:
            if const_expr(self.cache_dtype is not None):
                arch.setmaxregister_decrease(self.registers[2])
                widen = Fp8Converter(self, (keys, pipe), (raw, pipe_raw))
                for count in range(self.kv_tiles_of(tensors, work)):
                    widen.process_tile(count)

    @cute.jit
    def kv_tiles_of(self, tensors: Any, work: Any):
        """Blocks of keys of a share."""
        sequence, start = (arch.make_warp_uniform(work.fields[i]) for i in range(2))
        count = Int32(0)
        while self.in_split(tensors, sequence, start, work):
            _, own = self.kv_range(tensors, sequence, start, work)
            count = count + own.last - own.first
            start = split_kv_scheduler.next_start(start, own.count)
            sequence = sequence + 1
        return count

    def as_raw(self, tile: Any) -> Any:
        """Memory of queries that are multiplied, as those that come."""
        return cute.make_tensor(cute.recast_ptr(tile.iterator, tile.iterator.swizzle, dtype=self.dtype), tile.layout)

    @cute.jit
    def load(self, atom: Any, parts: Any, pipe: Any, tensors: Any, work: Any, part: Int32):
        """Load a part of all blocks of a share. (Halves, if latents are widened: the one that is needed first, and the other.)"""
        to, of = parts
        sequence, start = (arch.make_warp_uniform(work.fields[i]) for i in range(2))
        count = Int32(0)
        tiles = Int32(1) if part == ROPE_PART else Int32(self.tiles)
        while self.in_split(tensors, sequence, start, work):
            _, own = self.kv_range(tensors, sequence, start, work)
            pages = PageTable(tensors.page_table[sequence, None], KV_TILE, Int32(cute.size(of, mode=[3])))
            for i in range(own.last - own.first):
                page = pages.page((own.last - 1 - i) * KV_TILE)
                stage, phase, first, column = self.raw_stage(count, part)
                pipe.sync_object_empty.wait(stage, phase ^ 1)
                if const_expr(self.cache_dtype is not None):
                    pipe.sync_object_full.arrive_and_expect_tx(stage, tiles * (Q_TILE * ROPE_DIM))
                for tile in dynamic_range(0, tiles, 1, unroll=1):
                    if const_expr(self.cache_dtype is None):
                        pipe.sync_object_full.arrive(stage + tile)
                    barrier = pipe.sync_object_full.get_barrier(stage + tile if self.cache_dtype is None else stage)
                    source = of[None, 0, column + tile, page]
                    cute.copy(atom, source, to[None, first + tile], tma_bar_ptr=barrier, cache_policy=KV_PRIORITY)
                count = count + 1
            start = split_kv_scheduler.next_start(start, own.count)
            sequence = sequence + 1

    @cute.jit
    def raw_stage(self, count: Int32, part: Int32):
        """Of a part of a block as it comes: the buffer of its pipeline and for which time there is one, the first tile, and the tile of its first column."""
        buffer, rope, column = count & 1, part == ROPE_PART, part * self.tiles
        if const_expr(self.cache_dtype is None):
            stage = self.rope_stage(buffer) if rope else self.stage_of(count, buffer, part)[0] * self.tiles
            return stage, count >> 1 & 1, stage, column
        # the half that is widened first, then the other
        stage, phase = (2 + buffer if rope else part), (count >> 1 if rope else count) & 1
        first = 2 * self.tiles + buffer if rope else column
        return stage, phase, first, column if rope else (buffer ^ part) * self.tiles

    def rope_stage(self, buffer: Any) -> Any:
        """The buffer of the pipeline of latents that last columns are in."""
        return self.halves * self.stages + buffer

    def stage_of(self, count: Any, buffer: Any, column: Any) -> tuple[Any, Any]:
        """Where half of a block of keys lies, the `count`th of all, and for which time there is one."""
        if self.cache_dtype is None:
            return buffer * 2 + column, count >> 1
        number = 2 * count + (buffer ^ column)
        return number % self.halves, number // self.halves

    @cute.jit
    def load_q(self, atom: Any, parts: Any, pipe: Any, tensors: Any, work: Any):
        """Load the queries of all sequences of a share."""
        to, of = parts
        sequence, start = (arch.make_warp_uniform(work.fields[i]) for i in range(2))
        producer, _ = pipe.make_participants()
        while self.in_split(tensors, sequence, start, work):
            _, own = self.kv_range(tensors, sequence, start, work)
            if own.first < own.last:
                stage, row = producer.acquire_and_advance(), work.tile
                for tile in range_constexpr(self.qk_tiles):
                    cute.copy(atom, of[None, row, tile, sequence], to[None, tile], tma_bar_ptr=stage.barrier)
            start = split_kv_scheduler.next_start(start, own.count)
            sequence = sequence + 1

    @cute.jit
    def consume(self, steps: Any, pipe_q: Any, tensors: Any, work: Any):
        """The outputs of all sequences of a share."""
        sequence, start = (arch.make_warp_uniform(work.fields[i]) for i in range(2))
        count, column_tiles = Int32(0), Int32(0)
        _, consumer = pipe_q.make_participants()
        while self.in_split(tensors, sequence, start, work):
            length, own = self.kv_range(tensors, sequence, start, work)
            blocks = arch.make_warp_uniform(own.last - own.first)
            # what is needed of it at the end, as one number: sums leave no registers
            kept = arch.make_warp_uniform(own.count << 2 | Int32(own.whole) << 1 | Int32(own.first == 0))
            if blocks > 0:
                # Which of the blocks are this warp group's: the first or the second, and every other one from there on, the last of keys
                # in front. `number`: of all blocks; `there`: keys of the sequence from the block's first on.
                first = (steps.group ^ count) & 1
                number, end = count + first, count + blocks
                there = length - (own.last - 1 - first) * KV_TILE
                steps.begin()
                filled = consumer.wait_and_advance()
                if const_expr(self.mma_dtype is not self.dtype):
                    steps.convert_q()
                while number < end:
                    # While the other has its softmax, the first scores; then its block, if there is `some` before this one: its buffer is to be
                    # filled again while this one is used.
                    some = number > count
                    steps.issue_qk(number, 0, self.early)
                    if some:
                        steps.issue_other_pv(number - 1)
                    barriers = steps.other_barriers(number - 1)
                    steps.issue_qk(number, self.early, self.release_at)
                    steps.wait_other_pv(barriers, some, min(self.release_at - self.early, _GROUPS))
                    steps.issue_qk(number, self.release_at, self.qk_tiles)
                    steps.wait_qk()
                    steps.compute_p(number, there, work)
                    steps.add_pv(number)
                    there = there + 2 * KV_TILE
                    number = number + 2
                filled.release()
                if number == end:  # the other's was the last
                    steps.issue_other_pv(number - 1)
                    steps.wait_other_pv(steps.other_barriers(number - 1), True, 0)
                count = end
                steps.epilogue(column_tiles, tensors, sequence, 2 * work.split + (kept & 1), kept & 2 != 0, work)
                column_tiles = column_tiles + 1
            start = split_kv_scheduler.next_start(start, kept >> 2)
            sequence = sequence + 1


sm90_mla_kernel = functools.lru_cache(maxsize=64)(Sm90MlaKernel)
