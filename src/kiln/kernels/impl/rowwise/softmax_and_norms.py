"""Functions of the rows of a matrix: softmax, RMSNorm, LayerNorm. Computed in f32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, NumericMeta, cute
from ....cute import arch
from ....cute.nvgpu import CacheEvictionPriority
from ...dispatch import arrays
from ...dispatch.recorder import kernel_function
from ...parts.vectors import across, larger, maximum, plus, total
from .arguments import run_rows
from .default_configs import default_config, even_threads, quantized_rule
from .problem import by_length
from .row_kernel import WARP, Part, RowKernel, RowwiseConfig
from .row_statistics import State, most_of, summed_up
from .streaming import StreamingRowwiseConfig

if TYPE_CHECKING:
    from ...dispatch.devices import Device

__all__ = ["layer_norm", "rms_norm", "softmax"]

LOG2_E = 1.4426950408889634
_LOWEST = -3.0e38
"""The least maximum: finite, so that differences of two are numbers."""


def exp2(x: Any) -> Any:
    """2 to the power of x; 0 for minus infinity."""
    return cute.math.exp2(x, approx=True)


def weighted(value: Any, columns: list[Any]) -> Any:
    """A value times what stands for its columns first, if there is anything."""
    return value * columns[0] if columns else value


class ForwardKernel(RowKernel):
    """Each row is read once and written once.

    What was written leaves the L2 cache before what was read, though nobody reads that again: memory then takes both 3 % faster,
    measured on an H200. Blocks are launched while the kernel before ends.
    """

    priority = CacheEvictionPriority.EVICT_LAST
    overlaps = True


class Softmax(ForwardKernel):
    """A finding is the maximum, and the sum of the exponentials of what is below it."""

    fields = 2

    def fresh(self) -> State:
        return Float32(_LOWEST), Float32(0.0)

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        most: Any = None
        for v in range(part.count):
            x = part.kept(v, part.values(v)[0], float("-inf"))
            most = x if most is None else larger(most, x)
        before = self.fresh() if state is None else state
        highest = maximum(before[0], total(most, larger))
        part.again()
        powers: list[Any] = []
        summed: Any = None
        for v in range(part.count):
            x = part.kept(v, part.values(v)[0], float("-inf"))
            power = exp2((x - highest) * LOG2_E)
            summed = power if summed is None else summed + power
            powers.append(power)
        found = total(summed)
        if state is not None:
            found = found + state[1] * exp2((state[0] - highest) * LOG2_E)
        return (highest, found), powers if part.in_registers else None

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
            return [exp2((values[0] - state[0]) * LOG2_E) * arch.rcp_approx(state[1])]
        return [kept * (exp2((own[0] - state[0]) * LOG2_E) * arch.rcp_approx(state[1]))]


class RmsNorm(ForwardKernel):
    """A finding is a sum of squares."""

    def fresh(self) -> State:
        return (Float32(0.0),)

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        found = products(part)
        return (found if state is None else state[0] + found,), None

    def merge(self, states: list[State], lanes: int) -> State:
        return summed_up(states, lanes)

    def results(
        self, values: list[Any], columns: list[Any], kept: Any, own: State, state: State, numbers: Any, n: Any
    ) -> list[Any]:
        made = values[0] * cute.math.rsqrt(cute.math.fma(state[0], numbers[1], numbers[0]))
        return [weighted(made, columns)]


class LayerNorm(ForwardKernel):
    """A finding is a number of elements, their mean, and the sum of the squares of their distances from it."""

    fields = 3
    counted = True

    def fresh(self) -> State:
        return Float32(0.0), Float32(0.0), Float32(0.0)

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        return spread(state, part)[0], None

    def merge(self, states: list[State], lanes: int) -> State:
        return joined_spread(states, lanes)

    def results(
        self, values: list[Any], columns: list[Any], kept: Any, own: State, state: State, numbers: Any, n: Any
    ) -> list[Any]:
        scale = cute.math.rsqrt(cute.math.fma(state[2], numbers[1], numbers[0]))
        if kept is None:
            made = (values[0] - state[1]) * scale
        else:
            distance, near = kept
            made = cute.math.fma(distance, *(cute.full_like(distance, x) for x in (scale, (near - state[1]) * scale)))
        scaled, shifted = (dtype is not None for dtype in self.problem.columns)
        if scaled and shifted:
            return [cute.math.fma(made, columns[0], columns[1])]
        return [made * columns[0] if scaled else made + columns[0] if shifted else made]


class Quantized:
    """Of a kind of rows: results are divided by a number of their row."""

    quantizes = True
    between_edges = False


class QuantizedRmsNorm(Quantized, RmsNorm):
    """RMSNorm, quantized. A finding is a sum of squares, and the largest magnitude of elements times weights, which are kept."""

    fields = 2
    finds_largest = True

    def fresh(self) -> State:
        return Float32(0.0), Float32(0.0)

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        squares: Any = None
        made: list[Any] = []
        for v in range(part.count):
            (x,), weights = part.values(v), part.columns(v)
            part.prepare(v + 1)
            squares = x * x if squares is None else cute.math.fma(x, x, squares)
            made.append(weighted(x, weights))
        found = total(squares), largest_magnitude(made)
        if state is not None:
            found = state[0] + found[0], maximum(state[1], found[1])
        return found, made if part.few else None

    def merge(self, states: list[State], lanes: int) -> State:
        squares, largest = ([state[k : k + 1] for state in states] for k in range(2))
        return *summed_up(squares, lanes), *most_of(largest, lanes)

    def results(
        self, values: list[Any], columns: list[Any], kept: Any, own: State, state: State, numbers: Any, n: Any
    ) -> list[Any]:
        return [weighted(values[0], columns) if kept is None else kept]

    def largest_of(self, state: State, numbers: tuple[Any, ...]) -> tuple[Any, Any]:
        scale = cute.math.rsqrt(cute.math.fma(state[0], numbers[1], numbers[0]))
        return state[1] * scale, scale


class QuantizedLayerNorm(Quantized, LayerNorm):
    """LayerNorm, quantized. Distances are kept: instructions are what it has fewest of, beside 3 bytes for each element."""

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        found, distances = spread(state, part)
        return found, distances if part.few else None


def largest_magnitude(vectors: list[Any]) -> Any:
    """Of the elements of some vectors; those that are no numbers do not count."""
    found: Any = None
    for value in vectors:
        size = cute.math.abs(value)
        found = size if found is None else larger(found, size)
    return total(found, larger)


def products(part: Part) -> Any:
    """The sum of squares of a thread's part of a row."""
    summed: Any = None
    for v in range(part.count):
        (x,) = part.values(v)
        summed = x * x if summed is None else cute.math.fma(x, x, summed)
    return total(summed)


