"""GEMMs and softmax of a backward step with `mma.sync`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, cute
from .....cute import arch
from .....cute.nvgpu import warp
from .....utils.tiles.online_softmax import softcap_tanh
from ..fwd.sm80_mma import SmemMatrices, flat8, ldmatrix_lanes, multiply_block, pipelined

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..args import BackwardScalars
    from .sm80 import Sm80BackwardKernel


class BackwardMma:
    """S = X U^T and dP = Y W^T from smem, and the gradients dS U and P W, with dS and P in registers (X, Y, U, W as in
    `sm80.py`).

    How lanes name rows for ldmatrix is explained in `fwd/sm80_mma.py`.
    """

    def __init__(self, kernel: Sm80BackwardKernel, thread: Any, smem_resident: Any, smem_streamed: Any) -> None:
        tile_m = kernel.config.tile_m
        tile_n = kernel.config.tile_n
        self.mma: cute.TiledMma = kernel.mma()
        self.dtype: type[cute.Numeric] = kernel.dtype
        self.n_blocks: int = tile_n // 16
        self.k_blocks: tuple[int, int] = (kernel.padded // 16, kernel.padded_v // 16)

        def accumulator(columns: int) -> cute.Tensor:
            return cute.make_rmem_tensor(self.mma.partition_shape_C((tile_m, columns)), Float32)

        self.acc_s: cute.Tensor = accumulator(tile_n)
        self.acc_dp: cute.Tensor = accumulator(tile_n)
        self.ds: cute.Tensor = cute.make_rmem_tensor((8, 1, self.n_blocks), kernel.dtype)
        self.p: cute.Tensor = cute.make_rmem_tensor((8, 1, self.n_blocks), kernel.dtype)
        self.acc_ds_u: cute.Tensor | None = accumulator(kernel.padded) if kernel.computes_ds_u else None
        self.acc_p_w: cute.Tensor | None = accumulator(kernel.padded_v) if kernel.computes_p_w else None
        for acc in (self.acc_ds_u, self.acc_p_w):
            if acc is not None:
                acc.fill(0.0)
        self.load: cute.CopyAtom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), kernel.dtype)
        self.load_transposed: cute.CopyAtom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), kernel.dtype)
        down, across, first = ldmatrix_lanes(thread)
        widths = (kernel.padded, kernel.padded_v)
        self.resident: list[Callable[[int, int], Any]] = [
            SmemMatrices(x, down, (tile_m, n), first, kernel.config.warps).stage(0)
            for x, n in zip(smem_resident, widths)
        ]
        self.streamed_columns: list[SmemMatrices] = [
            SmemMatrices(x, across, (tile_n, n)) for x, n in zip(smem_streamed, widths)
        ]
        self.streamed_rows: list[SmemMatrices] = [
            SmemMatrices(x, down, (tile_n, n)) for x, n in zip(smem_streamed, widths)
        ]

    def compute_s(self, stage: Int32) -> None:
        """Compute S = X U^T."""
        self._multiply(self.acc_s, 0, stage)

    def compute_dp(self, stage: Int32) -> None:
        """Compute dP = Y W^T, if dS is needed."""
        if self.acc_ds_u is not None:
            self._multiply(self.acc_dp, 1, stage)

    def accumulate(self, stage: Int32) -> None:
        """Add dS U and P W."""
        for acc, a, which in ((self.acc_ds_u, self.ds, 0), (self.acc_p_w, self.p, 1)):
            if acc is not None:
                self._accumulate(acc, a, which, stage)

    def _multiply(self, acc: cute.Tensor, which: int, stage: Int32) -> None:
        resident = self.resident[which]
        streamed = self.streamed_columns[which].stage(stage)
        k_blocks = self.k_blocks[which]
        a = cute.make_rmem_tensor((8, 1, k_blocks), self.dtype)
        b = cute.make_rmem_tensor((4, 2, self.n_blocks, k_blocks), self.dtype)

        def load(k: int, n: int) -> None:
            if n == 0:
                cute.copy(self.load, resident(0, k), a[None, 0, k])
            cute.copy(self.load, streamed(n, k), flat8(b[None, None, n, k]))

        pipelined(k_blocks, self.n_blocks, load, lambda k, n: multiply_block(self.mma, acc, a, b, k, n, k == 0))

    def _accumulate(self, acc: cute.Tensor, a: cute.Tensor, which: int, stage: Int32) -> None:
        streamed = self.streamed_rows[which].stage(stage)
        blocks = self.k_blocks[which]
        b = cute.make_rmem_tensor((4, 2, blocks, self.n_blocks), self.dtype)

        def load(k: int, n: int) -> None:
            cute.copy(self.load_transposed, streamed(k, n), flat8(b[None, None, n, k]))

        pipelined(self.n_blocks, blocks, load, lambda k, n: multiply_block(self.mma, acc, a, b, k, n))


@cute.jit
def _clamped(number: Int32, last: Int32):
    return max(min(number, last), Int32(0))


class BackwardSoftmax:
    """Turns S into P and dP into dS. Queries are rows of the scores in the dQ kernel, columns in the dK/dV kernel."""

    def __init__(self, kernel: Sm80BackwardKernel, mma: BackwardMma, scalars: BackwardScalars) -> None:
        self.kernel = kernel
        self.mma = mma
        self.scalars = scalars
        self.pairs: int = kernel.config.tile_n // 8
        self.queries_are_rows: bool = kernel.computes_dq
        count = 2 if self.queries_are_rows else 2 * self.pairs
        self.neg_lse: cute.Tensor = cute.make_rmem_tensor((count,), Float32)
        self.delta: cute.Tensor = cute.make_rmem_tensor((count,), Float32)
        has_derivative = kernel.has_softcap or kernel.score_mod.function is not None
        self.derivative: Any = cute.make_rmem_tensor(mma.acc_s.shape, Float32) if has_derivative else None

    def load_rows(self, lse_delta: cute.Tensor, first: Int32, end: Int32) -> None:
        """Load LSE and delta of the queries whose rows this thread holds."""
        lane = arch.lane_idx()
        warp_number = arch.make_warp_uniform(arch.warp_idx())
        for half in range(2):
            self._load(half, lse_delta, first + warp_number * 16 + lane // 4 + 8 * half, end)

    def load_columns(self, lse_delta: cute.Tensor, first: Int32, end: Int32) -> None:
        """Load LSE and delta of the queries whose columns this thread holds."""
        lane = arch.lane_idx()
        for n in range(self.pairs):
            for c in range(2):
                self._load(2 * n + c, lse_delta, first + lane % 4 * 2 + 8 * n + c, end)

    def _load(self, number: int, lse_delta: cute.Tensor, query: Int32, end: Int32) -> None:
        # a query that does not exist is masked; the last one is read in its place
        query = _clamped(query, Int32(end) - 1)
        self.neg_lse[number] = -lse_delta[0, query]
        self.delta[number] = lse_delta[1, query]

    def softcap(self) -> None:
        """Apply the softcap to S, and keep its derivative."""
        acc_s = self.mma.acc_s
        for i in range(cute.size(acc_s)):
            acc_s[i] = softcap_tanh(acc_s[i], self.scalars.softcap_scale)
            self.derivative[i] = 1.0 - acc_s[i] * acc_s[i]

    def exp2(self) -> None:
        """P = exp2(S * scale_log2 - LSE) and dS = P (dP - delta), as operands."""
        mma = self.mma
        for n in range(self.pairs):
            for half in range(2):
                for c in range(2):
                    at = ((c, half), 0, n)
                    query = half if self.queries_are_rows else 2 * n + c
                    p = arch.exp2(cute.math.fma(mma.acc_s[at], self.scalars.scale_log2, self.neg_lse[query]))
                    mma.acc_s[at] = p
                    if mma.acc_ds_u is not None:
                        ds = p * (mma.acc_dp[at] - self.delta[query])
                        mma.acc_dp[at] = ds if self.derivative is None else ds * self.derivative[at]
            for acc, operand, fragment in ((mma.acc_s, mma.p, mma.acc_p_w), (mma.acc_dp, mma.ds, mma.acc_ds_u)):
                if fragment is not None:
                    target = cute.make_tensor(operand[None, 0, n // 2].iterator + 4 * (n % 2), cute.make_layout(4))
                    target.store(acc[None, 0, n].load().to(self.kernel.dtype).reshape((4,)))
