"""MLA decode for sm_90a: TMA loads pages of the compressed KV, two consumer warpgroups compute.

A Q tile has 64 rows, the queries and heads of one sequence. Its output accumulator is too large for one warpgroup: each
has half of the columns. Of the KV tiles each warpgroup has every other one: it computes S and P of the tile, uses P for
its half of O, and passes P through shared memory to the other, which uses it for its own half. So one warpgroup
computes its softmax while the tensor cores work for the other. P is stored where the RoPE columns of the tile were,
which are no longer needed.

The pipeline has two KV tiles, each in two halves and the RoPE columns; a half is loaded again as soon as the warpgroup
that has its columns is done with it. An 8-bit cache is loaded into one more tile, and converted to f16 into three
halves that are used in turn: the half whose columns the tile's own warpgroup has is first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, Int32, const_expr, cute, pipeline, utils
from .... import range as dynamic_range
from ....cute import arch
from ....cute.nvgpu import warpgroup
from ....utils import LayoutEnum, sm90
from ...parts.kv_source import PageTable
from ...parts.tma_operand import TmaOperand, tma_pipe
from ...parts.warp_roles import RoleBarrier, WarpRoles
from .fp8_to_f16 import Fp8Converter, raw_layout, warp_pipe
from .sm90_config import DEFAULT_EARLY, FP8_REGISTERS, Q_TILE, REGISTERS, ROPE_DIM, ROPE_PART
from .sm90_kv_tiles import KV_PRIORITY, MlaBuffers, MlaKernel, mla_roles
from .sm90_mainloop import MlaWarpgroup
from .split_kv_scheduler import KV_TILE

if TYPE_CHECKING:
    from .fp8_to_f16 import WarpPipeline
    from .sm90_kv_tiles import CtaWork, MlaTensors

_GROUPS = 7
"""Most groups of WGMMAs that may be in flight behind a wait."""


class Sm90MlaKernel(MlaKernel):
    """The MLA decode kernel for 64 rows of queries; an 8-bit cache is converted by one more warpgroup.

    `early`: parts of the scores of a tile that are issued before P of the other warpgroup is there.
    """

    def __init__(
        self,
        dtype: type[cute.Numeric],
        value_dim: int,
        cache_dtype: type[cute.Numeric] | None = None,
        ways: int = 1,
        early: int = DEFAULT_EARLY,
    ) -> None:
        super().__init__(dtype, value_dim, Q_TILE, cache_dtype, ways)
        self.half: int = value_dim // 2
        self.halves = 4 if cache_dtype is None else 3
        # tiles of 64 columns, as many as the RoPE columns, in half of a KV tile
        self.tiles: int = self.half // ROPE_DIM
        # A half has a stage for each of its tiles, so that MMAs start with the first that arrives; or one stage, if the
        # cache is converted.
        self.stages: int = self.tiles if cache_dtype is None else 1
        # S = Q K^T is issued in parts: the half whose columns of O this warpgroup has, the other half, the RoPE columns.
        # If the cache is converted, the RoPE columns come before the second half, and nothing of the second half is
        # issued before P of the other warpgroup is there: its stage, one of three in turn, held a half of the other's
        # tile, which is known to have arrived only then, and a phase bit tells only two fillings apart. The other's tile
        # is released when all scores are issued, or, so that the next can be converted, before the second half.
        halves = [(half, self.tiles) for half in range(2)]
        self.qk_parts: list[tuple[int, int]] = (
            [*halves, (ROPE_PART, 1)] if cache_dtype is None else [halves[0], (ROPE_PART, 1), halves[1]]
        )
        self.q_tiles: int = 2 * self.tiles + 1
        self.qk_tiles: int = self.q_tiles
        if cache_dtype is None:
            self.early = min(-(-early * self.tiles // 4), 2 * self.tiles)
            self.release_at = self.qk_tiles
        else:
            self.early: int = (0, self.tiles, self.tiles + 1)[-(-early // 4)]
            self.release_at: int = self.tiles + 1
        # With four warpgroups a thread has at most 128 registers at launch: MMAs of 256 columns do not fit.
        self.pv_columns: int = self.half if cache_dtype is None else 128 if self.half % 128 == 0 else 64
        # P of a warpgroup's tile is in shared memory
        p_barrier = RoleBarrier("P", {"consumer": 8}, 2)
        # a warp for each half of a KV tile, and one for the RoPE columns (`ROPE_PART`)
        producers = ("load KV", "load KV", "load KV", "load Q")
        registers = REGISTERS if cache_dtype is None else FP8_REGISTERS
        self.roles: WarpRoles = mla_roles(registers, producers, p_barrier)

    # --- how tiles lie ---

    def mma_qk(self) -> cute.TiledMma:
        """Return the MMA of S = Q K^T."""
        major = warpgroup.OperandMajorMode.K
        return sm90.make_trivial_tiled_mma(
            self.mma_dtype, self.mma_dtype, major, major, Float32, (1, 1, 1), (Q_TILE, KV_TILE)
        )

    def mma_pv(self, own: bool) -> cute.TiledMma:
        """Return the MMA of O += P V for half of the columns, with P in registers (`own`) or in shared memory."""
        majors = warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN
        source = warpgroup.OperandSource.RMEM if own else warpgroup.OperandSource.SMEM
        return sm90.make_trivial_tiled_mma(
            self.mma_dtype, self.mma_dtype, *majors, Float32, (1, 1, 1), (Q_TILE, self.pv_columns), source
        )

    def tile_layout(self, columns: int, buffers: int) -> cute.ComposedLayout:
        """Return the layout of tiles (row, column, stage)."""
        return sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (Q_TILE, KV_TILE, columns), self.mma_dtype, buffers)

    def v_layout(self, buffers: int) -> cute.ComposedLayout:
        """Return the layout of half of the values of a KV tile (column, key, stage), in the same memory as
        `tile_layout`."""
        return sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, (Q_TILE, self.half, KV_TILE), self.mma_dtype, buffers)

    def tma_tiles(self) -> tuple[tuple[Any, tuple[int, int]], ...]:
        kv_layout = self.tile_layout if self.cache_dtype is None else raw_layout
        return tuple((layout(ROPE_DIM, 1), (Q_TILE, ROPE_DIM)) for layout in (self.tile_layout, kv_layout))

    def allocate(self, memory: utils.SmemAllocator) -> MlaBuffers:
        # tiles of Q; of halves of KV, and twice of the RoPE columns
        layouts = self.tile_layout(ROPE_DIM, self.qk_tiles), self.tile_layout(ROPE_DIM, self.halves * self.tiles + 2)
        q, kv = (memory.allocate_tensor(self.mma_dtype, layout.outer, 1024, layout.inner) for layout in layouts)
        loaded_q = q
        loaded_kv = kv
        q_scales = None
        if self.cache_dtype is not None:
            # Q is converted in place
            loaded_q = cute.make_tensor(cute.recast_ptr(q.iterator, q.iterator.swizzle, dtype=self.dtype), q.layout)
            loaded_kv = memory.allocate_tensor(self.cache_dtype, raw_layout(ROPE_DIM, 2 * self.tiles + 2), 1024)
            q_scales = memory.allocate_tensor(Float32, cute.make_layout((Q_TILE,)), 16)
        neg_row_max = memory.allocate_tensor(Float32, cute.make_layout((Q_TILE, 2)), 16)
        row_sum = memory.allocate_tensor(Float32, cute.make_layout((Q_TILE, 2, 2)), 16)
        return MlaBuffers(q, loaded_q, kv, loaded_kv, q_scales, neg_row_max, row_sum)

    def pipes(self) -> tuple[WarpPipeline | pipeline.PipelineTmaAsync | None, ...]:
        """Return the pipelines of Q, of KV (halves, then two of RoPE columns), and of the 8-bit cache or None."""
        pipe_q = tma_pipe(1, self.roles.warps("consumer"), 2 * Q_TILE * (self.value_dim + ROPE_DIM))
        stages = self.halves * self.stages + 2
        if self.cache_dtype is None:
            return pipe_q, tma_pipe(stages, 4, 2 * Q_TILE * ROPE_DIM), None
        return pipe_q, warp_pipe(stages), tma_pipe(4, 4, Q_TILE * ROPE_DIM)

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
        """Load KV by three warps, a part of each tile by each, and Q by the fourth."""
        pipe_q, pipe, pipe_raw = pipes
        if self.roles.is_up_to(warp, "load KV"):
            self.load(kv, buffers.loaded_kv, pipe if pipe_raw is None else pipe_raw, tensors, work, Int32(warp))
        else:
            self.load_q(q, buffers.loaded_q, pipe_q, tensors, work)

    @cute.jit
    def compute(self, warp: Int32, buffers: MlaBuffers, pipes: Any, tensors: MlaTensors, work: Any):
        """Compute outputs by two warpgroups, and convert an 8-bit cache by a third."""
        pipe_q, pipe, pipe_raw = pipes
        roles = self.roles
        if roles.is_up_to(warp, "consumer"):
            roles.set_registers("consumer")
            steps = MlaWarpgroup(
                self, roles.index(warp, "consumer"), buffers, pipe, work.scalars.scale, tensors.kv_scale
            )
            self.consume(steps, pipe_q, tensors, work)
        else:
            if const_expr(self.cache_dtype is not None):
                roles.set_registers("converter")
                widen = Fp8Converter(self, buffers, pipe, pipe_raw)
                for count in range(self.kv_tiles_of(tensors, work)):
                    widen.process_tile(count)

    @cute.jit
    def kv_tiles_of(self, tensors: MlaTensors, work: CtaWork):
        """Return the number of KV tiles of a split."""
        count = Int32(0)
        for sequence in self.sequences(tensors, work):
            own = sequence.kv_tiles
            count = count + own.last - own.first
        return count

    @cute.jit
    def load(
        self,
        kv: TmaOperand,
        stages: cute.Tensor,
        pipe: pipeline.PipelineTmaAsync,
        tensors: MlaTensors,
        work: CtaWork,
        part: Int32,
    ):
        """Load a part of all KV tiles of a split: a half or the RoPE columns; of an 8-bit cache the half that is
        converted first, or the other."""
        smem, gmem = kv.partition(stages, kv.tiles((None, None, None)))
        sequences = self.sequences(tensors, work)
        count = Int32(0)
        tiles = Int32(1) if part == ROPE_PART else Int32(self.tiles)
        for sequence in sequences:
            own = sequence.kv_tiles
            pages = PageTable(tensors.page_table[sequence.number, None], KV_TILE, Int32(cute.size(gmem, mode=[3])))
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
                    source = gmem[None, 0, column + tile, page]
                    cute.copy(kv.atom, source, smem[None, first + tile], tma_bar_ptr=barrier, cache_policy=KV_PRIORITY)
                count = count + 1

    @cute.jit
    def raw_stage(self, count: Int32, part: Int32):
        """Return of a part of a KV tile, as it is loaded: its stage and phase, its first tile in smem, and the tile of
        its first column."""
        buffer = count & 1
        rope = part == ROPE_PART
        column = part * self.tiles
        if const_expr(self.cache_dtype is None):
            stage = self.rope_stage(buffer) if rope else self.stage_of(count, buffer, part)[0] * self.tiles
            return stage, count >> 1 & 1, stage, column
        # the half that is converted first, then the other
        stage = 2 + buffer if rope else part
        phase = (count >> 1 if rope else count) & 1
        first = 2 * self.tiles + buffer if rope else column
        return stage, phase, first, column if rope else (buffer ^ part) * self.tiles

    def rope_stage(self, buffer: Int32 | int) -> Int32 | int:
        """Return the stage of RoPE columns."""
        return self.halves * self.stages + buffer

    def stage_of(self, count: Int32 | int, buffer: Int32 | int, column: Int32 | int) -> tuple[Int32 | int, Int32 | int]:
        """Return the stage of a half of KV tile `count`, and how often it was filled before."""
        if self.cache_dtype is None:
            return buffer * 2 + column, count >> 1
        number = 2 * count + (buffer ^ column)
        return number % self.halves, number // self.halves

    @cute.jit
    def consume(self, steps: MlaWarpgroup, pipe_q: pipeline.PipelineTmaAsync, tensors: MlaTensors, work: CtaWork):
        """Compute the outputs of all sequences of a split."""
        sequences = self.sequences(tensors, work)
        count = Int32(0)
        column_tiles = Int32(0)
        _, consumer = pipe_q.make_participants()
        for sequence in sequences:
            own = sequence.kv_tiles
            blocks = arch.make_warp_uniform(own.last - own.first)
            # packed into one number, since accumulators leave no registers
            kept = arch.make_warp_uniform(own.count << 2 | Int32(own.whole) << 1 | Int32(own.first == 0))
            if blocks > 0:
                # This warpgroup has the first or the second tile, and every other one from there on; the last keys come
                # first. `number`: of all tiles; `keys_left`: keys of the sequence from the tile's first on.
                first = (steps.group ^ count) & 1
                number = count + first
                end = count + blocks
                keys_left = sequence.length - (own.last - 1 - first) * KV_TILE
                steps.begin()
                filled = consumer.wait_and_advance()
                if const_expr(self.mma_dtype is not self.dtype):
                    steps.convert_q()
                while number < end:
                    # Issue the first scores while the other computes its softmax; then P V of the other's tile, if
                    # there is `some` before this one: its stage is to be filled again while this one is used.
                    some = number > count
                    steps.issue_qk(number, 0, self.early)
                    if some:
                        steps.issue_other_pv(number - 1)
                    barriers = steps.other_barriers(number - 1)
                    steps.issue_qk(number, self.early, self.release_at)
                    steps.wait_other_pv(barriers, some, min(self.release_at - self.early, _GROUPS))
                    steps.issue_qk(number, self.release_at, self.qk_tiles)
                    steps.wait_qk()
                    steps.compute_p(number, keys_left, work)
                    steps.add_pv(number)
                    keys_left = keys_left + 2 * KV_TILE
                    number = number + 2
                filled.release()
                if number == end:  # the other warpgroup had the last tile
                    steps.issue_other_pv(number - 1)
                    steps.wait_other_pv(steps.other_barriers(number - 1), True, 0)
                count = end
                slot = 2 * work.split + (kept & 1)
                steps.epilogue(column_tiles, tensors, sequence.number, slot, kept & 2 != 0, work)
                column_tiles = column_tiles + 1
            sequences.count = kept >> 2
