"""Gated units: an activation of one array times another, element by element, also quantized by rows; and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, cute
from ....cute.nvgpu import CacheEvictionPriority
from ...dispatch import arrays
from ...dispatch.recorder import kernel_function
from ...parts.vectors import inverse, maximum
from .arguments import run_rows
from .default_configs import quantized_rule, shared_rule
from .row_kernel import RowKernel
from .row_statistics import most_of
from .softmax_and_norms import LOG2_E, Quantized, exp2, largest_magnitude, quantized_outs

if TYPE_CHECKING:
    from .row_kernel import Part
    from .row_statistics import State

__all__ = ["geglu", "geglu_backward", "swiglu", "swiglu_backward"]


class Elements(RowKernel):
    """Nothing is found out about rows."""

    fields = 0
    priority = CacheEvictionPriority.EVICT_LAST
    overlaps = True

    def fresh(self) -> State:
        return ()

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        return (), None

    def merge(self, states: list[State], lanes: int) -> State:
        return ()


class Activation:
    """What a unit does to its gate."""

    def value(self, x: Any) -> Any:
        """The activation."""
        raise NotImplementedError

    def slope(self, x: Any) -> tuple[Any, Any]:
        """The activation, and its derivative."""
        raise NotImplementedError


class Gated(Activation, Elements):
    """The activation of the first source times the second."""

    def results(self, values: list[Any], *_: Any) -> list[Any]:
        return [self.value(values[0]) * values[1]]


class GatedGradient(Activation, Elements):
    """Of the gradients of the results, and of both sources: their gradients."""

    def results(self, values: list[Any], *_: Any) -> list[Any]:
        dy, gate, up = values
        value, slope = self.slope(gate)
        return [dy * up * slope, dy * value]


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)); 0 where the exponential is infinite."""
    return inverse(exp2(x * -LOG2_E) + 1.0)


class Silu(Activation):
    """x sigmoid(x)."""

    def value(self, x: Any) -> Any:
        return x * sigmoid(x)

    def slope(self, x: Any) -> tuple[Any, Any]:
        found = sigmoid(x)
        return x * found, found * (x * (1.0 - found) + 1.0)


_TAIL = (0.5307027145, -0.7265760135, 0.7107068705, -0.142248368, 0.127414796)
"""Half of the coefficients of Abramowitz and Stegun's 7.1.26, the highest power first."""


def normal_distribution(x: Any) -> tuple[Any, Any]:
    """How probable less than x is, and exp(-x^2 / 2).

    What is beyond |x| is a polynomial of 1 / (1 + p |x|) times that exponential, within 1e-7: what an error function of f32 leaves of it, with a
    third of the instructions.
    """
    t = inverse(cute.math.abs(x) * (0.3275911 * 0.7071067811865476) + 1.0)
    found: Any = t * _TAIL[0] + _TAIL[1]
    for factor in _TAIL[2:]:
        found = found * t + factor
    power = exp2(x * x * (-0.5 * LOG2_E))
    beyond = found * t * power
    return cute.where(x < 0.0, beyond, 1.0 - beyond), power


class Gelu(Activation):
    """x times the normal distribution of x."""

    def value(self, x: Any) -> Any:
        return x * normal_distribution(x)[0]

    def slope(self, x: Any) -> tuple[Any, Any]:
        below, power = normal_distribution(x)
        return x * below, below + x * power * 0.3989422804014327


class TanhGelu(Activation):
    """The same by a hyperbolic tangent: half of one plus it is the sigmoid of twice its argument."""

    def value(self, x: Any) -> Any:
        return x * sigmoid(x * (x * x * 0.0713548162726 + 1.5957691216057308))

    def slope(self, x: Any) -> tuple[Any, Any]:
        square = x * x
        found = sigmoid(x * (square * 0.0713548162726 + 1.5957691216057308))
        inner = square * (3 * 0.0713548162726) + 1.5957691216057308
        return x * found, found * (x * (1.0 - found) * inner + 1.0)


class SwiGlu(Silu, Gated):
    """`swiglu`."""


class GeGlu(Gelu, Gated):
    """`geglu`."""


class TanhGeGlu(TanhGelu, Gated):
    """`geglu` by a hyperbolic tangent."""


