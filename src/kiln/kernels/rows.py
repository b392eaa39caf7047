"""Functions of the rows of a matrix: softmax, RMSNorm, LayerNorm. Computed in f32."""

from __future__ import annotations

from typing import Any

from .. import cute
from ..base_dsl.typing import Float32, Int32, Int64
from . import arrays, plans
from .row_kernel import RowKernel, RowTiling, State, across, maximum, plus, products, total
from .row_plans import row_plan

__all__ = ["layer_norm", "rms_norm", "softmax"]

LOG2_E = 1.4426950408889634
_LOWEST = -3.0e38
"""The least maximum: finite, so that differences of two are numbers."""


def exp2(x: Any) -> Any:
    """2 to the power of x; 0 for minus infinity."""
    return cute.math.exp2(x, approx=True)


class Softmax(RowKernel):
    """A finding is the maximum, and the sum of the exponentials of what is below it."""

    fields = 2
    numbers = ()

    @cute.jit
    def __call__(self, x: Any, y: Any, rows: Int32, n: Int32, x_step: Int64, y_step: Int64, blocks: Int32, stream: Int64):
        source = self.matrix(x, self.problem.sources[0], rows, n, x_step)
        out = self.matrix(y, self.problem.outs[0], rows, n, y_step)
        self.launch([source], [out], [], (), rows, n, blocks, stream)

    def fresh(self) -> State:
        return Float32(_LOWEST), Float32(0.0)

    def absorb(self, state: State, values: list[Any], inside: Any, columns: list[Any]) -> tuple[State, Any]:
        (x,) = values
        if inside is not None:
            x = cute.where(inside, x, cute.full_like(x, float("-inf")))
        highest = maximum(state[0], total(x, cute.ReductionOp.MAX))
        powers = exp2((x - highest) * LOG2_E)
        return (highest, state[1] * exp2((state[0] - highest) * LOG2_E) + total(powers)), powers

    def merge(self, states: list[State], lanes: int) -> State:
        highest = states[0][0]
        for state in states[1:]:
            highest = maximum(highest, state[0])
        highest = across(highest, maximum, lanes)
        summed = Float32(0.0)
        for state in states:
            summed = summed + state[1] * exp2((state[0] - highest) * LOG2_E)
        return highest, across(summed, plus, lanes)

    def results(
        self, values: list[Any], columns: list[Any], kept: Any, own: State, state: State, numbers: Any, n: Any
    ) -> list[Any]:
        if kept is None:
            return [exp2((values[0] - state[0]) * LOG2_E) * (1.0 / state[1])]
        return [kept * (exp2((own[0] - state[0]) * LOG2_E) / state[1])]


class RmsNorm(RowKernel):
    """A finding is a sum of squares."""

    numbers = (0.0,)

    @cute.jit
    def __call__(
        self, x: Any, y: Any, weight: Any, rows: Int32, n: Int32, x_step: Int64, y_step: Int64, eps: Float32, blocks: Int32,
        stream: Int64,
    ):  # fmt: skip
        source = self.matrix(x, self.problem.sources[0], rows, n, x_step)
        out = self.matrix(y, self.problem.outs[0], rows, n, y_step)
        self.launch([source], [out], self.columns((weight,), n), (eps,), rows, n, blocks, stream)

    def fresh(self) -> State:
        return (Float32(0.0),)

    def absorb(self, state: State, values: list[Any], inside: Any, columns: list[Any]) -> tuple[State, Any]:
        return (state[0] + products(values[0], values[0]),), None

    def merge(self, states: list[State], lanes: int) -> State:
        summed = states[0][0]
        for state in states[1:]:
            summed = summed + state[0]
        return (across(summed, plus, lanes),)

    def results(
        self, values: list[Any], columns: list[Any], kept: Any, own: State, state: State, numbers: Any, n: Any
    ) -> list[Any]:
        made = values[0] * cute.math.rsqrt(state[0] / Float32(n) + numbers[0])
        return [made * columns[0] if columns else made]


