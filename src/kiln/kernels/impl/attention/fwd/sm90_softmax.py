"""What a Hopper consumer warpgroup does to scores between its two GEMMs: score modification, mask, online softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Boolean, Float32, Int32, const_expr, cute, range_constexpr
from .....cute import arch
from .....utils.tiles.online_softmax import OnlineSoftmax, softcap_tanh
from ....parts.attention_mask import accumulator_column, accumulator_row, mask_row_by_bits
from ....parts.rematerialize import rematerialized
from ..score_mod import RowCoordinates

if TYPE_CHECKING:
    from .sm90 import Sm90ForwardKernel
    from .sm90_mma import AttentionMma

_ROWS = 2
"""Rows of an accumulator that a thread holds, 8 apart."""
_F32X4_TO_E4M3X4 = """{
.reg .b16 low, high;
cvt.rn.satfinite.e4m3x2.f32 low, {$r1}, {$r0};
cvt.rn.satfinite.e4m3x2.f32 high, {$r3}, {$r2};
mov.b32 {$w0}, {low, high};
}"""


class ScoreRows(NamedTuple):
    """The query rows of a warpgroup: the first (over queries and packed heads), head, sequence, and the sequence's
    lengths."""

    first: Int32
    head: Int32
    batch: Int32
    seqlen_q: Int32
    seqlen_k: Int32


class ScoreTile:
    """A warpgroup's tile of scores before the softmax. `descaled` says whether Q and K have scale factors, kept in
    `qk_descale`."""

    __kiln_immutable__ = True

    def __init__(
        self, kernel: Sm90ForwardKernel, acc_s: cute.Tensor, scalars: Any, alibi_slopes: Any, descaled: bool
    ) -> None:
        self.kernel = kernel
        self.tSrS = acc_s
        self.scalars = scalars
        self.alibi_slopes = alibi_slopes
        self.descaled = descaled
        self.qk_descale: cute.Tensor = cute.make_rmem_tensor((1,), Float32)

    def _descale(self, scale: Any) -> Any:
        return scale * self.qk_descale[0] if self.descaled else scale

    @cute.jit
    def modify(self, kv_tile: Int32, rows: ScoreRows):
        """Apply softcap, ALiBi and the user's function."""
        kernel = self.kernel
        acc_s = self.tSrS
        score_mod = self.kernel.score_mod
        score_scale = self.scalars.score_scale
        if const_expr(kernel.has_softcap):
            # the scales after this one have the rest of the softcap in them
            cap = self._descale(self.scalars.softcap_scale)
            for i in range_constexpr(cute.size(acc_s)):
                acc_s[i] = softcap_tanh(acc_s[i], cap)
        else:
            score_scale = self._descale(score_scale) if const_expr(score_mod) else score_scale
        if const_expr(score_mod):
            thread = rematerialized(arch.thread_idx()[0]) % 128
            slope = None
            for half in range_constexpr(_ROWS):
                row = self._row(thread, half, kv_tile, rows)
                if const_expr(score_mod.has_alibi):
                    slope = self.alibi_slopes[min(rows.batch, self.alibi_slopes.shape[0] - 1), row.head]
                at = lambda c, n, half=half: ((c, half, n), 0, 0)
                score_mod.modify_row(acc_s, at, kernel.config.tile_n, row, score_scale, slope)

    @cute.jit
    def mask(self, kv_tile: Int32, rows_of: Any, masked: Boolean | bool):
        """Mask the scores of a KV tile, if it is `masked`: keys outside of the window or the sequence. `rows_of`
        returns the `ScoreRows`."""
        kernel = self.kernel
        if masked:
            thread = rematerialized(arch.thread_idx()[0]) % 128
            rows = rows_of()
            for half in range_constexpr(_ROWS):
                if const_expr(half and kernel.rereads_work):
                    thread = rematerialized(arch.thread_idx()[0]) % 128
                    rows = rows_of()
                row = self._row(thread, half, kv_tile, rows)
                position = row.position - row.first_key
                begin = None
                end = rows.seqlen_k - row.first_key
                if const_expr(kernel.masks_right):
                    end = min(end, position + self.scalars.window_right + 1)
                if const_expr(kernel.masks_left):
                    begin = position - self.scalars.window_left
                mask_row_by_bits(
                    self.tSrS, lambda c, n, half=half: ((c, half, n), 0, 0), kernel.config.tile_n, begin, end
                )

    def _row(self, thread: Int32 | int, half: int, kv_tile: Int32 | int, rows: ScoreRows) -> RowCoordinates:
        query = accumulator_row(rows.first, thread, half)
        head = rows.head
        group_size = self.kernel.group_size
        if group_size > 1:
            query, head = query // group_size, rows.head * group_size + query % group_size
        first_key = kv_tile * self.kernel.config.tile_n + accumulator_column(thread)
        return RowCoordinates(rows.batch, head, query, first_key, query + rows.seqlen_k - rows.seqlen_q)


