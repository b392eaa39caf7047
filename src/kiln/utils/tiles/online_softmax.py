"""Online softmax: a running row_max and row_sum for each row of scores, in registers.

Everything is in powers of two: P = exp2(S * scale_log2 - row_max), with row_max scaled as the scores are. Kept is
-row_max, so that P takes one fused multiply-add. Four threads, a quad, hold a row of an MMA accumulator; row_sum is a
thread's part of the row's sum until `normalize_row` adds the parts.

A fused multiply-add rounds once, after the addition, and row_max was rounded before: P is off by a power of two,
which the division by row_sum cancels unless P overflows. So row_max beyond `EXACT_BEYOND` is scaled by a power of two
instead, which rounds nothing; scores next to each other are so far apart there that P is 1 or next to 0 anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import cute
from ...base_dsl.operators import select_
from ...base_dsl.typing import Float32, Int32
from ...cute import arch

if TYPE_CHECKING:
    from ...base_dsl.typing import Boolean

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
NEG_ROW_MAX_INIT = 3.4028234663852886e38
"""-row_max of no scores: finite, so that differences of maxima are numbers."""
EXACT_BEYOND = 2.0**27
"""The largest row_max that is rounded: by up to 4, and P may be 2**8 besides, which f16 still holds."""
RESCALE_THRESHOLD = 8.0
"""With lazy rescaling, scores may exceed row_max by this power of two: P up to 256 is still exact enough in f16."""
_MIN_SCALE = 2.0**-100
_MANTISSA_BITS = 23
_EXPONENT_AND_SIGN = -1 << _MANTISSA_BITS


@cute.jit
def nonzero_scale(scale: Float32):
    """Return the scale of scores, moved away from 0: masked scores are -inf, and 0 * -inf is NaN."""
    return Float32(_MIN_SCALE) if (scale < _MIN_SCALE) & (scale > -_MIN_SCALE) else scale


def exact_scale(scale: Float32) -> Float32:
    """Return a power of two above a scale, and at most twice it: multiplying by it rounds nothing."""
    return ((Float32(scale).bitcast(Int32) & _EXPONENT_AND_SIGN) + (1 << _MANTISSA_BITS)).bitcast(Float32)


def row_scale(scale: Float32, neg_row_max: Float32) -> Float32:
    """Return the scale of the scores of a row with this -row_max."""
    return select_(cute.math.abs(neg_row_max) > EXACT_BEYOND, exact_scale(scale), Float32(scale))


def scaled_neg_max(score: Float32, scale: Float32, p_log2_max: float | None = None) -> Float32:
    """Return -row_max of a row with this largest score; its P is 2**`p_log2_max`, or 1."""
    scaled = -(score * scale) if p_log2_max is None else p_log2_max - score * scale
    return select_(cute.math.abs(scaled) > EXACT_BEYOND, -(score * exact_scale(scale)), scaled)


def rounded_neg_max(scale: Float32, neg_row_max: Float32) -> Float32:
    """Return -row_max times the scale of the scores, whatever its own is."""
    beyond = cute.math.abs(neg_row_max) > EXACT_BEYOND
    return select_(beyond, neg_row_max * (Float32(scale) / exact_scale(scale)), neg_row_max)


def softcap_tanh(score: Float32, cap: Float32 | float) -> Float32:
    """Return tanh(score / softcap), where `cap` is 2 log2(e) / softcap times the scale of scores."""
    return 1.0 - 2.0 * arch.rcp_approx(arch.exp2(score * cap) + 1.0)


def quad_max(value: Float32) -> Float32:
    """Return the maximum over the four threads that hold a row."""
    for offset in (1, 2):
        value = arch.fmax(value, arch.shuffle_sync_bfly(value, offset=offset))
    return value


def quad_sum(value: Float32) -> Float32:
    """Return the sum over the four threads that hold a row."""
    for offset in (1, 2):
        value = value + arch.shuffle_sync_bfly(value, offset=offset)
    return value


class OnlineSoftmax:
    """-row_max and row_sum of the rows of scores that a thread holds.

    `p_log2_max` is the exponent of the largest P, None for 0: e4m3 is too coarse near 0, so its P go beyond 1.
    """

    def __init__(self, rows: int, scale_log2: Float32 | float, p_log2_max: float | None = None) -> None:
        self.scale_log2 = scale_log2
        self.p_log2_max = p_log2_max
        self.neg_row_max: cute.Tensor = cute.make_rmem_tensor((rows,), Float32)
        self.row_sum: cute.Tensor = cute.make_rmem_tensor((rows,), Float32)
        self.row_scale: cute.Tensor = cute.make_rmem_tensor((rows,), Float32)
        """The scale of each row's scores, which follows from its row_max and changes with it."""

    def scale(self) -> Float32:
        """Return the scale of scores, in powers of two."""
        return Float32(self.scale_log2)

    def reset(self) -> None:
        """Begin a tile."""
        self.neg_row_max.fill(NEG_ROW_MAX_INIT)
        self.row_sum.fill(0.0)
        self.row_scale.fill(1.0)  # of rows without a score any

    def exceeds(self, row: int, score: Float32) -> Boolean:
        """Return whether a score is so far above row_max that the accumulators have to be rescaled."""
        return cute.math.fma(score, self.row_scale[row], self.neg_row_max[row]) > RESCALE_THRESHOLD

    def raise_row_max(self, row: int, thread_max: Float32) -> Float32:
        """Raise row_max to the new maximum, rescale row_sum, and return the correction for the output accumulator."""
        before = self.neg_row_max[row]
        now = arch.fmin(before, scaled_neg_max(quad_max(thread_max), self.scale(), self.p_log2_max))
        correction = arch.exp2(now - before)
        self.neg_row_max[row] = now
        self.row_sum[row] = self.row_sum[row] * correction
        self.row_scale[row] = row_scale(self.scale(), now)
        return correction

    def p(self, row: int, score: Float32) -> Float32:
        """Return P of a score."""
        return arch.exp2(cute.math.fma(score, self.row_scale[row], self.neg_row_max[row]))

    def rounded_neg_max(self, row: int) -> Float32:
        """Return -row_max of a row times the scale of the scores, whatever the row's scale is."""
        return rounded_neg_max(self.scale(), self.neg_row_max[row])