def spread(state: State | None, part: Part) -> tuple[State, list[Any]]:
    """Number, mean and sum of squared distances of elements seen before and of a thread's part of a row; distances, and from what.

    Distances are from one of the elements: it is not so far from the others that the difference of sums would lose them.
    """
    first = part.first()[0][0]
    summed: Any = None
    squares: Any = None
    distances: list[Any] = []
    for v in range(part.count):
        distance = part.kept(v, part.values(v)[0] - first, 0.0)
        distances.append((distance, first))
        summed = distance if summed is None else summed + distance
        squares = distance * distance if squares is None else cute.math.fma(distance, distance, squares)
    count, whole = part.elements(), total(summed)
    share = reciprocal(count)
    ahead = whole * share
    found = (count, cute.math.fma(whole, share, first), maximum(total(squares) - whole * ahead, Float32(0.0)))
    return found if state is None else joined_spread([state, found], 1), distances


def reciprocal(count: Any) -> Any:
    """1 over a number of elements; 1 for none."""
    return 1.0 / count if isinstance(count, float) else arch.rcp_approx(maximum(count, Float32(1.0)))


def joined_spread(states: list[State], lanes: int) -> State:
    """The same of several parts. Where numbers of elements are known, they are the same in all of them."""
    if isinstance(states[0][0], float):
        count: Any = states[0][0] * len(states) * lanes
        means = states[0][1]
        for state in states[1:]:
            means = means + state[1]
        mean = across(means, plus, lanes) * (1.0 / (len(states) * lanes))
    else:
        base = (
            states[0][1] if lanes == 1 else arch.shuffle_sync(states[0][1], 0, mask_and_clamp=(WARP - lanes) << 8 | 31)
        )
        summed, weighted = Float32(0.0), Float32(0.0)
        for state in states:
            summed, weighted = summed + state[0], weighted + state[0] * (state[1] - base)
        count = across(summed, plus, lanes)
        mean = base + across(weighted, plus, lanes) * reciprocal(count)
    squares: Any = None
    for state in states:
        distance = state[1] - mean
        found = cute.math.fma(distance * state[0], distance, state[2])
        squares = found if squares is None else squares + found
    return count, mean, across(squares, plus, lanes)


