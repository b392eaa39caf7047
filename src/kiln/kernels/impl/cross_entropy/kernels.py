"""The kernels of cross-entropy: the loss of each row, its reduction over rows, and the gradient."""

from __future__ import annotations

import dataclasses
from math import inf
from typing import Any, NamedTuple

from .... import Boolean, Float32, Int32, Int64, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ....utils.reductions import reduce_in_block
from ...dispatch import arrays
from ...parts.unaligned_rows import Span, element_at, vectors_at
from ...parts.vectors import across, as_f32, larger, maximum, plus, rounded, total, vector_atom
from ..rowwise.row_kernel import Position, RowKernel, RowProblem, launch, row_matrix, vector_at
from ..rowwise.row_statistics import Statistics, max_statistics, sum_statistics
from ..rowwise.softmax_and_norms import LOG2_E, exp2

LN_2 = 0.6931471805599453
_MIN_ROW_MAX = -3.4028234663852886e38
"""The least row_max times log2(e): finite, so that differences of two are numbers."""


@dataclasses.dataclass(frozen=True)
class Loss:
    """What kernels are specialised for besides the rows of logits.

    Element types of the targets and of the gradient of the loss (None: a number). `row_dloss`: each row has its own
    gradient of the loss. `overlaps`: kernels may start while the previous one ends. `unaligned`: rows are unaligned.
    """

    target: type[cute.Numeric]
    smoothed: bool
    dloss: Any = None
    row_dloss: bool = False
    overlaps: bool = False
    unaligned: bool = False


class LossNumbers(NamedTuple):
    """The sizes and options of a call: rows of `n` classes, of which the first begins `lead` elements behind a
    vector."""

    rows: Int32
    n: Any
    lead: Int32
    ignore_index: Any
    smoothing: Any