class LayerNorm(RowKernel):
    """A finding is a number of elements, their mean, and the sum of the squares of their distances from it."""

    fields = 3
    numbers = (0.0,)

    @cute.jit
    def __call__(
        self, x: Any, y: Any, weight: Any, bias: Any, rows: Int32, n: Int32, x_step: Int64, y_step: Int64, eps: Float32,
        blocks: Int32, stream: Int64,
    ):  # fmt: skip
        source = self.matrix(x, self.problem.sources[0], rows, n, x_step)
        out = self.matrix(y, self.problem.outs[0], rows, n, y_step)
        self.launch([source], [out], self.columns((weight, bias), n), (eps,), rows, n, blocks, stream)

    def fresh(self) -> State:
        return Float32(0.0), Float32(0.0), Float32(0.0)

    def absorb(self, state: State, values: list[Any], inside: Any, columns: list[Any]) -> tuple[State, Any]:
        return spread(state, values[0], inside), None

    def merge(self, states: list[State], lanes: int) -> State:
        return joined_spread(states, lanes)

    def results(
        self, values: list[Any], columns: list[Any], kept: Any, own: State, state: State, numbers: Any, n: Any
    ) -> list[Any]:
        scale = cute.math.rsqrt(state[2] / Float32(n) + numbers[0])
        made = (values[0] - state[1]) * scale
        weighted, shifted = (dtype is not None for dtype in self.problem.columns)
        if weighted and shifted:
            return [cute.math.fma(made, columns[0], columns[1])]
        return [made * columns[0] if weighted else made + columns[0] if shifted else made]


def spread(state: State, x: Any, inside: Any) -> State:
    """Number, mean and sum of squared distances of elements seen before and of these."""
    if inside is None:
        count: Any = Float32(float(len(x)))
    else:
        count = total(cute.where(inside, cute.full_like(x, 1.0), cute.full_like(x, 0.0)))
    mean = total(x) / maximum(count, Float32(1.0))
    distance = x - mean
    if inside is not None:
        distance = cute.where(inside, distance, cute.full_like(x, 0.0))
    found = (count, mean, products(distance, distance))
    return joined_spread([state, found], 1)


def joined_spread(states: list[State], lanes: int) -> State:
    """The same of several parts."""
    count, weighted = Float32(0.0), Float32(0.0)
    for state in states:
        count, weighted = count + state[0], weighted + state[0] * state[1]
    count = across(count, plus, lanes)
    mean = across(weighted, plus, lanes) / maximum(count, Float32(1.0))
    squares = Float32(0.0)
    for state in states:
        distance = state[1] - mean
        squares = squares + state[2] + state[0] * distance * distance
    return count, mean, across(squares, plus, lanes)


# --- the functions ---------------------------------------------------------------------------------------------------

def softmax(x: Any, *, out: Any = None, tiling: RowTiling | None = None) -> Any:
    """exp(x) over its sum, along the last mode.

    A row with a NaN or with plus infinity, or of minus infinity alone, becomes NaN.
    """
    if out is None:
        out = arrays.empty_like(x)
    key = ("softmax", plans.mode(), tiling, arrays.signature(x), arrays.signature(out))
    plan = plans.find(key) or plans.keep(key, row_plan("softmax", Softmax, (x,), (out,), (), tiling))
    return plan((x,), (out,), (), ())


def rms_norm(
    x: Any, weight: Any = None, *, eps: float = 1e-6, out: Any = None, tiling: RowTiling | None = None
) -> Any:
    """x over the root of the mean of its squares plus `eps`, along the last mode, times a weight for each column."""
    if out is None:
        out = arrays.empty_like(x)
    key = ("rms_norm", plans.mode(), tiling, arrays.signature(x), arrays.signature(out), arrays.signature(weight))
    plan = plans.find(key) or plans.keep(key, row_plan("rms_norm", RmsNorm, (x,), (out,), (weight,), tiling))
    return plan((x,), (out,), (weight,), (eps,))


def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    out: Any = None,
    tiling: RowTiling | None = None,
) -> Any:
    """x less its mean over the root of its variance plus `eps`, along the last mode, times a weight, plus a bias."""
    if out is None:
        out = arrays.empty_like(x)
    signature = arrays.signature
    key = ("layer_norm", plans.mode(), tiling, signature(x), signature(out), signature(weight), signature(bias))
    plan = plans.find(key) or plans.keep(key, row_plan("layer_norm", LayerNorm, (x,), (out,), (weight, bias), tiling))
    return plan((x,), (out,), (weight, bias), (eps,))