# --- the functions ---------------------------------------------------------------------------------------------------


def forward_config(n: int, width: int, bits: int, device: Device, columns: int = 0) -> RowwiseConfig:
    """Rows of 8 to 16 kB in registers, two vectors to a thread, unless there are many columns to read for each."""
    units = -(-n // width)
    if (
        width * bits == 128 and 128 < units <= 1024 and units & (units - 1)
    ):  # no power of two: as few threads idle as can be
        if (
            columns > 1
        ):  # few threads have many vectors each: what a row costs besides its elements is shared by more of them
            threads = even_threads(units, 7, few=True)
            return RowwiseConfig(threads, threads, 1, 7, 640 // threads)
        threads = even_threads(units, 7 if columns else 5)
        vectors, block = -(-units // threads), max(128, threads)
        return RowwiseConfig(block, threads, 1, vectors if columns else 0, 1024 // block if columns else 768 // block)
    if width * bits != 128 or not 512 < units <= 1024:
        return default_config(n, width, bits, device, columns)
    together = 4 if units == 1024 else 3  # predicates take registers, too
    if columns < 2 or bits == 32:
        return RowwiseConfig(512, 512, 1, 0, together)
    return RowwiseConfig(256, 256, 1, 4, together)


MOST_OF_A_BLOCK = 13 * 512
"""Vectors of a row that a block holds where a cluster's threads would be without them for the most part."""


def softmax_config(
    n: int, width: int, bits: int, device: Device, columns: int = 0
) -> RowwiseConfig | StreamingRowwiseConfig:
    """Rows of 64 to 128 kB are held by a block, in part in registers. Longer ones are streamed: much is computed meanwhile."""
    units = -(-n // width)
    cluster = arrays.power_of_two(-(-units // 4096))
    if width * bits != 128 or units <= 4096 or cluster > device.cluster:
        return forward_config(n, width, bits, device)
    return (
        RowwiseConfig(512, 512, 1, 12, 2)
        if cluster == 2
        else StreamingRowwiseConfig(512, 512, cluster, 4, overlapped=True)
    )


def rms_norm_config(
    n: int, width: int, bits: int, device: Device, columns: int = 0
) -> RowwiseConfig | StreamingRowwiseConfig:
    """Rows of more than 64 kB are shared by many small blocks, in part in registers; the longest are streamed."""
    units = -(-n // width)
    cluster = arrays.power_of_two(-(-units // 2048))
    if width * bits != 128 or units <= 4096 or cluster > device.cluster:
        return forward_config(n, width, bits, device, columns)
    if units <= MOST_OF_A_BLOCK:
        return RowwiseConfig(512, 512, 1, 13, 2)
    return RowwiseConfig(128, 128, cluster, 12, 8) if cluster <= 8 else StreamingRowwiseConfig(512, 512, cluster, 6)


def layer_norm_config(
    n: int, width: int, bits: int, device: Device, columns: int = 0
) -> RowwiseConfig | StreamingRowwiseConfig:
    """Rows of more than 64 kB are streamed: weights and biases then stay in shared memory."""
    units = -(-n // width)
    cluster = arrays.power_of_two(-(-units // 2048))
    if width * bits != 128 or units <= 4096 or cluster > device.cluster:
        return forward_config(n, width, bits, device, columns)
    if units <= MOST_OF_A_BLOCK:
        return RowwiseConfig(512, 512, 1, 13, 2)
    return StreamingRowwiseConfig(512, 512, cluster, 8, overlapped=cluster == 16)


SOFTMAX_RULE, RMS_NORM_RULE, LAYER_NORM_RULE = map(by_length, (softmax_config, rms_norm_config, layer_norm_config))


def norm_numbers(x: Any, eps: float) -> tuple[float, float]:
    """What a norm passes beside sizes."""
    return eps, 1.0 / max(1, x.shape[-1]) if x.ndim else 1.0


@kernel_function("x", "out")
def softmax(x: Any, *, out: Any = None, config: Any = None) -> Any:
    """exp(x) over its sum, along the last mode.

    A row with a NaN or with plus infinity, or of minus infinity alone, becomes NaN.
    """
    if out is None:
        out = arrays.empty_like(x)
    run_rows("softmax", Softmax, [x], [out], [], (), SOFTMAX_RULE, config)
    return out


def quantized_outs(x: Any, quantize: Any, out: Any) -> tuple[list[Any], list[Any]]:
    """The array for a result like `x`, or for a quantized one with that for the numbers of its rows."""
    if quantize is None:
        return [arrays.empty_like(x) if out is None else out], []
    dtype = arrays.framework_dtype(quantize, x) if isinstance(quantize, NumericMeta) else quantize
    arrays.require(out is None, "out of a quantized result", hint="it is made, with the numbers of its rows")
    arrays.require(x.ndim >= 1, "quantized rows of an array without modes")
    wanted = arrays.framework_dtype(Float32, x)
    try:
        made = arrays.empty(x, tuple(x.shape), dtype)
    except TypeError:
        raise arrays.refusal(
            f"quantize={quantize!r} is no type of elements", "cute.Float8E4M3FN or cute.Float8E5M2"
        ) from None
    return [made], [arrays.empty(x, (*x.shape[:-1], 1), wanted)]


@kernel_function("x", "weight", "out")
def rms_norm(
    x: Any, weight: Any = None, *, eps: float = 1e-6, quantize: Any = None, out: Any = None, config: Any = None
) -> Any:
    """x over the root of the mean of its squares plus `eps`, along the last mode, times a weight for each column.

    `quantize` is a type of 8-bit floats: the result is then that of each row over a number, and the numbers, f32 (..., 1).
    """
    outs, notes = quantized_outs(x, quantize, out)
    kind, rule = (QuantizedRmsNorm, quantized_rule) if notes else (RmsNorm, RMS_NORM_RULE)
    run_rows("rms_norm", kind, [x], outs, [weight], norm_numbers(x, eps), rule, config, notes=notes)
    return (*outs, *notes) if notes else outs[0]


@kernel_function("x", "weight", "bias", "out")
def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    quantize: Any = None,
    out: Any = None,
    config: Any = None,
) -> Any:
    """x less its mean over the root of its variance plus `eps`, along the last mode, times a weight, plus a bias.

    `quantize` is as in `rms_norm`.
    """
    outs, notes = quantized_outs(x, quantize, out)
    kind, rule = (QuantizedLayerNorm, quantized_rule) if notes else (LayerNorm, LAYER_NORM_RULE)
    run_rows("layer_norm", kind, [x], outs, [weight, bias], norm_numbers(x, eps), rule, config, notes=notes)
    return (*outs, *notes) if notes else outs[0]
