"""Gated activations: activation(gate) * up, also quantised by rows, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, cute
from ....cute.nvgpu import CacheEvictionPriority
from ...dispatch import arrays
from ...dispatch.recorder import kernel_function
from ...parts.vectors import inverse, maximum
from .arguments import run_rows
from .default_configs import quantized_config, smem_config
from .row_kernel import RowKernel
from .row_statistics import Statistics, max_statistics
from .softmax_and_norms import LOG2_E, Quantized, exp2, largest_magnitude, row_outs

if TYPE_CHECKING:
    from .row_kernel import Row

__all__ = ["geglu", "geglu_backward", "swiglu", "swiglu_backward"]


class ElementwiseRows(RowKernel):
    """A row function without statistics."""

    fields = 0
    priority = CacheEvictionPriority.EVICT_LAST
    overlaps = True


class Activation:
    """The activation of the gate."""

    def value(self, x: cute.TensorSSA) -> cute.TensorSSA:
        """Return the activation of x."""
        raise NotImplementedError

    def slope(self, x: cute.TensorSSA) -> tuple[cute.TensorSSA, cute.TensorSSA]:
        """Return the activation of x and its derivative."""
        raise NotImplementedError


class Gated(Activation, ElementwiseRows):
    """activation(gate) * up."""

    def results(self, values: list[cute.TensorSSA], *_: Any) -> list[cute.TensorSSA]:
        return [self.value(values[0]) * values[1]]


class GatedBackward(Activation, ElementwiseRows):
    """The gradients of gate and up, from dy, gate and up."""

    def results(self, values: list[cute.TensorSSA], *_: Any) -> list[cute.TensorSSA]:
        dy, gate, up = values
        value, slope = self.slope(gate)
        return [dy * up * slope, dy * value]


def sigmoid(x: cute.TensorSSA) -> cute.TensorSSA:
    """Return 1 / (1 + exp(-x)); 0 where the exponential is infinite."""
    return inverse(exp2(x * -LOG2_E) + 1.0)


class Silu(Activation):
    """x sigmoid(x)."""

    def value(self, x: cute.TensorSSA) -> cute.TensorSSA:
        return x * sigmoid(x)

    def slope(self, x: cute.TensorSSA) -> tuple[cute.TensorSSA, cute.TensorSSA]:
        gate = sigmoid(x)
        return x * gate, gate * (x * (1.0 - gate) + 1.0)


_TAIL = (0.5307027145, -0.7265760135, 0.7107068705, -0.142248368, 0.127414796)
"""Half of the coefficients of Abramowitz and Stegun's 7.1.26, the highest power first."""


def normal_distribution(x: cute.TensorSSA) -> tuple[Any, Any]:
    """Return the normal distribution function of x, and exp(-x^2 / 2).

    The tail beyond |x| is a polynomial of 1 / (1 + p |x|) times that exponential, within 1e-7: as accurate as the error
    function of f32, with a third of the instructions.
    """
    t = inverse(cute.math.abs(x) * (0.3275911 * 0.7071067811865476) + 1.0)
    polynomial: Any = t * _TAIL[0] + _TAIL[1]
    for coefficient in _TAIL[2:]:
        polynomial = polynomial * t + coefficient
    exponential = exp2(x * x * (-0.5 * LOG2_E))
    tail = polynomial * t * exponential
    return cute.where(x < 0.0, tail, 1.0 - tail), exponential


class Gelu(Activation):
    """x times the normal distribution function of x."""

    def value(self, x: cute.TensorSSA) -> cute.TensorSSA:
        return x * normal_distribution(x)[0]

    def slope(self, x: cute.TensorSSA) -> tuple[cute.TensorSSA, cute.TensorSSA]:
        below, exponential = normal_distribution(x)
        return x * below, below + x * exponential * 0.3989422804014327


class TanhGelu(Activation):
    """GELU by a hyperbolic tangent: (1 + tanh(z)) / 2 is sigmoid(2 z)."""

    def value(self, x: cute.TensorSSA) -> cute.TensorSSA:
        return x * sigmoid(x * (x * x * 0.0713548162726 + 1.5957691216057308))

    def slope(self, x: cute.TensorSSA) -> tuple[cute.TensorSSA, cute.TensorSSA]:
        square = x * x
        gate = sigmoid(x * (square * 0.0713548162726 + 1.5957691216057308))
        inner = square * (3 * 0.0713548162726) + 1.5957691216057308
        return x * gate, gate * (x * (1.0 - gate) * inner + 1.0)


class SwiGlu(Silu, Gated):
    """`swiglu`."""


class GeGlu(Gelu, Gated):
    """`geglu`."""


class TanhGeGlu(TanhGelu, Gated):
    """`geglu` by a hyperbolic tangent."""


class QuantizedGated(Quantized):
    """A mixin of gated activations. The statistic is the largest magnitude of the results, which are saved."""

    fields = 1
    tracks_absmax = True

    def accumulate(self, before: Statistics | None, part: Any) -> tuple[Statistics, list[cute.TensorSSA] | None]:
        results = [self.results(part.values(v))[0] for v in range(part.count)]
        largest = largest_magnitude(results)
        return (largest if before is None else maximum(before[0], largest),), results if part.saves else None

    def merge(self, parts: list[Statistics], lanes: int) -> Statistics:
        return max_statistics(parts, lanes)

    def results(
        self, values: list[cute.TensorSSA], columns: Any = (), saved: cute.TensorSSA | None = None, *_: Row
    ) -> list[cute.TensorSSA]:
        return super().results(values) if saved is None else [saved]  # type: ignore[misc]

    def absmax(self, statistics: Statistics, scalars: tuple[Any, ...]) -> tuple[Float32, Float32]:
        return statistics[0], Float32(1.0)


