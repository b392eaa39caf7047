"""The largest elements of rows by a number that is not larger than the last of them.

Each warp finds which of its lanes' largest elements is the r-th; the least of these, of w warps, is no larger than the r w-th element of
the row. The few that reach it are put into shared memory, where each is compared with all others: as many as come before it is its place.
"""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32, Int64, Uint32, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ...parts.vectors import across
from ..rowwise.row_kernel import WARP
from ..rowwise.row_statistics import summed_up
from ..rowwise.softmax_and_norms import LOG2_E, exp2
from .ordered_bits import order

_NONE = 0x7FFFFFFF_FF800000
"""Minus infinity, in a column after all others."""
_AT_ONCE = 4
_CHUNKS = 16
"""Chunks of a thread's part of a row whose largest elements it notes, one after the other, then again from the first."""


def largest(most: Any, elements: list[tuple[Any, Any]]) -> Any:
    """The larger of a number and the largest of elements; no number if one is none."""
    for value, _ in elements:
        most = arch.fmax(most, value, nan=True)
    return most


class Candidates:
    """The elements of a row that reach a number, in shared memory: their count, values and columns. A group of `lanes` threads takes
    `each` of at most `room`."""

    __kiln_static__ = True

    def __init__(self, kernel: Any, within: Any) -> None:
        self.kernel, self.lanes = kernel, kernel.config.row_threads
        self.room, rows = max(WARP, self.lanes), kernel.config.rows
        self.each = self.room // self.lanes
        self.warps = max(1, self.lanes // WARP)
        self.counts = cute.make_tensor(arch.alloc_smem(Int32, rows), cute.make_layout(rows))
        pairs = cute.make_tensor(arch.alloc_smem(Int64, self.room * rows, 8), cute.make_layout((self.room, rows)))
        self.pairs = pairs[None, within]
        self.maxima: Any = None
        if not kernel.whole:
            layout = cute.make_layout((_CHUNKS, kernel.config.threads), stride=(kernel.config.threads, 1))
            self.maxima = cute.make_tensor(arch.alloc_smem(Float32, cute.size(layout)), layout)
        self.limits: Any = None
        if self.warps > 1:
            self.limits = cute.make_tensor(arch.alloc_smem(Uint32, self.warps), cute.make_layout(self.warps))
        self.within = within

    def wait(self) -> None:
        """Until all threads of the row have come here."""
        if self.warps > 1:
            arch.sync_threads()
        else:
            arch.sync_warp()

    @cute.jit
    def begin(self, lane: Int32):
        """There are none: what stands for them comes after all."""
        if lane == 0:
            self.counts[self.within] = Int32(0)
        for n in range_constexpr(self.each):
            self.pairs[lane + n * self.lanes] = Int64(_NONE)

    def clear(self, thread: Any) -> None:
        """No chunk has been noted."""
        for n in range(_CHUNKS):
            self.maxima[n, thread] = Float32(-float("inf"))

    def note(self, chunk: Any, thread: Any, most: Any) -> None:
        """Note the largest element of a thread's chunk, of which only it will read."""
        place = chunk % _CHUNKS
        self.maxima[place, thread] = arch.fmax(self.maxima[place, thread], most)

    def noted(self, chunk: Any, thread: Any) -> Any:
        """The largest element of a thread's chunk, or of others noted in its place."""
        return self.maxima[chunk % _CHUNKS, thread]

    @cute.jit
    def limit(self, most: Float32, k: Int32, thread: Int32):
        """What at least `k` elements of the row reach, in the order of keys; `LOWEST` or less if that is not known."""
        key, found = order(most), Uint32(0)
        spoiled = arch.vote_any_sync(most != most)
        if const_expr(self.lanes >= WARP):
            for _ in range(cute.ceil_div(k, self.warps)):
                found = arch.warp_redux_sync(key, "max")
                key = select_(key == found, Uint32(0), key)
        else:
            reached = Int32(1)  # by how many lanes
            for distance in range_constexpr(1, self.lanes):
                other = arch.shuffle_sync_bfly(key, offset=distance)
                reached = reached + select_(other >= key, Int32(1), Int32(0))
            enough = select_(reached >= k, key, Uint32(0))
            found = across(enough, lambda a, b: select_(a > b, a, b), self.lanes)
        found = select_(spoiled, Uint32(0), found)
        if const_expr(self.warps > 1):
            if thread % WARP == 0:
                self.limits[thread // WARP] = found
            self.wait()
            found = across(self.limits[thread % self.warps], lambda a, b: select_(a < b, a, b), min(WARP, self.warps))
        return found

    def fit(self) -> Any:
        """Whether there is room for all."""
        return self.counts[self.within] <= self.room

    @cute.jit
    def put(self, limit: Float32, found: Any):
        """Put a thread's elements that reach a number beside those of others."""
        count = Int32(0)
        for value, _ in found:
            count = count + select_(value >= limit, Int32(1), Int32(0))
        if count > 0:
            place = arch.atomic_add(self.counts.iterator + self.within, count, scope="cta")
            if place + count <= self.room:
                for value, column in found:
                    if value >= limit:
                        self.lay(place, value, column)
                        place = place + 1

    def lay(self, place: Any, value: Any, column: Any) -> None:
        """Make an element one of them."""
        self.pairs[place] = (Int64(column) << 32) | Int64(Uint32(value.bitcast(Int32)))

    def pair(self, place: Any) -> tuple[Any, Any]:
        """The value and the column of one of them."""
        found = self.pairs[place]
        return Int32(found).bitcast(Float32), Int32(found >> 32)

    @cute.jit
    def write(
        self, values: Any, indices: Any, row: Int32, exists: Any, lane: Int32, thread: Int32, k: Int32, top: Float32,
        scale: Float32, exchange: Any,
    ):  # fmt: skip
        """Write the first `k` of them: powers relative to `top`, times `scale`; or relative to the first, over their sum."""
        kernel, count = self.kernel, self.counts[self.within]
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
            # They lie as threads came. Each gets those of its own places, so that they are added in an order that does not change.
            self.wait()
            for n in range_constexpr(self.each):
                if places[n] < k:
                    self.lay(places[n], *own[n])
            self.wait()
            own = [self.pair(lane + n * self.lanes) for n in range(self.each)]
            for n in range_constexpr(self.each):
                places[n] = lane + n * self.lanes
        powers, summed = [exp2((value - first) * LOG2_E) for value, _ in own], Float32(0.0)
        for n in range_constexpr(self.each):  # what is after the last has a place after them, too
            summed = summed + select_(places[n] < k, powers[n], Float32(0.0))
        if const_expr(kernel.problem.renormalize):
            ((whole,),) = kernel.gathered_each([(summed,)], exchange, [self.within], thread, 0, self.warps, summed_up)
            scale = arch.rcp_approx(whole)
        for n in range_constexpr(self.each):
            place = places[n]
            if exists & (place < k):
                values[row, place] = powers[n] * scale
                indices[row, place] = own[n][1].to(kernel.problem.index)
