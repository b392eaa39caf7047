"""A consumer warpgroup of MLA with swap-AB and an 8-bit cache: the KV tile is converted to f16 in registers, as operand
A.

Nothing is written back: shared memory holds what TMA loaded, for four KV tiles. Two orders differ from the given ones,
so that a word of four elements becomes two words of operands. Columns of Q: 4 t to 4 t + 3 of sixteen are multiplied as
columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. And a thread's two accumulators of a column tile are of neighbouring columns.
Rows of Q are scaled by powers of two into the range of f16.
"""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32, Uint16, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import warp, warpgroup
from ....utils import sm90
from ....utils.tiles.online_softmax import nonzero_scale
from ...parts.fp8 import widened
from ...parts.rematerialize import rematerialized
from .sm90_config import WARPGROUP
from .sm90_mainloop import f16_exponent
from .sm90_swap_ab_mainloop import SwapAbWarpgroup
from .split_kv_scheduler import KV_TILE

_EVEN_BYTES_FIRST = 0x3120
"""Byte order that puts the even bytes of a word first."""
_OPERANDS_AHEAD = {16: 4, 32: 2}
"""Column tiles whose operands a thread holds at once, by rows: as registers allow."""


class Fp8SwapAbWarpgroup(SwapAbWarpgroup):
    """A consumer warpgroup for an 8-bit cache."""

    def tiled_mmas(self) -> tuple[cute.TiledMma, cute.TiledMma]:
        """Return the MMAs: the same for S and O, with the KV tile in registers."""
        kernel = self.kernel
        along = warpgroup.OperandMajorMode.K
        source = warpgroup.OperandSource.RMEM
        tile = (KV_TILE, kernel.rows)
        mma = sm90.make_trivial_tiled_mma(
            kernel.mma_dtype, kernel.mma_dtype, along, along, Float32, (1, 1, 1), tile, source
        )
        return mma, mma

    def partition_kv(self, scores: cute.ThrMma, outputs: cute.ThrMma) -> None:
        """Allocate registers for the operands of some column tiles."""
        self.ahead: int = _OPERANDS_AHEAD[self.kernel.rows]
        place = cute.recast_ptr(self.smem_kv.iterator, self.smem_kv.iterator.swizzle, dtype=Uint16)
        across = KV_TILE // 2
        each = KV_TILE * KV_TILE // 2
        # pairs of columns: eight, of which a row of a column tile has four times as many; rows, stages
        layout = cute.make_layout((8, across // 8, KV_TILE, self.kernel.stages), stride=(1, 8, across, each))
        self.pairs: cute.Tensor = cute.make_tensor(place, layout)
        self.held: list[cute.Tensor] = [cute.make_rmem_tensor((16,), Uint16) for _ in range(2)]
        self.operands: list[cute.Tensor] = [
            cute.make_rmem_tensor(((2, 2, 2), 1, 4), self.kernel.mma_dtype) for _ in range(self.ahead)
        ]

    @cute.jit
    def convert_q(self):
        """Convert Q to f16, in the order of columns in which the KV tile is multiplied."""
        thread = rematerialized(arch.thread_idx()[0]) - WARPGROUP
        lane = thread % 32
        first = thread // 32
        tile = self.smem_q
        columns = self.kernel.column_tiles * KV_TILE
        for i in range_constexpr(self.kernel.rows // 8):
            row = first + 8 * i
            most = Float32(0.0)
            for j in range(lane, columns, 32):
                value = self.loaded_q[row, j, 0].to(Float32)
                most = arch.fmax(most, arch.fmax(value, -value))
            for distance in (1, 2, 4, 8, 16):
                most = arch.fmax(most, arch.shuffle_sync_bfly(most, offset=distance))
            up = f16_exponent(most)
            kv_scale = (up << 23).bitcast(Float32)
            for j in range(lane, columns, 32):
                value = self.loaded_q[row, j, 0].to(Float32) * kv_scale
                # 4 t + n of sixteen: as column 2 t + n, or those of the upper half 8 further on
                t = j % 16 // 4
                n = j % 4
                tile[row, j // 16 * 16 + n // 2 * 8 + 2 * t + n % 2, 0] = value.to(self.kernel.mma_dtype)
            scale = ((254 - up) << 23).bitcast(Float32) * self.scale
            if const_expr(self.kv_scale is not None):
                scale = scale * self.kv_scale[0]
            if lane == 0:
                self.q_scales[row] = nonzero_scale(scale)
        arch.fence_proxy("async.shared", space="cta")
        self.sync_consumers()

    def scale_of(self, i: int) -> Float32:
        return self.q_scales[self.lane() % 4 * 2 + 8 * (i // 2) + i % 2]

    def inverse(self, total: Float32) -> Float32:
        inverse = arch.rcp_approx(total)
        return inverse if self.kv_scale is None else inverse * self.kv_scale[0]

    def column(self, half: int) -> Int32:
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        return thread // 32 * 16 + thread % 32 // 4 * 2 + half

    def places(self, transposed: bool) -> list[tuple[Any, Any]]:
        """Return the sixteenths and rows of a column tile that a thread addresses, for two times four matrices."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        lane = thread % 32
        own = thread // 32
        if transposed:
            return [(own, lane), (own, lane + 32)]
        return [(lane // 16, own * 16 + lane % 16), (lane // 16 + 2, own * 16 + lane % 16)]

    def fetch(self, piece: int, index: Any, places: list[tuple[Any, Any]], transposed: bool) -> None:
        """Begin to load the words of a column tile."""
        load = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transposed, 4), Uint16)
        for two in range(2):
            sixteenth, row = places[two]
            source = self.pairs[None, sixteenth, row, index]
            target = cute.make_tensor(self.held[piece % 2].iterator + 8 * two, cute.make_layout((8,)))
            cute.copy(load, cute.make_tensor(source.iterator.with_alignment(16), source.layout), target)

    def mma_operand(self, piece: int, transposed: bool) -> Any:
        """Convert a loaded column tile to operands A of four MMAs of 16 columns, or `transposed` of 16 keys."""
        to = self.operands[piece % self.ahead]
        raw = cute.recast_tensor(self.held[piece % 2], Int32)
        words = cute.recast_tensor(cute.make_tensor(to.iterator, cute.make_layout((32,))), Int32)
        for k in range(4):
            for half in range(2):
                word = raw[2 * k + half]
                if transposed:  # of two keys two columns: keys together
                    low, high = widened(arch.prmt(word, 0, _EVEN_BYTES_FIRST), self.kernel.cache_dtype)
                    words[4 * k + 2 * half] = low
                    words[4 * k + 2 * half + 1] = high
                else:
                    words[4 * k + half], words[4 * k + half + 2] = widened(word, self.kernel.cache_dtype)
        return to

    def multiply(self, column_tiles: int, fetch: Any, transposed: bool, issue_mma: Any) -> None:
        """Multiply column tiles: while the MMAs of one run, the next is converted, and the one after that loaded."""
        fetch(0)
        for piece in range(column_tiles):
            if piece + 1 < column_tiles:
                fetch(piece + 1)
            if piece >= self.ahead:
                warpgroup.wait_group(self.ahead - 1)
            operand = self.mma_operand(piece, transposed)
            warpgroup.fence()
            for k in range(4):
                issue_mma(piece, k, operand[None, None, k])
            warpgroup.commit_group()

    def compute_s(self, count: Int32 | int) -> None:
        count = self.uniform_here(count)
        first = self.uniform_here(Int32(0))
        places = self.places(False)

        def fetch(piece: int) -> None:
            state = self.kernel.stage_state(count, piece)
            self.pipe.consumer_wait(state)
            self.fetch(piece, state.index, places, False)

        def issue_mma(piece: int, k: int, keys: Any) -> None:
            self.mma_qk.set(warpgroup.Field.ACCUMULATE, piece > 0 or k > 0)
            cute.gemm(self.mma_qk, self.acc_s, keys, self.q[None, None, 4 * piece + k, first], self.acc_s)

        self.multiply(self.kernel.column_tiles, fetch, False, issue_mma)
        warpgroup.wait_group(0)

    def issue_pv(self, count: Int32 | int) -> None:
        group = self.uniform_here(self.group)
        places = self.places(True)
        self.mma_pv.set(warpgroup.Field.ACCUMULATE, True)

        def fetch(piece: int) -> None:
            self.fetch(piece, self.kernel.stage_state(count, piece).index, places, True)

        def issue_mma(piece: int, k: int, values: Any) -> None:
            acc_o = self.acc_o_tile(piece)
            cute.gemm(self.mma_pv, acc_o, values, self.p[None, None, k, group], acc_o)

        self.multiply(self.kernel.column_tiles - 1, fetch, True, issue_mma)
