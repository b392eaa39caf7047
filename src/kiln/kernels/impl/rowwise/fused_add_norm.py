"""Norms of x + residual in one kernel, which also writes the sum."""

from __future__ import annotations

from typing import Any

from ...dispatch import arrays
from ...dispatch.recorder import kernel_function
from ...parts.vectors import as_f32
from .arguments import run_rows
from .backward import LayerNormBackward, RmsNormBackward, norm_backward
from .default_configs import quantized_config, smem_config
from .row_kernel import Row
from .row_statistics import Statistics
from .softmax_and_norms import LayerNorm, QuantizedLayerNorm, QuantizedRmsNorm, RmsNorm, norm_scalars, row_outs

__all__ = ["fused_add_layer_norm", "fused_add_layer_norm_backward", "fused_add_rms_norm", "fused_add_rms_norm_backward"]


class SummedPart:
    """A thread's part of a row whose two sources are added; with `stores` the sum replaces the second."""

    __kiln_static__ = True

    def __init__(self, part: Any, add: Any, stores: bool) -> None:
        self._part = part
        self._add = add
        self._stores = stores

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def values(self, v: int) -> list[Any]:
        """Return vector `v` of the sum; to be called once."""
        result = self._add(self._part.values(v))
        if self._stores:
            self._part.replace(v, 1, result)
        return [as_f32(result)]

    def first(self) -> list[Any]:
        """Return a vector with elements of the row, if there are any."""
        return [as_f32(self._add(self._part.first()))]


class FusedAdd:
    """A mixin of norms: the input is the sum of two sources, rounded to the type of the second result, which it is."""

    rereads = True
    problem: Any
    quantizes: bool
    resident: bool

    @property
    def stores_sum(self) -> bool:
        """Whether x + residual stays until it is written; else it is computed again, which is cheaper if that is
        once."""
        return self.quantizes and self.resident and self.problem.sources[1] is self.problem.outs[1]

    def add(self, values: list[Any]) -> Any:
        """Return the rounded sum."""
        return (values[0] + values[1]).to(self.problem.outs[1])

    def accumulate(self, before: Statistics | None, part: Any) -> tuple[Statistics, list[Any] | None]:
        """Return the statistics of the sum."""
        statistics, saved = super().accumulate(before, SummedPart(part, self.add, self.stores_sum))  # type: ignore[misc]
        return statistics, saved if self.stores_sum else None

    def results(self, values: list[Any], columns: list[Any], saved: Any, row: Row) -> list[Any]:
        """Return the norm and the sum."""
        summed = values[1] if self.stores_sum else as_f32(self.add(values))
        return [*super().results([summed], columns, saved, row), summed]  # type: ignore[misc]


class AddRmsNorm(FusedAdd, RmsNorm):
    """RMSNorm of a sum."""


class AddLayerNorm(FusedAdd, LayerNorm):
    """LayerNorm of a sum."""


class QuantizedAddRmsNorm(FusedAdd, QuantizedRmsNorm):
    """Quantised RMSNorm of a sum."""


class QuantizedAddLayerNorm(FusedAdd, QuantizedLayerNorm):
    """Quantised LayerNorm of a sum."""


def _fused_add(
    name: str,
    functions: tuple[type[Any], type[Any]],
    x: Any,
    residual: Any,
    columns: list[Any],
    eps: float,
    quantize: Any,
    scale_layout: str,
    out: Any,
    residual_out: Any,
    config: Any,
) -> tuple[Any, ...]:
    outs = row_outs(name, x, quantize, scale_layout, out)
    summed = arrays.empty_like(residual) if residual_out is None else residual_out
    run_rows(
        name,
        functions[outs.has_row_scales],
        [x, residual],
        [outs.out, summed],
        columns,
        norm_scalars(x, eps),
        quantized_config if outs.has_row_scales else smem_config,
        config,
        (),
        *outs[1:],
    )
    return (*outs.returned, summed)


