"""The kernels of cross-entropy: of each row, of all rows together, and their gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import cute
from ..base_dsl.ranges import const_expr, range_constexpr
from ..base_dsl.typing import Float32, Int32, Int64
from ..cute import arch
from ..cute.nvgpu import CopyUniversalOp
from ..utils.reductions import reduce_in_block
from . import arrays
from .row_kernel import Part, RowKernel, RowProblem, RowTiling, State, across, larger, maximum, plus, total
from .rows import LOG2_E, exp2

LN_2 = 0.6931471805599453
_LOWEST = -3.0e38


@dataclasses.dataclass(frozen=True)
class Loss:
    """Types of targets and of gradients of the loss (None: a number), and what is computed."""

    target: Any
    smoothed: bool
    outer: Any = None
    each: bool = False
    """Whether each row has its own gradient of the loss."""
    averaged: bool = False


class CrossEntropy(RowKernel):
    """The loss and the logarithm of the sum of exponentials of each row, which is read once and not held.

    A finding is the maximum, the sum of the exponentials of what is below it and, for smoothed labels, the sum.
    """

    def __init__(self, problem: RowProblem, loss: Loss) -> None:
        super().__init__(problem)
        self.loss = loss
        self.fields = 3 if loss.smoothed else 2

    @cute.jit
    def __call__(
        self,
        places: Any,
        rows: Int32,
        n: Int32,
        step: Int64,
        ignored: Int64,
        smoothing: Float32,
        blocks: Int32,
        stream: Int64,
    ):
        logits, target, losses, lse = places
        tiling = self.tiling
        line = cute.make_layout((rows,))
        self.losses(
            self.matrix(logits, self.problem.sources[0], rows, n, step),
            cute.make_tensor(arrays.pointer(target, self.loss.target, 1), line),
            cute.make_tensor(arrays.pointer(losses, Float32, 1), line),
            cute.make_tensor(arrays.pointer(lse, Float32, 1), line),
            rows, n, ignored, smoothing,
        ).launch(
            grid=(blocks, 1, 1),
            block=(tiling.threads, 1, 1),
            cluster=(tiling.cluster, 1, 1) if tiling.cluster > 1 else None,
            max_number_threads=tiling.threads,
            min_blocks_per_mp=tiling.together,
            stream=stream,
        )  # fmt: skip

    @cute.kernel
    def losses(
        self, logits: cute.Tensor, target: cute.Tensor, losses: cute.Tensor, lse: cute.Tensor, rows: Int32, n: Int32,
        ignored: Int64, smoothing: Float32,
    ):  # fmt: skip
        tiling = self.tiling
        thread = arch.thread_idx()[0]
        block = arch.block_idx()[0]
        rank = block % tiling.cluster
        within = thread // tiling.row_threads
        row = block // tiling.cluster * tiling.rows + within
        exists = row < rows
        unit = rank * (tiling.row_threads * self.vectors) + thread % tiling.row_threads
        units = n // self.width
        slots = tiling.cluster * max(1, tiling.row_threads // 32)
        exchange = self.exchange_buffer(slots)
        if const_expr(tiling.cluster > 1):
            arch.cluster_arrive_relaxed()
            arch.cluster_wait()
        state = self.fresh()
        for start in range(0, units, tiling.cluster * tiling.row_threads * self.vectors):
            state = self.chunk([logits], [], state, row, exists, start + unit, units)
        state = self.gathered(state, exchange, Int32(0), within, thread, rank, slots)
        if exists and rank == 0 and thread % tiling.row_threads == 0:
            found = state[0] + cute.math.log2(state[1], approx=True) * LN_2
            label = Int64(target[row])
            value = Float32(0.0)
            if label != ignored:
                value = Float32(float("nan"))
                if (label >= 0) & (label < n):
                    value = found - logits[row, label].to(Float32)
                    if const_expr(self.loss.smoothed):
                        even = found - state[2] / Float32(n)
                        value = value + smoothing * (even - value)
            losses[row] = value
            lse[row] = found

    def fresh(self) -> State:
        return (Float32(_LOWEST), *(Float32(0.0) for _ in range(self.fields - 1)))

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        state = self.fresh() if state is None else state
        values = [part.values(v)[0] for v in range(part.count)]
        seen = [part.kept(v, x, float("-inf")) for v, x in enumerate(values)]
        most = seen[0]
        for x in seen[1:]:
            most = larger(most, x)
        highest = maximum(state[0], total(most, larger))
        powers = exp2((seen[0] - highest) * LOG2_E)
        for x in seen[1:]:
            powers = powers + exp2((x - highest) * LOG2_E)
        found = (highest, state[1] * exp2((state[0] - highest) * LOG2_E) + total(powers))
        if not self.loss.smoothed:
            return found, None
        plain = values[0]
        for x in values[1:]:
            plain = plain + x
        return (*found, state[2] + total(plain)), None

    def merge(self, states: list[State], lanes: int) -> State:
        highest = states[0][0]
        for state in states[1:]:
            highest = maximum(highest, state[0])
        highest = across(highest, maximum, lanes)
        sums = [Float32(0.0) for _ in range(self.fields - 1)]
        for state in states:
            sums[0] = sums[0] + state[1] * exp2((state[0] - highest) * LOG2_E)
            for k in range(2, self.fields):
                sums[k - 1] = sums[k - 1] + state[k]
        return (highest, *(across(x, plus, lanes) for x in sums))


class Total:
    """The sum of the losses of all rows, or their mean over the rows that count; and the number of those rows.

    One block: there are few rows, and the order of the sum is fixed.
    """

    threads = 512

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    @cute.jit
    def __call__(self, places: Any, rows: Int32, ignored: Int64, stream: Int64):
        losses, target, result, count = places
        line = cute.make_layout((rows,))
        self.kernel(
            cute.make_tensor(arrays.pointer(losses, Float32, 1), line),
            cute.make_tensor(arrays.pointer(target, self.loss.target, 1), line),
            arrays.pointer(result, Float32, 1), arrays.pointer(count, Float32, 1), rows, ignored,
        ).launch(grid=(1, 1, 1), block=(self.threads, 1, 1), stream=stream)  # fmt: skip

    @cute.kernel
    def kernel(self, losses: cute.Tensor, target: cute.Tensor, result: Any, count: Any, rows: Int32, ignored: Int64):
        thread = arch.thread_idx()[0]
        summed, counted = Float32(0.0), Int32(0)
        for row in range(thread, rows, self.threads):
            if Int64(target[row]) != ignored:
                counted = counted + 1
                if const_expr(self.loss.outer is None):
                    summed = summed + losses[row]
        counted = reduce_in_block(counted, plus, self.threads, self.threads)
        if const_expr(self.loss.outer is None):
            summed = reduce_in_block(summed, plus, self.threads, self.threads)
        if thread == 0:
            count.store(Float32(counted))
            if const_expr(self.loss.outer is None):
                result.store(summed / Float32(counted) if const_expr(self.loss.averaged) else summed)


class CrossEntropyGradient:
    """The gradient of the logits: (softmax - labels) times that of the row's loss. A block computes a part of a row."""

    def __init__(self, dtype: Any, out: Any, width: int, exact: bool, tiling: RowTiling, loss: Loss) -> None:
        self.dtype = dtype
        self.out = out
        self.width = width
        self.exact = exact
        self.tiling = tiling
        self.loss = loss
        self.vectors = 2

    @cute.jit
    def __call__(
        self, places: Any, rows: Int32, n: Int32, step: Int64, out_step: Int64, ignored: Int64, smoothing: Float32,
        outer: Float32, blocks: Int32, stream: Int64,
    ):  # fmt: skip
        logits, target, lse, out, count = places[:5]
        line, width = cute.make_layout((rows,)), self.width
        x = cute.make_tensor(
            arrays.pointer(logits, self.dtype, width),
            cute.make_layout((rows, n), stride=(cute.assume(step, divby=width), 1)),
        )
        y = cute.make_tensor(
            arrays.pointer(out, self.out, width),
            cute.make_layout((rows, n), stride=(cute.assume(out_step, divby=width), 1)),
        )
        given = arrays.pointer(places[5], self.loss.outer, 1) if const_expr(self.loss.outer is not None) else outer
        self.kernel(
            x, cute.make_tensor(arrays.pointer(target, self.loss.target, 1), line),
            cute.make_tensor(arrays.pointer(lse, Float32, 1), line), y, arrays.pointer(count, Float32, 1), given, n, ignored,
            smoothing,
        ).launch(grid=(rows, blocks, 1), block=(self.tiling.threads, 1, 1), stream=stream)  # fmt: skip

    @cute.kernel
    def kernel(
        self, x: cute.Tensor, target: cute.Tensor, lse: cute.Tensor, y: cute.Tensor, count: Any, outer: Any, n: Int32,
        ignored: Int64, smoothing: Float32,
    ):  # fmt: skip
        threads, width = self.tiling.threads, self.width
        row, block, _ = arch.block_idx()
        unit = block * (threads * self.vectors) + arch.thread_idx()[0]
        units = n // width
        held = cute.make_rmem_tensor((width, self.vectors), self.dtype)
        atom = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=width * self.dtype.width)
        if const_expr(not self.exact):
            held.fill(0)
        for v in range_constexpr(self.vectors):
            at = unit + v * threads
            cute.copy(atom, cute.local_tile(x[row, None], (width,), (at,)), held[None, v], pred=self.there(at, units))
        label = Int64(target[row])
        scale = Float32(0.0)
        if label != ignored:
            if const_expr(self.loss.outer is None):
                scale = outer
            else:
                scale = (outer + (row if const_expr(self.loss.each) else 0)).load().to(Float32)
            if const_expr(self.loss.averaged):
                scale = scale / count.load()
        even = smoothing / Float32(n)
        sure = (1.0 - smoothing) * scale
        base = lse[row]
        store = cute.make_copy_atom(CopyUniversalOp(), self.out, num_bits_per_copy=width * self.out.width)
        for v in range_constexpr(self.vectors):
            at = unit + v * threads
            value = (exp2((held[None, v].load().to(Float32) - base) * LOG2_E) - even) * scale
            made = cute.make_rmem_tensor((width,), Float32)
            made.store(value)
            place = label - Int64(at) * width
            for i in range_constexpr(width):
                made[i] = made[i] - sure if place == i else made[i]
            # a row that does not count has no gradient, whatever its logits are
            result = cute.where(
                cute.full((width,), label == ignored, cute.Boolean), cute.full((width,), 0.0, Float32), made.load()
            )
            written = cute.make_rmem_tensor((width,), self.out)
            written.store(result.to(self.out))
            cute.copy(store, written, cute.local_tile(y[row, None], (width,), (at,)), pred=self.there(at, units))

    def there(self, at: Any, units: Any) -> Any:
        """Whether a row has a vector there; None: it has everywhere."""
        return None if self.exact else at < units
