"""Online softmax of the sm_80 kernel."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..... import cute
from .....cute import arch
from ....parts.online_softmax import OnlineSoftmax, softcap_tanh

if TYPE_CHECKING:
    from ..... import Boolean, Float32
    from .query_tile import QueryTile
    from .sm80_mma import Sm80Mma


class Sm80Softmax(OnlineSoftmax):
    """Online softmax of the scores of a warp, with lazy rescaling of the output accumulator."""

    def __init__(self, tile: QueryTile, mma: Sm80Mma, scale_log2: Float32 | float) -> None:
        super().__init__(2 * tile.config.m_tiles, scale_log2)
        self.acc_s: cute.Tensor = mma.acc_s
        self.acc_o: cute.Tensor = mma.acc_o
        self.p_operand: cute.Tensor = mma.p
        self.dtype: type[cute.Numeric] = tile.dtype
        self.pairs: int = tile.config.tile_n // 8
        self.o_columns: int = tile.o_columns
        self.rows: list[tuple[int, int]] = [(half, m) for m in range(tile.config.m_tiles) for half in range(2)]

    def reset(self) -> None:
        self.acc_o.fill(0.0)
        super().reset()

    def softcap(self, cap: Float32 | float) -> None:
        """Apply the softcap; scale_log2 has the rest of it."""
        for n in range(self.pairs):
            for half, m in self.rows:
                for c in range(2):
                    self.acc_s[(c, half), m, n] = softcap_tanh(self.acc_s[(c, half), m, n], cap)

    def thread_max(self) -> list[Float32]:
        """Return the largest score that this thread has of each row."""
        maxima = [arch.fmax(self.acc_s[(0, half), m, 0], self.acc_s[(1, half), m, 0]) for half, m in self.rows]
        for n in range(1, self.pairs):
            for c in range(2):
                for row, (half, m) in enumerate(self.rows):
                    maxima[row] = arch.fmax(maxima[row], self.acc_s[(c, half), m, n])
        return maxima

    def any_exceeds(self, thread_max: list[Float32]) -> Boolean:
        """Return whether a score of this thread is so far above its row_max that accumulators have to be rescaled."""
        return functools.reduce(lambda a, b: a | b, [self.exceeds(row, x) for row, x in enumerate(thread_max)])

    def rescale(self, thread_max: list[Float32]) -> None:
        """Raise row_max to the new maxima, and rescale row_sum and the output accumulator."""
        for row, (half, m) in enumerate(self.rows):
            correction = self.raise_row_max(row, thread_max[row])
            for n in range(self.o_columns // 8):
                for c in range(2):
                    self.acc_o[(c, half), m, n] = self.acc_o[(c, half), m, n] * correction

    def exp2(self) -> None:
        """P = exp2(S * scale_log2 - row_max), in the type of V, and row_sum."""
        for n in range(self.pairs):
            for row, (half, m) in enumerate(self.rows):
                for c in range(2):
                    self.acc_s[(c, half), m, n] = self.p(row, self.acc_s[(c, half), m, n])
                both = self.acc_s[(0, half), m, n] + self.acc_s[(1, half), m, n]
                self.row_sum[row] = self.row_sum[row] + both
            for m in range(len(self.rows) // 2):
                target = cute.make_tensor(self.p_operand[None, m, n // 2].iterator + 4 * (n % 2), cute.make_layout(4))
                target.store(self.acc_s[None, m, n].load().to(self.dtype).reshape((4,)))
