"""Online softmax: a running row_max and row_sum for each row of scores, in registers.

Everything is in powers of two: P = exp2(S * scale_log2 - row_max), with row_max scaled as the scores are. Kept is
-row_max, so that P takes one fused multiply-add. Four threads, a quad, hold a row of an MMA accumulator; row_sum is a
thread's part of the row's sum until `normalize_row` adds the parts."""

from __future__ import annotations

from typing import Any

from ... import Float32, const_expr, cute
from ...cute import arch

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
NEG_ROW_MAX_INIT = 1e30
"""-row_max of no scores: finite, so that differences of maxima are numbers."""
RESCALE_THRESHOLD = 8.0
"""With lazy rescaling, scores may exceed row_max by this power of two: P up to 256 is still exact enough in f16."""
_MIN_SCALE = 2.0**-100


@cute.jit
def nonzero_scale(scale: Float32):
    """Return the scale of scores, moved away from 0: masked scores are -inf, and 0 * -inf is NaN."""
    return Float32(_MIN_SCALE) if (scale < _MIN_SCALE) & (scale > -_MIN_SCALE) else scale


def softcap_tanh(score: Any, cap: Any) -> Any:
    """Return tanh(score / softcap), where `cap` is 2 log2(e) / softcap times the scale of scores."""
    return 1.0 - 2.0 * arch.rcp_approx(arch.exp2(score * cap) + 1.0)


def quad_max(value: Any) -> Any:
    """Return the maximum over the four threads that hold a row."""
    for offset in (1, 2):
        value = arch.fmax(value, arch.shuffle_sync_bfly(value, offset=offset))
    return value


def quad_sum(value: Any) -> Any:
    """Return the sum over the four threads that hold a row."""
    for offset in (1, 2):
        value = value + arch.shuffle_sync_bfly(value, offset=offset)
    return value


class OnlineSoftmax:
    """-row_max and row_sum of the rows of scores that a thread holds.

    `p_log2_max` is the exponent of the largest P, None for 0: e4m3 is too coarse near 0, so its P go beyond 1.
    """

    def __init__(self, rows: int, scale_log2: Any, p_log2_max: float | None = None) -> None:
        self.scale_log2 = scale_log2
        self.p_log2_max = p_log2_max
        self.neg_row_max: cute.Tensor = cute.make_rmem_tensor((rows,), Float32)
        self.row_sum: cute.Tensor = cute.make_rmem_tensor((rows,), Float32)

    def scale(self) -> Any:
        """Return the scale of scores, in powers of two."""
        return self.scale_log2

    def reset(self) -> None:
        """Begin a tile."""
        self.neg_row_max.fill(NEG_ROW_MAX_INIT)
        self.row_sum.fill(0.0)

    def exceeds(self, row: int, score: Any) -> Any:
        """Return whether a score is so far above row_max that the accumulators have to be rescaled."""
        return cute.math.fma(score, self.scale(), self.neg_row_max[row]) > RESCALE_THRESHOLD

    def raise_row_max(self, row: int, thread_max: Any) -> Any:
        """Raise row_max to the new maximum, rescale row_sum, and return the correction for the output accumulator."""
        row_max = quad_max(thread_max) * self.scale()
        before = self.neg_row_max[row]
        now = arch.fmin(before, -row_max if self.p_log2_max is None else self.p_log2_max - row_max)
        correction = arch.exp2(now - before)
        self.neg_row_max[row], self.row_sum[row] = now, self.row_sum[row] * correction
        return correction

    def p(self, row: int, score: Any) -> Any:
        """Return P of a score."""
        return arch.exp2(cute.math.fma(score, self.scale(), self.neg_row_max[row]))


@cute.jit
def normalize_row(row_sum: Float32, neg_row_max: Float32, sink: Any, v_descale: Any):
    """Return a row's sum and -row_max with its sink, and the scale that makes its accumulators outputs.

    `sink` is the logit of the attention sink times log2(e), and `v_descale` the scale factor of V; either may be None.
    A row that sees no key has scale 0."""
    total, correction = quad_sum(row_sum), Float32(1.0)
    if const_expr(sink is not None):
        with_sink = arch.fmin(neg_row_max, -sink)
        correction = arch.exp2(with_sink - neg_row_max)
        total, neg_row_max = total * correction + arch.exp2(sink + with_sink), with_sink
    scale = Float32(0.0)
    if total != 0.0:
        scale = arch.rcp_approx(total) * correction
    if const_expr(v_descale is not None):
        scale = scale * v_descale
    return total, neg_row_max, scale


@cute.jit
def log_sum_exp(total: Float32, neg_row_max: Float32, base_2: bool = False):
    """Return a row's LSE, natural or in powers of two: -inf if it sees no key."""
    value = Float32(-float("inf"))
    if total != 0.0:
        value = cute.math.log2(total) - neg_row_max
        if const_expr(not base_2):
            value = value * LN_2
    return value