class CrossEntropy(RowKernel):
    """The loss and LSE of each row, which is read once in chunks.

    Statistics are row_max, row_sum of the exponentials relative to it and, for smoothed labels, the sum of the logits.
    Differences to it are scaled, since a scaled row_max would be rounded otherwise than a logit in a multiply-add.
    """

    def __init__(self, problem: RowProblem, loss: Loss, reduction: LossReduction | None) -> None:
        super().__init__(problem)
        self.reduction: Any = reduction
        self.loss = loss
        self.fields = 3 if loss.smoothed else 2

    @cute.jit
    def __call__(self, addresses: Any, numbers: Any, stride: Int64, ctas: Int32, stream: Int64):
        """Launch so many CTAs. `addresses`: logits, target, losses, lse, and the total, if there is one."""
        logits, target, losses, lse = addresses[:4]
        rows = numbers.rows
        width = 1 if const_expr(self.loss.unaligned) else self.width
        call = self.losses(
            row_matrix(logits, self.problem.sources[0], rows, numbers.n, stride, width),
            vector_at(target, self.loss.target, rows),
            vector_at(losses, Float32, rows),
            vector_at(lse, Float32, rows),
            numbers,
            Int32(stride),
        )
        launch(call, self.config, ctas, stream)
        if const_expr(self.reduction is not None):
            self.reduction((target, addresses[4], losses), rows, numbers.ignore_index, stream)

    @cute.kernel
    def losses(
        self,
        logits: cute.Tensor,
        target: cute.Tensor,
        losses: cute.Tensor,
        lse: cute.Tensor,
        numbers: LossNumbers,
        skew: Int32,
    ):
        config = self.config
        n = numbers.n
        thread = arch.thread_idx()[0]
        block = arch.block_idx()[0]
        rank = block % config.cluster
        lane = thread % config.row_threads
        within = thread // config.row_threads
        row = block // config.cluster * config.rows + within
        exists = row < numbers.rows
        place = row if exists else Int32(0)
        span = Span(numbers.lead + place * skew if const_expr(self.loss.unaligned) else None, n, self.width)
        logit_row = logits[place, None]
        vectors = span.middle(logit_row)
        units = span.units if exists else Int32(0)
        exchange = self.exchange_buffer()
        if const_expr(config.cluster > 1):
            arch.cluster_arrive_relaxed()
            arch.cluster_wait()
        at = rank * (config.row_threads * self.vectors) + lane
        step = config.cluster * config.row_threads * self.vectors
        edges = span.edges(rank * config.row_threads + lane, config.cluster * config.row_threads)
        edge_values = [element_at(logit_row, column, exists & (column < n), -inf) for column in edges]
        writes = exists & (rank == 0) & (lane == 0)
        label = numbers.ignore_index
        if writes:
            label = Int64(target[row])
        counts = label != numbers.ignore_index
        label_logit = element_at(logit_row, label, counts & (label >= 0) & (label < n))
        state = self.initial()
        for start in range(0, units, step):
            chunk = vectors_at(vectors, self.width, self.vectors, start + at, config.row_threads, units, -inf)
            state = self.with_chunk(state, chunk, start + at, units)
        for value, column in zip(edge_values, edges, strict=True):
            state = self.with_element(state, value, exists & (column < n))
        if const_expr(self.reduction is not None and self.loss.overlaps):
            arch.griddepcontrol_launch_dependents()
        state = self.reduce_row(state, exchange, Position(row, exists, at, units, within, thread, rank))
        if writes:
            logarithm = cute.math.log2(state[1], approx=True) * LN_2
            value = Float32(0.0)
            if counts:
                if (label >= 0) & (label < n):
                    value = state[0] - label_logit + logarithm
                else:
                    value = Float32(float("nan"))
                if const_expr(self.loss.smoothed):
                    uniform = state[0] - state[2] / Float32(n) + logarithm
                    value = value + numbers.smoothing * (uniform - value)
            losses[row] = value
            lse[row] = state[0] + logarithm

    def initial(self) -> Statistics:
        return (Float32(_MIN_ROW_MAX), *(Float32(0.0) for _ in range(self.fields - 1)))

    def with_chunk(self, state: Statistics, chunk: cute.Tensor, at: Int32, units: Int32) -> Statistics:
        """Return statistics with a thread's vectors of a chunk."""
        values = [chunk[None, v].load() for v in range(self.vectors)]
        vector_max = values[0]
        for x in values[1:]:
            vector_max = larger(vector_max, x)
        row_max = maximum(state[0], total(vector_max, larger).to(Float32))
        logits = [as_f32(x) for x in values]
        exponentials: Any = None
        for x in logits:
            exponential = exp2((x - row_max) * LOG2_E)
            exponentials = exponential if exponentials is None else exponentials + exponential
        statistics = (row_max, state[1] * exp2((state[0] - row_max) * LOG2_E) + total(exponentials))
        if not self.loss.smoothed:
            return statistics
        logit_sum: Any = None
        for v, x in enumerate(logits):
            pred = cute.full_like(x, at + v * self.config.row_threads < units, Boolean)
            masked = cute.where(pred, x, cute.full_like(x, 0.0))
            logit_sum = masked if logit_sum is None else logit_sum + masked
        return (*statistics, state[2] + total(logit_sum))

    def with_element(self, state: Statistics, value: Float32, pred: Boolean) -> Statistics:
        """Return statistics with one more element, which may not exist."""
        row_max = maximum(state[0], value)
        row_sum = state[1] * exp2((state[0] - row_max) * LOG2_E) + exp2((value - row_max) * LOG2_E)
        return (row_max, row_sum, *(x + select_(pred, value, Float32(0.0)) for x in state[2:]))

    def merge(self, parts: list[Statistics], lanes: int) -> Statistics:
        (row_max,) = max_statistics([part[:1] for part in parts], lanes)
        row_sum = Float32(0.0)
        for part in parts:
            row_sum = row_sum + part[1] * exp2((part[0] - row_max) * LOG2_E)
        logit_sum = sum_statistics([part[2:] for part in parts], lanes)
        return row_max, across(row_sum, plus, lanes), *logit_sum