class QuantizedUnit(Quantized):
    """Of a gated unit. A finding is the largest magnitude of the results, which are kept."""

    fields = 1
    finds_largest = True

    def fresh(self) -> State:
        return (Float32(0.0),)

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        made = [self.results(part.values(v))[0] for v in range(part.count)]
        most = largest_magnitude(made)
        return (most if state is None else maximum(state[0], most),), made if part.few else None

    def merge(self, states: list[State], lanes: int) -> State:
        return most_of(states, lanes)

    def results(self, values: list[Any], columns: Any = (), kept: Any = None, *_: Any) -> list[Any]:
        return super().results(values) if kept is None else [kept]  # type: ignore[misc]

    def largest_of(self, state: State, numbers: tuple[Any, ...]) -> tuple[Any, Any]:
        return state[0], Float32(1.0)


class QuantizedSwiGlu(QuantizedUnit, SwiGlu):
    """`swiglu`, quantized."""


class QuantizedGeGlu(QuantizedUnit, GeGlu):
    """`geglu`, quantized."""


class QuantizedTanhGeGlu(QuantizedUnit, TanhGeGlu):
    """`geglu` by a hyperbolic tangent, quantized."""


class SwiGluGradient(Silu, GatedGradient):
    """`swiglu_backward`."""


class GeGluGradient(Gelu, GatedGradient):
    """`geglu_backward`."""


class TanhGeGluGradient(TanhGelu, GatedGradient):
    """`geglu_backward` by a hyperbolic tangent."""


_GELUS = {
    "none": (GeGlu, QuantizedGeGlu, GeGluGradient),
    "tanh": (TanhGeGlu, QuantizedTanhGeGlu, TanhGeGluGradient),
}


def _gelu(name: str, approximate: str) -> tuple[type[Any], ...]:
    arrays.require(approximate in _GELUS, f"{name}: approximate={approximate!r}", hint='"none" or "tanh"')
    return _GELUS[approximate]


def _halves(name: str, x: Any) -> list[Any]:
    """Views of both halves of an array along its last mode."""
    n = x.shape[-1] if x.ndim else 1
    arrays.require(
        n % 2 == 0, f"{name} of one array of shape {tuple(x.shape)}: it holds gate and up side by side, equally long"
    )
    return [arrays.part(x, x.ndim - 1, which) for which in (slice(0, n // 2), slice(n // 2, n))]


def _forward(name: str, kinds: tuple[type[Any], ...], gate: Any, up: Any, quantize: Any, out: Any, config: Any) -> Any:
    given = _halves(name, gate) if up is None else [gate, up]
    outs, notes = quantized_outs(given[0], quantize, out)
    rule = quantized_rule if notes else shared_rule
    run_rows(name, kinds[bool(notes)], given, outs, [], (), rule, config, notes=notes)
    return (*outs, *notes) if notes else outs[0]


def _backward(name: str, kind: type[Any], dy: Any, gate: Any, up: Any, config: Any) -> Any:
    made = [arrays.empty_like(x) for x in ([gate] if up is None else [gate, up])]
    given, outs = (_halves(name, gate), _halves(name, made[0])) if up is None else ([gate, up], made)
    run_rows(name, kind, [dy, *given], outs, [], (), shared_rule, config)
    return made[0] if up is None else tuple(made)


@kernel_function("gate", "up", "out")
def swiglu(gate: Any, up: Any = None, *, quantize: Any = None, out: Any = None, config: Any = None) -> Any:
    """`silu(gate) * up`, computed in f32. Without `up` one array holds both, `gate` first, along its last mode.

    `quantize` is a type of 8-bit floats: the result is then that of each row over a number, and the numbers, f32 (..., 1).
    """
    return _forward("swiglu", (SwiGlu, QuantizedSwiGlu), gate, up, quantize, out, config)


@kernel_function("gate", "up", "out")
def geglu(
    gate: Any, up: Any = None, *, approximate: str = "none", quantize: Any = None, out: Any = None, config: Any = None
) -> Any:
    """`gelu(gate) * up`, as `swiglu`; `approximate="tanh"` is PyTorch's."""
    return _forward("geglu", _gelu("geglu", approximate), gate, up, quantize, out, config)


@kernel_function("dy", "gate", "up")
def swiglu_backward(dy: Any, gate: Any, up: Any = None, *, config: Any = None) -> Any:
    """The gradients of what `swiglu` was given, from that of its result: two arrays, or one that holds both."""
    return _backward("swiglu_backward", SwiGluGradient, dy, gate, up, config)


@kernel_function("dy", "gate", "up")
def geglu_backward(dy: Any, gate: Any, up: Any = None, *, approximate: str = "none", config: Any = None) -> Any:
    """The same of `geglu`."""
    return _backward("geglu_backward", _gelu("geglu_backward", approximate)[2], dy, gate, up, config)