class Sm90Softmax(OnlineSoftmax):
    """Online softmax of a warpgroup's scores. `tile_scales` says whether each query tile has its own scale, in
    `tile_scale`."""

    __kiln_immutable__ = True

    def __init__(
        self, kernel: Sm90ForwardKernel, mma: AttentionMma, scale_log2: Float32 | float, tile_scales: bool
    ) -> None:
        super().__init__(_ROWS, scale_log2, 5.0 if kernel.is_fp8 else None)
        self.tSrS: cute.Tensor[Float32] = mma.tSrS
        self.tOrO: cute.Tensor = mma.tOrO
        self.tOrP: cute.Tensor = mma.tOrP
        self.tile_n: int = kernel.config.tile_n
        self.head_dim_v: int = kernel.head_dim_v
        self.dtype: type[cute.Numeric] = kernel.dtype
        self.is_fp8: bool = kernel.is_fp8
        self.tile_scales = tile_scales
        self.tile_scale: cute.Tensor = cute.make_rmem_tensor((1,), Float32)
        self.correction: cute.Tensor = cute.make_rmem_tensor((_ROWS,), Float32)
        self.thread_max: cute.Tensor = cute.make_rmem_tensor((_ROWS,), Float32)
        self.raised: cute.Tensor = cute.make_rmem_tensor((1,), Boolean)

    def scale(self) -> Any:
        return self.tile_scale[0] if self.tile_scales else self.scale_log2

    def reset(self) -> None:
        super().reset()
        self.tOrO.fill(0.0)

    def exp2(self, lazy: bool) -> None:
        """P = exp2(S * scale_log2 - row_max), in place of S. Rescales row_sum; the output accumulator is rescaled by
        `rescale_o`."""
        # even and odd columns of each row by themselves: four independent chains of instructions
        chains = [(c, half) for half in range(_ROWS) for c in range(2)]
        chain_max = {chain: self.tSrS[(*chain, 0), 0, 0] for chain in chains}
        for n in range(1, self.tile_n // 8):
            for chain in chains:
                chain_max[chain] = arch.fmax(chain_max[chain], self.tSrS[(*chain, n), 0, 0])
        for half in range(_ROWS):
            self.thread_max[half] = arch.fmax(chain_max[0, half], chain_max[1, half])
        if lazy:
            self._raise_if_exceeded()
        else:
            self._raise()
        for half in range(_ROWS):
            row_sum = self.row_sum[half]
            for n in range(self.tile_n // 8):
                for c in range(2):
                    p = self.p(half, self.tSrS[(c, half, n), 0, 0])
                    self.tSrS[(c, half, n), 0, 0] = p
                    row_sum = row_sum + p
            self.row_sum[half] = row_sum

    def _raise(self) -> None:
        for half in range(_ROWS):
            self.correction[half] = self.raise_row_max(half, self.thread_max[half])

    @cute.jit
    def _raise_if_exceeded(self):
        over = [self.exceeds(half, self.thread_max[half]) for half in range(_ROWS)]
        self.raised[0] = arch.vote_any_sync(over[0] | over[1])
        if self.raised[0]:
            self._raise()

    @cute.jit
    def rescale_o(self, lazy: bool):
        """Rescale the output accumulator by the correction of the last update; if `lazy`, only if there was one."""
        if const_expr(not lazy) or self.raised[0]:
            self._rescale_o()

    def _rescale_o(self) -> None:
        for half in range(_ROWS):
            for n in range(self.head_dim_v // 8):
                for c in range(2):
                    self.tOrO[(c, half, n), 0, 0] = self.tOrO[(c, half, n), 0, 0] * self.correction[half]

    def convert_p(self) -> None:
        """Convert P to the type of V: the accumulator of S is then the A operand of P V."""
        if not self.is_fp8:
            self.tOrP.store(self.tSrS.load().to(self.dtype).reshape(self.tOrP.shape))
            return
        # Of 32 keys a thread holds columns 8 n + 2 q and the next one; as an A operand they count as four adjacent
        # keys, twice. `TransposeV` permutes the keys of V accordingly.
        words = cute.recast_tensor(self.tOrP, Int32)
        for k in range(self.tile_n // 32):
            for number in range(2 * _ROWS):
                upper, half = divmod(number, _ROWS)
                four = [self.tSrS[(c, half, 4 * k + 2 * upper + n), 0, 0] for n in range(2) for c in range(2)]
                words[4 * k + number] = arch.inline_ptx(_F32X4_TO_E4M3X4, write_only_types=[Int32], read_only_args=four)