class LossReduction:
    """The sum of the losses of all rows; or their mean over the rows that count; or, for the gradient of the mean, how
    many count.

    One CTA: there are few rows, and the order of additions is fixed. Where launches overlap, rows are counted, which
    needs no losses, while the kernel that computes the losses ends.
    """

    threads = 1024
    unroll = 4
    """Rows that a thread reads at a time."""

    def __init__(self, target: type[cute.Numeric], adds_losses: bool, counts_rows: bool, overlaps: bool) -> None:
        self.target = target
        self.overlaps = overlaps
        self.adds_losses = adds_losses
        self.counts_rows = counts_rows

    @cute.jit
    def __call__(self, addresses: tuple[Int64 | cute.Tensor, ...], rows: Int32, ignore_index: Int64, stream: Int64):
        """`addresses`: target, result, losses."""
        target = vector_at(addresses[0], self.target, rows)
        losses = vector_at(addresses[2], Float32, rows) if const_expr(self.adds_losses) else None
        self.kernel(target, arrays.pointer(addresses[1], Float32, 1), losses, rows, ignore_index).launch(
            grid=(1, 1, 1), block=(self.threads, 1, 1), stream=stream, use_pdl=self.adds_losses and self.overlaps
        )

    @cute.kernel
    def kernel(
        self, target: cute.Tensor, result: cute.Pointer, losses: cute.Tensor | None, rows: Int32, ignore_index: Int64
    ):
        thread = arch.thread_idx()[0]
        value = Float32(1.0)
        if const_expr(self.overlaps and not self.adds_losses):
            arch.griddepcontrol_launch_dependents()
        if const_expr(self.counts_rows):
            counted = Int32(0)
            for start in range(thread, rows, self.threads * self.unroll):
                for label in self.read_rows(target, start, rows, ignore_index):
                    counted = counted + Int32(label != ignore_index)
            value = Float32(reduce_in_block(counted, plus, self.threads, self.threads))
        if const_expr(self.adds_losses):
            if const_expr(self.overlaps):
                arch.griddepcontrol_wait()
            loss_sum = Float32(0.0)
            for start in range(thread, rows, self.threads * self.unroll):
                for loss in self.read_rows(losses, start, rows, Float32(0.0)):
                    loss_sum = loss_sum + loss
            value = reduce_in_block(loss_sum, plus, self.threads, self.threads) / value
        if thread == 0:
            result.store(value)

    @cute.jit
    def read_rows(self, x: cute.Tensor, start: Int32, rows: Int32, instead: Float32 | Int64):
        """Return the values of some rows; all loads are issued before one is needed."""
        values = [instead for _ in range(self.unroll)]
        for k in range_constexpr(self.unroll):
            row = start + k * self.threads
            if row < rows:
                values[k] = type(instead)(x[row])
        return values


_MAX_GRID_Y = 65535
"""Most CTAs along the second or third mode of a grid."""


