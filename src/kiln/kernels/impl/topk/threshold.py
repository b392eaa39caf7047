"""Top-k by a threshold that is not larger than the k-th element.

The elements of a row are in groups, one or two for each thread. Each warp finds the r-th of its groups' largest
elements; the least of these, of w warps, is no larger than the (r w)-th element of the row. The few elements that reach
it are collected in shared memory, where each is compared with all others: its rank is the number that come before it.

Elements are compared by the signs of differences, which cost half of what predicates cost. 16-bit elements leave bits
of an f32 for their columns, so that no two are equal.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

from .... import BFloat16, Float16, Float32, Int32, Int64, Uint32, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ...parts.vectors import across, maximum
from ..rowwise.config import WARP
from ..rowwise.row_statistics import sum_statistics
from ..rowwise.softmax_and_norms import LOG2_E, exp2
from .ordered_bits import from_order, order

if TYPE_CHECKING:
    from .... import Boolean
    from ..rowwise.row_kernel import Position

_AT_ONCE = 4
"""Candidates that a thread compares with its own at a time."""
_OWN = 2
"""Candidates of its own that a thread compares at a time."""
_CHUNKS = 16
"""Slots for the largest elements of a thread's chunks of a row, used in turn."""
_WORD = 32
"""Elements with a bit each in a word."""


def largest(most: Float32, values: list[Float32]) -> Float32:
    """Return the largest of a number and of elements; NaN if one is."""
    for value in values:
        most = arch.fmax(most, value, nan=True)
    return most


def is_less(a: Float32, b: Float32 | Int64) -> Uint32:
    """Return 1 if a < b, 0 if not. Two infinities, and -0.0 and 0.0, may give 1 though they are equal."""
    return Uint32((a - b).bitcast(Int32)) >> 31


class Pairs:
    """Candidates as pairs of a value and a column."""

    dtype = Int64
    none = 0x7FFFFFFF_FF800000
    """Minus infinity, in a column behind all others."""

    def pack(self, value: Float32, column: Int32) -> Int64:
        """Return the pair of a value and a column."""
        return (Int64(column) << 32) | Int64(Uint32(value.bitcast(Int32)))

    def unpack(self, pair: Any) -> tuple[Float32, Int32]:
        """Return the value and the column of a pair."""
        return Int32(pair).bitcast(Float32), Int32(pair >> 32)

    def is_before(self, a: Float32 | Int64, b: Int64) -> Uint32:
        """Return 1 if a comes before b, 0 if not."""
        value, column = self.unpack(a)
        other, there = self.unpack(b)
        return select_((value > other) | ((value == other) & (column < there)), Uint32(1), Uint32(0))


class Keys:
    """Candidates as numbers: values with the column in the lower `bits`, inverted where that makes a smaller column
    larger. Infinite values have no key."""

    dtype = Float32
    none = -float("inf")

    def __init__(self, bits: int) -> None:
        self.mask: int = (1 << bits) - 1

    def pack(self, value: Float32, column: Int32) -> Float32:
        """Return the key of a value and a column."""
        bits = (value + 0.0).bitcast(Int32)  # there is one zero
        return (bits | ((column ^ ~(bits >> 31)) & self.mask)).bitcast(Float32)

    def unpack(self, key: Any) -> tuple[Float32, Int32]:
        """Return the value and the column of a key."""
        bits = key.bitcast(Int32)
        return (bits & ~self.mask).bitcast(Float32), (bits ^ ~(bits >> 31)) & self.mask

    def is_before(self, a: Float32 | Int64, b: Float32) -> Uint32:
        """Return 1 if a comes before b, 0 if not."""
        return is_less(b, a)


