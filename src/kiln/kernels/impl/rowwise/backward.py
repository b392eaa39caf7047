"""Gradients of softmax, RMSNorm and LayerNorm.

Statistics of a row are found again from the row itself, which must be read anyway: nothing but the inputs is needed of the
forward pass. Gradients of weights and biases are sums over rows: rows are streamed (`streaming.py`), and each block sums over
those it takes. Rows that cannot be, because they are too long or their elements are accessed one by one, are read again by a
kernel that sums over columns, with the statistics noted by the first. Sums are made in a fixed order.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import Float32, cute
from ....cute.nvgpu import CacheEvictionPriority
from ...dispatch import arrays
from ...dispatch.recorder import kernel_function
from ...parts.vectors import across, plus, total
from .arguments import run_rows
from .default_configs import shared_config, streaming_config
from .row_kernel import Part, RowKernel, RowwiseConfig
from .row_statistics import State, summed_up
from .softmax_and_norms import joined_spread, norm_numbers, reciprocal, weighted

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .problem import Rows

__all__ = ["layer_norm_backward", "rms_norm_backward", "softmax_backward"]


class SoftmaxGradient(RowKernel):
    """Of the results and their gradients. A finding is the sum of their products."""

    priority = CacheEvictionPriority.EVICT_LAST

    def fresh(self) -> State:
        return (Float32(0.0),)

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        summed: Any = None
        for v in range(part.count):
            y, dy = part.values(v)
            summed = y * dy if summed is None else cute.math.fma(y, dy, summed)
        return (total(summed) if state is None else state[0] + total(summed),), None

    def merge(self, states: list[State], lanes: int) -> State:
        return summed_up(states, lanes)

    def results(
        self, values: list[Any], columns: list[Any], kept: Any, own: State, state: State, numbers: Any, n: Any
    ) -> list[Any]:
        y, dy = values
        return [y * (dy - state[0])]


def plus_all(value: Any, more: list[Any]) -> Any:
    """A value and others that are added to it."""
    for other in more:
        value = value + other
    return value


def quarters(values: Any) -> list[Any]:
    """Vectors of at most four elements of a vector: sums of these take fewer registers."""
    if len(values) <= 4:
        return [values]
    pieces = values.reshape((4, len(values) // 4))
    return [pieces[None, k] for k in range(len(values) // 4)]


class RmsNormGradient(RowKernel):
    """Of the inputs and the gradients of the results, and of further results, which were the inputs themselves.

    A finding is a sum of squares, and one of inputs times gradients.
    """

    fields = 2
    priority = CacheEvictionPriority.EVICT_LAST
    between_edges = False
    takes_alone = True

    def fresh(self) -> State:
        return Float32(0.0), Float32(0.0)

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        squares: Any = None
        products: Any = None
        for v in range(part.count):
            x, dy, *_ = part.values(v)
            weights = part.columns(v)
            scaled = weighted(dy, weights)
            squares = x * x if squares is None else cute.math.fma(x, x, squares)
            products = x * scaled if products is None else cute.math.fma(x, scaled, products)
        found = (total(squares), total(products))
        if part.alone is not None:
            (x, dy, *_), weights = part.alone.values(0), part.alone.columns(0)
            scaled = weighted(dy, weights)
            found = (cute.math.fma(x, x, found[0])[0], cute.math.fma(x, scaled, found[1])[0])
        return found if state is None else (state[0] + found[0], state[1] + found[1]), None

    def merge(self, states: list[State], lanes: int) -> State:
        return summed_up(states, lanes)

    def results(
        self, values: list[Any], columns: list[Any], kept: Any, own: State, state: State, numbers: Any, n: Any
    ) -> list[Any]:
        x, dy, *more = values
        scale = cute.math.rsqrt(cute.math.fma(state[0], numbers[1], numbers[0]))
        shared = scale * scale * scale * state[1] * numbers[1]
        scaled = dy * scale
        found = [plus_all(weighted(scaled, columns) - x * shared, more)]
        if self.problem.sums:
            found.append(scaled * x)
        return found

    def noted(self, state: State, numbers: tuple[Any, ...]) -> list[Any]:
        return [Float32(0.0), cute.math.rsqrt(cute.math.fma(state[0], numbers[1], numbers[0]))]


class LayerNormGradient(RowKernel):
    """Of the inputs and the gradients of the results, as for `RmsNormGradient`.

    A finding is a number of elements, their mean, the sum of the squares of their distances from it, the sum of the gradients
    and that of the gradients times the distances.
    """

    fields = 5
    counted = True
    priority = CacheEvictionPriority.EVICT_LAST
    between_edges = False
    takes_alone = True

    def fresh(self) -> State:
        return tuple(Float32(0.0) for _ in range(5))

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        """Distances are first taken from the mean of the thread's first vector, which is near enough to lose no accuracy.

        Of e elements in vectors of w, no more than e / w of the sum of squares is taken off again.
        """
        count = part.elements()
        first, *_ = part.first()
        near = total(first) * (1.0 / len(first))
        offsets: Any = None
        squares: Any = None
        gradients: Any = None
        products: Any = None
        for v in range(part.count):
            x, dy, *_ = part.values(v)
            weights = part.columns(v)
            scaled = weighted(dy, weights)
            distance = part.kept(v, x - near, 0.0)
            for d, g in zip(quarters(distance), quarters(scaled), strict=True):
                offsets = d if offsets is None else offsets + d
                squares = d * d if squares is None else cute.math.fma(d, d, squares)
                gradients = g if gradients is None else gradients + g
                products = d * g if products is None else cute.math.fma(d, g, products)
        offset, square, gradient, product = map(total, (offsets, squares, gradients, products))
        if part.alone is not None:
            (x, dy, *_), weights = part.alone.values(0), part.alone.columns(0)
            g = weighted(dy, weights)[0]
            d = part.alone.kept(0, x - near, 0.0)[0]
            count, offset, gradient = count + part.alone.elements(), offset + d, gradient + g
            square, product = cute.math.fma(d, d, square), cute.math.fma(d, g, product)
        shift = offset * reciprocal(count)
        found = (count, near + shift, square - offset * shift, gradient, product - shift * gradient)
        return found if state is None else self.merge([state, found], 1), None

    def merge(self, states: list[State], lanes: int) -> State:
        count, mean, squares = joined_spread([state[:3] for state in states], lanes)
        gradients, products = Float32(0.0), Float32(0.0)
        for state in states:
            gradients = gradients + state[3]
            products = cute.math.fma(state[1] - mean, state[3], products + state[4])
        return count, mean, squares, across(gradients, plus, lanes), across(products, plus, lanes)

    def results(
        self, values: list[Any], columns: list[Any], kept: Any, own: State, state: State, numbers: Any, n: Any
    ) -> list[Any]:
        x, dy, *more = values
        scale = cute.math.rsqrt(cute.math.fma(state[2], numbers[1], numbers[0]))
        middle = state[1] * scale
        shared = scale * scale * state[4] * numbers[1]
        normal = x * scale - middle
        scaled = weighted(dy, columns)
        found = [plus_all(scaled * scale - (normal * shared + state[3] * numbers[1] * scale), more)]
        if columns and self.problem.sums:
            found.append(dy * normal)
        if self.problem.sums > len(columns):
            found.append(dy)
        return found

    def noted(self, state: State, numbers: tuple[Any, ...]) -> list[Any]:
        return [state[1], cute.math.rsqrt(cute.math.fma(state[2], numbers[1], numbers[0]))]


# --- configs -----------------------------------------------------------------------------------------------------------


LONGEST_UNSTREAMED = 32768
"""Columns of softmax up to which a block for each row is faster than blocks that take rows in turn."""


_NARROW = 16
"""Elements of a row that a thread has where it accesses them one by one."""


def read_twice_config(n: int, width: int, bits: int, device: Device, columns: int = 0) -> RowwiseConfig:
    """Of norms whose rows cannot be streamed: as for softmax, with half the threads, as there are more numbers to hold.

    Of narrow accesses a thread has few, so that there are registers for more threads, which hide each other's waiting.
    """
    cluster = arrays.power_of_two(-(-n // (512 * _NARROW)))
    if width == 1 and n > 128 * _NARROW and cluster <= device.cluster:
        threads = min(512, arrays.power_of_two(-(-n // _NARROW)))
        few = n <= threads * cluster * 12
        return RowwiseConfig(threads, threads, cluster, 0, (1024 if few else 512) // threads)
    chosen = shared_config(n, width, bits, device)
    if chosen.shared and chosen.threads == chosen.row_threads:
        threads = min(256, chosen.threads)
        chosen = dataclasses.replace(chosen, threads=threads, row_threads=threads)
    return dataclasses.replace(chosen, together=1 if chosen.shared else min(2, chosen.together))


def softmax_gradient_rule(problem: Rows, device: Device) -> Any:
    """Long rows are streamed, where all accesses are as wide as can be."""
    least = min(x.size for x in (*problem.sources, *problem.outs))
    if problem.width * least == arrays.MAX_VECTOR_BYTES and problem.n > LONGEST_UNSTREAMED:
        config = streaming_config(problem, device)
        if config is not None:
            return config
    return shared_config(problem.n, problem.width, problem.bits, device)


def norm_gradient_rule(problem: Rows, device: Device) -> Any:
    """Rows are streamed where they can be, else read twice."""
    found = streaming_config(problem, device)
    return found or read_twice_config(problem.n, problem.width, problem.bits, device)


def norm_backward(
    name: str, kind: type[Any], dy: Any, x: Any, weight: Any, bias: bool, eps: float, out: Any, config: Any, *more: Any
) -> tuple[Any, ...]:
    """Gradients of a norm; `more` of what was the norm's input itself."""
    arrays.require(
        isinstance(bias, (bool, int)),
        f"{name} with bias {type(bias).__name__}",
        hint="True, if its gradient is wanted: the bias itself has no influence on it",
    )
    arrays.require(x.ndim >= 1, f"{name} of an array without modes")
    if out is None:
        out = arrays.empty_like(x)
    made = [arrays.empty(like, (x.shape[-1],), None) for like in [*([] if weight is None else [weight]), *[x] * bias]]
    run_rows(name, kind, [x, dy, *more], [out], [weight], norm_numbers(x, eps), norm_gradient_rule, config, made)
    left = iter(made)
    return out, None if weight is None else next(left), next(left) if bias else None