@cute.jit
def normalize_row(row_sum: Float32, neg_row_max: Float32, sink: Float32 | None, v_descale: Float32 | None):
    """Return a row's sum and -row_max with its sink, and the scale that makes its accumulators outputs.

    `sink` is the logit of the attention sink times log2(e), and `v_descale` the scale factor of V; either may be None.
    A row that sees no key has scale 0."""
    total = quad_sum(row_sum)
    correction = Float32(1.0)
    if sink is not None:
        with_sink = arch.fmin(neg_row_max, -sink)
        correction = arch.exp2(with_sink - neg_row_max)
        total = total * correction + arch.exp2(sink + with_sink)
        neg_row_max = with_sink
    scale = Float32(0.0)
    if total != 0.0:
        scale = arch.rcp_approx(total) * correction
    if v_descale is not None:
        scale = scale * v_descale
    return total, neg_row_max, scale


@cute.jit
def log_sum_exp(total: Float32, neg_row_max: Float32):
    """Return a row's natural LSE: -inf if it sees no key."""
    return (cute.math.log2(total) - neg_row_max) * LN_2 if total != 0.0 else Float32(-float("inf"))


def checked_row_sum(total: Float32, neg_row_max: Float32) -> Float32:
    """Return row_sum, or NaN where row_max is beyond `EXACT_BEYOND` and P was computed with its rounded value."""
    beyond = (cute.math.abs(neg_row_max) > EXACT_BEYOND) & (neg_row_max != NEG_ROW_MAX_INIT)
    return select_(beyond, Float32(float("nan")), total)


@cute.jit
def store_row_sum(row: cute.Tensor, column: Int32, total: Float32, neg_row_max: Float32):
    """Write row_max, -inf without keys, and row_sum of a partial row from a column on. Of a large row_max, LSE would have
    no digit of row_sum."""
    row[column] = -neg_row_max if total != 0.0 else Float32(-float("inf"))
    row[column + 1] = total
