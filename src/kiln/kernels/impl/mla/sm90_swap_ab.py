"""MLA decode for sm_90a and few rows (swap-AB): the compressed KV tile is operand A, the queries are operand B.

A Q tile has up to 32 queries and heads of a sequence. As operand A they would leave most of the 64 rows of an MMA
empty; the 64 keys of a KV tile fill them: S^T = C Q^T, and O^T = V^T P^T from the same memory. Of the KV tiles each of
two consumer warpgroups has every other one, from its scores to its outputs, so that one computes its softmax while the
tensor cores work for the other. Where a sequence ends, both store their accumulators in the memory of their last tiles,
and write the sum of the two.

The cache is loaded in tiles of 64 columns, into the stages of either warpgroup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, Int32, const_expr, cute, pipeline, range_constexpr, utils
from ....cute import arch
from ....utils import LayoutEnum, sm90
from ...parts.kv_source import PageTable
from ...parts.tma_operand import TmaOperand, tma_pipe
from .sm90_config import REGISTERS
from .sm90_kv_tiles import KV_PRIORITY, MlaBuffers, MlaKernel, mla_roles
from .sm90_swap_ab_fp8 import Fp8SwapAbWarpgroup
from .sm90_swap_ab_mainloop import SwapAbWarpgroup
from .split_kv_scheduler import KV_TILE

if TYPE_CHECKING:
    from .sm90_kv_tiles import CtaWork, MlaTensors

COLUMN_TILE = 64
"""Columns of a column tile."""
_ROOM = 224 * 1024
"""Bytes of shared memory for Q, P and KV; the rest is for small things."""


class Sm90MlaSwapAbKernel(MlaKernel):
    """The swap-AB kernel for `rows` queries and heads, 16 or 32. Consumers convert an 8-bit cache in registers."""

    roles = mla_roles(REGISTERS, ("load KV", "load Q"))

    def __init__(
        self,
        dtype: type[cute.Numeric],
        value_dim: int,
        rows: int,
        ways: int = 1,
        cache_dtype: type[cute.Numeric] | None = None,
    ) -> None:
        super().__init__(dtype, value_dim, rows, cache_dtype, ways)
        self.rows = rows
        self.column_tiles: int = value_dim // COLUMN_TILE + 1
        self.tile_bytes = KV_TILE * COLUMN_TILE * (2 if cache_dtype is None else 1)
        queries = 2 * rows * self.column_tiles * COLUMN_TILE
        used = queries * (1 if cache_dtype is None else 2) + 2 * 2 * rows * KV_TILE
        # the same number for each warpgroup; whole KV tiles of 8 bits, since there is no time to divide while
        # converting
        alike = 2 if cache_dtype is None else 2 * self.column_tiles
        self.stages: int = min(5 * self.column_tiles, (_ROOM - used) // self.tile_bytes) // alike * alike

    # --- how tiles lie ---

    def q_layout(self, dtype: type[cute.Numeric]) -> cute.ComposedLayout:
        """Return the layout of Q (row, column)."""
        return sm90.make_smem_layout_b(
            LayoutEnum.ROW_MAJOR, (KV_TILE, self.rows, self.column_tiles * COLUMN_TILE), dtype, 1
        )

    def p_layout(self) -> cute.ComposedLayout:
        """Return the layout of P (row, key, warpgroup)."""
        return sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (KV_TILE, self.rows, KV_TILE), self.mma_dtype, 2)

    def kv_layout(self) -> cute.ComposedLayout:
        """Return the layout of column tiles (key, column, stage)."""
        dtype = self.dtype if self.cache_dtype is None else self.cache_dtype
        return sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (KV_TILE, self.rows, COLUMN_TILE), dtype, self.stages)

    def v_layout(self) -> cute.ComposedLayout:
        """Return the layout of values in the same memory (column, key, stage)."""
        return sm90.make_smem_layout_a(LayoutEnum.COL_MAJOR, (COLUMN_TILE, self.rows, KV_TILE), self.dtype, self.stages)

    def stage_of(self, count: Int32 | int, piece: Int32 | int) -> tuple[Int32 | int, Int32 | int]:
        """Return the stage of a column tile of KV tile `count`, and how often it was filled before.

        Each warpgroup has half of the stages. A wait sees the last bit of how often a stage was filled: a warpgroup
        that did not see every filling, because the other had some of them, could take the one before the last for the
        one it waits for.
        """
        own = self.stages // 2
        blocks, rest = divmod(own, self.column_tiles)
        if rest:
            number = (count >> 1) * self.column_tiles + piece
            index = number % own
            turn = number // own
        else:
            index = (count >> 1) % blocks * self.column_tiles + piece
            turn = (count >> 1) // blocks
        return (count & 1) * own + index, turn

    def stage_state(self, count: Int32 | int, piece: Int32 | int, loads: int = 0) -> pipeline.PipelineState:
        """Return the pipeline state of a column tile; who `loads` (1) waits for the phase before."""
        index, turn = self.stage_of(count, piece)
        return pipeline.PipelineState(self.stages, 0, index, (turn & 1) ^ loads)

    def tma_tiles(self) -> tuple[tuple[cute.ComposedLayout, tuple[int, int]], ...]:
        q_shape = self.rows, self.column_tiles * COLUMN_TILE
        return (self.q_layout(self.dtype), q_shape), (self.kv_layout(), (KV_TILE, COLUMN_TILE))

    def allocate(self, memory: utils.SmemAllocator) -> MlaBuffers:
        kv_dtype = self.dtype if self.cache_dtype is None else self.cache_dtype
        loaded_q, kv, p = (
            memory.allocate_tensor(dtype, layout.outer, 1024, layout.inner)
            for dtype, layout in (
                (self.dtype, self.q_layout(self.dtype)),
                (kv_dtype, self.kv_layout()),
                (self.mma_dtype, self.p_layout()),
            )
        )
        q = loaded_q
        q_scales = None
        if self.cache_dtype is not None:
            layout = self.q_layout(self.mma_dtype)
            q = memory.allocate_tensor(self.mma_dtype, layout.outer, 1024, layout.inner)
            q_scales = memory.allocate_tensor(Float32, cute.make_layout((self.rows,)), 16)
        # by row, warp and warpgroup: largest scores and row_sum; by row and warpgroup: -row_max
        row_max, row_sum = (memory.allocate_tensor(Float32, cute.make_layout((self.rows, 4, 2)), 16) for _ in range(2))
        neg_row_max = memory.allocate_tensor(Float32, cute.make_layout((self.rows, 2)), 16)
        return MlaBuffers(q, loaded_q, kv, kv, q_scales, neg_row_max, row_sum, p, row_max)

    def pipes(self) -> tuple[pipeline.PipelineTmaAsync | None, ...]:
        pipe_q = tma_pipe(1, self.roles.warps("consumer"), 2 * self.rows * self.column_tiles * COLUMN_TILE)
        return pipe_q, tma_pipe(self.stages, 4, self.tile_bytes), None

    # --- the kernel ---

    @cute.jit
    def produce(
        self,
        warp: Int32,
        q: TmaOperand,
        kv: TmaOperand,
        buffers: MlaBuffers,
        pipes: Any,
        tensors: MlaTensors,
        work: CtaWork,
    ):
        """Load KV by one warp, and Q by another."""
        if self.roles.has(warp, "load KV"):
            self.load(kv, buffers.kv, pipes[1], tensors, work)
        elif self.roles.has(warp, "load Q"):
            self.load_q(q, buffers.loaded_q, pipes[0], tensors, work)

    @cute.jit
    def compute(self, warp: Int32, buffers: MlaBuffers, pipes: Any, tensors: MlaTensors, work: Any):
        """Compute outputs by two warpgroups."""
        self.roles.set_registers("consumer")
        kind = SwapAbWarpgroup if const_expr(self.cache_dtype is None) else Fp8SwapAbWarpgroup
        steps = kind(self, self.roles.index(warp, "consumer"), buffers, pipes[1], work.scalars.scale, tensors.kv_scale)
        self.consume(steps, pipes[0], tensors, work)

    @cute.jit
    def load(
        self, kv: TmaOperand, stages: cute.Tensor, pipe: pipeline.PipelineTmaAsync, tensors: MlaTensors, work: CtaWork
    ):
        """Load all KV tiles of a split."""
        smem, gmem = kv.partition(stages, kv.tiles((None, None, None)))
        count = Int32(0)
        for sequence in self.sequences(tensors, work):
            own = sequence.kv_tiles
            pages = PageTable(tensors.page_table[sequence.number, None], KV_TILE, Int32(cute.size(gmem, mode=[3])))
            for i in range(own.last - own.first):
                page = pages.page((own.last - 1 - i) * KV_TILE)
                for piece in range_constexpr(self.column_tiles):
                    state = self.stage_state(count, piece, 1)
                    pipe.producer_acquire(state)
                    barrier = pipe.producer_get_barrier(state)
                    source = gmem[None, 0, piece, page]
                    cute.copy(kv.atom, source, smem[None, state.index], tma_bar_ptr=barrier, cache_policy=KV_PRIORITY)
                count = count + 1

    @cute.jit
    def consume(self, steps: Any, pipe_q: pipeline.PipelineTmaAsync, tensors: MlaTensors, work: CtaWork):
        """Compute the outputs of all sequences of a split."""
        sequences = self.sequences(tensors, work)
        count = Int32(0)
        _, consumer = pipe_q.make_participants()
        for sequence in sequences:
            own = sequence.kv_tiles
            blocks = arch.make_warp_uniform(own.last - own.first)
            if blocks > 0:
                # this warpgroup has the first or the second tile, and every other one from there on
                first = (steps.group ^ count) & 1
                # keys of the sequence from the tile's first on
                keys_left = sequence.length - (own.last - 1 - first) * KV_TILE
                steps.begin()
                filled = consumer.wait_and_advance()
                if const_expr(self.cache_dtype is not None):
                    steps.convert_q()
                    filled.release()
                number = count + first
                count = count + blocks
                # Which way of counting fits into registers was tried.
                if const_expr(self.cache_dtype is None):
                    for numbered in range(number, count, 2):
                        steps.process_tile(numbered, keys_left, work, numbered + 2 < count)
                        keys_left = keys_left + 2 * KV_TILE
                    filled.release()
                else:
                    for _ in range(first, blocks, 2):
                        steps.process_tile(number, keys_left, work, number + 2 < count)
                        number = number + 2
                        keys_left = keys_left + 2 * KV_TILE
                own = sequences.kv_tiles_again()
                blocks = arch.make_warp_uniform(own.last - own.first)
                slot = 2 * work.split + Int32(own.first == 0)
                steps.epilogue(count - blocks, blocks, tensors, sequence.number, slot, own.whole, work)
            sequences.kv_tiles_again()
