"""A consumer warpgroup of MLA: scores and softmax of its own KV tiles, and P V of its own and of the other's tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Constexpr, Float32, Int32, const_expr, cute, pipeline, range_constexpr
from .... import range as dynamic_range
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, warp, warpgroup
from ....utils.tiles.online_softmax import RESCALE_THRESHOLD, checked_row_sum, log_sum_exp, nonzero_scale, store_row_sum
from ...parts.rematerialize import rematerialized
from .sm90_config import Q_TILE, ROPE_DIM, ROPE_PART, WARPGROUP
from .sm90_kv_tiles import ConsumerWarpgroup
from .split_kv_scheduler import KV_TILE

if TYPE_CHECKING:
    from .... import Boolean
    from .fp8_to_f16 import WarpPipeline
    from .sm90 import Sm90MlaKernel
    from .sm90_kv_tiles import CtaWork, MlaBuffers, MlaTensors

_EIGHT = 8
"""Columns of Q that a thread converts at once."""
_Q_EXPONENT = 141
"""The f32 exponent that rows of Q are scaled to: 2 ** 14."""


@cute.jit
def f16_exponent(most: Float32):
    """Return the exponent of the power of two that scales a row of Q with this largest magnitude into the range of
    f16."""
    return max(Int32(1), min(Int32(253), 127 + _Q_EXPONENT - (most.bitcast(Int32) >> 23)))


@cute.jit
def updated_neg_max(before: Float32, most: Float32, scale: Float32):
    """Return -row_max: updated only if the largest score exceeds it by much, so that accumulators are seldom
    rescaled."""
    return -(most * scale) if cute.math.fma(most, scale, before) > RESCALE_THRESHOLD else before


def _eights(dtype: type[cute.Numeric]) -> cute.CopyAtom:
    return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=_EIGHT * dtype.width)


class MlaWarpgroup(ConsumerWarpgroup):
    """Consumer warpgroup `group`, 0 or 1: it has that half of the columns of O, and every other KV tile is its own."""

    def __init__(
        self,
        kernel: Sm90MlaKernel,
        group: Int32,
        buffers: MlaBuffers,
        pipe: WarpPipeline | pipeline.PipelineTmaAsync,
        scale: Float32,
        kv_scale: Any,
    ) -> None:
        self.kernel = kernel
        self.group = group
        self.kv_scale = kv_scale
        self.pipe = pipe
        self.scale: Float32 = scale if kv_scale is None else nonzero_scale(scale * kv_scale[0])
        self.smem_neg_max: cute.Tensor = buffers.neg_row_max
        self.smem_row_sum: cute.Tensor = buffers.row_sum
        self.q_scales: Any = buffers.q_scales
        self.queries: cute.Tensor = buffers.q
        self.loaded_q: cute.Tensor = buffers.loaded_q
        self.keys: cute.Tensor = buffers.kv
        halves = cute.make_tensor(self.keys.iterator, kernel.v_layout(kernel.halves).outer)
        self.smem_p: cute.Tensor = cute.domain_offset((0, 0, kernel.halves * kernel.tiles), self.keys)
        thread = arch.thread_idx()[0] % WARPGROUP
        self.mma_qk: cute.TiledMma = kernel.mma_qk()
        self.mma_pv: cute.TiledMma = kernel.mma_pv(True)
        self.mma_other_pv: cute.TiledMma = kernel.mma_pv(False)
        scores = self.mma_qk.get_slice(thread)
        outputs = self.mma_other_pv.get_slice(thread)
        self.q: cute.Tensor = self.mma_qk.make_fragment_A(scores.partition_A(self.queries))
        self.k: cute.Tensor = self.mma_qk.make_fragment_B(scores.partition_B(self.keys))
        self.v: cute.Tensor = self.mma_other_pv.make_fragment_B(outputs.partition_B(halves))
        self.other_p: cute.Tensor = self.mma_other_pv.make_fragment_A(outputs.partition_A(self.smem_p))
        self.acc_s: cute.Tensor[Float32] = cute.make_rmem_tensor(
            self.mma_qk.partition_shape_C((Q_TILE, KV_TILE)), Float32
        )
        self.acc_o: cute.Tensor = cute.make_rmem_tensor(self.mma_pv.partition_shape_C((Q_TILE, kernel.half)), Float32)
        self.p_regs: cute.Tensor = cute.make_rmem_tensor(((2, 2, 2), 1, KV_TILE // 16), kernel.mma_dtype)
        self.neg_row_max: cute.Tensor = cute.make_rmem_tensor((2,), Float32)
        self.row_sum: cute.Tensor = cute.make_rmem_tensor((2,), Float32)
        self.correction: cute.Tensor = cute.make_rmem_tensor((2,), Float32)

    @cute.jit
    def convert_q(self):
        """Convert Q to f16 in place, each row scaled by a power of two that fits f16: four threads to a row."""
        thread = rematerialized(arch.thread_idx()[0]) - WARPGROUP
        kernel = self.kernel
        row = thread // 4
        first = thread % 4 * _EIGHT
        tiles = cute.size(self.queries, mode=[2])
        columns = cute.size(self.queries, mode=[1])
        most = Float32(0.0)
        for start in dynamic_range(0, tiles * columns, 4 * _EIGHT, unroll=1):
            values = self.eight(self.loaded_q, row, start % columns + first, start // columns)
            for i in range_constexpr(_EIGHT):
                most = arch.fmax(most, arch.fmax(values[i], -values[i]))
        for distance in (1, 2):
            most = arch.fmax(most, arch.shuffle_sync_bfly(most, offset=distance))
        up = f16_exponent(most)
        for start in dynamic_range(0, tiles * columns, 4 * _EIGHT, unroll=1):
            place = row, start % columns + first, start // columns
            values = self.eight(self.loaded_q, *place)
            rounded = cute.make_rmem_tensor((_EIGHT,), kernel.mma_dtype)
            rounded.store((values.load() * (up << 23).bitcast(Float32)).to(kernel.mma_dtype))
            cute.copy(_eights(kernel.mma_dtype), rounded, self.places(self.queries, *place))
        if first == 0:
            self.q_scales[row] = nonzero_scale(((254 - up) << 23).bitcast(Float32) * self.scale)
        arch.fence_proxy("async.shared", space="cta")
        self.sync_consumers()

    def places(self, tile: cute.Tensor, row: Int32 | int, column: Int32 | int, index: Int32) -> cute.Tensor:
        """Return eight columns of a row in shared memory."""
        place = cute.domain_offset((row, column, index), tile).iterator.with_alignment(16)
        return cute.make_tensor(place, cute.make_layout((_EIGHT,)))

    def eight(self, tile: cute.Tensor, row: Int32 | int, column: Int32 | int, index: Int32) -> cute.Tensor:
        """Load eight columns of a row as f32."""
        held, values = (cute.make_rmem_tensor((_EIGHT,), dtype) for dtype in (self.kernel.dtype, Float32))
        cute.copy(_eights(self.kernel.dtype), self.places(tile, row, column, index), held)
        values.store(held.load().to(Float32))
        return values

    def issue_qk(self, number: Int32, begin: int, end: int) -> None:
        """Issue the scores of some of the column tiles of a KV tile, in the order in which they arrive."""
        before = 0
        for part, count in self.kernel.qk_parts:
            tiles = range(max(begin - before, 0), min(end - before, count))
            if tiles:
                self.issue_qk_part(number, part, tiles, before + tiles.start == 0)
            before += count

    @cute.jit
    def issue_qk_part(self, number: Int32, part: Constexpr, tiles: Constexpr, starts: Constexpr):
        """Issue the scores of some column tiles of a part of a KV tile; with `starts` the accumulator is overwritten.

        This is a loop in which MMAs stay in flight: ptxas takes its time for each MMA in the code. Each iteration is a
        group of its own, which it is for ptxas in any case. Where a half arrives at once there is no loop: with a
        converted cache it would run longer, and with one tile it would have one iteration.
        """
        kernel = self.kernel
        group = self.uniform_here(self.group)
        if const_expr(part == ROPE_PART):
            self.pipe.sync_object_full.wait(kernel.rope_stage(group), number >> 1 & 1)
            self.issue_qk_tile(2 * kernel.tiles, kernel.halves * kernel.tiles + group, True)
        else:
            half = group ^ part
            place, time = kernel.stage_of(number, group, half)
            if const_expr(kernel.stages == 1):
                if const_expr(tiles.start == 0):
                    self.pipe.sync_object_full.wait(place, time & 1)
                for tile in range_constexpr(tiles.start, tiles.stop):
                    added = not starts or tile > tiles.start
                    self.issue_qk_tile(half * kernel.tiles + tile, place * kernel.tiles + tile, added)
            else:
                for tile in dynamic_range(tiles.start, tiles.stop, 1, unroll=1):
                    self.pipe.sync_object_full.wait(place * kernel.tiles + tile, time & 1)
                    added = not starts or tile > tiles.start
                    self.issue_qk_tile(half * kernel.tiles + tile, place * kernel.tiles + tile, added)

    def issue_qk_tile(self, queries: Int32 | int, keys: Int32, added: Boolean | bool) -> None:
        """Issue the scores of one column tile."""
        warpgroup.fence()
        for k in range(ROPE_DIM // 16):
            self.mma_qk.set(warpgroup.Field.ACCUMULATE, added if k == 0 else True)
            cute.gemm(self.mma_qk, self.acc_s, self.q[None, None, k, queries], self.k[None, None, k, keys], self.acc_s)
        warpgroup.commit_group()

    def wait_qk(self) -> None:
        """Wait for the scores in all threads of the warpgroup: P is stored where some of the keys were."""
        warpgroup.wait_group(0)
        self.sync_warpgroup()

    @cute.jit
    def issue_other_pv(self, count: Int32 | int):
        """Issue P V of a tile of the other warpgroup."""
        group = self.uniform_here(self.group)
        row = self.row()
        other = 1 - group
        self.kernel.roles.barrier("P", other).arrive_and_wait()
        for half in range_constexpr(2):
            now = self.smem_neg_max[row + 8 * half, other]
            self.correction[half] = arch.exp2(now - self.neg_row_max[half])
            self.row_sum[half] = self.row_sum[half] * self.correction[half]
            self.neg_row_max[half] = now
        self.rescale(self.kernel.early > 0)
        self.mma_other_pv.set(warpgroup.Field.ACCUMULATE, True)
        place = self.kernel.stage_of(count, other, group)[0]
        for k in dynamic_range(0, KV_TILE // 16, 1, unroll=1):
            weights = self.other_p[None, None, k, other]
            values = self.v[None, None, k, place]
            warpgroup.fence()
            cute.gemm(self.mma_other_pv, self.acc_o, weights, values, self.acc_o)
            warpgroup.commit_group()

    def other_barriers(self, count: Int32 | int) -> list[cute.Pointer]:
        """Return the empty mbarriers of a tile of the other warpgroup; computed early, since loads wait for the
        arrival."""
        group = self.uniform_here(self.group)
        kernel = self.kernel
        stages = kernel.stage_of(count, 1 - group, group)[0] * kernel.stages, kernel.rope_stage(1 - group)
        return [self.pipe.sync_object_empty.get_barrier(self.uniform_here(stage)) for stage in stages]

    @cute.jit
    def wait_other_pv(self, barriers: list[cute.Pointer], some: Boolean | bool, later: Constexpr):
        """Wait for P V of the other warpgroup's tile, but not for `later` groups of MMAs, and release the tile's columns
        and P, if there is `some` tile."""
        warpgroup.wait_group(later)
        arch.sync_warp()  # one thread arrives for a warp
        for barrier in barriers:
            if some & (arch.lane_idx() == 0):
                arch.mbarrier_arrive(barrier)

    def add_pv(self, count: Int32 | int) -> None:
        """Add P V of the warpgroup's own tile, and release its columns."""
        group = self.uniform_here(self.group)
        kernel = self.kernel
        self.rescale()
        warpgroup.fence()
        self.mma_pv.set(warpgroup.Field.ACCUMULATE, True)
        place, time = kernel.stage_of(count, group, group)
        for k in range(KV_TILE // 16):
            cute.gemm(self.mma_pv, self.acc_o, self.p_regs[None, None, k], self.v[None, None, k, place], self.acc_o)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        stages = kernel.halves * kernel.stages + 2
        self.pipe.consumer_release(pipeline.PipelineState(stages, 0, place * kernel.stages, time & 1))

    def row(self) -> Int32:
        """Return the first of the two rows that a thread has, 8 apart."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        return thread // 32 * 16 + thread % 32 // 4

    def of_row(self, half: int) -> cute.Tensor:
        """Return a thread's elements of O of its first or second row: two columns of each eight."""
        layout = cute.make_layout((2, self.kernel.half // 8), stride=(1, 4))
        return cute.make_tensor(self.acc_o.iterator + 2 * half, layout)

    @cute.jit
    def rescale(self, begun: Constexpr = False):
        """Rescale O if row_max of a row of the warp has changed; wait for MMAs that were `begun`."""
        if arch.vote_any_sync((self.correction[0] != 1.0) | (self.correction[1] != 1.0)):
            if const_expr(begun):
                warpgroup.wait_group(0)
            self.scale_acc()

    def scale_acc(self) -> None:
        """Multiply O with the correction of each row."""
        self.acc_o.store(self.acc_o.load() * self.correction.load().reshape(((1, 2, 1), 1, 1)))

    @cute.jit
    def compute_p(self, count: Int32, keys_left: Int32, work: CtaWork):
        """Compute P of this warpgroup's tile, in registers and, with -row_max, in shared memory for the other.
        `keys_left`: keys of the sequence from the tile's first on."""
        if keys_left - KV_TILE < work.hidden:
            self.mask(keys_left, work)
        if keys_left < KV_TILE:
            self.zero_missing(count, keys_left)
        self.softmax()
        self.p_regs.store(self.acc_s.load().to(self.kernel.mma_dtype).reshape(self.p_regs.shape))
        row = self.row()
        if arch.lane_idx() % 4 == 0:
            for half in range_constexpr(2):
                self.smem_neg_max[row + 8 * half, self.group] = self.neg_row_max[half]
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.kernel.mma_dtype)
        write = cute.make_tiled_copy_S(atom, cute.make_tiled_copy_C_atom(atom, self.mma_qk))
        writer = write.get_slice(rematerialized(arch.thread_idx()[0]) % WARPGROUP)
        rounded = cute.make_tensor(self.p_regs.iterator, cute.make_layout(self.acc_s.shape))
        tile = self.smem_p[None, None, self.group]
        cute.copy(write, write.retile(rounded), writer.partition_D(tile))
        arch.fence_proxy("async.shared", space="cta")
        self.kernel.roles.barrier("P", self.group).arrive()

    @cute.jit
    def mask(self, keys_left: Int32, work: CtaWork):
        """Mask the keys behind a query's own."""
        scalars = work.scalars
        column = arch.lane_idx() % 4 * 2
        hidden = Float32(-float("inf"))
        for half in range_constexpr(2):
            query = min(work.tile * Q_TILE + self.row() + 8 * half, work.rows - 1) // scalars.heads
            end = min(keys_left, keys_left - scalars.hidden + query) - column
            for n in range_constexpr(KV_TILE // 8):
                for c in range_constexpr(2):
                    value = self.acc_s[(c, half, n), 0, 0]
                    self.acc_s[(c, half, n), 0, 0] = value if end > 8 * n + c else hidden

    @cute.jit
    def zero_missing(self, count: Int32, keys_left: Int32):
        """Zero values that do not exist, where anything may be: 0 times NaN is NaN."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        for row in range(max(keys_left, Int32(0)), KV_TILE):
            for i in range_constexpr(self.kernel.value_dim // WARPGROUP):
                half = (i * WARPGROUP + thread) // self.kernel.half
                column = (i * WARPGROUP + thread) % self.kernel.half
                tile = self.kernel.stage_of(count, self.group, half)[0] * self.kernel.tiles + column // ROPE_DIM
                self.keys[row, column % ROPE_DIM, tile] = self.kernel.mma_dtype(0.0)
        arch.fence_proxy("async.shared", space="cta")
        self.sync_warpgroup()

    def softmax(self) -> None:
        """P = exp2(S * scale - row_max), with the running row_max and row_sum."""
        chains = [(c, half) for half in range(2) for c in range(2)]
        smem_max = {chain: self.acc_s[(*chain, 0), 0, 0] for chain in chains}
        for n in range(1, KV_TILE // 8):
            for chain in chains:
                smem_max[chain] = arch.fmax(smem_max[chain], self.acc_s[(*chain, n), 0, 0])
        for half in range(2):
            most = arch.fmax(smem_max[0, half], smem_max[1, half])
            for distance in (1, 2):
                most = arch.fmax(most, arch.shuffle_sync_bfly(most, offset=distance))
            before = self.neg_row_max[half]
            scale = self.scale if self.kernel.mma_dtype is self.kernel.dtype else self.q_scales[self.row() + 8 * half]
            now = updated_neg_max(before, most, scale)
            correction = arch.exp2(now - before)
            total = self.row_sum[half] * correction
            for n in range(KV_TILE // 8):
                for c in range(2):
                    power = arch.exp2(cute.math.fma(self.acc_s[(c, half, n), 0, 0], scale, now))
                    self.acc_s[(c, half, n), 0, 0] = power
                    total = total + power
            self.neg_row_max[half] = now
            self.row_sum[half] = total
            self.correction[half] = correction

    @cute.jit
    def epilogue(self, turn: Int32, tensors: MlaTensors, sequence: Int32, slot: Int32, whole: Boolean, work: CtaWork):
        """Write O / row_sum and LSE, or partial ones if the split has a part of the keys."""
        row = self.row()
        column = rematerialized(arch.lane_idx()) % 4 * 2
        for half in range_constexpr(2):
            total = self.row_sum[half]
            for distance in (1, 2):
                total = total + arch.shuffle_sync_bfly(total, offset=distance)
            self.row_sum[half] = total
            if column == 0:
                self.smem_row_sum[row + 8 * half, self.group, turn & 1] = total
        self.sync_consumers()
        for half in range_constexpr(2):
            total = self.row_sum[half] + self.smem_row_sum[row + 8 * half, 1 - self.group, turn & 1]
            total = checked_row_sum(total, self.neg_row_max[half])
            self.row_sum[half] = total
            self.correction[half] = Float32(0.0)
            if total != 0.0:
                self.correction[half] = arch.rcp_approx(total)
                if const_expr(self.kv_scale is not None):
                    self.correction[half] = self.correction[half] * self.kv_scale[0]
        self.scale_acc()
        for half in range_constexpr(2):
            own = work.tile * Q_TILE + row + 8 * half
            if whole:
                self.write(tensors.out[sequence, own, None], self.kernel.dtype, half, own < work.rows)
            else:
                self.write(tensors.partial[slot, own, None], Float32, half, own < work.rows)
        # two of the four threads of a row, and of the row 8 behind it, write an LSE each
        second = column == 2
        total = self.row_sum[1] if second else self.row_sum[0]
        neg_row_max = self.neg_row_max[1] if second else self.neg_row_max[0]
        own = work.tile * Q_TILE + row + 4 * column
        if own < work.rows and self.group == 0 and column <= 2:
            if whole:
                if const_expr(tensors.lse is not None):
                    heads = work.scalars.heads
                    tensors.lse[sequence, own % heads, own // heads] = log_sum_exp(total, neg_row_max)
            else:
                store_row_sum(tensors.partial[slot, own, None], self.kernel.value_dim, total, neg_row_max)

    @cute.jit
    def write(self, row: cute.Tensor, dtype: Constexpr, half: Constexpr, pred: Boolean):
        """Write a thread's elements of a row, two of each eight columns, if `pred` holds.

        16-bit elements of four threads would be 16 bytes, and memory takes 32 at once. So two threads exchange every
        other eight columns.
        """
        own = self.of_row(half)
        thread = rematerialized(arch.lane_idx()) % 4
        values = own
        each = 2
        start = 2 * thread
        if const_expr(dtype.width == 16):
            values = cute.make_rmem_tensor(own.shape, dtype)
            values.store(own.load().to(dtype))
            each = 4
            start = thread % 2 * 8 + thread // 2 * 4
            upper = thread % 2 == 1
            words = cute.recast_tensor(cute.make_tensor(values.iterator, cute.make_layout((cute.size(own),))), Int32)
            for i in range_constexpr(0, cute.size(words), 2):
                first = words[i]
                second = words[i + 1]
                got = arch.shuffle_sync_bfly(first if upper else second, offset=1)
                words[i] = got if upper else first
                words[i + 1] = second if upper else got
        if pred:
            store = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=each * dtype.width)
            place = (row.iterator + (self.group * self.kernel.half + start)).with_alignment(each * dtype.width // 8)
            shape = each, self.kernel.half // (4 * each)
            held = cute.make_tensor(values.iterator, cute.make_layout(shape)) if const_expr(each == 4) else values
            cute.copy(store, held, cute.make_tensor(place, cute.make_layout(shape, stride=(1, 4 * each))))
