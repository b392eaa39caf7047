"""Norms of the sum of two arrays, which is written, too: a residual is added and normalized in one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...dispatch import arrays
from ...dispatch.recorder import kernel_function
from ...parts.vectors import as_f32
from .arguments import run_rows
from .backward import LayerNormGradient, RmsNormGradient, norm_backward
from .default_configs import quantized_rule, shared_rule
from .softmax_and_norms import LayerNorm, QuantizedLayerNorm, QuantizedRmsNorm, RmsNorm, norm_numbers, quantized_outs

if TYPE_CHECKING:
    from .row_kernel import Part
    from .row_statistics import State

__all__ = [
    "fused_add_layer_norm", "fused_add_layer_norm_backward", "fused_add_rms_norm", "fused_add_rms_norm_backward",
]  # fmt: skip


class Joined:
    """A thread's part of a row whose sources are made one; where that `stays`, it is held instead of the last of them."""

    __kiln_static__ = True

    def __init__(self, part: Any, join: Any, stays: bool) -> None:
        self._part = part
        self._join = join
        self._stays = stays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def values(self, v: int) -> list[Any]:
        """Vector `v`; once."""
        found = self._join(self._part.values(v))
        if self._stays:
            self._part.put(v, 1, found)
        return [as_f32(found)]

    def first(self) -> list[Any]:
        """A vector with elements of the row, if there are any."""
        return [as_f32(self._join(self._part.first()))]


class Adds:
    """Of a norm: its input is the sum of two sources, rounded to the type of the second result, which it is."""

    rereads = True
    problem: Any
    quantizes: bool
    whole: bool

    @property
    def stays(self) -> bool:
        """Whether sums are held until they are written; else they are made again, which takes fewer instructions where that is once."""
        return self.quantizes and self.whole and self.problem.sources[1] is self.problem.outs[1]

    def join(self, values: list[Any]) -> Any:
        """The sum, of its type."""
        return (values[0] + values[1]).to(self.problem.outs[1])

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        found, kept = super().absorb(state, Joined(part, self.join, self.stays))  # type: ignore[misc]
        return found, kept if self.stays else None

    def results(self, values: list[Any], *others: Any) -> list[Any]:
        found = values[1] if self.stays else as_f32(self.join(values))
        return [*super().results([found], *others), found]  # type: ignore[misc]


class AddRmsNorm(Adds, RmsNorm):
    """RMSNorm of a sum."""


class AddLayerNorm(Adds, LayerNorm):
    """LayerNorm of a sum."""


class QuantizedAddRmsNorm(Adds, QuantizedRmsNorm):
    """The same, quantized."""


class QuantizedAddLayerNorm(Adds, QuantizedLayerNorm):
    """The same, quantized."""


def _added(
    name: str, kinds: tuple[type[Any], type[Any]], x: Any, residual: Any, columns: list[Any], eps: float, quantize: Any,
    out: Any, residual_out: Any, config: Any,
) -> tuple[Any, ...]:  # fmt: skip
    outs, notes = quantized_outs(x, quantize, out)
    summed = arrays.empty_like(residual) if residual_out is None else residual_out
    run_rows(
        name, kinds[bool(notes)], [x, residual], [*outs, summed], columns, norm_numbers(x, eps),
        quantized_rule if notes else shared_rule, config, notes=notes,
    )  # fmt: skip
    return (*outs, *notes, summed)


@kernel_function("x", "residual", "weight", "out", "residual_out", written=("out", "residual_out"))
def fused_add_rms_norm(
    x: Any,
    residual: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    quantize: Any = None,
    out: Any = None,
    residual_out: Any = None,
    config: Any = None,
) -> tuple[Any, ...]:
    """`rms_norm(x + residual, weight)` and the sum, rounded to the type of `residual` before the norm.

    `out=x, residual_out=residual` writes both in place. With `quantize` (see `rms_norm`): the result, the numbers of its rows, the sum.
    """
    kinds = AddRmsNorm, QuantizedAddRmsNorm
    return _added("fused_add_rms_norm", kinds, x, residual, [weight], eps, quantize, out, residual_out, config)


@kernel_function("x", "residual", "weight", "bias", "out", "residual_out", written=("out", "residual_out"))
def fused_add_layer_norm(
    x: Any,
    residual: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    quantize: Any = None,
    out: Any = None,
    residual_out: Any = None,
    config: Any = None,
) -> tuple[Any, ...]:
    """`layer_norm(x + residual, weight, bias)` and the sum, as `fused_add_rms_norm` does it."""
    kinds = AddLayerNorm, QuantizedAddLayerNorm
    return _added("fused_add_layer_norm", kinds, x, residual, [weight, bias], eps, quantize, out, residual_out, config)


@kernel_function("dy", "dsum", "summed", "weight", "out")
def fused_add_rms_norm_backward(
    dy: Any, dsum: Any, summed: Any, weight: Any = None, eps: float = 1e-6, *, out: Any = None, config: Any = None
) -> tuple[Any, Any]:
    """The gradients of what `fused_add_rms_norm` was given, from those of its results and the sum: of both terms, and of `weight`."""
    name = "fused_add_rms_norm_backward"
    return norm_backward(name, RmsNormGradient, dy, summed, weight, False, eps, out, config, dsum)[:2]


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
    """The same for `fused_add_layer_norm`: of both terms, of `weight`, and of the bias if `bias` asks for it."""
    name = "fused_add_layer_norm_backward"
    return norm_backward(name, LayerNormGradient, dy, summed, weight, bias, eps, out, config, dsum)