@kernel_function("x", "residual", "weight", "out", "residual_out", written=("out", "residual_out"))
def fused_add_rms_norm(
    x: Any,
    residual: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    quantize: Any = None,
    scale_layout: str = "atoms",
    out: Any = None,
    residual_out: Any = None,
    config: Any = None,
) -> tuple[Any, ...]:
    """Return `rms_norm(x + residual, weight)` and the sum, rounded to the type of `residual` before the norm.

    Args:
        x: (..., columns), f16, bf16 or f32.
        residual: what is added, of the same shape.
        weight: (columns,), a factor of each column.
        eps: what is added to the mean square.
        quantize: an 8-bit float type for the result; the scale factors of the rows, f32 (..., 1), then stand between
            result and sum. Or a format of blocks, as in `quantize`, whose scale factors stand there.
        scale_layout: where those of blocks lie, as in `quantize`.
        out: an array for the result; `out=x` writes in place.
        residual_out: an array for the sum; `residual_out=residual` writes in place.
        config: a config of an implementation; by default the library chooses.
    """
    functions = AddRmsNorm, QuantizedAddRmsNorm
    return _fused_add(
        "fused_add_rms_norm", functions, x, residual, [weight], eps, quantize, scale_layout, out, residual_out, config
    )


@kernel_function("x", "residual", "weight", "bias", "out", "residual_out", written=("out", "residual_out"))
def fused_add_layer_norm(
    x: Any,
    residual: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    quantize: Any = None,
    scale_layout: str = "atoms",
    out: Any = None,
    residual_out: Any = None,
    config: Any = None,
) -> tuple[Any, ...]:
    """Return `layer_norm(x + residual, weight, bias)` and the sum, rounded to the type of `residual` before the norm.

    Args:
        x: (..., columns), f16, bf16 or f32.
        residual: what is added, of the same shape.
        weight: (columns,), a factor of each column.
        bias: (columns,), what is added to each column.
        eps: what is added to the variance.
        quantize: an 8-bit float type for the result; the scale factors of the rows, f32 (..., 1), then stand between
            result and sum. Or a format of blocks, as in `quantize`, whose scale factors stand there.
        scale_layout: where those of blocks lie, as in `quantize`.
        out: an array for the result; `out=x` writes in place.
        residual_out: an array for the sum; `residual_out=residual` writes in place.
        config: a config of an implementation; by default the library chooses.
    """
    functions = (AddLayerNorm, QuantizedAddLayerNorm)
    columns = [weight, bias]
    return _fused_add(
        "fused_add_layer_norm", functions, x, residual, columns, eps, quantize, scale_layout, out, residual_out, config
    )


@kernel_function("dy", "dsum", "summed", "weight", "out")
def fused_add_rms_norm_backward(
    dy: Any, dsum: Any, summed: Any, weight: Any = None, eps: float = 1e-6, *, out: Any = None, config: Any = None
) -> tuple[Any, Any]:
    """Return the gradient of both terms of the sum, which is the same, and that of `weight`, of `fused_add_rms_norm`.

    Args:
        dy: the gradient of the normalised result.
        dsum: the gradient of the sum.
        summed: the sum that `fused_add_rms_norm` returned.
        weight: its weight.
        eps: as passed to `fused_add_rms_norm`.
        out: an array for the gradient of the terms.
        config: a config of an implementation; by default the library chooses.
    """
    name = "fused_add_rms_norm_backward"
    return norm_backward(name, RmsNormBackward, dy, summed, weight, False, eps, out, config, dsum)[:2]


@kernel_function("dy", "dsum", "summed", "weight", "out")
def fused_add_layer_norm_backward(
    dy: Any,
    dsum: Any,
    summed: Any,
    weight: Any = None,
    eps: float = 1e-5,
    *,
    bias: bool = False,
    out: Any = None,
    config: Any = None,
) -> tuple[Any, Any, Any]:
    """Return the gradient of both terms of the sum, which is the same, of `weight` and of the bias of
    `fused_add_layer_norm`.

    Args:
        dy: the gradient of the normalised result.
        dsum: the gradient of the sum.
        summed: the sum that `fused_add_layer_norm` returned.
        weight: its weight.
        eps: as passed to `fused_add_layer_norm`.
        bias: compute the gradient of the bias.
        out: an array for the gradient of the terms.
        config: a config of an implementation; by default the library chooses.
    """
    name = "fused_add_layer_norm_backward"
    return norm_backward(name, LayerNormBackward, dy, summed, weight, bias, eps, out, config, dsum)