class Candidates:
    """The elements of a row that reach the threshold, in shared memory: their count, values and columns. Each of
    `lanes` threads takes `each` of at most `capacity`."""

    __kiln_static__ = True

    def __init__(self, kernel: Any, within: Int32) -> None:
        self.kernel = kernel
        self.lanes: int = kernel.config.row_threads
        self.capacity: int = max(WARP, self.lanes)
        rows = kernel.config.rows
        self.each: int = self.capacity // self.lanes
        self.own: int = min(_OWN, self.each)
        self.warps: int = max(1, self.lanes // WARP)
        self.counts: cute.Tensor = cute.make_tensor(arch.alloc_smem(Int32, rows), cute.make_layout(rows))

        # bits that f32 has behind the mantissa of bf16 or f16
        bits = {BFloat16: 16, Float16: 13}.get(kernel.problem.sources[0], 0)
        columns = self.lanes * kernel.vectors * kernel.width
        self.format: Keys | Pairs = Keys(bits) if kernel.resident and columns <= 1 << bits else Pairs()
        self.items: cute.Tensor = self._memory(self.capacity, rows)[None, within]
        self.first: cute.Tensor = self._memory(self.lanes, rows)[None, within]
        self.maxima: Any = None
        if not kernel.resident:
            layout = cute.make_layout((_CHUNKS, kernel.config.threads), stride=(kernel.config.threads, 1))
            self.maxima = cute.make_tensor(arch.alloc_smem(Float32, cute.size(layout)), layout)
        self.limits: Any = None
        if self.warps > 1:
            self.limits = cute.make_tensor(arch.alloc_smem(Uint32, self.warps), cute.make_layout(self.warps))
        self.within = within

    def _memory(self, count: int, rows: int) -> cute.Tensor:
        memory = arch.alloc_smem(self.format.dtype, count * rows, 16)
        return cute.make_tensor(memory, cute.make_layout((count, rows)))

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
            self.items[lane + n * self.lanes] = self.format.dtype(self.format.none)

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
    def limit(self, maxima: list[Float32], k: Int32, thread: Int32):
        """Return what at least `k` elements of the row reach, from the largest of a thread's groups; not a finite number
        if none is known, or an element is infinite or NaN."""
        too_large = ~arch.vote_all_sync(functools.reduce(operator.and_, (most < float("inf") for most in maxima)))
        if const_expr(self.lanes >= WARP):
            key = order(maxima[0])
            limit = Uint32(0)
            for _ in range(cute.ceil_div(k, self.warps)):
                limit = arch.warp_redux_sync(key, "max")
                key = select_(key == limit, Uint32(0), key)
            limit = select_(too_large, Uint32(0), limit)
            if const_expr(self.warps > 1):
                if thread % WARP == 0:
                    self.limits[thread // WARP] = limit
                self.wait()
                least = lambda a, b: select_(a < b, a, b)
                limit = across(self.limits[thread % self.warps], least, min(WARP, self.warps))
            return from_order(limit)
        less = [Uint32(0) for _ in maxima]  # how many groups are less
        for distance in range_constexpr(self.lanes):
            for other in maxima:
                beside = other if const_expr(distance == 0) else arch.shuffle_sync_bfly(other, offset=distance)
                less = [count + is_less(beside, most) for count, most in zip(less, maxima, strict=True)]
        most_less = Uint32(len(maxima) * self.lanes - k)
        lowest = Float32(-float("inf"))
        limit = lowest
        for count, most in zip(less, maxima, strict=True):
            limit = arch.fmax(limit, select_(count <= most_less, most, lowest))
        return select_(too_large, lowest, across(limit, maximum, self.lanes))

    def fit(self) -> Boolean:
        """Return whether there is room for all candidates."""
        return self.counts[self.within] <= self.capacity

    @cute.jit
    def put(self, limit: Float32, values: list[Float32], x: cute.Tensor, at: Position):
        """Add a thread's elements that reach the threshold, a finite number, to the candidates."""
        limit = select_(limit == 0.0, Float32(-0.0), limit)  # which both zeros reach
        for start in range_constexpr(0, len(values), _WORD):
            part = values[start : start + _WORD]
            below = Uint32(0)
            for value in part:
                below = (below << 1) | is_less(value, limit)
            reach = ~below << (_WORD - len(part))
            if reach != 0:
                place = arch.atomic_add(self.counts.iterator + self.within, arch.popc(reach), scope="cta")
                while reach != 0:
                    leading = Uint32(arch.clz(Int32(reach)))
                    reach = reach ^ (Uint32(1 << (_WORD - 1)) >> leading)
                    if place < self.capacity:
                        # read again: registers have no indices
                        column = self.kernel.column(at.unit, Int32(leading) + start)
                        self.items[place] = self.format.pack(x[at.row, column].to(Float32), column)
                    place = place + 1

    @cute.jit
    def rank(self, lane: Int32, k: Int32):
        """Find the first `k` candidates."""
        count = self.counts[self.within]
        step = self.own * self.lanes
        for first in range(lane, lane + cute.ceil_div(count, step) * step, step):
            own = [self.items[first + n * self.lanes] for n in range(self.own)]
            before = cute.make_rmem_tensor((self.own,), Uint32)
            before.fill(0)
            for turn in range(cute.ceil_div(count, _AT_ONCE)):
                beside = cute.make_rmem_tensor((_AT_ONCE,), self.format.dtype)
                cute.autovec_copy(cute.local_tile(self.items, (_AT_ONCE,), (turn,)), beside)
                for n, item in enumerate(own):
                    for i in range(_AT_ONCE):
                        before[n] = before[n] + self.format.is_before(beside[i], item)
            for n, item in enumerate(own):
                if before[n] < k:  # empty places come after all elements
                    self.first[before[n]] = item
        self.wait()

    @cute.jit
    def write(
        self,
        values: cute.Tensor,
        indices: cute.Tensor,
        at: Position,
        k: Int32,
        top: Float32,
        scale: Float32,
        exchange: Any,
    ):
        """Write the first `k`: exponentials relative to `top`, times `scale`; or relative to the first, over their
        sum."""
        kernel = self.kernel
        lane = at.unit
        self.rank(lane, k)
        own = most = self.format.dtype(self.format.none)
        if at.exists:
            own = self.first[min(lane, k - 1)]
            most = self.first[0]
        value, column = self.format.unpack(own)
        if const_expr(kernel.problem.renormalize):
            top = self.format.unpack(most)[0]
        exponential = exp2((value - top) * LOG2_E)
        if const_expr(kernel.problem.renormalize):
            # threads have ranks, not the order in which they came: the order of the sum is fixed
            added = select_(lane < k, exponential, Float32(0.0))
            ((row_sum,),) = kernel.reduce_rows([(added,)], exchange, [self.within], at.thread, 0, sum_statistics)
            scale = arch.rcp_approx(row_sum)
        if at.exists & (lane < k):
            values[at.row, lane] = exponential * scale
            indices[at.row, lane] = column.to(kernel.problem.index)
