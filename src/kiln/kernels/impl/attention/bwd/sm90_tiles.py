"""What the Hopper backward kernels share: tiles that TMA loads, masks, and stores of dK, dV and dQ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Boolean, Float32, Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from .....cute.nvgpu import cpasync
from .....utils import LayoutEnum, sm90
from ....parts.accumulator import RegisterAccumulator
from ....parts.attention_mask import accumulator_column, accumulator_row, mask_row
from ....parts.kv_source import VECTOR, vector_at
from ....parts.rematerialize import rematerialized
from ....parts.tma_operand import TmaOperand, tma_pipe
from ....parts.tma_store_epilogue import TmaStoreEpilogue
from ....parts.warp_roles import WarpRoles
from ....parts.wgmma import MN_MAJOR, make_wgmma
from .sm90_config import WARPGROUP, WARPGROUP_ROWS, WARPGROUPS
from .sm90_epilogue import Gradient, ResultRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..args import BackwardScalars
    from .sm90_scheduler import BackwardTileScheduler, Span, Work


class ScoreCoordinates(NamedTuple):
    """Coordinates of a thread's scores: sequence, query head, its first query and key, their distance, ALiBi slope."""

    batch: Int32
    head: Int32
    query: Int32
    key: Int32
    distance: Float32
    slope: Float32


def transposed(x: Any) -> Any:
    """Return a tile in smem with its first two modes exchanged."""
    return cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 0, *range(2, cute.rank(x))]))


def round_to_operand(acc: Any, operand: Any, blocks: Any) -> None:
    """Convert K blocks of an accumulator into an A operand: eight of a thread's elements are one block of 16."""
    for k in blocks:
        source, target = (cute.make_tensor(x.iterator + 8 * k, cute.make_layout(8)) for x in (acc, operand))
        target.store(source.load().to(operand.element_type))


