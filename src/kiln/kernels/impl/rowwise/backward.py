"""Gradients of softmax, RMSNorm and LayerNorm.

Statistics of a row are computed again from the row, which must be read anyway: nothing but the inputs is needed of the
forward pass. Gradients of weights and biases are reduced over rows: rows are streamed (`streaming.py`), and each CTA
adds those of its rows. Rows that are too long for that, or are accessed element by element, are read again by a kernel
that reduces over rows, given the statistics that the first has written. The order of additions is fixed.
"""

from __future__ import annotations

import functools
from typing import Any

from .... import Float32, cute
from ....cute.nvgpu import CacheEvictionPriority
from ...dispatch import arrays
from ...dispatch.arrays import AnyArray
from ...dispatch.recorder import kernel_function
from ...parts.vectors import across, plus, total
from .arguments import run_rows
from .default_configs import norm_backward_config, softmax_backward_config
from .row_kernel import Row, RowKernel
from .row_part import RowPart
from .row_statistics import Statistics
from .softmax_and_norms import merged_moments, norm_scalars, reciprocal, rstd, weighted

__all__ = ["layer_norm_backward", "rms_norm_backward", "softmax_backward"]


class SoftmaxBackward(RowKernel):
    """The gradient of softmax from y and dy. The statistic is sum(y * dy)."""

    priority = CacheEvictionPriority.EVICT_LAST

    def accumulate(self, before: Statistics | None, part: RowPart) -> tuple[Statistics, list[Any] | None]:
        y_dy: Any = None
        for v in range(part.count):
            y, dy = part.values(v)
            y_dy = y * dy if y_dy is None else cute.math.fma(y, dy, y_dy)
        return (total(y_dy) if before is None else before[0] + total(y_dy),), None

    def results(self, values: list[Any], columns: list[Any], saved: Any, row: Row) -> list[Any]:
        y, dy = values
        return [y * (dy - row.statistics[0])]


