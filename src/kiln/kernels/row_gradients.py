"""Gradients of softmax, RMSNorm and LayerNorm.

Statistics of a row are found again from the row itself, which must be read anyway: nothing but the inputs is needed of the
forward pass. Gradients of weights and biases are sums over rows. Where a block's threads can hold sums for all columns of
their rows, each block sums over the rows it takes in turn; longer rows are read again, by a kernel that sums over columns with
the statistics noted by the first. What the blocks have is added by a last kernel, in a fixed order.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .. import cute
from ..base_dsl.typing import Float32, Int32, Int64
from . import arrays, devices, plans
from .calls import kernel_function
from .norm_sums import NormSums
from .reductions import sum as sum_over
from .row_kernel import WARP, Part, RowKernel, RowTiling, State, across, plus, total
from .row_plans import RowLaunch, check, default_tiling, matrix_of, row_plan, taken_as_rows, target_for, width_of
from .rows import joined_spread, norm_numbers, reciprocal

if TYPE_CHECKING:
    from collections.abc import Callable

    from .devices import Device

__all__ = ["layer_norm_backward", "rms_norm_backward", "softmax_backward"]


class SoftmaxGradient(RowKernel):
    """Of the results and their gradients. A finding is the sum of their products."""

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


def summed_up(states: list[State], lanes: int) -> State:
    """Findings that are sums."""
    found: list[Any] = []
    for parts in zip(*states, strict=True):
        value = parts[0]
        for more in parts[1:]:
            value = value + more
        found.append(across(value, plus, lanes))
    return tuple(found)


class RmsNormGradient(RowKernel):
    """Of the inputs and the gradients of the results. A finding is a sum of squares, and one of inputs times gradients."""

    fields = 2

    def fresh(self) -> State:
        return Float32(0.0), Float32(0.0)

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        squares: Any = None
        products: Any = None
        for v in range(part.count):
            x, dy = part.values(v)
            weights = part.columns(v)
            scaled = dy * weights[0] if weights else dy
            squares = x * x if squares is None else cute.math.fma(x, x, squares)
            products = x * scaled if products is None else cute.math.fma(x, scaled, products)
        found = (total(squares), total(products))
        return found if state is None else (state[0] + found[0], state[1] + found[1]), None

    def merge(self, states: list[State], lanes: int) -> State:
        return summed_up(states, lanes)

    def results(
        self, values: list[Any], columns: list[Any], kept: Any, own: State, state: State, numbers: Any, n: Any
    ) -> list[Any]:
        x, dy = values
        scale = cute.math.rsqrt(state[0] * numbers[1] + numbers[0])
        shared = scale * scale * state[1] * numbers[1]
        scaled = dy * columns[0] if columns else dy
        found = [(scaled - x * shared) * scale]
        if self.problem.sums:
            found.append(dy * (x * scale))
        return found

    def noted(self, state: State, numbers: tuple[Any, ...]) -> list[Any]:
        return [Float32(0.0), cute.math.rsqrt(state[0] * numbers[1] + numbers[0])]


class LayerNormGradient(RowKernel):
    """Of the inputs and the gradients of the results.

    A finding is a number of elements, their mean, the sum of the squares of their distances from it, the sum of the gradients
    and that of the gradients times the distances.
    """

    fields = 5

    def fresh(self) -> State:
        return tuple(Float32(0.0) for _ in range(5))

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        summed: Any = None
        for v in range(part.count):
            x = part.values(v)[0]
            summed = x if summed is None else summed + x
        count = part.elements()
        mean = total(summed) * reciprocal(count)
        part.again()
        squares: Any = None
        gradients: Any = None
        products: Any = None
        for v in range(part.count):
            x, dy = part.values(v)
            weights = part.columns(v)
            scaled = dy * weights[0] if weights else dy
            distance = part.kept(v, x - mean, 0.0)
            squares = distance * distance if squares is None else cute.math.fma(distance, distance, squares)
            gradients = scaled if gradients is None else gradients + scaled
            products = distance * scaled if products is None else cute.math.fma(distance, scaled, products)
        found = (count, mean, total(squares), total(gradients), total(products))
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
        x, dy = values
        scale = cute.math.rsqrt(state[2] * numbers[1] + numbers[0])
        shared = scale * state[4] * numbers[1]
        normal = (x - state[1]) * scale
        scaled = dy * columns[0] if columns else dy
        found = [(scaled - state[3] * numbers[1] - normal * shared) * scale]
        if columns and self.problem.sums:
            found.append(dy * normal)
        if self.problem.sums > len(columns):
            found.append(dy)
        return found

    def noted(self, state: State, numbers: tuple[Any, ...]) -> list[Any]:
        return [state[1], cute.math.rsqrt(state[2] * numbers[1] + numbers[0])]


# --- plans -----------------------------------------------------------------------------------------------------------


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def softmax_gradient_tiling(n: int, width: int, bits: int, device: Device, columns: int = 0) -> RowTiling:
    """As for softmax, with half as much of a row to a block: there are two matrices."""
    units = -(-n // width)
    if width * bits < 128 or units <= 1024:
        return default_tiling(n, width, bits, device)
    for each in (2048, 4096):
        cluster = _power_of_two(-(-units // each))
        if cluster <= device.cluster:
            return RowTiling(512, 512, cluster, 1, 0, 4096 // each)
    return RowTiling(512, 512)


MOST_SUMS = 16
"""Columns for which a thread sums over rows at most, by default."""


def gradient_tiling(n: int, width: int, bits: int, device: Device, columns: int = 0) -> RowTiling:
    """Blocks that take rows in turn, with few elements to a thread, as it has sums for each; the next row is on its way.

    Rows that are too long for that are cut as those of softmax.
    """
    row_threads = _power_of_two(-(-n // max(width, MOST_SUMS)))
    if row_threads > 512:
        chosen = softmax_gradient_tiling(n, width, bits, device)
        if not chosen.stages:
            return chosen
        # with half the threads: there are more numbers to hold, and predicates where the threads do not fill the row
        exact = n % (width * 256 * chosen.cluster) == 0
        together = chosen.together + (chosen.together == 2 and exact)
        return dataclasses.replace(chosen, threads=256, row_threads=256, together=together)
    threads = max(128, row_threads)
    together = {128: 3, 256: 2}.get(threads, 1)
    return RowTiling(threads, row_threads, 1, 2 if width * bits >= 32 else 0, together, together)


def _norm_backward(
    name: str, kind: type[Any], dy: Any, x: Any, weight: Any, bias: bool, eps: float, out: Any, tiling: RowTiling | None
) -> tuple[Any, ...]:
    if out is None:
        out = arrays.empty_like(x)
    return _norm_plan(name, kind, dy, x, weight, bias, eps, out, tiling)(dy, x, weight, out)


def _norm_plan(
    name: str, kind: type[Any], dy: Any, x: Any, weight: Any, bias: bool, eps: float, out: Any, tiling: RowTiling | None
) -> Callable[..., tuple[Any, ...]]:
    check(name, [x, dy], [out], [weight])
    n = x.shape[-1]
    sums = int(weight is not None) + int(bias)
    kinds = [weight if weight is not None else x] * sums
    if 0 in x.shape:

        def nothing(dy: Any, x: Any, weight: Any, out: Any) -> tuple[Any, ...]:
            made = [arrays.empty(like, (n,), None) for like in kinds]
            for vector in made:
                arrays.fill(vector, 0)
            return _ordered(out, made, weight is not None, bias)

        return nothing
    given = _taken(dy, x, weight, out)
    chosen = tiling or _chosen(given)
    turns = chosen.resident > 0 and chosen.vectors(n, 1) > 0
    launch = RowLaunch(
        kind, given[:2], given[2:3], given[3:], norm_numbers(x, eps), chosen, gradient_tiling,
        sums if turns else 0, 0 if turns or not sums else 2,
    )  # fmt: skip
    parts, each = (launch.lines, 0) if turns else _parts(launch)

    def scratch(like: Any) -> tuple[list[Any], list[Any]]:
        wanted = arrays.framework_dtype(Float32, like)
        notes = [] if turns or not sums else [arrays.empty(like, (launch.rows,), wanted) for _ in range(2)]
        return notes, [arrays.empty(like, (parts, n), wanted) for _ in range(sums)]

    notes, partial = scratch(x)
    run = launch.launcher([*given, *(notes or partial)])
    add = None
    if notes:
        types, width = (arrays.element_type(x), arrays.element_type(dy)), launch.width
        kernel = plans.made(NormSums, types, width, n % (WARP * width) == 0, weight is not None, bias)
        steps = tuple(Int64(step) for step in launch.steps[:2])
        add = plans.launcher(
            kernel, [*given[:2], *notes, *partial], Int32(launch.rows), Int32(n), steps, Int32(parts), Int32(each)
        )

    before = [x, dy, out, weight]
    copied = any(a is not b for a, b in zip(given, before, strict=True))

    def plan(dy: Any, x: Any, weight: Any, out: Any) -> tuple[Any, ...]:
        taken = _taken(dy, x, weight, out) if copied else [x, dy, out, weight]
        notes, partial = scratch(x)
        run([a for a in (*taken, *(notes or partial)) if a is not None])
        if add is not None:
            add([*taken[:2], *notes, *partial])
        if taken[2] is not out:
            arrays.assign(out, taken[2])
        made = [arrays.empty(like, (n,), None) for like in ([weight] if weight is not None else []) + [x] * bias]
        for vector, found in zip(made, partial, strict=True):
            sum_over(found, 0, out=vector)
        return _ordered(out, made, weight is not None, bias)

    return plan


def _taken(dy: Any, x: Any, weight: Any, out: Any) -> list[Any]:
    """Inputs, gradients, what is written and weights, as kernels take them."""
    return [taken_as_rows(x), taken_as_rows(dy), target_for(out), None if weight is None else arrays.contiguous(weight)]


def _chosen(given: list[Any]) -> RowTiling:
    """How rows are cut by default."""
    laid = [m for m in map(matrix_of, given[:3]) if m is not None]
    width = min([m.width for m in laid] + ([] if given[3] is None else [width_of(given[3], laid[0].n, laid[0].n)]))
    bits = max(arrays.element_type(x).width for x in given[:2])
    return gradient_tiling(laid[0].n, width, bits, devices.current())


def _parts(launch: RowLaunch) -> tuple[int, int]:
    """Over how many blocks rows are spread, for each column, and how many rows each has."""
    columns = -(-launch.n // (WARP * launch.width))
    step = NormSums.threads // WARP * NormSums.unroll
    wanted = -(-4 * devices.current().multiprocessors // columns)
    each = -(-launch.rows // (wanted * step)) * step
    return -(-launch.rows // each), each


def _ordered(out: Any, made: list[Any], weighted: bool, biased: bool) -> tuple[Any, ...]:
    left = iter(made)
    return out, next(left) if weighted else None, next(left) if biased else None


# --- the functions ---------------------------------------------------------------------------------------------------


@kernel_function("dy", "y", "out")
def softmax_backward(dy: Any, y: Any, *, out: Any = None, tiling: RowTiling | None = None) -> Any:
    """The gradient of what `softmax` was given, from that of its result `y`: y (dy - sum(y dy)), along the last mode."""
    if out is None:
        out = arrays.empty_like(dy)
    run = row_plan("softmax_backward", SoftmaxGradient, [y, dy], [out], [], (), tiling, softmax_gradient_tiling)
    run([y, dy, out])
    return out


@kernel_function("dy", "x", "weight", "out")
def rms_norm_backward(
    dy: Any, x: Any, weight: Any = None, *, eps: float = 1e-6, out: Any = None, tiling: RowTiling | None = None
) -> tuple[Any, Any]:
    """The gradients of what `rms_norm` was given, from that of its result: of `x`, and of `weight` (None without).

    `out` is written that of `x`. That of `weight` has its type; it is summed in f32, in a fixed order.
    """
    return _norm_backward("rms_norm_backward", RmsNormGradient, dy, x, weight, False, eps, out, tiling)[:2]


@kernel_function("dy", "x", "weight", "out")
def layer_norm_backward(
    dy: Any,
    x: Any,
    weight: Any = None,
    *,
    bias: bool = False,
    eps: float = 1e-5,
    out: Any = None,
    tiling: RowTiling | None = None,
) -> tuple[Any, Any, Any]:
    """The gradients of what `layer_norm` was given, from that of its result: of `x`, `weight` and the bias.

    That of `weight` is None without one, that of the bias (of the type of `x`) unless `bias` asks for it.
    """
    return _norm_backward("layer_norm_backward", LayerNormGradient, dy, x, weight, bias, eps, out, tiling)
