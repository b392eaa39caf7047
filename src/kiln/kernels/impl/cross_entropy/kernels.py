"""The kernels of cross-entropy: of each row, of all rows together, and their gradient."""

from __future__ import annotations

import dataclasses
from math import inf
from typing import Any

from .... import Boolean, Float32, Int32, Int64, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ....utils.reductions import reduce_in_block
from ...dispatch import arrays
from ...parts.unaligned_rows import Span, element_at, vector_atom, vectors_at
from ...parts.vectors import across, as_f32, larger, maximum, plus, total
from ..rowwise.row_kernel import RowKernel, RowProblem, launch
from ..rowwise.row_statistics import State
from ..rowwise.softmax_and_norms import LOG2_E, exp2

LN_2 = 0.6931471805599453
_LOWEST = -3.0e38
"""The least maximum times log2(e): finite, so that differences of two are numbers."""


@dataclasses.dataclass(frozen=True)
class Loss:
    """Types of targets and of gradients of the loss (None: a number), and what is computed."""

    target: Any
    smoothed: bool
    outer: Any = None
    each: bool = False
    """Whether each row has its own gradient of the loss."""
    overlaps: bool = False
    """Whether a kernel of the device may begin while the one before it ends."""


class CrossEntropy(RowKernel):
    """The loss and the logarithm of the sum of exponentials of each row, which is read once and not held.

    A finding is the maximum times log2(e), the sum of 2 to the powers of what is below it and, for smoothed labels, the sum.
    """

    def __init__(self, problem: RowProblem, odd: bool, loss: Loss, total: Total | None) -> None:
        super().__init__(problem)
        self.total: Any = total
        self.odd = odd
        self.loss = loss
        self.fields = 3 if loss.smoothed else 2

    @cute.jit
    def __call__(
        self,
        places: Any,
        rows: Int32,
        n: Int32,
        step: Int64,
        lead: Int32,
        ignored: Int64,
        smoothing: Float32,
        blocks: Int32,
        stream: Int64,
    ):
        logits, target, losses, lse = places[:4]
        line, dtype = cute.make_layout((rows,)), self.problem.sources[0]
        call = self.losses(
            matrix(logits, dtype, rows, n, step, 1 if const_expr(self.odd) else self.width),
            cute.make_tensor(arrays.pointer(target, self.loss.target, 1), line),
            cute.make_tensor(arrays.pointer(losses, Float32, 1), line),
            cute.make_tensor(arrays.pointer(lse, Float32, 1), line),
            rows, n, lead, Int32(step), ignored, smoothing,
        )  # fmt: skip
        launch(call, self.config, blocks, stream)
        if const_expr(self.total is not None):
            self.total((target, places[4], losses), rows, ignored, stream)

    @cute.kernel
    def losses(
        self, logits: cute.Tensor, target: cute.Tensor, losses: cute.Tensor, lse: cute.Tensor, rows: Int32, n: Int32,
        lead: Int32, skew: Int32, ignored: Int64, smoothing: Float32,
    ):  # fmt: skip
        config = self.config
        thread = arch.thread_idx()[0]
        block = arch.block_idx()[0]
        rank = block % config.cluster
        lane = thread % config.row_threads
        within = thread // config.row_threads
        row = block // config.cluster * config.rows + within
        exists = row < rows
        place = row if exists else Int32(0)
        span = Span(lead + place * skew if const_expr(self.odd) else None, n, self.width)
        line = logits[place, None]
        middle = span.middle(line)
        units = span.units if exists else Int32(0)
        slots = config.cluster * max(1, config.row_threads // 32)
        exchange = self.exchange_buffer(slots)
        if const_expr(config.cluster > 1):
            arch.cluster_arrive_relaxed()
            arch.cluster_wait()
        at, step = rank * (config.row_threads * self.vectors) + lane, config.cluster * config.row_threads * self.vectors
        edges = span.edges(rank * config.row_threads + lane, config.cluster * config.row_threads)
        alone = [element_at(line, column, exists & (column < n), -inf) for column in edges]
        writes = exists & (rank == 0) & (lane == 0)
        label = ignored
        if writes:
            label = Int64(target[row])
        named = element_at(line, label, (label != ignored) & (label >= 0) & (label < n))
        state = self.fresh()
        for start in range(0, units, step):
            held = vectors_at(middle, self.width, self.vectors, start + at, config.row_threads, units, -inf)
            state = self.seen(state, held, start + at, units)
        for value, column in zip(alone, edges, strict=True):
            state = self.grown(state, value, exists & (column < n))
        if const_expr(self.total is not None and self.loss.overlaps):
            arch.griddepcontrol_launch_dependents()
        state = self.gathered(state, exchange, within, thread, rank, slots)
        if writes:
            found = (state[0] + cute.math.log2(state[1], approx=True)) * LN_2
            value = Float32(0.0)
            if label != ignored:
                value = found - named if (label >= 0) & (label < n) else Float32(float("nan"))
                if const_expr(self.loss.smoothed):
                    even = found - state[2] / Float32(n)
                    value = value + smoothing * (even - value)
            losses[row] = value
            lse[row] = found

    def fresh(self) -> State:
        return (Float32(_LOWEST), *(Float32(0.0) for _ in range(self.fields - 1)))

    def seen(self, state: State, held: Any, at: Any, units: Any) -> State:
        """What is known after a thread's vectors of a chunk."""
        values = [held[None, v].load() for v in range(self.vectors)]
        most = values[0]
        for x in values[1:]:
            most = larger(most, x)
        highest = maximum(state[0], total(most, larger).to(Float32) * LOG2_E)
        wide = [as_f32(x) for x in values]
        summed: Any = None
        for x in wide:
            power = exp2(cute.math.fma(x, LOG2_E, -highest))
            summed = power if summed is None else summed + power
        found = (highest, state[1] * exp2(state[0] - highest) + total(summed))
        if not self.loss.smoothed:
            return found
        plain: Any = None
        for v, x in enumerate(wide):
            there = cute.full_like(x, at + v * self.config.row_threads < units, Boolean)
            kept = cute.where(there, x, cute.full_like(x, 0.0))
            plain = kept if plain is None else plain + kept
        return (*found, state[2] + total(plain))

    def grown(self, state: State, value: Any, there: Any) -> State:
        """What is known after one more element, which may not be there."""
        highest = maximum(state[0], value * LOG2_E)
        summed = state[1] * exp2(state[0] - highest) + exp2(cute.math.fma(value, LOG2_E, -highest))
        return (highest, summed, *(x + select_(there, value, Float32(0.0)) for x in state[2:]))

    def merge(self, states: list[State], lanes: int) -> State:
        highest = states[0][0]
        for state in states[1:]:
            highest = maximum(highest, state[0])
        highest = across(highest, maximum, lanes)
        sums = [Float32(0.0) for _ in range(self.fields - 1)]
        for state in states:
            sums[0] = sums[0] + state[1] * exp2(state[0] - highest)
            for k in range(2, self.fields):
                sums[k - 1] = sums[k - 1] + state[k]
        return (highest, *(across(x, plus, lanes) for x in sums))


class Total:
    """The sum of the losses of all rows, or their mean over the rows that count; or (no `sums`) how many rows count.

    One block: there are few rows, and the order of the sum is fixed. Where launches overlap it has counted, which needs no
    losses, before the kernel that finds those ends.
    """

    threads = 1024
    together = 4
    """Rows a thread reads at a time."""

    def __init__(self, target: Any, sums: bool, averaged: bool, overlaps: bool) -> None:
        self.target = target
        self.sums = sums
        self.averaged = averaged
        self.overlaps = overlaps

    @cute.jit
    def __call__(self, places: Any, rows: Int32, ignored: Int64, stream: Int64):
        line = cute.make_layout((rows,))
        target = cute.make_tensor(arrays.pointer(places[0], self.target, 1), line)
        losses = cute.make_tensor(arrays.pointer(places[2], Float32, 1), line) if const_expr(self.sums) else None
        self.kernel(target, arrays.pointer(places[1], Float32, 1), losses, rows, ignored).launch(
            grid=(1, 1, 1), block=(self.threads, 1, 1), stream=stream, use_pdl=self.sums and self.overlaps
        )

    @cute.kernel
    def kernel(self, target: cute.Tensor, result: Any, losses: Any, rows: Int32, ignored: Int64):
        thread = arch.thread_idx()[0]
        found = Float32(1.0)
        if const_expr(self.overlaps and not self.sums):
            arch.griddepcontrol_launch_dependents()
        if const_expr(self.averaged):
            counted = Int32(0)
            for start in range(thread, rows, self.threads * self.together):
                for label in self.several(target, start, rows, ignored):
                    counted = counted + Int32(label != ignored)
            found = Float32(reduce_in_block(counted, plus, self.threads, self.threads))
        if const_expr(self.sums):
            if const_expr(self.overlaps):
                arch.griddepcontrol_wait()
            summed = Float32(0.0)
            for start in range(thread, rows, self.threads * self.together):
                for loss in self.several(losses, start, rows, Float32(0.0)):
                    summed = summed + loss
            found = reduce_in_block(summed, plus, self.threads, self.threads) / found
        if thread == 0:
            result.store(found)

    @cute.jit
    def several(self, x: Any, start: Any, rows: Any, instead: Any):
        """Numbers of some rows, all on their way before one is needed."""
        found = [instead for _ in range(self.together)]
        for k in range_constexpr(self.together):
            row = start + k * self.threads
            if row < rows:
                found[k] = type(instead)(x[row])
        return found


_MOST_IN_MODE = 65535
"""Blocks along a mode of a grid that is not the first."""


class CrossEntropyGradient:
    """The gradient of the logits: (softmax - labels) times that of the row's loss. A block computes a part of a row."""

    def __init__(
        self,
        dtype: Any,
        out: Any,
        width: int,
        odd: bool,
        exact: bool,
        threads: int,
        vectors: int,
        loss: Loss,
        counter: Total | None,
    ) -> None:
        self.dtype = dtype
        self.out = out
        self.width = width
        self.odd = odd
        self.exact = exact
        self.threads = threads
        self.vectors = vectors
        self.loss = loss
        self.counter: Any = counter

    @cute.jit
    def __call__(
        self, places: Any, rows: Int32, n: Int32, steps: Any, lead: Int32, ignored: Int64, smoothing: Float32, outer: Float32,
        parts: Int32, stream: Int64,
    ):  # fmt: skip
        logits, target, lse, out = places[:4]
        rest = places[4:]
        count = None
        if const_expr(self.counter is not None):
            self.counter((target, rest[0]), rows, ignored, stream)
            count, rest = arrays.pointer(rest[0], Float32, 1), rest[1:]
        given = arrays.pointer(rest[0], self.loss.outer, 1) if const_expr(self.loss.outer is not None) else outer
        line, width = cute.make_layout((rows,)), 1 if const_expr(self.odd) else self.width
        self.kernel(
            matrix(logits, self.dtype, rows, n, steps[0], width), matrix(out, self.out, rows, n, steps[1], width),
            cute.make_tensor(arrays.pointer(target, self.loss.target, 1), line),
            cute.make_tensor(arrays.pointer(lse, Float32, 1), line), count, given, rows, n, lead, Int32(steps[0]), ignored,
            smoothing,
        ).launch(
            grid=(parts, min(rows, _MOST_IN_MODE), cute.ceil_div(rows, _MOST_IN_MODE)), block=(self.threads, 1, 1),
            stream=stream, use_pdl=self.counter is not None and self.loss.overlaps,
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self, x: cute.Tensor, y: cute.Tensor, target: cute.Tensor, lse: cute.Tensor, count: Any, outer: Any, rows: Int32,
        n: Int32, lead: Int32, skew: Int32, ignored: Int64, smoothing: Float32,
    ):  # fmt: skip
        part, low, high = arch.block_idx()
        row = high * _MOST_IN_MODE + low
        if row < rows:
            span = Span(lead + row * skew if const_expr(self.odd) else None, n, self.width)
            self.compute(
                x[row, None], y[row, None], target[row], lse[row], count, outer, row, n, part, span, ignored, smoothing
            )

    @cute.jit
    def compute(
        self, x: Any, y: Any, target: Any, lse: Any, count: Any, outer: Any, row: Any, n: Any, part: Any, span: Any,
        ignored: Any, smoothing: Any,
    ):  # fmt: skip
        """A part of a row. The first part has the row's edges, too."""
        threads, width, thread = self.threads, self.width, arch.thread_idx()[0]
        first = part * (threads * self.vectors) + thread
        edges = span.edges(thread, threads)
        alone = [element_at(x, column, (part == 0) & (column < n)) for column in edges]
        units = None if const_expr(self.exact) else span.units
        held = vectors_at(span.middle(x), width, self.vectors, first, threads, units)
        label, base, scale = Int64(target), lse * LOG2_E, Float32(0.0)
        if const_expr(self.counter is not None and self.loss.overlaps):
            arch.griddepcontrol_wait()
        if label == ignored:  # no gradient, whatever the logits are
            held.fill(0)
            alone = [Float32(0.0) for _ in alone]
            base = Float32(0.0)
        else:
            if const_expr(self.loss.outer is None):
                scale = outer
            else:
                scale = (outer + (row if const_expr(self.loss.each) else 0)).load().to(Float32)
            if const_expr(self.counter is not None):
                scale = scale / count.load()
        even = smoothing / Float32(n) * scale
        sure = (1.0 - smoothing) * scale
        known = Int32(label) if (label >= 0) & (label < n) else Int32(-1)
        middle = span.middle(y)
        store = vector_atom(self.out, width)
        for v in range_constexpr(self.vectors):
            at = first + v * threads
            made = cute.make_rmem_tensor((width,), Float32)
            made.store(self.gradient(as_f32(held[None, v].load()), base, scale, even))
            place = known - (span.head + at * width)
            if (place >= 0) & (place < width):
                for i in range_constexpr(width):
                    made[i] = made[i] - sure if place == i else made[i]
            written = cute.make_rmem_tensor((width,), self.out)
            written.store(made.load().to(self.out))
            there = None if const_expr(self.exact) else at < span.units
            cute.copy(store, written, cute.local_tile(middle, (width,), (at,)), pred=there)
        for value, column in zip(alone, edges, strict=True):
            if (part == 0) & (column < n):
                found = self.gradient(value, base, scale, even)
                y[column] = (found - sure if column == known else found).to(self.out)

    def gradient(self, x: Any, base: Any, scale: Any, even: Any) -> Any:
        """That of a logit, or of some, that are not the label."""
        power = exp2(cute.math.fma(x, LOG2_E, -base))
        return cute.math.fma(power, scale, -even) if self.loss.smoothed else power * scale


def matrix(address: Any, dtype: Any, rows: Any, n: Any, step: Any, width: int) -> Any:
    """A matrix at an address; rows are `step` elements apart, a multiple of `width` as is its address."""
    layout = cute.make_layout((rows, n), stride=(cute.assume(step, divby=width) if width > 1 else step, 1))
    return cute.make_tensor(arrays.pointer(address, dtype, width), layout)
