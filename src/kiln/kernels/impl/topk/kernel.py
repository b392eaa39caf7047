"""The largest elements of rows.

Those that reach a number which as many do are compared with each other (`threshold`). Where that number is not known, or too many do, they are found
one after the other: each thread knows the two largest of its elements that come after those already taken; the row's threads find the largest of these, and
the one whose it was goes on with its second, or looks for its next two. Elements are compared by whole numbers in the same order, equal ones
by their columns. Rows are held in registers; longer ones are read again by who looks for more.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .... import Float32, Int32, Int64, Uint32, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ...dispatch import arrays
from ...parts.vectors import across, as_f32
from ..rowwise.row_kernel import WARP, Part, RowProblem, launch
from ..rowwise.row_statistics import summed_up
from ..rowwise.softmax_and_norms import LOG2_E, Softmax, exp2
from .ordered_bits import LOWEST, NOT_A_NUMBER, from_order, order
from .threshold import Candidates, largest

_NOWHERE = 0x7FFFFFFF
"""The column of what is not there."""
_UNKNOWN = -1
"""The column of a second that was taken."""


@dataclasses.dataclass(frozen=True)
class SelectionProblem(RowProblem):
    """What a kernel is made for. `few`: each thread of a row has at most one of the results."""

    renormalize: bool = False
    few: bool = True
    index: Any = Int32


def nothing() -> Any:
    """Two elements that are not there: (key, column, key, column)."""
    return Uint32(0), Int32(_NOWHERE), Uint32(0), Int32(_NOWHERE)


class TopK(Softmax):
    """The kernel. What is found out about a row besides is what softmax needs."""

    problem: SelectionProblem

    @cute.jit
    def __call__(self, places: Any, rows: Int32, n: Int32, k: Int32, step: Int64, blocks: Int32, stream: Int64):
        """`places`: rows, values, columns; the latter lie without gaps."""
        problem = self.problem
        x = self.matrix(places[0], problem.sources[0], rows, n, step)
        values, indices = (
            cute.make_tensor(arrays.pointer(p, t, 1), cute.make_layout((rows, k), stride=(Int64(k), 1)))
            for p, t in zip(places[1:], (Float32, problem.index), strict=True)
        )
        launch(self.kernel(x, values, indices, rows, n, k), self.config, blocks, stream, problem.overlaps)

    @cute.kernel
    def kernel(self, x: Any, values: Any, indices: Any, rows: Int32, n: Int32, k: Int32):
        config, problem = self.config, self.problem
        if const_expr(problem.overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()
        thread = arch.thread_idx()[0]
        within, lane, units = thread // config.row_threads, thread % config.row_threads, n // self.width
        row = arch.block_idx()[0] * config.rows + within
        exists, warps = row < rows, max(1, config.row_threads // WARP)
        held = None
        if const_expr(self.whole):
            held = self.read(x, row, exists, lane, units, self.vectors)
        candidates: Any = Candidates(self, within) if const_expr(problem.few) else None
        top, scale = Float32(-float("inf")), Float32(1.0)
        state, most = self.survey(x, held, row, exists, lane, units, candidates, thread)
        if const_expr(not problem.renormalize):
            top, summed = self.gathered(state, self.exchange_buffer(warps), within, thread, 0, warps)
            scale = arch.rcp_approx(summed)
        sums = self.exchange_buffer(warps, fields=1) if const_expr(problem.renormalize) else None
        target = (values, indices, row, exists, lane, thread, k, top, scale, sums)
        if const_expr(problem.few):
            if self.collected(candidates, x, held, row, exists, lane, units, most, k, thread):
                candidates.write(*target)
            else:
                self.one_after_the_other(x, held, units, within, *target)
        else:
            self.one_after_the_other(x, held, units, within, *target)

    @cute.jit
    def survey(
        self, x: Any, held: Any, row: Any, exists: Any, lane: Any, units: Any, candidates: Any, thread: Any
    ):  # fmt: skip
        """What softmax finds out about a thread's part of a row, unless results are over their own sum, and its largest element."""
        state, most, alone = self.fresh(), Float32(-float("inf")), self.problem.renormalize
        if const_expr(self.whole):
            if const_expr(not alone):
                state = self.absorb(None, Part(self, [held], [], [], lane, units))[0]
            return state, largest(most, self.elements(held, lane, units))
        if const_expr(candidates is not None):
            candidates.clear(thread)
        step = self.config.row_threads * self.vectors
        for number in range(cute.ceil_div(units, step)):
            unit = number * step + lane
            chunk = self.read(x, row, exists, unit, units, self.vectors)
            if const_expr(not alone):
                state = self.absorb(state, Part(self, [chunk], [], [], unit, units))[0]
            highest = largest(Float32(-float("inf")), self.elements(chunk, unit, units))
            most = arch.fmax(most, highest, nan=True)
            if const_expr(candidates is not None):
                candidates.note(number, thread, highest)
        return state, most

    def elements(self, held: Any, unit: Any, units: Any) -> list[tuple[Any, Any]]:
        """A thread's elements and their columns; the lowest where the row has ended."""
        found: list[tuple[Any, Any]] = []
        for v in range(self.vectors):
            at = unit + v * self.config.row_threads
            for i, x in enumerate(as_f32(held[None, v].load()).to_elements()):
                there = x if self.full(v) else select_(at < units, x, Float32(-float("inf")))
                found.append((there, at * self.width + i))
        return found

    @cute.jit
    def collected(
        self, candidates: Any, x: Any, held: Any, row: Any, exists: Any, lane: Any, units: Any, most: Any, k: Any, thread: Any
    ):  # fmt: skip
        """Put the elements that may be among the first `k` together; whether that was possible for all rows of the warp."""
        candidates.begin(lane)
        key = candidates.limit(most, k, thread)  # all wait here, or next, so that none counts before there is a count
        candidates.wait()
        limit, known = from_order(key), key > LOWEST
        if known:
            if const_expr(self.whole):
                candidates.put(limit, self.elements(held, lane, units))
            elif most >= limit:
                step = self.config.row_threads * self.vectors
                for number in range(cute.ceil_div(units, step)):
                    if candidates.noted(number, thread) >= limit:
                        unit = number * step + lane
                        chunk = self.read(x, row, exists, unit, units, self.vectors)
                        candidates.put(limit, self.elements(chunk, unit, units))
        candidates.wait()
        return arch.vote_all_sync(known & candidates.fit())

    @cute.jit
    def one_after_the_other(
        self, x: Any, held: Any, units: Any, within: Any, values: Any, indices: Any, row: Any, exists: Any, lane: Any, thread: Any, k: Any,
        top: Any, scale: Any, sums: Any,
    ):  # fmt: skip
        """Write the first `k` elements, each of which is found after the one before."""
        config, problem = self.config, self.problem
        told, warps = None, max(1, config.row_threads // WARP)
        if const_expr(warps > 1):
            told = cute.make_tensor(arch.alloc_smem(Uint32, 4 * warps, 8), cute.make_layout((2, warps, 2)))
        key, column, spare, other = self.next(x, held, row, exists, lane, units, Uint32(NOT_A_NUMBER), Int32(-1))
        mine, place, highest, whole = Uint32(0), Int32(0), Uint32(0), Float32(0.0)
        for j in range(k):
            first, where = self.first_of_row(key, column, told, j, thread)
            if const_expr(problem.renormalize):
                highest = select_(j == 0, first, highest)
                top = from_order(highest)
            if const_expr(problem.few):
                mine, place = select_(lane == j, first, mine), select_(lane == j, where, place)
            else:
                power = exp2((from_order(first) - top) * LOG2_E)
                whole = whole + power
                if exists & (lane == j % config.row_threads):
                    values[row, j] = power * scale
                    indices[row, j] = where.to(problem.index)
            if (column == where) & (key == first):
                if other == _UNKNOWN:
                    key, column, spare, other = self.next(x, held, row, exists, lane, units, first, where)
                else:
                    key, column, other = spare, other, Int32(_UNKNOWN)
        if const_expr(problem.few):
            power = select_(lane < k, exp2((from_order(mine) - top) * LOG2_E), Float32(0.0))
            if const_expr(problem.renormalize):
                ((whole,),) = self.gathered_each([(power,)], sums, [within], thread, 0, warps, summed_up)
                scale = arch.rcp_approx(whole)
            if exists & (lane < k):
                values[row, lane] = power * scale
                indices[row, lane] = place.to(problem.index)
        elif const_expr(problem.renormalize):
            scale = arch.rcp_approx(whole)
            if exists:
                for j in range(lane, k, config.row_threads):
                    values[row, j] = values[row, j] * scale  # which this thread has written

    @cute.jit
    def next(self, x: Any, held: Any, row: Any, exists: Any, lane: Any, units: Any, key: Any, column: Any):
        """The first two of a thread's elements that come after one: (key, column, key, column)."""
        found = nothing()
        if const_expr(self.whole):
            return self.next_of(found, held, lane, units, key, column)
        for start in range(0, units, self.config.row_threads * self.vectors):
            chunk = self.read(x, row, exists, start + lane, units, self.vectors)
            found = self.next_of(found, chunk, start + lane, units, key, column)
        return found

    def next_of(self, found: Any, held: Any, unit: Any, units: Any, key: Any, column: Any) -> Any:
        """The same of two that were found before and of some vectors behind them."""
        best, where_best, second, where_second = found
        for v in range_constexpr(self.vectors):
            at = unit + v * self.config.row_threads
            values = as_f32(held[None, v].load()).to_elements()
            for i in range_constexpr(self.width):
                own, where = order(values[i]), at * self.width + i
                after = (own < key) | ((own == key) & (where > column))
                if const_expr(not self.exact):
                    after = after & (at < units)
                own = select_(after, own, Uint32(0))
                leads, follows = own > best, own > second  # columns grow: of equals the first stays
                second = select_(leads, best, select_(follows, own, second))
                where_second = select_(leads, where_best, select_(follows, where, where_second))
                best, where_best = select_(leads, own, best), select_(leads, where, where_best)
        return best, where_best, second, where_second

    @cute.jit
    def first_of_row(self, key: Any, column: Any, told: Any, j: Any, thread: Any):
        """The first of what the threads of a row have."""
        config = self.config
        key, column = first_of(key, column, min(WARP, config.row_threads))
        if const_expr(config.row_threads > WARP):
            warps, turn = config.row_threads // WARP, j % 2  # the other turn's may still be read
            if thread % WARP == 0:
                told[0, thread // WARP, turn] = key
                told[1, thread // WARP, turn] = Uint32(column)
            arch.sync_threads()
            other = thread % min(WARP, warps)
            key, column = first_of(told[0, other, turn], Int32(told[1, other, turn]), min(WARP, warps))
        return key, column


def first_of(key: Any, column: Any, lanes: int) -> Any:
    """The first of what some neighbouring lanes have."""
    if lanes == WARP:
        most = arch.warp_redux_sync(key, "max")
        return most, arch.warp_redux_sync(select_(key == most, column, Int32(_NOWHERE)), "min")
    most = across(key, lambda a, b: select_(a > b, a, b), lanes)
    return most, across(select_(key == most, column, Int32(_NOWHERE)), lambda a, b: select_(a < b, a, b), lanes)
