"""Top-k by a threshold that is not larger than the k-th element.

Each warp finds the r-th of its lanes' largest elements; the least of these, of w warps, is no larger than the (r w)-th
element of the row. The few elements that reach it are collected in shared memory, where each is compared with all
others: its rank is the number that come before it.
"""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32, Int64, Uint32, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ...parts.vectors import across
from ..rowwise.config import WARP
from ..rowwise.row_statistics import sum_statistics
from ..rowwise.softmax_and_norms import LOG2_E, exp2
from .ordered_bits import order

_NONE = 0x7FFFFFFF_FF800000
"""Minus infinity, in a column behind all others."""
_AT_ONCE = 4
"""Candidates that a thread compares with its own at a time."""
_CHUNKS = 16
"""Slots for the largest elements of a thread's chunks of a row, used in turn."""


def largest(most: Any, elements: list[tuple[Any, Any]]) -> Any:
    """Return the largest of a number and of elements; NaN if one is."""
    for value, _ in elements:
        most = arch.fmax(most, value, nan=True)
    return most


class Candidates:
    """The elements of a row that reach the threshold, in shared memory: their count, values and columns. Each of
    `lanes` threads takes `each` of at most `capacity`."""

    __kiln_static__ = True

    def __init__(self, kernel: Any, within: Any) -> None:
        self.kernel = kernel
        self.lanes: int = kernel.config.row_threads
        self.capacity: int = max(WARP, self.lanes)
        rows = kernel.config.rows
        self.each: Any = self.capacity // self.lanes
        self.warps: int = max(1, self.lanes // WARP)
        self.counts: cute.Tensor = cute.make_tensor(arch.alloc_smem(Int32, rows), cute.make_layout(rows))
        pairs = cute.make_tensor(
            arch.alloc_smem(Int64, self.capacity * rows, 8), cute.make_layout((self.capacity, rows))
        )
        self.pairs: cute.Tensor = pairs[None, within]
        self.maxima: Any = None
        if not kernel.resident:
            layout = cute.make_layout((_CHUNKS, kernel.config.threads), stride=(kernel.config.threads, 1))
            self.maxima = cute.make_tensor(arch.alloc_smem(Float32, cute.size(layout)), layout)
        self.limits: Any = None
        if self.warps > 1:
            self.limits = cute.make_tensor(arch.alloc_smem(Uint32, self.warps), cute.make_layout(self.warps))
        self.within = within

    def wait(self) -> None:
        """Wait until all threads of the row have come here."""
        if self.warps > 1:
            arch.sync_threads()
        else:
            arch.sync_warp()

    @cute.jit
    def begin(self, lane: Int32):
        """Clear the candidates: empty slots come after all elements."""
        if lane == 0:
            self.counts[self.within] = Int32(0)
        for n in range_constexpr(self.each):
            self.pairs[lane + n * self.lanes] = Int64(_NONE)

    def clear(self, thread: Any) -> None:
        """Clear the maxima of chunks."""
        for n in range(_CHUNKS):
            self.maxima[n, thread] = Float32(-float("inf"))

    def note(self, chunk: Any, thread: Any, most: Any) -> None:
        """Keep the largest element of a thread's chunk, for the thread itself."""
        place = chunk % _CHUNKS
        self.maxima[place, thread] = arch.fmax(self.maxima[place, thread], most)

    def noted(self, chunk: Any, thread: Any) -> Any:
        """Return the largest element of a thread's chunk, or of others with the same slot."""
        return self.maxima[chunk % _CHUNKS, thread]

    @cute.jit
    def limit(self, most: Float32, k: Int32, thread: Int32):
        """Return the key that at least `k` elements of the row reach; `LOWEST` or less if none is known."""
        key, limit = order(most), Uint32(0)
        has_nan = arch.vote_any_sync(most != most)
        if const_expr(self.lanes >= WARP):
            for _ in range(cute.ceil_div(k, self.warps)):
                limit = arch.warp_redux_sync(key, "max")
                key = select_(key == limit, Uint32(0), key)
        else:
            reached = Int32(1)  # by how many lanes
            for distance in range_constexpr(1, self.lanes):
                other = arch.shuffle_sync_bfly(key, offset=distance)
                reached = reached + select_(other >= key, Int32(1), Int32(0))
            enough = select_(reached >= k, key, Uint32(0))
            limit = across(enough, lambda a, b: select_(a > b, a, b), self.lanes)
        limit = select_(has_nan, Uint32(0), limit)
        if const_expr(self.warps > 1):
            if thread % WARP == 0:
                self.limits[thread // WARP] = limit
            self.wait()
            limit = across(self.limits[thread % self.warps], lambda a, b: select_(a < b, a, b), min(WARP, self.warps))
        return limit

    def fit(self) -> Any:
        """Return whether there is room for all candidates."""
        return self.counts[self.within] <= self.capacity

    @cute.jit
    def put(self, limit: Float32, elements: Any):
        """Add a thread's elements that reach the threshold to the candidates."""
        count = Int32(0)
        for value, _ in elements:
            count = count + select_(value >= limit, Int32(1), Int32(0))
        if count > 0:
            place = arch.atomic_add(self.counts.iterator + self.within, count, scope="cta")
            if place + count <= self.capacity:
                for value, column in elements:
                    if value >= limit:
                        self.store(place, value, column)
                        place = place + 1

    def store(self, place: Any, value: Any, column: Any) -> None:
        """Store a candidate."""
        self.pairs[place] = (Int64(column) << 32) | Int64(Uint32(value.bitcast(Int32)))

    def pair(self, place: Any) -> tuple[Any, Any]:
        """Return the value and the column of a candidate."""
        pair = self.pairs[place]
        return Int32(pair).bitcast(Float32), Int32(pair >> 32)

    @cute.jit
    def write(self, values: Any, indices: Any, at: Any, k: Int32, top: Float32, scale: Float32, exchange: Any):
        """Write the first `k`: exponentials relative to `top`, times `scale`; or relative to the first, over their
        sum."""
        kernel, count, lane = self.kernel, self.counts[self.within], at.unit
        own = [self.pair(lane + n * self.lanes) for n in range(self.each)]
        places = cute.make_rmem_tensor((self.each,), Int32)
        places.fill(0)
        first = top
        for turn in range(cute.ceil_div(count, _AT_ONCE)):
            for i in range_constexpr(_AT_ONCE):
                beside, there = self.pair(turn * _AT_ONCE + i)
                for n, (value, column) in enumerate(own):
                    before = (beside > value) | ((beside == value) & (there < column))
                    places[n] = places[n] + select_(before, Int32(1), Int32(0))
                if const_expr(kernel.problem.renormalize):
                    first = arch.fmax(first, beside)
        if const_expr(kernel.problem.renormalize):
            # Candidates lie in the order in which threads came. Each thread gets those of its own ranks: the order of the sum is fixed.
            self.wait()
            for n in range_constexpr(self.each):
                if places[n] < k:
                    self.store(places[n], *own[n])
            self.wait()
            own = [self.pair(lane + n * self.lanes) for n in range(self.each)]
            for n in range_constexpr(self.each):
                places[n] = lane + n * self.lanes
        exponentials, own_sum = [exp2((value - first) * LOG2_E) for value, _ in own], Float32(0.0)
        for n in range_constexpr(self.each):  # empty slots have ranks behind the last
            own_sum = own_sum + select_(places[n] < k, exponentials[n], Float32(0.0))
        if const_expr(kernel.problem.renormalize):
            ((row_sum,),) = kernel.reduce_rows([(own_sum,)], exchange, [self.within], at.thread, 0, sum_statistics)
            scale = arch.rcp_approx(row_sum)
        for n in range_constexpr(self.each):
            place = places[n]
            if at.exists & (place < k):
                values[at.row, place] = exponentials[n] * scale
                indices[at.row, place] = own[n][1].to(kernel.problem.index)