class CrossEntropyBackward:
    """The gradient of the logits: (softmax - labels) * dloss. A CTA computes a part of a row."""

    def __init__(
        self,
        dtype: Any,
        out: type[cute.Numeric],
        width: int,
        exact: bool,
        threads: int,
        vectors: int,
        loss: Loss,
        counter: LossReduction | None,
    ) -> None:
        self.dtype = dtype
        self.out = out
        self.width = width
        self.exact = exact
        self.threads = threads
        self.vectors = vectors
        self.loss = loss
        self.counter: Any = counter

    @cute.jit
    def __call__(
        self,
        addresses: tuple[Int64 | cute.Tensor, ...],
        numbers: LossNumbers,
        strides: tuple[Int64, Int64],
        dloss: Float32,
        parts: Int32,
        stream: Int64,
    ):
        """Launch `parts` CTAs for each row. `addresses`: logits, target, lse, out, count of rows, dloss."""
        logits, target, lse, out = addresses[:4]
        rest = addresses[4:]
        rows = numbers.rows
        n = numbers.n
        count = None
        if const_expr(self.counter is not None):
            self.counter((target, rest[0]), rows, numbers.ignore_index, stream)
            count = arrays.pointer(rest[0], Float32, 1)
            rest = rest[1:]
        scale = arrays.pointer(rest[0], self.loss.dloss, 1) if const_expr(self.loss.dloss is not None) else dloss
        width = 1 if const_expr(self.loss.unaligned) else self.width
        self.kernel(
            row_matrix(logits, self.dtype, rows, n, strides[0], width),
            row_matrix(out, self.out, rows, n, strides[1], width),
            vector_at(target, self.loss.target, rows),
            vector_at(lse, Float32, rows),
            count,
            scale,
            numbers,
            Int32(strides[0]),
        ).launch(
            grid=(parts, min(rows, _MAX_GRID_Y), cute.ceil_div(rows, _MAX_GRID_Y)),
            block=(self.threads, 1, 1),
            stream=stream,
            use_pdl=self.counter is not None and self.loss.overlaps,
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        y: cute.Tensor,
        target: cute.Tensor,
        lse: cute.Tensor,
        count: cute.Pointer,
        dloss: Any,
        numbers: LossNumbers,
        skew: Int32,
    ):
        part, low, high = arch.block_idx()
        row = high * _MAX_GRID_Y + low
        if row < numbers.rows:
            begin = numbers.lead + row * skew if const_expr(self.loss.unaligned) else None
            span = Span(begin, numbers.n, self.width)
            self.compute(x[row, None], y[row, None], target[row], lse[row], count, dloss, numbers, row, part, span)

    @cute.jit
    def compute(
        self,
        x: cute.Tensor,
        y: cute.Tensor,
        target: Int64,
        lse: Float32,
        count: Any,
        dloss: Any,
        numbers: Any,
        row: Int32,
        part: Int32,
        span: Span,
    ):
        """Compute a part of a row. The first part has the row's edges, too."""
        n = numbers.n
        threads = self.threads
        width = self.width
        thread = arch.thread_idx()[0]
        first = part * (threads * self.vectors) + thread
        edges = span.edges(thread, threads)
        edge_values = [element_at(x, column, (part == 0) & (column < n)) for column in edges]
        units = None if const_expr(self.exact) else span.units
        logits = vectors_at(span.middle(x), width, self.vectors, first, threads, units)
        label = Int64(target)
        base = lse
        scale = Float32(0.0)
        if const_expr(self.counter is not None and self.loss.overlaps):
            arch.griddepcontrol_wait()
        if label == numbers.ignore_index:  # no gradient, whatever the logits are
            logits.fill(0)
            edge_values = [Float32(0.0) for _ in edge_values]
            base = Float32(0.0)
        else:
            if const_expr(self.loss.dloss is None):
                scale = dloss
            else:
                scale = (dloss + (row if const_expr(self.loss.row_dloss) else 0)).load().to(Float32)
            if const_expr(self.counter is not None):
                scale = scale / count.load()
        uniform = numbers.smoothing / Float32(n) * scale
        certain = (1.0 - numbers.smoothing) * scale
        label_column = Int32(label) if (label >= 0) & (label < n) else Int32(-1)
        target_vectors = span.middle(y)
        for v in range_constexpr(self.vectors):
            at = first + v * threads
            gradient = cute.make_rmem_tensor((width,), Float32)
            gradient.store(self.gradient(as_f32(logits[None, v].load()), base, scale, uniform))
            place = label_column - (span.head + at * width)
            if (place >= 0) & (place < width):
                for i in range_constexpr(width):
                    gradient[i] = gradient[i] - certain if place == i else gradient[i]
            pred = None if const_expr(self.exact) else at < span.units
            tile = cute.local_tile(target_vectors, (width,), (at,))
            cute.copy(vector_atom(self.out, width), rounded(gradient.load(), self.out), tile, pred=pred)
        for value, column in zip(edge_values, edges, strict=True):
            if (part == 0) & (column < n):
                result = self.gradient(value, base, scale, uniform)
                y[column] = (result - certain if column == label_column else result).to(self.out)

    def gradient(
        self, x: Float32 | cute.TensorSSA, base: Float32, scale: Any, uniform: Float32
    ) -> Float32 | cute.TensorSSA:
        """Return the gradient of logits that are not the label."""
        exponential = exp2((x - base) * LOG2_E)
        return cute.math.fma(exponential, scale, -uniform) if self.loss.smoothed else exponential * scale
