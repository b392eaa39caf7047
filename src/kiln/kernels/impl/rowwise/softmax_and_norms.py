"""Softmax, RMSNorm and LayerNorm of the rows of a matrix, computed in f32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, overload

from .... import Float32, NumericMeta, cute
from ....cute import arch
from ....cute.nvgpu import CacheEvictionPriority
from ...dispatch import arrays
from ...dispatch.arrays import AnyArray
from ...dispatch.recorder import kernel_function
from ...parts.vectors import across, larger, maximum, plus, total
from .arguments import run_rows
from .block_formats import FORMATS, BlockRows
from .config import WARP
from .default_configs import norm_config, quantized_config, softmax_config
from .row_kernel import Row, RowKernel
from .row_part import RowPart
from .row_statistics import Statistics, max_statistics, sum_statistics

if TYPE_CHECKING:
    from ...dispatch.arrays import Array

__all__ = ["layer_norm", "rms_norm", "softmax"]

LOG2_E = 1.4426950408889634
_MIN_ROW_MAX = -3.4028234663852886e38
"""The least row_max: finite, so that differences of two are numbers."""


def exp2(x: Any) -> Any:
    """Return 2 to the power of x; 0 for minus infinity."""
    return cute.math.exp2(x, approx=True)


def weighted(value: Any, columns: list[Any]) -> Any:
    """Return a value times the first column vector, if there is one."""
    return value * columns[0] if columns else value


def rstd(square_sum: Any, scalars: tuple[Any, ...]) -> Any:
    """Return 1 / sqrt(square_sum / n + eps), given the scalars (eps, 1 / n)."""
    return cute.math.rsqrt(cute.math.fma(square_sum, scalars[1], scalars[0]))


class ForwardKernel(RowKernel):
    """A row function that reads each row once and writes it once.

    Written lines leave the L2 cache before lines that were read, though these are not read again: memory then takes
    both 3 % faster, measured on an H200. CTAs are launched while the previous kernel ends.
    """

    priority = CacheEvictionPriority.EVICT_LAST
    overlaps = True


class Softmax(ForwardKernel):
    """Softmax. Statistics are row_max, and row_sum of the exponentials relative to it."""

    fields = 2

    def initial(self) -> Statistics:
        return Float32(_MIN_ROW_MAX), Float32(0.0)

    def accumulate(self, before: Statistics | None, part: RowPart) -> tuple[Statistics, list[Any] | None]:
        vector_max: Any = None
        for v in range(part.count):
            x = part.masked(v, part.values(v)[0], float("-inf"))
            vector_max = x if vector_max is None else larger(vector_max, x)
        old_max = (self.initial() if before is None else before)[0]
        row_max = maximum(old_max, total(vector_max, larger))
        part.reread()
        exponentials: list[Any] = []
        vector_sum: Any = None
        for v in range(part.count):
            x = part.masked(v, part.values(v)[0], float("-inf"))
            exponential = exp2((x - row_max) * LOG2_E)
            vector_sum = exponential if vector_sum is None else vector_sum + exponential
            exponentials.append(exponential)
        row_sum = total(vector_sum)
        if before is not None:
            row_sum = row_sum + before[1] * exp2((before[0] - row_max) * LOG2_E)
        return (row_max, row_sum), exponentials if part.in_registers else None

    def merge(self, parts: list[Statistics], lanes: int) -> Statistics:
        (row_max,) = max_statistics([part[:1] for part in parts], lanes)
        row_sum = Float32(0.0)
        for part in parts:
            row_sum = row_sum + part[1] * exp2((part[0] - row_max) * LOG2_E)
        return row_max, across(row_sum, plus, lanes)

    def results(self, values: list[Any], columns: list[Any], saved: Any, row: Row) -> list[Any]:
        row_max, row_sum = row.statistics[:2]
        if saved is None:
            return [exp2((values[0] - row_max) * LOG2_E) * arch.rcp_approx(row_sum)]
        return [saved * (exp2((row.own[0] - row_max) * LOG2_E) * arch.rcp_approx(row_sum))]


class RmsNorm(ForwardKernel):
    """RMSNorm. The statistic is the sum of squares."""

    def accumulate(self, before: Statistics | None, part: RowPart) -> tuple[Statistics, list[Any] | None]:
        squares: Any = None
        for v in range(part.count):
            (x,) = part.values(v)
            squares = x * x if squares is None else cute.math.fma(x, x, squares)
        square_sum = total(squares)
        return (square_sum if before is None else before[0] + square_sum,), None

    def results(self, values: list[Any], columns: list[Any], saved: Any, row: Row) -> list[Any]:
        return [weighted(values[0] * rstd(row.statistics[0], row.scalars), columns)]


class LayerNorm(ForwardKernel):
    """LayerNorm. Statistics are the number of elements, their mean, and the sum of squared deviations."""

    fields = 3
    counts_elements = True

    def accumulate(self, before: Statistics | None, part: RowPart) -> tuple[Statistics, list[Any] | None]:
        return moments(before, part)[0], None

    def merge(self, parts: list[Statistics], lanes: int) -> Statistics:
        return merged_moments(parts, lanes)

    def results(self, values: list[Any], columns: list[Any], saved: Any, row: Row) -> list[Any]:
        mean = row.statistics[1]
        scale = rstd(row.statistics[2], row.scalars)
        if saved is None:
            normal = (values[0] - mean) * scale
        else:
            deviation, pivot = saved
            scales, shift = (cute.full_like(deviation, x) for x in (scale, (pivot - mean) * scale))
            normal = cute.math.fma(deviation, scales, shift)
        has_weight, has_bias = (dtype is not None for dtype in self.problem.columns)
        if has_weight and has_bias:
            return [cute.math.fma(normal, columns[0], columns[1])]
        return [normal * columns[0] if has_weight else normal + columns[0] if has_bias else normal]


class Quantized:
    """A mixin of row functions: results are divided by a scale factor of their row."""

    quantizes = True
    supports_unaligned = False


class QuantizedRmsNorm(Quantized, RmsNorm):
    """Quantised RMSNorm. Statistics are the sum of squares, and the largest magnitude of x * weight, which is saved."""

    fields = 2
    tracks_absmax = True

    def accumulate(self, before: Statistics | None, part: Any) -> tuple[Statistics, list[cute.TensorSSA] | None]:
        squares: Any = None
        scaled: list[Any] = []
        for v in range(part.count):
            (x,) = part.values(v)
            columns = part.columns(v)
            part.prefetch(v + 1)
            squares = x * x if squares is None else cute.math.fma(x, x, squares)
            scaled.append(weighted(x, columns))
        statistics = total(squares), largest_magnitude(scaled)
        if before is not None:
            statistics = before[0] + statistics[0], maximum(before[1], statistics[1])
        return statistics, scaled if part.saves else None

    def merge(self, parts: list[Statistics], lanes: int) -> Statistics:
        squares, largest = ([part[k : k + 1] for part in parts] for k in range(2))
        return *sum_statistics(squares, lanes), *max_statistics(largest, lanes)

    def results(
        self, values: list[cute.TensorSSA], columns: list[Any], saved: cute.TensorSSA | None, row: Row
    ) -> list[cute.TensorSSA]:
        return [weighted(values[0], columns) if saved is None else saved]

    def absmax(self, statistics: Statistics, scalars: tuple[Any, ...]) -> tuple[Float32, Float32]:
        scale = rstd(statistics[0], scalars)
        return statistics[1] * scale, scale


class QuantizedLayerNorm(Quantized, LayerNorm):
    """Quantised LayerNorm. Deviations are saved: with 3 bytes for each element, instructions are the bottleneck."""

    def accumulate(self, before: Statistics | None, part: Any) -> tuple[Statistics, list[Any] | None]:
        statistics, deviations = moments(before, part)
        return statistics, deviations if part.saves else None


def largest_magnitude(vectors: list[Any]) -> Any:
    """Return the largest magnitude of the elements of some vectors, ignoring NaN."""
    largest: Any = None
    for value in vectors:
        magnitude = cute.math.abs(value)
        largest = magnitude if largest is None else larger(largest, magnitude)
    return total(largest, larger)


def moments(before: Statistics | None, part: RowPart) -> tuple[Statistics, list[Any]]:
    """Return count, mean and sum of squared deviations with a thread's part, and its deviations from a pivot, with the
    pivot.

    The pivot is one of the elements: near enough to the others that subtracting from the sum of squares loses no
    accuracy.
    """
    pivot = part.first()[0][0]
    vector_sum: Any = None
    squares: Any = None
    deviations: list[Any] = []
    for v in range(part.count):
        deviation = part.masked(v, part.values(v)[0] - pivot, 0.0)
        deviations.append((deviation, pivot))
        vector_sum = deviation if vector_sum is None else vector_sum + deviation
        squares = deviation * deviation if squares is None else cute.math.fma(deviation, deviation, squares)
    count = part.elements()
    deviation_sum = total(vector_sum)
    inverse = reciprocal(count)
    shift = deviation_sum * inverse
    mean = cute.math.fma(deviation_sum, inverse, pivot)
    statistics = (count, mean, maximum(total(squares) - deviation_sum * shift, Float32(0.0)))
    return statistics if before is None else merged_moments([before, statistics], 1), deviations


def reciprocal(count: Any) -> Any:
    """Return 1 over a number of elements; 1 for none."""
    return 1.0 / count if isinstance(count, float) else arch.rcp_approx(maximum(count, Float32(1.0)))


def merged_moments(parts: list[Statistics], lanes: int) -> Statistics:
    """Return the moments of several parts. Where counts are static, they are the same in all parts."""
    if isinstance(parts[0][0], float):
        count: Any = parts[0][0] * len(parts) * lanes
        means = parts[0][1]
        for part in parts[1:]:
            means = means + part[1]
        mean = across(means, plus, lanes) * (1.0 / (len(parts) * lanes))
    else:
        pivot = parts[0][1]
        if lanes > 1:
            pivot = arch.shuffle_sync(pivot, 0, mask_and_clamp=(WARP - lanes) << 8 | 31)
        counts = Float32(0.0)
        deviations = Float32(0.0)
        for part in parts:
            counts = counts + part[0]
            deviations = deviations + part[0] * (part[1] - pivot)
        count = across(counts, plus, lanes)
        mean = pivot + across(deviations, plus, lanes) * reciprocal(count)
    squares: Any = None
    for part in parts:
        deviation = part[1] - mean
        square = cute.math.fma(deviation * part[0], deviation, part[2])
        squares = square if squares is None else squares + square
    return count, mean, across(squares, plus, lanes)


# --- the functions ---------------------------------------------------------------------------------------------------


def norm_scalars(x: Any, eps: float) -> tuple[float, float]:
    """Return the scalars of a norm: eps and 1 / n."""
    return eps, 1.0 / max(1, x.shape[-1]) if x.ndim else 1.0


@overload
def softmax(x: AnyArray, *, out: Any = None, config: Any = None) -> AnyArray: ...
@overload
def softmax(
    x: AnyArray, *, quantize: str, scale_layout: str = "atoms", config: Any = None
) -> tuple[AnyArray, AnyArray]: ...
@kernel_function("x", "out")
def softmax(
    x: Any, *, quantize: str | None = None, scale_layout: str = "atoms", out: Any = None, config: Any = None
) -> Any:
    """Return the softmax along the last mode.

    A row with a NaN or plus infinity, or of minus infinity alone, becomes NaN.

    Args:
        x: (..., columns), f16, bf16 or f32.
        quantize: a format of blocks for the result, as in `quantize`; their scale factors are returned, too.
        scale_layout: where these lie, as in `quantize`.
        out: an array for the result.
        config: a config of an implementation; by default the library chooses.
    """
    formats = " or ".join(map(repr, FORMATS))
    arrays.require(quantize is None or quantize in FORMATS, f"softmax: quantize is {quantize!r}", hint=formats)
    outs = row_outs("softmax", x, quantize, scale_layout, out)
    run_rows("softmax", Softmax, [x], [outs.out], [], (), softmax_config, config, blocks=outs.blocks)
    return outs.result


class RowOuts(NamedTuple):
    """Arrays for a result: as it is, with a scale factor for each row, or quantised in blocks."""

    out: Array
    row_values: list[Array]
    blocks: BlockRows | None = None

    @property
    def has_row_scales(self) -> bool:
        """Whether rows have a scale factor each."""
        return bool(self.row_values)

    @property
    def returned(self) -> list[Array]:
        """What the caller gets: the result, and scale factors."""
        return [self.out, *self.row_values] if self.blocks is None else [self.blocks.rows, self.blocks.scales]

    @property
    def result(self) -> Array | tuple[Array, ...]:
        """The result, or a tuple with scale factors."""
        return self.out if len(self.returned) == 1 else tuple(self.returned)


def row_outs(name: str, x: Array, quantize: Any, scale_layout: str, out: Array | None) -> RowOuts:
    """Return the arrays for a result like `x`, quantised or not."""
    if quantize is None:
        return RowOuts(arrays.empty_like(x) if out is None else out, [])
    arrays.require(out is None, "out must be None with quantize", hint="the result and its scale factors are returned")
    arrays.require(x.ndim >= 1, "quantized rows of an array without modes")
    if isinstance(quantize, str) and quantize in FORMATS:
        blocks = BlockRows.like(name, x, quantize, scale_layout, 1.0)
        return RowOuts(blocks.data[0], [], blocks)
    dtype = arrays.framework_dtype(quantize, x) if isinstance(quantize, NumericMeta) else quantize
    try:
        result = arrays.empty(x, tuple(x.shape), dtype)
    except TypeError:
        hint = f"cute.Float8E4M3FN or cute.Float8E5M2; {', '.join(map(repr, FORMATS))} for blocks"
        raise arrays.refusal(f"quantize={quantize!r} is no type of elements", hint) from None
    return RowOuts(result, [arrays.empty(x, (*x.shape[:-1], 1), arrays.framework_dtype(Float32, x))])


@kernel_function("x", "weight", "out")
def rms_norm(
    x: Any,
    weight: Any = None,
    *,
    eps: float = 1e-6,
    quantize: Any = None,
    scale_layout: str = "atoms",
    out: Any = None,
    config: Any = None,
) -> Any:
    """Return x / sqrt(mean(x^2) + eps) along the last mode, times a weight for each column.

    Args:
        x: (..., columns), f16, bf16 or f32.
        weight: (columns,), or None.
        eps: what is added to the mean square.
        quantize: an 8-bit float type for the result; the scale factor of each row, f32 (..., 1), is returned, too. Or
            a format of blocks, as in `quantize`; then their scale factors are.
        scale_layout: where those of blocks lie, as in `quantize`.
        out: an array for the result.
        config: a config of an implementation; by default the library chooses.
    """
    outs = row_outs("rms_norm", x, quantize, scale_layout, out)
    function, best = (QuantizedRmsNorm, quantized_config) if outs.has_row_scales else (RmsNorm, norm_config)
    run_rows("rms_norm", function, [x], [outs.out], [weight], norm_scalars(x, eps), best, config, (), *outs[1:])
    return outs.result


@kernel_function("x", "weight", "bias", "out")
def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    quantize: Any = None,
    scale_layout: str = "atoms",
    out: Any = None,
    config: Any = None,
) -> Any:
    """Return (x - mean(x)) / sqrt(var(x) + eps) along the last mode, times a weight, plus a bias.

    Args:
        x: (..., columns), f16, bf16 or f32.
        weight: (columns,), or None.
        bias: (columns,), or None.
        eps: what is added to the variance.
        quantize: an 8-bit float type for the result; the scale factor of each row, f32 (..., 1), is returned, too. Or
            a format of blocks, as in `quantize`; then their scale factors are.
        scale_layout: where those of blocks lie, as in `quantize`.
        out: an array for the result.
        config: a config of an implementation; by default the library chooses.
    """
    outs = row_outs("layer_norm", x, quantize, scale_layout, out)
    function, best = (QuantizedLayerNorm, quantized_config) if outs.has_row_scales else (LayerNorm, norm_config)
    run_rows("layer_norm", function, [x], [outs.out], [weight, bias], norm_scalars(x, eps), best, config, (), *outs[1:])
    return outs.result
