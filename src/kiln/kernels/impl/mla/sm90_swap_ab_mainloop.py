"""A consumer warpgroup of MLA with swap-AB: scores, softmax and outputs of its KV tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Constexpr, Float32, Int32, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, warp, warpgroup
from ....utils import sm90
from ....utils.tiles.online_softmax import checked_row_sum, log_sum_exp, store_row_sum
from ...parts.rematerialize import rematerialized
from .sm90_config import WARPGROUP
from .sm90_kv_tiles import ConsumerWarpgroup
from .sm90_mainloop import updated_neg_max
from .split_kv_scheduler import KV_TILE

if TYPE_CHECKING:
    from .... import Boolean, pipeline
    from .sm90_kv_tiles import CtaWork, MlaBuffers, MlaTensors
    from .sm90_swap_ab import Sm90MlaSwapAbKernel

_WIDTH = 4
"""Columns of O that a thread writes at once."""
_ROWS = 4
"""Rows whose accumulators a thread combines at once."""


class SwapAbWarpgroup(ConsumerWarpgroup):
    """Consumer warpgroup `group`, 0 or 1."""

    def __init__(
        self,
        kernel: Sm90MlaSwapAbKernel,
        group: Int32,
        buffers: MlaBuffers,
        pipe: pipeline.PipelineTmaAsync,
        scale: Float32,
        kv_scale: Any,
    ) -> None:
        self.kernel = kernel
        self.group = group
        self.pipe = pipe
        self.scale = scale
        self.kv_scale = kv_scale
        self.smem_max: cute.Tensor = buffers.row_max
        self.smem_row_sum: cute.Tensor = buffers.row_sum
        self.smem_neg_max: cute.Tensor = buffers.neg_row_max
        self.smem_q: cute.Tensor = buffers.q
        self.loaded_q: cute.Tensor = buffers.loaded_q
        self.q_scales: Any = buffers.q_scales
        self.smem_kv: cute.Tensor = buffers.kv
        self.smem_p: cute.Tensor = buffers.p
        thread = arch.thread_idx()[0] % WARPGROUP
        self.mma_qk: cute.TiledMma
        self.mma_pv: cute.TiledMma
        self.mma_qk, self.mma_pv = self.tiled_mmas()
        scores = self.mma_qk.get_slice(thread)
        outputs = self.mma_pv.get_slice(thread)
        self.q: cute.Tensor = self.mma_qk.make_fragment_B(scores.partition_B(self.smem_q))
        self.p: cute.Tensor = self.mma_pv.make_fragment_B(outputs.partition_B(self.smem_p))
        self.partition_kv(scores, outputs)
        self.acc_s: cute.Tensor = cute.make_rmem_tensor(self.mma_qk.partition_shape_C((KV_TILE, kernel.rows)), Float32)
        self.acc_o: cute.Tensor = cute.make_rmem_tensor(
            self.mma_pv.partition_shape_C((kernel.value_dim, kernel.rows)), Float32
        )
        # of the rows that a thread has, two of each eight
        self.neg_row_max: cute.Tensor = cute.make_rmem_tensor((kernel.rows // 4,), Float32)
        self.row_sum: cute.Tensor = cute.make_rmem_tensor((kernel.rows // 4,), Float32)
        self.correction: cute.Tensor = cute.make_rmem_tensor((kernel.rows // 4,), Float32)
        # accumulators in the memory of the last KV tiles: column, row, stage
        words = kernel.tile_bytes // 4
        self.at_once: int = min(kernel.rows, kernel.tile_bytes // 4 // KV_TILE)
        self.smem_acc: cute.Tensor = self.memory(Float32, (KV_TILE, self.at_once), words)
        # the same memory as words of a key
        self.words: cute.Tensor = self.memory(Int32, (words // KV_TILE, KV_TILE), words)

    def memory(self, dtype: type[cute.Numeric], shape: tuple[int, int], each: int) -> cute.Tensor:
        """Return the memory of the KV stages as tiles of another shape and type."""
        layout = cute.make_layout((*shape, self.kernel.stages), stride=(1, shape[0], each))
        return cute.make_tensor(cute.recast_ptr(self.smem_kv.iterator, dtype=dtype), layout)

    def tiled_mmas(self) -> tuple[cute.TiledMma, cute.TiledMma]:
        """Return the MMAs of S^T = C Q^T and O^T = V^T P^T."""
        kernel = self.kernel
        along = warpgroup.OperandMajorMode.K
        across = warpgroup.OperandMajorMode.MN
        return tuple(
            sm90.make_trivial_tiled_mma(
                kernel.mma_dtype, kernel.mma_dtype, major, along, Float32, (1, 1, 1), (KV_TILE, kernel.rows)
            )
            for major in (along, across)
        )  # pyright: ignore[reportReturnType]

    def partition_kv(self, scores: cute.ThrMma, outputs: cute.ThrMma) -> None:
        """Partition the KV tile as operand A of both MMAs."""
        values = cute.make_tensor(self.smem_kv.iterator, self.kernel.v_layout().outer)
        self.k: Any = self.mma_qk.make_fragment_A(scores.partition_A(self.smem_kv))
        self.v: Any = self.mma_pv.make_fragment_A(outputs.partition_A(values))

    def process_tile(self, count: Int32 | int, keys_left: Int32, work: CtaWork, again: Boolean) -> None:
        """Process KV tile `count`. `keys_left`: keys of the sequence from its first on; `again`: whether this warpgroup
        has one more."""
        self.compute_s(count)
        self.compute_p(count, keys_left, work)
        self.update_o(count, again)

    def compute_s(self, count: Int32 | int) -> None:
        """Compute S^T of a KV tile."""
        count = self.uniform_here(count)
        first = self.uniform_here(Int32(0))
        for piece in range(self.kernel.column_tiles):
            state = self.kernel.stage_state(count, piece)
            self.pipe.consumer_wait(state)
            if piece == 0:
                warpgroup.fence()
            for k in range(4):
                self.mma_qk.set(warpgroup.Field.ACCUMULATE, piece > 0 or k > 0)
                keys = self.k[None, None, k, state.index]
                queries = self.q[None, None, 4 * piece + k, first]
                cute.gemm(self.mma_qk, self.acc_s, keys, queries, self.acc_s)
        warpgroup.commit_group()
        warpgroup.wait_group(0)

    def update_o(self, count: Int32 | int, again: Boolean) -> None:
        """Add V^T P^T of a KV tile, and release it, if this warpgroup has tiles `again`."""
        count = self.uniform_here(count)
        self.rescale()
        self.issue_pv(count)
        warpgroup.wait_group(0)
        self.release(count, again)

    def issue_pv(self, count: Int32 | int) -> None:
        """Issue V^T P^T of a KV tile."""
        group = self.uniform_here(self.group)
        warpgroup.fence()
        self.mma_pv.set(warpgroup.Field.ACCUMULATE, True)
        for piece in range(self.kernel.column_tiles - 1):
            index = self.kernel.stage_state(count, piece).index
            acc_o = self.acc_o_tile(piece)
            for k in range(4):
                cute.gemm(self.mma_pv, acc_o, self.v[None, None, k, index], self.p[None, None, k, group], acc_o)
        warpgroup.commit_group()

    def acc_o_tile(self, piece: int) -> cute.Tensor:
        """Return the accumulator of a column tile."""
        return cute.make_tensor(self.acc_o.iterator + piece * cute.size(self.acc_s), cute.make_layout(self.acc_s.shape))

    @cute.jit
    def release(self, count: Int32 | int, pred: Boolean):
        """Release a KV tile."""
        if pred:
            for piece in range_constexpr(self.kernel.column_tiles):
                self.pipe.consumer_release(self.kernel.stage_state(count, piece))

    def lane(self) -> Int32:
        """Return the lane, as a value that is computed here."""
        return rematerialized(arch.lane_idx())

    def first_key(self) -> Int32:
        """Return the first of the two keys of a tile that a thread has, 8 apart."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        return thread // 32 * 16 + thread % 32 // 4

    @cute.jit
    def rescale(self):
        """Rescale O if row_max of a row of the warp has changed."""
        changed = self.correction[0] != 1.0
        for i in range_constexpr(1, self.kernel.rows // 4):
            changed = changed | (self.correction[i] != 1.0)
        if arch.vote_any_sync(changed):
            layout = cute.make_layout((2, self.kernel.column_tiles - 1), stride=(2, cute.size(self.acc_s)))
            for i in range_constexpr(self.kernel.rows // 4):
                of_row = cute.make_tensor(self.acc_o.iterator + (i % 2 + i // 2 * 4), layout)
                of_row.store(of_row.load() * self.correction[i])

    @cute.jit
    def compute_p(self, count: Int32, keys_left: Int32, work: CtaWork):
        """Compute P of a tile, in shared memory. `keys_left`: keys of the sequence from the tile's first on."""
        if keys_left - KV_TILE < work.hidden:
            self.mask(keys_left, work)
        self.warp_max()
        if keys_left < KV_TILE:
            self.zero_missing(count, keys_left)
        self.softmax()
        rounded = cute.make_rmem_tensor(self.acc_s.shape, self.kernel.mma_dtype)
        rounded.store(self.acc_s.load().to(self.kernel.mma_dtype))
        # (row, key) in shared memory, written as (key, row)
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(True, 4), self.kernel.mma_dtype)
        write = cute.make_tiled_copy_C(atom, self.mma_qk)
        writer = write.get_slice(rematerialized(arch.thread_idx()[0]) % WARPGROUP)
        tile = self.smem_p[None, None, self.uniform_here(self.group)]
        swap_ab = cute.make_tensor(tile.iterator, cute.select(tile.layout, mode=[1, 0]))
        cute.copy(write, write.retile(rounded), writer.partition_D(swap_ab))
        arch.fence_proxy("async.shared", space="cta")
        self.sync_warpgroup()

    @cute.jit
    def mask(self, keys_left: Int32, work: CtaWork):
        """Mask the keys behind a query's own."""
        tile = work.tile
        rows = work.rows
        scalars = work.scalars
        first = self.lane() % 4 * 2 + tile * self.kernel.rows
        key = self.first_key()
        for i in range_constexpr(self.kernel.rows // 4):
            query = min(first + 8 * (i // 2) + i % 2, rows - 1) // scalars.heads
            end = min(keys_left, keys_left - scalars.hidden + query)
            for half in range_constexpr(2):
                at = (i % 2, half, i // 2), 0, 0
                value = self.acc_s[at]
                self.acc_s[at] = value if key + 8 * half < end else Float32(-float("inf"))

    @cute.jit
    def zero_missing(self, count: Int32, keys_left: Int32):
        """Zero values that do not exist, where anything may be: 0 times NaN is NaN."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        across = cute.size(self.words, mode=[0])  # words of a key in a column tile
        each = across * (self.kernel.column_tiles - 1)
        for i in range(max(keys_left, Int32(0)) * each + thread, KV_TILE * each, WARPGROUP):
            key = i // each
            word = i % each
            self.words[word % across, key, self.kernel.stage_state(count, word // across).index] = Int32(0)

    @cute.jit
    def warp_max(self):
        """Store the largest scores of each warp's keys in shared memory."""
        lane = self.lane()
        own = self.first_key() // 16
        group = self.uniform_here(self.group)
        for i in range_constexpr(self.kernel.rows // 4):
            most = arch.fmax(self.acc_s[(i % 2, 0, i // 2), 0, 0], self.acc_s[(i % 2, 1, i // 2), 0, 0])
            for distance in (4, 8, 16):
                most = arch.fmax(most, arch.shuffle_sync_bfly(most, offset=distance))
            if lane < 4:
                self.smem_max[lane * 2 + 8 * (i // 2) + i % 2, own, group] = most
        self.sync_warpgroup()

    def scale_of(self, i: int) -> Float32:
        """Return the scale of the scores of one of a thread's rows."""
        return self.scale

    def softmax(self) -> None:
        """P = exp2(S * scale - row_max), with the running row_max and row_sum."""
        first = self.lane() % 4 * 2
        group = self.uniform_here(self.group)
        for i in range(self.kernel.rows // 4):
            row = first + 8 * (i // 2) + i % 2
            most = self.smem_max[row, 0, group]
            for other in range(1, 4):
                most = arch.fmax(most, self.smem_max[row, other, group])
            before = self.neg_row_max[i]
            scale = self.scale_of(i)
            now = updated_neg_max(before, most, scale)
            correction = arch.exp2(now - before)
            total = self.row_sum[i] * correction
            for half in range(2):
                at = (i % 2, half, i // 2), 0, 0
                power = arch.exp2(cute.math.fma(self.acc_s[at], scale, now))
                self.acc_s[at] = power
                total = total + power
            self.neg_row_max[i] = now
            self.row_sum[i] = total
            self.correction[i] = correction

    @cute.jit
    def epilogue(
        self,
        count: Int32,
        blocks: Int32,
        tensors: MlaTensors,
        sequence: Int32,
        slot: Int32,
        whole: Boolean,
        work: CtaWork,
    ):
        """Combine the accumulators of both warpgroups, and write O / row_sum and LSE, or partial ones of a part of the
        keys."""
        last = count + blocks - 1
        # this warpgroup's last tile, if it has one
        own = last - ((last ^ self.group) & 1)
        has = own >= count
        if has:
            self.store_row_sum()
        for first in range_constexpr(0, self.kernel.rows, self.at_once):
            if has:
                self.store_acc(own, first)
            self.sync_consumers()
            if const_expr(first == 0):
                self.split_weights(last, blocks > 1)
                self.sync_consumers()
            self.write_combined(first, last, blocks > 1, tensors, sequence, slot, whole, work)
            arch.fence_proxy("async.shared", space="cta")
            self.sync_consumers()
        self.release(own, has)

    @cute.jit
    def split_weights(self, last: Int32, both: Boolean):
        """Compute the factor of each warpgroup's accumulator of a row, row_sum and -row_max, in place of the largest
        scores.

        `both`: one warpgroup has the last tile, and the other the one before it.
        """
        row = rematerialized(arch.thread_idx()[0]) - WARPGROUP
        if row < self.kernel.rows:
            a = last & 1
            b = 1 - (last & 1)
            one = self.smem_neg_max[row, a]
            total = self.total(row, a)
            more = Float32(0.0)
            other = one
            if both:
                other = self.smem_neg_max[row, b]
                more = self.total(row, b)
            high = arch.fmin(one, other)
            weights = arch.exp2(high - one), arch.exp2(high - other)
            total = checked_row_sum(total * weights[0] + more * weights[1], high)
            inverse = Float32(0.0)
            if total != 0.0:
                inverse = self.inverse(total)
            self.smem_max[row, 0, a] = weights[0] * inverse
            self.smem_max[row, 0, b] = weights[1] * inverse
            self.smem_max[row, 1, 0] = total
            self.smem_max[row, 2, 0] = high

    @cute.jit
    def write_combined(
        self,
        first: Constexpr,
        last: Int32,
        both: Boolean,
        tensors: MlaTensors,
        sequence: Int32,
        slot: Int32,
        whole: Boolean,
        work: CtaWork,
    ):
        """Write rows whose accumulators are in the memory of the last tile and, if `both` warpgroups have one, of the
        one before it."""
        thread = rematerialized(arch.thread_idx()[0]) - WARPGROUP
        lanes = self.kernel.value_dim // _WIDTH
        column = thread % lanes * _WIDTH
        at = thread // lanes
        step = 2 * WARPGROUP // lanes
        scalars = work.scalars
        before = rematerialized(work.tile) * self.kernel.rows  # rows of other Q tiles
        end = min(work.rows - before, Int32(first + self.at_once))
        values = [cute.make_rmem_tensor((_WIDTH,), Float32) for _ in range(_ROWS)]
        for start in range(first + at, end, _ROWS * step):
            for n in range_constexpr(_ROWS):
                row = min(start + n * step, end - 1)
                acc_o = self.read_acc(row - first, column, last)
                weight = self.smem_max[row, 0, last & 1]
                for i in range_constexpr(_WIDTH):
                    values[n][i] = acc_o[i] * weight
            if both:
                for n in range_constexpr(_ROWS):
                    row = min(start + n * step, end - 1)
                    acc_o = self.read_acc(row - first, column, last - 1)
                    weight = self.smem_max[row, 0, 1 - (last & 1)]
                    for i in range_constexpr(_WIDTH):
                        values[n][i] = values[n][i] + acc_o[i] * weight
            for n in range_constexpr(_ROWS):
                row = start + n * step
                number = before + row
                if row < end:
                    if whole:
                        self.write(tensors.out[sequence, number, None], self.kernel.dtype, column, values[n])
                        if const_expr(tensors.lse is not None):
                            if column == 0:
                                lse = log_sum_exp(self.smem_max[row, 1, 0], self.smem_max[row, 2, 0])
                                tensors.lse[sequence, number % scalars.heads, number // scalars.heads] = lse
                    else:
                        self.write(tensors.partial[slot, number, None], Float32, column, values[n])
                        if column == 0:
                            total = self.smem_max[row, 1, 0]
                            neg_row_max = self.smem_max[row, 2, 0]
                            partial = tensors.partial[slot, number, None]
                            store_row_sum(partial, self.kernel.value_dim, total, neg_row_max)

    def inverse(self, total: Float32) -> Float32:
        """Return the factor of the outputs."""
        return arch.rcp_approx(total)

    @cute.jit
    def store_row_sum(self):
        """Store -row_max and row_sum in shared memory."""
        lane = self.lane()
        number = self.first_key() // 16
        group = self.uniform_here(self.group)
        for i in range_constexpr(self.kernel.rows // 4):
            row = lane % 4 * 2 + 8 * (i // 2) + i % 2
            total = self.row_sum[i]
            for distance in (4, 8, 16):
                total = total + arch.shuffle_sync_bfly(total, offset=distance)
            if lane < 4:
                self.smem_row_sum[row, number, group] = total
                self.smem_neg_max[row, group] = self.neg_row_max[i]
        self.sync_warpgroup()  # all have read the last tile

    @cute.jit
    def store_acc(self, own: Int32, first: Constexpr):
        """Store the accumulators of some rows where this warpgroup's last KV tile was."""
        lane = self.lane()
        at = self.uniform_here(own)
        # in other banks than the rows of other threads
        places = [(self.column(half) ^ (lane % 4 * 8)) + lane % 4 * 2 * KV_TILE for half in range(2)]
        eights = self.at_once // 8
        for piece in range_constexpr(self.kernel.column_tiles - 1):
            start = self.kernel.stage_state(at, piece).index * (self.kernel.tile_bytes // 4)
            for half in range_constexpr(2):
                target = cute.make_layout((2, eights), stride=(KV_TILE, 8 * KV_TILE))
                registers = self.acc_o.iterator + (piece * cute.size(self.acc_s) + 2 * half + first // 2)
                cute.autovec_copy(
                    cute.make_tensor(registers, cute.make_layout((2, eights), stride=(1, 4))),
                    cute.make_tensor(self.smem_acc.iterator + (start + places[half]), target),
                )

    def column(self, half: int) -> Int32:
        """Return the column of a column tile of which a thread has accumulators, the first or the second."""
        return self.first_key() + 8 * half

    def total(self, row: Int32 | int, group: Int32) -> Float32:
        """Return the row_sum of a warpgroup."""
        total = self.smem_row_sum[row, 0, group]
        for number in range(1, 4):
            total = total + self.smem_row_sum[row, number, group]
        return total

    def read_acc(self, row: Int32 | int, column: Int32 | int, count: Int32 | int) -> cute.Tensor:
        """Load some columns of the accumulator of the warpgroup whose last tile is `count`."""
        index = self.kernel.stage_state(count, column // KV_TILE).index
        at = (column % KV_TILE) ^ (row // 2 % 4 * 8)
        place = cute.domain_offset((at, row, index), self.smem_acc).iterator.with_alignment(16)
        held = cute.make_rmem_tensor((_WIDTH,), Float32)
        load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * _WIDTH)
        cute.copy(load, cute.make_tensor(place, cute.make_layout((_WIDTH,))), held)
        return held

    def write(self, row: cute.Tensor, dtype: type[cute.Numeric], column: Int32 | int, values: cute.Tensor) -> None:
        """Write some columns of a row."""
        store = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=_WIDTH * dtype.width)
        rounded = cute.make_rmem_tensor((_WIDTH,), dtype)
        rounded.store(values.load().to(dtype))
        place = (row.iterator + column).with_alignment(_WIDTH * dtype.width // 8)
        cute.copy(store, rounded, cute.make_tensor(place, cute.make_layout((_WIDTH,))))
