"""Norms of the sum of two arrays, which is written, too: a residual is added and normalized in one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Float32
from ..common import arrays
from ..common.calls import kernel_function
from ..common.vectors import as_f32
from .calling import run_rows
from .functions import LayerNorm, Quantized, RmsNorm, norm_numbers, quantized_outs
from .gradients import LayerNormGradient, RmsNormGradient, norm_backward
from .plans import shared_rule

if TYPE_CHECKING:
    from .kernel import Part, State

__all__ = [
    "fused_add_layer_norm", "fused_add_layer_norm_backward", "fused_add_rms_norm", "fused_add_rms_norm_backward",
]  # fmt: skip


class Joined:
    """A thread's part of a row whose sources are made one."""

    __kiln_static__ = True

    def __init__(self, part: Any, join: Any) -> None:
        self._part = part
        self._join = join

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def values(self, v: int) -> list[Any]:
        """Vector `v`."""
        return [self._join(self._part.values(v))]

    def first(self) -> list[Any]:
        """A vector with elements of the row, if there are any."""
        return [self._join(self._part.first())]


class Adds:
    """Of a norm: its input is the sum of two sources, rounded to the type of the second result, which it is."""

    problem: Any

    def join(self, values: list[Any]) -> Any:
        """The sum."""
        found, dtype = values[0] + values[1], self.problem.outs[1]
        return found if dtype is Float32 else as_f32(found.to(dtype))

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        return super().absorb(state, Joined(part, self.join))  # type: ignore[misc]

    def results(self, values: list[Any], *others: Any) -> list[Any]:
        found = self.join(values)
        return [*super().results([found], *others), found]  # type: ignore[misc]


class AddRmsNorm(Adds, RmsNorm):
    """RMSNorm of a sum."""


class AddLayerNorm(Adds, LayerNorm):
    """LayerNorm of a sum."""


class QuantizedAddRmsNorm(Quantized, AddRmsNorm):
    """The same, quantized."""


class QuantizedAddLayerNorm(Quantized, AddLayerNorm):
    """The same, quantized."""


def _added(
    name: str, kinds: tuple[type[Any], type[Any]], x: Any, residual: Any, columns: list[Any], eps: float, quantize: Any,
    out: Any, residual_out: Any, plan: Any,
) -> tuple[Any, ...]:  # fmt: skip
    outs, notes = quantized_outs(x, quantize, out)
    summed = arrays.empty_like(residual) if residual_out is None else residual_out
    run_rows(
        name, kinds[bool(notes)], [x, residual], [*outs, summed], columns, norm_numbers(x, eps), shared_rule, plan, notes=notes
    )  # fmt: skip
    return (*outs, *notes, summed)


@kernel_function("x", "residual", "weight", "out", "residual_out")
def fused_add_rms_norm(
    x: Any,
    residual: Any,
    weight: Any = None,
    eps: float = 1e-6,
    *,
    quantize: Any = None,
    out: Any = None,
    residual_out: Any = None,
    plan: Any = None,
) -> tuple[Any, ...]:
    """`rms_norm(x + residual, weight)` and the sum, rounded to the type of `residual` before the norm.

    `out=x, residual_out=residual` writes both in place. With `quantize` (see `rms_norm`): the result, the numbers of its rows, the sum.
    """
    kinds = AddRmsNorm, QuantizedAddRmsNorm
    return _added("fused_add_rms_norm", kinds, x, residual, [weight], eps, quantize, out, residual_out, plan)


@kernel_function("x", "residual", "weight", "bias", "out", "residual_out")
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
    plan: Any = None,
) -> tuple[Any, ...]:
    """`layer_norm(x + residual, weight, bias)` and the sum, as `fused_add_rms_norm` does it."""
    kinds = AddLayerNorm, QuantizedAddLayerNorm
    return _added("fused_add_layer_norm", kinds, x, residual, [weight, bias], eps, quantize, out, residual_out, plan)


@kernel_function("dy", "dsum", "summed", "weight", "out")
def fused_add_rms_norm_backward(
    dy: Any, dsum: Any, summed: Any, weight: Any = None, eps: float = 1e-6, *, out: Any = None, plan: Any = None
) -> tuple[Any, Any]:
    """The gradients of what `fused_add_rms_norm` was given, from those of its results and the sum: of both terms, and of `weight`."""
    name = "fused_add_rms_norm_backward"
    return norm_backward(name, RmsNormGradient, dy, summed, weight, False, eps, out, plan, dsum)[:2]


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
    plan: Any = None,
) -> tuple[Any, Any, Any]:
    """The same for `fused_add_layer_norm`: of both terms, of `weight`, and of the bias if `bias` asks for it."""
    name = "fused_add_layer_norm_backward"
    return norm_backward(name, LayerNormGradient, dy, summed, weight, bias, eps, out, plan, dsum)
