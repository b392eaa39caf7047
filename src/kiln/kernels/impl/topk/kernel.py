"""The top-k kernel.

Elements that reach a threshold which at least k elements reach are ranked by comparing them with each other
(`threshold.py`). Where there is no threshold, because a row has fewer threads than results, or too many elements reach
it, the results are selected one by one: each thread knows the two largest of its elements that come after those already
taken; the threads of the row find the largest of these, and its owner goes on with its second, or looks for its next
two. Elements are compared by ordered integers, equal ones by their columns. Rows are in registers; threads read longer
ones again when they look for more.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .... import Float32, Int32, Int64, Uint32, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ...dispatch import arrays
from ...parts.vectors import across, as_f32
from ..rowwise.config import WARP
from ..rowwise.row_kernel import Position, RowProblem, launch, row_matrix, wait_for_previous_kernel
from ..rowwise.row_part import ResidentPart
from ..rowwise.row_statistics import sum_statistics
from ..rowwise.softmax_and_norms import LOG2_E, Softmax, exp2
from .ordered_bits import NAN_KEY, from_order, order
from .threshold import Candidates, largest

_NOWHERE = 0x7FFFFFFF
"""The column of an element that does not exist."""
_UNKNOWN = -1
"""The column of a second element that was taken."""


@dataclasses.dataclass(frozen=True)
class TopKKernelProblem(RowProblem):
    """What a kernel is specialised for. `has_threshold`: a row has a thread for each result, so that a threshold can be
    found."""

    renormalize: bool = False
    has_threshold: bool = True
    index: Any = Int32


def nothing() -> tuple[Uint32, Int32, Uint32, Int32]:
    """Return two elements that do not exist: (key, column, key, column)."""
    return Uint32(0), Int32(_NOWHERE), Uint32(0), Int32(_NOWHERE)


class TopK(Softmax):
    """The top-k kernel. Its statistics of a row are those of softmax."""

    problem: TopKKernelProblem

    @cute.jit
    def __call__(
        self,
        addresses: tuple[Int64 | cute.Tensor, ...],
        rows: Int32,
        n: Int32,
        k: Int32,
        step: Int64,
        ctas: Int32,
        stream: Int64,
    ):
        """Launch so many CTAs. `addresses`: x, values, indices; the latter are contiguous."""
        problem = self.problem
        x = row_matrix(addresses[0], problem.sources[0], rows, n, step, self.width)
        values, indices = (
            cute.make_tensor(arrays.pointer(p, t, 1), cute.make_layout((rows, k), stride=(Int64(k), 1)))
            for p, t in zip(addresses[1:], (Float32, problem.index), strict=True)
        )
        launch(self.kernel(x, values, indices, rows, n, k), self.config, ctas, stream, problem.overlaps)

    @cute.kernel
    def kernel(self, x: cute.Tensor, values: cute.Tensor, indices: cute.Tensor, rows: Int32, n: Int32, k: Int32):
        config = self.config
        problem = self.problem
        wait_for_previous_kernel(problem.overlaps)
        thread = arch.thread_idx()[0]
        within = thread // config.row_threads
        lane = thread % config.row_threads
        units = n // self.width
        row = arch.block_idx()[0] * config.rows + within
        at = Position(row, row < rows, lane, units, within, thread, 0)
        held = None
        if const_expr(self.resident):
            held = self.read(x, at, self.vectors)
        candidates: Any = Candidates(self, within) if const_expr(problem.has_threshold) else None
        top = Float32(-float("inf"))
        scale = Float32(1.0)
        statistics, most = self.accumulate_row(x, held, at, candidates)
        if const_expr(not problem.renormalize):
            top, row_sum = self.reduce_row(statistics, self.exchange_buffer(), at)
            scale = arch.rcp_approx(row_sum)
        exchange = self.exchange_buffer(fields=1) if const_expr(problem.renormalize) else None
        target = (values, indices, at, k, top, scale, exchange)
        if const_expr(problem.has_threshold):
            if self.collect(candidates, x, held, at, most, k):
                candidates.write(*target)
            else:
                self.select_one_by_one(x, held, *target)
        else:
            self.select_one_by_one(x, held, *target)

    @cute.jit
    def accumulate_row(self, x: cute.Tensor, held: cute.Tensor, at: Position, candidates: Candidates):
        """Return a thread's statistics of a row for softmax, unless results are renormalised, and its largest
        element."""
        statistics = self.initial()
        most = Float32(-float("inf"))
        renormalize = self.problem.renormalize
        if const_expr(self.resident):
            if const_expr(not renormalize):
                statistics = self.accumulate(None, ResidentPart(self, at, [held], []))[0]
            values = self.elements(held, at.unit, at.units)
            groups = self.groups
            return statistics, [largest(most, values[n::groups]) for n in range(groups)]
        if const_expr(candidates is not None):
            candidates.clear(at.thread)
        step = self.config.row_threads * self.vectors
        for number in range(cute.ceil_div(at.units, step)):
            unit = number * step + at.unit
            here = at._replace(unit=unit)
            chunk = self.read(x, here, self.vectors)
            if const_expr(not renormalize):
                statistics = self.accumulate(statistics, ResidentPart(self, here, [chunk], []))[0]
            highest = largest(Float32(-float("inf")), self.elements(chunk, unit, at.units))
            most = arch.fmax(most, highest, nan=True)
            if const_expr(candidates is not None):
                candidates.note(number, at.thread, highest)
        return statistics, [most]

    @property
    def groups(self) -> int:
        """Groups of a thread's elements, whose largest ones the threshold is found from."""
        in_parts = self.resident and self.problem.has_threshold and self.config.row_threads < WARP
        return 2 if in_parts and self.vectors * self.width > 1 else 1

    def elements(self, held: cute.Tensor, unit: Int32, units: Int32) -> list[Float32]:
        """Return a thread's elements; minus infinity behind the end of the row."""
        elements: list[Any] = []
        for v in range(self.vectors):
            there = self.in_row(unit, units, v)
            for x in as_f32(held[None, v].load()).to_elements():
                elements.append(x if there is None else select_(there, x, Float32(-float("inf"))))
        return elements

    def column(self, unit: Int32, number: Int32) -> Int32:
        """Return the column of one of a thread's elements."""
        return (unit + number // self.width * self.config.row_threads) * self.width + number % self.width

    @cute.jit
    def collect(
        self, candidates: Candidates, x: cute.Tensor, held: cute.Tensor, at: Position, maxima: list[Float32], k: Int32
    ):
        """Collect the elements that may be among the first `k`; returns whether that was possible for all rows of the
        warp."""
        candidates.begin(at.unit)
        limit = candidates.limit(maxima, k, at.thread)
        candidates.wait()  # the count is cleared before it is increased
        has_limit = limit > -float("inf")
        if has_limit & at.exists:
            if const_expr(self.resident):
                candidates.put(limit, self.elements(held, at.unit, at.units), x, at)
            elif maxima[0] >= limit:
                step = self.config.row_threads * self.vectors
                for number in range(cute.ceil_div(at.units, step)):
                    if candidates.noted(number, at.thread) >= limit:
                        unit = number * step + at.unit
                        here = at._replace(unit=unit)
                        chunk = self.read(x, here, self.vectors)
                        candidates.put(limit, self.elements(chunk, unit, at.units), x, here)
        candidates.wait()
        return arch.vote_all_sync(has_limit & candidates.fit())

    @cute.jit
    def select_one_by_one(
        self,
        x: cute.Tensor,
        held: cute.Tensor,
        values: cute.Tensor,
        indices: cute.Tensor,
        at: Position,
        k: Int32,
        top: Float32,
        scale: Float32 | float,
        exchange: Any,
    ):
        """Write the first `k` elements, each of which is found after the one before."""
        config = self.config
        problem = self.problem
        lane = at.unit
        slots = None
        warps = max(1, config.row_threads // WARP)
        if const_expr(warps > 1):
            slots = cute.make_tensor(arch.alloc_smem(Uint32, 4 * warps, 8), cute.make_layout((2, warps, 2)))
        key, column, second, second_column = self.next(x, held, at, Uint32(NAN_KEY), Int32(-1))
        own_key = Uint32(0)
        own_column = Int32(0)
        highest = Uint32(0)
        row_sum = Float32(0.0)
        for j in range(k):
            first, where = self.first_of_row(key, column, slots, j, at.thread)
            if const_expr(problem.renormalize):
                highest = select_(j == 0, first, highest)
                top = from_order(highest)
            if const_expr(problem.has_threshold):
                own_key = select_(lane == j, first, own_key)
                own_column = select_(lane == j, where, own_column)
            else:
                exponential = exp2((from_order(first) - top) * LOG2_E)
                row_sum = row_sum + exponential
                if at.exists & (lane == j % config.row_threads):
                    values[at.row, j] = exponential * scale
                    indices[at.row, j] = where.to(problem.index)
            if (column == where) & (key == first):
                if second_column == _UNKNOWN:
                    key, column, second, second_column = self.next(x, held, at, first, where)
                else:
                    key = second
                    column = second_column
                    second_column = Int32(_UNKNOWN)
        if const_expr(problem.has_threshold):
            exponential = select_(lane < k, exp2((from_order(own_key) - top) * LOG2_E), Float32(0.0))
            if const_expr(problem.renormalize):
                ((row_sum,),) = self.reduce_rows([(exponential,)], exchange, [at.within], at.thread, 0, sum_statistics)
                scale = arch.rcp_approx(row_sum)
            if at.exists & (lane < k):
                values[at.row, lane] = exponential * scale
                indices[at.row, lane] = own_column.to(problem.index)
        elif const_expr(problem.renormalize):
            scale = arch.rcp_approx(row_sum)
            if at.exists:
                for j in range(lane, k, config.row_threads):
                    values[at.row, j] = values[at.row, j] * scale  # which this thread has written

    @cute.jit
    def next(self, x: cute.Tensor, held: cute.Tensor, at: Position, key: Uint32, column: Int32):
        """Return the first two of a thread's elements that come after one: (key, column, key, column)."""
        two = nothing()
        if const_expr(self.resident):
            return self.next_of(two, held, at.unit, at.units, key, column)
        for start in range(0, at.units, self.config.row_threads * self.vectors):
            unit = start + at.unit
            two = self.next_of(two, self.read(x, at._replace(unit=unit), self.vectors), unit, at.units, key, column)
        return two

    def next_of(
        self,
        two: tuple[Uint32, Int32, Uint32, Int32],
        held: cute.Tensor,
        unit: Int32,
        units: Int32,
        key: Uint32,
        column: Int32,
    ) -> tuple[Uint32, Int32, Uint32, Int32]:
        """Return the first two of two earlier elements and of some vectors behind them."""
        best, where_best, second, where_second = two
        for v in range_constexpr(self.vectors):
            at = unit + v * self.config.row_threads
            values = as_f32(held[None, v].load()).to_elements()
            for i in range_constexpr(self.width):
                own = order(values[i])
                where = at * self.width + i
                after = (own < key) | ((own == key) & (where > column))
                if const_expr(not self.exact):
                    after = after & (at < units)
                own = select_(after, own, Uint32(0))
                # columns grow: of equals the first stays
                is_best = own > best
                is_second = own > second
                second = select_(is_best, best, select_(is_second, own, second))
                where_second = select_(is_best, where_best, select_(is_second, where, where_second))
                best = select_(is_best, own, best)
                where_best = select_(is_best, where, where_best)
        return best, where_best, second, where_second

    @cute.jit
    def first_of_row(self, key: Uint32, column: Int32, slots: Any, j: Int32, thread: Int32):
        """Return the first of the elements of the threads of a row."""
        config = self.config
        key, column = first_of(key, column, min(WARP, config.row_threads))
        if const_expr(config.row_threads > WARP):
            # the slots of the other turn may still be read
            warps = config.row_threads // WARP
            turn = j % 2
            if thread % WARP == 0:
                slots[0, thread // WARP, turn] = key
                slots[1, thread // WARP, turn] = Uint32(column)
            arch.sync_threads()
            other = thread % min(WARP, warps)
            key, column = first_of(slots[0, other, turn], Int32(slots[1, other, turn]), min(WARP, warps))
        return key, column


def first_of(key: Uint32, column: Int32, lanes: int) -> Any:
    """Return the first of the elements of some neighbouring lanes."""
    if lanes == WARP:
        most = arch.warp_redux_sync(key, "max")
        return most, arch.warp_redux_sync(select_(key == most, column, Int32(_NOWHERE)), "min")
    most = across(key, lambda a, b: select_(a > b, a, b), lanes)
    return most, across(select_(key == most, column, Int32(_NOWHERE)), lambda a, b: select_(a < b, a, b), lanes)