class QuantizedSwiGlu(QuantizedGated, SwiGlu):
    """Quantised `swiglu`."""


class QuantizedGeGlu(QuantizedGated, GeGlu):
    """Quantised `geglu`."""


class QuantizedTanhGeGlu(QuantizedGated, TanhGeGlu):
    """Quantised `geglu` by a hyperbolic tangent."""


class SwiGluBackward(Silu, GatedBackward):
    """`swiglu_backward`."""


class GeGluBackward(Gelu, GatedBackward):
    """`geglu_backward`."""


class TanhGeGluBackward(TanhGelu, GatedBackward):
    """`geglu_backward` by a hyperbolic tangent."""


_GELUS = {"none": (GeGlu, QuantizedGeGlu, GeGluBackward), "tanh": (TanhGeGlu, QuantizedTanhGeGlu, TanhGeGluBackward)}


def _gelu(name: str, approximate: str) -> tuple[type[Any], ...]:
    arrays.require(approximate in _GELUS, f"{name}: approximate={approximate!r}", hint='"none" or "tanh"')
    return _GELUS[approximate]


def _halves(name: str, x: Any) -> list[Any]:
    """Return views of both halves of an array along its last mode."""
    n = x.shape[-1] if x.ndim else 1
    arrays.require(
        n % 2 == 0,
        f"{name}: gate has shape {tuple(x.shape)}; without up it holds both, so its last extent must be even",
    )
    return [arrays.part(x, x.ndim - 1, which) for which in (slice(0, n // 2), slice(n // 2, n))]


def _forward(
    name: str,
    functions: tuple[type[Any], ...],
    gate: Any,
    up: Any,
    quantize: Any,
    scale_layout: str,
    out: Any,
    config: Any,
) -> Any:
    sources = _halves(name, gate) if up is None else [gate, up]
    outs = row_outs(name, sources[0], quantize, scale_layout, out)
    best = quantized_config if outs.has_row_scales else smem_config
    run_rows(name, functions[outs.has_row_scales], sources, [outs.out], [], (), best, config, (), *outs[1:])
    return outs.result


def _backward(name: str, function: type[Any], dy: Any, gate: Any, up: Any, config: Any) -> Any:
    results = [arrays.empty_like(x) for x in ([gate] if up is None else [gate, up])]
    sources, outs = (_halves(name, gate), _halves(name, results[0])) if up is None else ([gate, up], results)
    run_rows(name, function, [dy, *sources], outs, [], (), smem_config, config)
    return results[0] if up is None else tuple(results)


@kernel_function("gate", "up", "out")
def swiglu(
    gate: Any, up: Any = None, *, quantize: Any = None, scale_layout: str = "atoms", out: Any = None, config: Any = None
) -> Any:
    """Return `silu(gate) * up`, computed in f32.

    Args:
        gate: an array; without `up` it holds both, `gate` first, along its last mode.
        up: an array of the same shape.
        quantize: an 8-bit float type for the result; the scale factor of each row, f32 (..., 1), is returned, too. Or
            a format of blocks, as in `quantize`; then their scale factors are.
        scale_layout: where those of blocks lie, as in `quantize`.
        out: an array for the result.
        config: a config of an implementation; by default the library chooses.
    """
    return _forward("swiglu", (SwiGlu, QuantizedSwiGlu), gate, up, quantize, scale_layout, out, config)


@kernel_function("gate", "up", "out")
def geglu(
    gate: Any,
    up: Any = None,
    *,
    approximate: str = "none",
    quantize: Any = None,
    scale_layout: str = "atoms",
    out: Any = None,
    config: Any = None,
) -> Any:
    """Return `gelu(gate) * up`, computed in f32.

    Args:
        gate: an array; without `up` it holds both, `gate` first, along its last mode.
        up: an array of the same shape.
        approximate: "none", or "tanh" for the approximation by tanh, as in PyTorch.
        quantize: an 8-bit float type for the result; the scale factor of each row, f32 (..., 1), is returned, too. Or
            a format of blocks, as in `quantize`; then their scale factors are.
        scale_layout: where those of blocks lie, as in `quantize`.
        out: an array for the result.
        config: a config of an implementation; by default the library chooses.
    """
    return _forward("geglu", _gelu("geglu", approximate), gate, up, quantize, scale_layout, out, config)


@kernel_function("dy", "gate", "up")
def swiglu_backward(dy: Any, gate: Any, up: Any = None, *, config: Any = None) -> Any:
    """Return the gradients of the inputs of `swiglu`: two arrays, or one that holds both.

    Args:
        dy: the gradient of the result.
        gate: as passed to `swiglu`.
        up: as passed to `swiglu`.
        config: a config of an implementation; by default the library chooses.
    """
    return _backward("swiglu_backward", SwiGluBackward, dy, gate, up, config)


@kernel_function("dy", "gate", "up")
def geglu_backward(dy: Any, gate: Any, up: Any = None, *, approximate: str = "none", config: Any = None) -> Any:
    """Return the gradients of the inputs of `geglu`: two arrays, or one that holds both.

    Args:
        dy: the gradient of the result.
        gate: as passed to `geglu`.
        up: as passed to `geglu`.
        approximate: as passed to `geglu`.
        config: a config of an implementation; by default the library chooses.
    """
    return _backward("geglu_backward", _gelu("geglu_backward", approximate)[2], dy, gate, up, config)