def quarters(values: Any) -> list[Any]:
    """Split a vector into vectors of at most four elements: their accumulators take fewer registers."""
    if len(values) <= 4:
        return [values]
    pieces = values.reshape((4, len(values) // 4))
    return [pieces[None, k] for k in range(len(values) // 4)]


class NormBackward(RowKernel):
    """The base of the gradients of norms, from x, dy and gradients of further uses of x, which are added."""

    priority = CacheEvictionPriority.EVICT_LAST
    supports_unaligned = False
    takes_edge = True


class RmsNormBackward(NormBackward):
    """The gradients of RMSNorm. Statistics are sum(x^2) and sum(x * dy * weight)."""

    fields = 2

    def accumulate(self, before: Statistics | None, part: Any) -> tuple[Statistics, list[Any] | None]:
        squares: Any = None
        x_dy: Any = None
        for v in range(part.count):
            x, dy, *_ = part.values(v)
            scaled = weighted(dy, part.columns(v))
            squares = x * x if squares is None else cute.math.fma(x, x, squares)
            x_dy = x * scaled if x_dy is None else cute.math.fma(x, scaled, x_dy)
        statistics = (total(squares), total(x_dy))
        if part.edge is not None:
            x, dy, *_ = part.edge.values(0)
            columns = part.edge.columns(0)
            scaled = weighted(dy, columns)
            statistics = (cute.math.fma(x, x, statistics[0])[0], cute.math.fma(x, scaled, statistics[1])[0])
        return statistics if before is None else (before[0] + statistics[0], before[1] + statistics[1]), None

    def results(self, values: list[Any], columns: list[Any], saved: Any, row: Row) -> list[Any]:
        x, dy, *more = values
        scale = rstd(row.statistics[0], row.scalars)
        common = scale * scale * scale * row.statistics[1] * row.scalars[1]
        scaled = dy * scale
        results = [functools.reduce(plus, more, weighted(scaled, columns) - x * common)]
        if self.problem.column_outs:
            results.append(scaled * x)
        return results

    def row_values(self, statistics: Statistics, scalars: tuple[Float32, ...]) -> list[Float32]:
        return [Float32(0.0), rstd(statistics[0], scalars)]


class LayerNormBackward(NormBackward):
    """The gradients of LayerNorm.

    Statistics are the number of elements, their mean, the sum of squared deviations, sum(g) and sum(g * deviation) for
    g = dy * weight.
    """

    fields = 5
    counts_elements = True

    def accumulate(self, before: Statistics | None, part: Any) -> tuple[Statistics, list[Any] | None]:
        """Return statistics with a thread's part; deviations are first from the mean of the thread's first vector.

        It is near enough to lose no accuracy: of e elements in vectors of w, at most e / w of the squares is subtracted
        again.
        """
        count = part.elements()
        first, *_ = part.first()
        pivot = total(first) * (1.0 / len(first))
        offsets: Any = None
        squares: Any = None
        gradients: Any = None
        covariances: Any = None
        for v in range(part.count):
            x, dy, *_ = part.values(v)
            scaled = weighted(dy, part.columns(v))
            deviation = part.masked(v, x - pivot, 0.0)
            for d, g in zip(quarters(deviation), quarters(scaled), strict=True):
                offsets = d if offsets is None else offsets + d
                squares = d * d if squares is None else cute.math.fma(d, d, squares)
                gradients = g if gradients is None else gradients + g
                covariances = d * g if covariances is None else cute.math.fma(d, g, covariances)
        offset, square, gradient, covariance = map(total, (offsets, squares, gradients, covariances))
        if part.edge is not None:
            x, dy, *_ = part.edge.values(0)
            columns = part.edge.columns(0)
            g = weighted(dy, columns)[0]
            d = part.edge.masked(0, x - pivot, 0.0)[0]
            count = count + part.edge.elements()
            offset = offset + d
            gradient = gradient + g
            square = cute.math.fma(d, d, square)
            covariance = cute.math.fma(d, g, covariance)
        shift = offset * reciprocal(count)
        statistics = (count, pivot + shift, square - offset * shift, gradient, covariance - shift * gradient)
        return statistics if before is None else self.merge([before, statistics], 1), None

    def merge(self, parts: list[Statistics], lanes: int) -> Statistics:
        count, mean, squares = merged_moments([part[:3] for part in parts], lanes)
        gradient = Float32(0.0)
        covariance = Float32(0.0)
        for part in parts:
            gradient = gradient + part[3]
            covariance = cute.math.fma(part[1] - mean, part[3], covariance + part[4])
        return count, mean, squares, across(gradient, plus, lanes), across(covariance, plus, lanes)

    def results(self, values: list[Any], columns: list[Any], saved: Any, row: Row) -> list[Any]:
        x, dy, *more = values
        _, mean, squares, gradient, covariance = row.statistics
        scale = rstd(squares, row.scalars)
        middle = mean * scale
        common = scale * scale * covariance * row.scalars[1]
        normal = x * scale - middle
        scaled = weighted(dy, columns)
        dx = scaled * scale - (normal * common + gradient * row.scalars[1] * scale)
        results = [functools.reduce(plus, more, dx)]
        if columns and self.problem.column_outs:
            results.append(dy * normal)
        if len(self.problem.column_outs) > len(columns):
            results.append(dy)
        return results

    def row_values(self, statistics: Statistics, scalars: tuple[Float32, ...]) -> list[Float32]:
        return [statistics[1], rstd(statistics[2], scalars)]


def norm_backward(
    name: str,
    function: type[Any],
    dy: Any,
    x: Any,
    weight: Any,
    bias: bool,
    eps: float,
    out: Any,
    config: Any,
    *more: Any,
) -> tuple[Any, ...]:
    """Return the gradients of x, weight and bias of a norm; `more` are gradients of further uses of x."""
    arrays.require(
        isinstance(bias, (bool, int)),
        f"{name}: bias is {type(bias).__name__}, and must be a bool",
        hint="True, if its gradient is wanted: the bias itself has no influence on it",
    )
    arrays.require(x.ndim >= 1, f"{name} of an array without modes")
    if out is None:
        out = arrays.empty_like(x)
    dweight = [] if weight is None else [arrays.empty(weight, (x.shape[-1],), None)]
    dbias = [arrays.empty(x, (x.shape[-1],), None)] if bias else []
    run_rows(
        name,
        function,
        [x, dy, *more],
        [out],
        [weight],
        norm_scalars(x, eps),
        norm_backward_config,
        config,
        column_outs=[*dweight, *dbias],
    )
    return out, *(dweight or [None]), *(dbias or [None])


# --- the functions ---------------------------------------------------------------------------------------------------


@kernel_function("dy", "y", "out")
def softmax_backward(dy: AnyArray, y: Any, *, out: Any = None, config: Any = None) -> AnyArray:
    """Return the gradient of the input of `softmax`: y * (dy - sum(y * dy)), along the last mode.

    Args:
        dy: the gradient of the result.
        y: the result of `softmax`.
        out: an array for the gradient.
        config: a config of an implementation; by default the library chooses.
    """
    if out is None:
        out = arrays.empty_like(dy)
    run_rows("softmax_backward", SoftmaxBackward, [y, dy], [out], [], (), softmax_backward_config, config)
    return out


@kernel_function("dy", "x", "weight", "out")
def rms_norm_backward(
    dy: Any, x: Any, weight: Any = None, *, eps: float = 1e-6, out: Any = None, config: Any = None
) -> tuple[Any, Any]:
    """Return the gradients of `x` and of `weight` (None without one) of `rms_norm`.

    Args:
        dy: the gradient of the result.
        x: the input of `rms_norm`.
        weight: its weight; the gradient has its type, and is summed in f32, in a fixed order.
        eps: as passed to `rms_norm`.
        out: an array for the gradient of `x`.
        config: a config of an implementation; by default the library chooses.
    """
    return norm_backward("rms_norm_backward", RmsNormBackward, dy, x, weight, False, eps, out, config)[:2]


@kernel_function("dy", "x", "weight", "out")
def layer_norm_backward(
    dy: Any, x: Any, weight: Any = None, *, bias: bool = False, eps: float = 1e-5, out: Any = None, config: Any = None
) -> tuple[Any, Any, Any]:
    """Return the gradients of `x`, of `weight` (None without one) and of the bias (None unless asked for) of
    `layer_norm`.

    Args:
        dy: the gradient of the result.
        x: the input of `layer_norm`.
        weight: its weight; the gradient has its type, and is summed in f32, in a fixed order.
        bias: compute the gradient of the bias, of the type of `x`.
        eps: as passed to `layer_norm`.
        out: an array for the gradient of `x`.
        config: a config of an implementation; by default the library chooses.
    """
    return norm_backward("layer_norm_backward", LayerNormBackward, dy, x, weight, bias, eps, out, config)