class BackwardTiles:
    """Tiles of a Hopper backward kernel: loads, masks, and stores of gradients.

    A CTA has a resident tile of K and V, or of Q and dO in the dQ kernel; tiles of the other two arrays stream past.
    Scores are (resident row, streamed row), 64 rows for each warpgroup. `masks` are (right, left, softcap)."""

    computes_dq = False
    staggers_heads = False
    """Whether heads start one after the other."""
    resident_rows: int
    roles: WarpRoles

    def __init__(
        self, dtype: Any, config: Any, masks: tuple[bool, bool, bool], varlen: bool, has_seqused_k: bool, score_mod: Any
    ) -> None:
        self.dtype = dtype
        self.config = config
        self.score_mod = score_mod
        self.masks_right: bool = masks[0]
        self.masks_left: bool = masks[1]
        self.has_softcap: bool = masks[2]
        self.varlen = varlen
        self.lengths_vary: bool = varlen or has_seqused_k
        # in the order of the streamed rows
        before_after = (self.masks_left, self.masks_right) if self.computes_dq else (self.masks_right, self.masks_left)
        self.masks_before: bool = before_after[0]
        self.masks_after: bool = before_after[1]

    @property
    def streamed_rows(self) -> int:
        """Rows of a streamed tile."""
        return self.config.tile_n if self.computes_dq else self.config.tile_m

    # --- loads ---

    def pipe(self, stages: int, size: int) -> Any:
        """Return a pipeline of TMA loads that both consumer warpgroups wait for."""
        return tma_pipe(stages, self.roles.warps("consumer"), size)

    def tiles(self, operand: TmaOperand, smem: cute.Tensor, first: Int32) -> tuple[cute.Tensor, cute.Tensor]:
        """Return stages in smem and a sequence's tiles in gmem, partitioned for TMA."""
        if self.varlen:
            operand = operand.at((first, 0, 0, 0))
        return operand.partition(smem, operand.tiles((None, 0, None, None)))

    def load_resident(self, operand: TmaOperand, smem: cute.Tensor, work: Any, barrier: cute.Pointer) -> None:
        """Load a resident tile."""
        first = work.first_q if self.computes_dq else work.first_k
        target, tiles = self.tiles(operand, smem, first)
        cute.copy(operand.atom, tiles[None, work.tile, work.head, work.layer], target, tma_bar_ptr=barrier)

    def streamed_tiles(
        self, operands: Sequence[TmaOperand], smem: Sequence[cute.Tensor], work: Any
    ) -> list[tuple[cute.CopyAtom, cute.Tensor, cute.Tensor]]:
        """Return the TMA atom, the stages and the tiles of both streamed arrays."""
        first = work.first_k if self.computes_dq else work.first_q
        return [(x.atom, *self.tiles(x, stages, first)) for x, stages in zip(operands, smem)]

    @cute.jit
    def load_streamed(
        self,
        number: Int32,
        sources: list[tuple[cute.CopyAtom, cute.Tensor, cute.Tensor]],
        producers: Sequence[pipeline.PipelineProducer],
        lse_delta: cute.Tensor,
        smem_lse_delta: Any,
        scheduler: BackwardTileScheduler,
        work: Work,
        span: Span,
    ):
        """Load the streamed tiles of a step; with Q comes LSE of its rows, and with dO delta."""
        head, tile = scheduler.step(number, work, span)
        rows: Any = None
        if const_expr(not self.computes_dq):
            rows = cute.local_tile(
                lse_delta[None, work.layer, head, None], (1, self.streamed_rows), (None, work.first_q_tile + tile)
            )
        for which, ((atom, stages, tiles), producer) in enumerate(zip(sources, producers)):
            stage = producer.acquire_and_advance()
            cute.copy(atom, tiles[None, tile, head, work.layer], stages[None, stage.index], tma_bar_ptr=stage.barrier)
            if const_expr(not self.computes_dq):
                pointer = rows[0, None, which].iterator.with_alignment(16)
                source = cute.make_tensor(pointer, cute.make_layout(self.streamed_rows))
                bulk = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Float32)
                with arch.elect_one():
                    cute.copy(bulk, source, smem_lse_delta[None, which, stage.index], mbar_ptr=stage.barrier)

    def result_layout(self, head_dim: int) -> Any:
        """Return the smem layout of the warpgroups' gradients (row, element, warpgroup)."""
        return sm90.make_smem_layout_epi(self.dtype, LayoutEnum.ROW_MAJOR, (WARPGROUP_ROWS, head_dim), WARPGROUPS)

    # --- rows that do not exist, and gradients ---

    @cute.jit
    def clear(self, tiles: tuple[cute.Tensor, ...], rows: Int32, thread: Int32, threads: int):
        """Zero the rows of tiles (row, element) that do not exist. Consumer warpgroups meet when that is done."""
        zeros = cute.make_rmem_tensor((VECTOR,), self.dtype)
        zeros.fill(0.0)
        for x in tiles:
            tile_rows = cute.size(x, mode=[0])
            vectors = cute.size(x, mode=[1]) // VECTOR
            count = tile_rows * vectors
            # no loop whose end depends on the thread: ptxas keeps no WGMMA descriptor in uniform registers across one
            for n in range_constexpr(-(-count // threads)):
                i = n * threads + thread
                row = i // vectors
                vector = i % vectors
                if const_expr(threads % vectors == 0):
                    row = n * (threads // vectors) + thread // vectors
                    vector = thread % vectors
                missing = row >= rows
                if const_expr(count % threads):
                    missing = missing & (i < count)
                target = vector_at(x, (row, vector * VECTOR))
                if missing:
                    cute.autovec_copy(zeros, target)
        arch.fence_proxy("async.shared", space="cta")
        self.roles.barrier("cleared").arrive_and_wait()

    @cute.jit
    def store_gradient(
        self,
        acc: cute.Tensor,
        scale: Float32,
        smem: cute.Tensor,
        target: TmaOperand,
        gmem: cute.Tensor | None,
        rows: ResultRows,
        stage: Int32,
        barrier: pipeline.NamedBarrier,
        reused: bool,
        head_dim: int,
    ):
        """Store 64 rows of a gradient, times `scale`, through a stage of smem that is not needed any more.

        `target` is a TMA operand, `gmem` the plain tensor for the last rows of a varlen sequence. `reused`: the stage is
        used for several stores, so that a store is waited for before the next is written, not at its end."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        mma = make_wgmma(self.dtype, head_dim, b=MN_MAJOR, a_in_regs=True)
        sD = cute.make_tensor(smem.iterator, self.result_layout(head_dim).outer)
        is_leader = lambda: arch.make_warp_uniform(arch.warp_idx()) % 4 == 0
        epilogue = TmaStoreEpilogue(barrier, is_leader, stage, reused=reused)
        epilogue.write(
            RegisterAccumulator(acc, mma.get_slice(thread)), Gradient(mma, thread, scale, rows, sD, target, gmem)
        )

    # --- masks and score modification ---

    @cute.jit
    def is_masked(self, edge: Int32, scalars: BackwardScalars):
        """Return whether some row of a warpgroup does not see some row of a streamed tile.

        `edge` is the first streamed row that the warpgroup's first row sees, relative to the tile: row r sees the tile
        from `edge` + r on."""
        masked = Boolean(False)
        if const_expr(self.masks_before):
            masked = edge + (WARPGROUP_ROWS - 1) > 0
        if const_expr(self.masks_after):
            masked = masked | (edge + scalars.window_left + scalars.window_right + 1 < self.streamed_rows)
        return masked

    @cute.jit
    def mask(self, acc_s: cute.Tensor, edge: Int32, keys: Int32, scalars: BackwardScalars):
        """Mask scores outside of the window, and keys from `keys` on, counted from the first key of the scores."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        for half in range_constexpr(2):
            row = accumulator_row(0, thread, half)
            column = accumulator_column(thread)
            first = edge + row - column
            if const_expr(self.computes_dq):
                end = keys - column
            else:
                # all or none of a row: a multiplication instead of a branch that all scores would be carried around
                end = (rematerialized(keys) - row) * self.streamed_rows
            if const_expr(self.masks_after):
                end = min(end, first + scalars.window_left + scalars.window_right + 1)
            begin = first if const_expr(self.masks_before) else None
            mask_row(acc_s, lambda c, n, half=half: ((c, half, n), 0, 0), self.streamed_rows, begin, end)

    @cute.jit
    def coordinates(
        self, edge: Int32, row: Int32, step: Int32, alibi_slopes: Any, scheduler: BackwardTileScheduler, work: Work
    ):
        """Return the coordinates of a thread's scores in a step; `row` is the first of the warpgroup."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        shift, before, _ = scheduler.band(work)
        streamed = row + shift - before - edge + accumulator_column(thread)
        row = accumulator_row(row, thread, 0)
        query = row
        key = streamed
        head = work.head
        if const_expr(not self.computes_dq):
            query = streamed
            key = row
            head = head * scheduler.group_size + step % scheduler.group_size
        slope = Float32(0.0)
        if const_expr(alibi_slopes is not None):
            slope = alibi_slopes[min(work.batch, alibi_slopes.shape[0] - 1), head]
        distance = Float32(key - query - (work.seqlen_k - work.seqlen_q))
        return ScoreCoordinates(work.batch, head, query, key, distance, slope)
