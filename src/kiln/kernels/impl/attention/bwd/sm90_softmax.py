"""P and dS of the Hopper backward kernels, in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, cute
from .....cute import arch
from .....cute.nvgpu import warp
from .....utils.tiles.online_softmax import softcap_tanh
from .sm90_config import DS_STAGES, WARPGROUP_ROWS
from .sm90_tiles import round_to_operand, transposed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..args import BackwardScalars
    from .sm90 import Sm90BackwardKernel, Smem
    from .sm90_hd256_dkv import WarpgroupMma
    from .sm90_mma import BackwardMma
    from .sm90_tiles import ScoreCoordinates


class BackwardScores:
    """The scores of a warpgroup, `mma.acc_s`, between its GEMMs: softcap and score modification."""

    __kiln_immutable__ = True

    def __init__(self, kernel: Any, mma: Any, scalars: BackwardScalars) -> None:
        self.kernel = kernel
        self.mma = mma
        self.scalars = scalars
        self.has_derivative: bool = kernel.has_softcap or kernel.score_mod.function is not None

    def softcap(self) -> None:
        """Apply the softcap to S; scale_log2 has the rest of it."""
        acc_s = self.mma.acc_s
        for i in range(cute.size(acc_s)):
            acc_s[i] = softcap_tanh(acc_s[i], self.scalars.softcap_scale)

    def modified(self, at: tuple[tuple[int, int, int], int, int], coordinates: Any) -> tuple[Float32, Float32 | None]:
        """Return a score after ALiBi and the user's function, and the derivative, the softcap's included; None means 1.

        A masked score, -inf, stays masked and has derivative 0."""
        score = self.mma.acc_s[at]
        score_mod = self.kernel.score_mod
        of_cap = arch.fmax(1.0 - score * score, 0.0) if self.kernel.has_softcap else None
        if not score_mod:
            return score, of_cap
        (c, half, n), _, _ = at
        query, key = (8 * half, 8 * n + c) if self.kernel.computes_dq else (8 * n + c, 8 * half)
        distance = coordinates.distance + float(key - query)
        changed = score_mod.alibi(score * self.scalars.score_scale, coordinates.slope, distance)
        place = (coordinates.batch, coordinates.head, coordinates.query + query, coordinates.key + key)
        score, derivative = score_mod.apply_visible(score, changed, place)
        if derivative is None or of_cap is None:
            return score, of_cap if derivative is None else derivative
        return score, derivative * of_cap


class TransposedScores(BackwardScores):
    """Turns S^T into P^T, and dP^T into dS^T. A thread holds two of every eight queries, and two of 64 keys.

    `mma` has the accumulators `acc_s` and `acc_dp` and the operands `p` and `ds`; `lse_delta` is (row, which, stage) in
    smem."""

    def __init__(
        self,
        kernel: Any,
        mma: BackwardMma | WarpgroupMma,
        thread: Any,
        lse_delta: cute.Tensor,
        scalars: BackwardScalars,
    ) -> None:
        super().__init__(kernel, mma, scalars)
        self.lse_delta = lse_delta
        self.blocks: int = kernel.config.tile_m // 16
        self.first_query: Int32 = thread % 4 * 4

    def row_values(self, which: int, k: int, stage: Int32) -> cute.TensorSSA:
        """Return LSE (0) or delta (1) of the four of 16 queries that a thread holds: two of eight, then two of the next
        eight."""
        start = self.lse_delta[None, which, stage].iterator + (self.first_query + 16 * k)
        return cute.make_tensor(start.with_alignment(16), cute.make_layout(4)).load()

    def indices(self, k: int) -> list[tuple[tuple[tuple[int, int, int], int, int], int]]:
        """Return the accumulator indices of 16 queries, and which of a thread's four each belongs to."""
        return [(((c, half, 2 * k + n), 0, 0), 2 * n + c) for n in range(2) for half in range(2) for c in range(2)]

    def lse(self, stage: Int32, upper: int) -> list[cute.TensorSSA]:
        """Load LSE of the first blocks of 16 of the first half of the queries, or the second.

        They are loaded before the scores are waited for: beside WGMMAs, loads from smem take long."""
        return [self.row_values(0, k, stage) for k in self.half(upper)[: self.kernel.loaded_ahead]]

    def delta(self, stage: Int32) -> list[cute.TensorSSA]:
        """Load delta of the first blocks of queries."""
        return [self.row_values(1, k, stage) for k in range(self.blocks)[: self.kernel.loaded_ahead]]

    def half(self, upper: int) -> range:
        """Return the blocks of the first half of the queries or the second."""
        return range(self.blocks // 2, self.blocks) if upper else range(self.blocks // 2)

    def exp2(
        self, stage: Int32, upper: int, coordinates: ScoreCoordinates | None, loaded: Sequence[cute.TensorSSA] = ()
    ) -> None:
        """P = exp2(S * scale_log2 - LSE) in place of S, for the first half of the queries or the second.

        With softcap or a user's function, P is converted at once, and what stays is P times the derivative: no register
        keeps that."""
        acc_s = self.mma.acc_s
        for n, k in enumerate(self.half(upper)):
            lse = loaded[n] if n < len(loaded) else self.row_values(0, k, stage)
            derivatives = []
            for at, query in self.indices(k):
                score, derivative = self.modified(at, coordinates)
                derivatives.append(derivative)
                acc_s[at] = arch.exp2(cute.math.fma(score, self.scalars.scale_log2, -lse[query]))
            if self.has_derivative:
                round_to_operand(acc_s, self.mma.p, [k])
                for (at, _), derivative in zip(self.indices(k), derivatives, strict=True):
                    acc_s[at] = acc_s[at] * derivative

    def convert_p(self) -> None:
        """Convert P^T to an operand, unless `exp2` did."""
        if not self.has_derivative:
            round_to_operand(self.mma.acc_s, self.mma.p, range(self.blocks))

    def ds(self, p: cute.Tensor, acc_dp: cute.Tensor, stage: Int32, loaded: Sequence[cute.TensorSSA] = ()) -> None:
        """dS = P (dP - delta), in place of dP."""
        for k in range(self.blocks):
            delta = loaded[k] if k < len(loaded) else self.row_values(1, k, stage)
            for at, query in self.indices(k):
                acc_dp[at] = p[at].to(Float32) * (acc_dp[at] - delta[query])


class SharedDs(TransposedScores):
    """Also writes dS to smem, for dQ^T of both warpgroups: (query, key, stage), written transposed."""

    def __init__(
        self,
        kernel: Sm90BackwardKernel,
        mma: BackwardMma,
        thread: Any,
        group: Int32,
        smem: Smem,
        scalars: BackwardScalars,
    ) -> None:
        super().__init__(kernel, mma, thread, smem.lse_delta, scalars)
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(True, 4), kernel.dtype)
        self.copy: cute.TiledCopy = cute.make_tiled_copy_C(atom, mma.mma_s)
        shape = (WARPGROUP_ROWS, kernel.config.tile_m, DS_STAGES)
        self.smem_ds: cute.Tensor = self.copy.get_slice(thread).partition_D(
            cute.local_tile(transposed(smem.ds), shape, (group, 0, 0))
        )

    def clear_ds(self, stage: Int32) -> None:
        """Write zeros in place of dS."""
        self.mma.ds.fill(0.0)
        self.write_ds(stage)

    def write_ds(self, stage: Int32) -> None:
        """Write dS to smem; the caller issues the proxy fence."""
        ds = cute.make_tensor(self.mma.ds.iterator, cute.make_layout(self.mma.acc_s.shape))
        cute.copy(self.copy, self.copy.retile(ds), self.smem_ds[None, None, None, stage])