# --- the functions ---------------------------------------------------------------------------------------------------


@kernel_function("dy", "y", "out")
def softmax_backward(dy: Any, y: Any, *, out: Any = None, config: Any = None) -> Any:
    """The gradient of what `softmax` was given, from that of its result `y`: y (dy - sum(y dy)), along the last mode."""
    if out is None:
        out = arrays.empty_like(dy)
    run_rows("softmax_backward", SoftmaxGradient, [y, dy], [out], [], (), softmax_gradient_rule, config)
    return out


@kernel_function("dy", "x", "weight", "out")
def rms_norm_backward(
    dy: Any, x: Any, weight: Any = None, *, eps: float = 1e-6, out: Any = None, config: Any = None
) -> tuple[Any, Any]:
    """The gradients of what `rms_norm` was given, from that of its result: of `x`, and of `weight` (None without).

    `out` is written that of `x`. That of `weight` has its type; it is summed in f32, in a fixed order.
    """
    return norm_backward("rms_norm_backward", RmsNormGradient, dy, x, weight, False, eps, out, config)[:2]


@kernel_function("dy", "x", "weight", "out")
def layer_norm_backward(
    dy: Any, x: Any, weight: Any = None, *, bias: bool = False, eps: float = 1e-5, out: Any = None, config: Any = None
) -> tuple[Any, Any, Any]:
    """The gradients of what `layer_norm` was given, from that of its result: of `x`, `weight` and the bias.

    That of `weight` is None without one, that of the bias (of the type of `x`) unless `bias` asks for it.
    """
    return norm_backward("layer_norm_backward", LayerNormGradient, dy, x, weight, bias, eps, out, config)
