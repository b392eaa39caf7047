"""Online softmax of a tile of scores in MMA accumulators, and the output accumulators that it rescales."""

from __future__ import annotations

import functools

from ... import cute
from ...base_dsl.typing import Boolean, Float32, Numeric
from ...cute import arch
from .online_softmax import OnlineSoftmax, normalize_row

__all__ = ["TileSoftmax"]


class TileSoftmax(OnlineSoftmax):
    """Online softmax of the scores of a warp, with lazy rescaling of the output accumulator.

    Scores and outputs are accumulators ((2, 2), M blocks, N blocks) of `mma.sync`: a thread has two neighbours of a row in
    each 8 columns, and two rows 8 apart in each block of M. P is the A operand of the next MMA, ((2, 2, 2), M blocks, K
    blocks) or its 8 elements flat.
    """

    def __init__(self, scores: cute.Tensor, outputs: cute.Tensor, p: cute.Tensor, scale_log2: Float32 | float) -> None:
        """Keep where scores, outputs and P are.

        Args:
            scores: the accumulators of Q K^T.
            outputs: the accumulators of P V.
            p: the fragment that `exp2` fills with P.
            scale_log2: the scale of scores, times log2(e).
        """
        blocks = cute.size(scores, mode=[1])
        super().__init__(2 * blocks, scale_log2)
        self.acc_s: cute.Tensor = scores
        self.acc_o: cute.Tensor = outputs
        self.p_operand: cute.Tensor = p
        self.dtype: type[Numeric] = p.element_type
        self.pairs: int = cute.size(scores, mode=[2])
        self.output_pairs: int = cute.size(outputs, mode=[2])
        self.rows: list[tuple[int, int]] = [(half, m) for m in range(blocks) for half in range(2)]

    def reset(self) -> None:
        """Begin a tile."""
        self.acc_o.fill(0.0)
        super().reset()

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
            for n in range(self.output_pairs):
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

    @cute.jit
    def update(self):
        """Turn a tile of scores into P: raise row_max and rescale where a score asks for it, then `exp2`."""
        thread_max = self.thread_max()
        if arch.vote_any_sync(self.any_exceeds(thread_max)):
            self.rescale(thread_max)
        self.exp2()

    def normalize(self) -> None:
        """Divide the rows of the output accumulators by their row_sum, after the last tile."""
        for row, (half, m) in enumerate(self.rows):
            _, _, scale = normalize_row(self.row_sum[row], self.neg_row_max[row], None, None)
            for n in range(self.output_pairs):
                for c in range(2):
                    self.acc_o[(c, half), m, n] = self.acc_o[(c, half), m, n] * scale
