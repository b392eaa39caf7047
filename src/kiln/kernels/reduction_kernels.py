"""The kernels of reductions: along contiguous elements (rows), or across them (columns).

Each thread folds its elements into one finding for each place of a vector; findings are merged within the thread, the warp and
the block in a fixed order, so that the same input gives the same result. A reduction may be split over blocks: each writes its
finding, and a second kernel merges them, in order.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import cute
from ..base_dsl.ranges import const_expr, range_constexpr
from ..base_dsl.typing import Boolean, Float32, Float64, Int32, Int64
from ..cute import arch
from ..cute.nvgpu import CopyUniversalOp
from ..cute.pointer import element_bits
from . import arrays

WARP = 32
State = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Operation:
    """What a reduction computes: "sum", "mean", "max", "min", "argmax" or "argmin", of elements computed in a type.

    `index` is the type positions are counted in.
    """

    name: str
    dtype: Any
    index: Any

    @property
    def finds_place(self) -> bool:
        """Whether a finding has a position beside its value."""
        return self.name.startswith("arg")

    @property
    def adds(self) -> bool:
        """Whether values are summed."""
        return self.name in ("sum", "mean")

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of a finding."""
        return (self.dtype, self.index) if self.finds_place else (self.dtype,)

    @property
    def nothing(self) -> Any:
        """The value that changes no finding."""
        if self.adds:
            return 0
        if not self.dtype.is_float:
            return self.dtype.min if self.name.endswith("max") else self.dtype.max
        return float("-inf") if self.name.endswith("max") else float("inf")

    def fresh(self, width: int, position: Any = -1) -> State:
        """Findings of no elements, for each place of a vector; the first will have a position. One of -1 is none."""
        values = cute.full((width,), self.nothing, self.dtype)
        return (values, cute.full((width,), position, self.index)) if self.finds_place else (values,)

    def advance(self, state: State, values: Any, position: Any) -> State:
        """Findings after elements that come after all those seen, at one position: of equals, the first stays."""
        if not self.finds_place:
            return self.merge(state, (values,))
        best, places = state
        if self.dtype.is_float:
            behind = values <= best if self.name.endswith("max") else values >= best
            taken = ~behind & (best == best)
        else:
            taken = values > best if self.name.endswith("max") else values < best
        return cute.where(taken, values, best), cute.where(taken, cute.full_like(places, position), places)

    def beats(self, a: Any, b: Any) -> Any:
        """Whether `a` comes before `b`; a NaN comes before every number."""
        first = a > b if self.name.endswith("max") else a < b
        return first | ((a != a) & (b == b)) if self.dtype.is_float else first

    def merge(self, a: State, b: State) -> State:
        """One finding of two; of equals, the one with the lower position."""
        if self.adds:
            return (a[0] + b[0],)
        if not self.finds_place:
            if self.dtype.is_float:
                choose = cute.math.max if self.name == "max" else cute.math.min
                return (choose(a[0], b[0], propagate_nan=True),)
            return (where(self.beats(b[0], a[0]), b[0], a[0]),)
        same = (a[0] == b[0]) | ((a[0] != a[0]) & (b[0] != b[0])) if self.dtype.is_float else a[0] == b[0]
        better = self.beats(b[0], a[0]) | (same & (b[1] < a[1]))
        taken = (b[1] >= 0) & ((a[1] < 0) | better)
        return where(taken, b[0], a[0]), where(taken, b[1], a[1])

    def result(self, state: State, count: Any, dtype: Any) -> Any:
        """What is written for a finding of `count` elements."""
        if self.finds_place:
            return state[1].to(dtype)
        if self.name == "mean":
            exact = Float32 if self.dtype is Float32 else Float64
            return (state[0].to(exact) / exact(count)).to(dtype)
        return state[0].to(dtype)


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`; of numbers or values."""
    if isinstance(condition, Boolean):
        from ..base_dsl.numeric.operators import select

        return select(condition, a, b)
    return cute.where(condition, a, b)


def folded(operation: Operation, state: State, width: int) -> State:
    """One finding of those of each place of a vector."""
    found = tuple(part[0] for part in state)
    for i in range(1, width):
        found = operation.merge(found, tuple(part[i] for part in state))
    return found


def across_lanes(operation: Operation, state: State, lanes: int) -> State:
    """One finding of those of neighbouring lanes, known to all of them."""
    offset = lanes // 2
    while offset:
        state = operation.merge(state, tuple(arch.shuffle_sync_bfly(part, offset) for part in state))
        offset //= 2
    return state


class Reduction:
    """What both kernels are made for."""

    def __init__(
        self, operation: Operation, dtype: Any, out: Any, threads: int, lanes: int, width: int, unroll: int, split: bool,
        found: bool, exact: bool,
    ) -> None:  # fmt: skip
        self.operation = operation
        self.dtype = dtype
        self.out = out
        self.threads = threads
        self.lanes = lanes
        """Threads along the contiguous mode: of a row, or of a vector of columns."""
        self.width = width
        self.unroll = unroll
        self.split = split
        """Whether a block writes a finding, not a result."""
        self.found = found
        """Whether findings are read, not elements."""
        self.exact = exact
        """Whether every access lies inside."""

    def sources(self, places: Any) -> list[Any]:
        """Where elements are, and with findings of positions those."""
        found = [arrays.pointer(places[0], self.dtype, self.width)]
        if self.found and self.operation.finds_place:
            found.append(arrays.pointer(places[1], self.operation.index, self.width))
        return found

    def targets(self, places: Any) -> list[Any]:
        """Where results, or the parts of findings, are written."""
        kinds = self.operation.types if self.split else (self.out,)
        taken = len(places) - len(kinds)
        return [arrays.pointer(place, kind, 1) for place, kind in zip(places[taken:], kinds, strict=True)]

    @cute.jit
    def absorb(self, state: Any, sources: Any, offset: Any, position: Any, inside: Any):
        """Findings after a vector of elements at an offset, whose first has a position; or after a vector of findings."""
        held = [self.vector(source, offset, inside) for source in sources]
        operation, shape = self.operation, (self.width,)
        value = held[0].load().to(operation.dtype)
        if const_expr(inside is not None):
            nothing = cute.full(shape, operation.nothing, operation.dtype)
            value = cute.where(cute.full(shape, inside, Boolean), value, nothing)
        if const_expr(len(held) == 1):
            return operation.advance(state, value, position)
        places = held[1].load()
        if const_expr(inside is not None):
            places = cute.where(cute.full(shape, inside, Boolean), places, cute.full_like(places, -1))
        return operation.merge(state, (value, places))

    def first(self, position: Any, exists: Any) -> Any:
        """The position of the first element a thread will see; -1 if it sees none, or findings."""
        return -1 if self.found or not self.operation.finds_place else where(exists, position, self.operation.index(-1))

    @cute.jit
    def vector(self, source: Any, offset: Any, inside: Any):
        """Some neighbouring elements, undefined where they do not exist."""
        held = cute.make_rmem_tensor((self.width,), source.dtype)
        atom = cute.make_copy_atom(
            CopyUniversalOp(), source.dtype, num_bits_per_copy=self.width * element_bits(source.dtype)
        )
        moved = source + (cute.assume(offset, divby=self.width) if const_expr(self.width > 1) else offset)
        part = cute.make_tensor(moved, cute.make_layout(self.width))
        if const_expr(inside is None):
            cute.copy(atom, part, held)
        else:
            held.fill(0)
            cute.copy(atom, part, held, pred=inside)
        return held

    @cute.jit
    def write(self, targets: Any, state: Any, place: Any, count: Any):
        """Write a finding, or the result of it."""
        if const_expr(self.split):
            for target, part in zip(targets, state, strict=True):
                (target + place).store(part)
        else:
            (targets[0] + place).store(self.operation.result(state, count, self.out))


class RowReduction(Reduction):
    """Reductions along rows: of one of `rows` by one of `repeats`, each `n` neighbouring elements, `repeats` apart."""

    @cute.jit
    def __call__(
        self, places: Any, kept: Any, kept_steps: Any, repeats: Int32, repeat_step: Int64, n: Any, parts: Int32, each: Int32,
        count: Int64, blocks: Int32, stream: Int64,
    ):  # fmt: skip
        self.kernel(
            self.sources(places), self.targets(places), kept, kept_steps, repeats, repeat_step, n, each, count
        ).launch(grid=(blocks, parts, 1), block=(self.threads, 1, 1), stream=stream)

    @cute.kernel
    def kernel(
        self, sources: Any, targets: Any, kept: Any, kept_steps: Any, repeats: Int32, repeat_step: Int64, n: Any, each: Int32,
        count: Int64,
    ):  # fmt: skip
        operation, width = self.operation, self.width
        thread = arch.thread_idx()[0]
        block, part, _ = arch.block_idx()
        within = thread // self.lanes
        row = block * (self.threads // self.lanes) + within
        exists = row < kept[0] * kept[1]
        place = row if exists else Int32(0)
        base = Int64(place // kept[1]) * kept_steps[0] + Int64(place % kept[1]) * kept_steps[1]
        chunk = self.lanes * width * self.unroll
        chunks = (n + (chunk - 1)) // chunk
        last = min((part + 1) * each, repeats * chunks)

        begin = part * each
        column = begin % chunks * chunk + thread % self.lanes * width
        state = operation.fresh(width, self.first(operation.index(begin // chunks) * n + column, column < n))
        for number in range(begin, last):
            repeat = number // chunks
            start = number % chunks * chunk + thread % self.lanes * width
            for u in range_constexpr(self.unroll):
                column = start + u * self.lanes * width
                position = operation.index(repeat) * n + column
                inside = None if const_expr(self.exact) else column < n
                state = self.absorb(state, sources, base + repeat * repeat_step + column, position, inside)
        if const_expr(
            operation.finds_place and not self.found
        ):  # positions so far are those of a vector's first element
            steps = cute.TensorSSA.from_elements([operation.index(i) for i in range(width)], operation.index)
            state = (state[0], cute.where(state[1] < 0, state[1], state[1] + steps))
        found = across_lanes(operation, folded(operation, state, width), min(WARP, self.lanes))
        if const_expr(self.lanes > WARP):
            found = self.across_warps(found, thread)
        if exists and thread % self.lanes == 0:
            at = Int64(row) * arch.grid_dim()[1] + part if const_expr(self.split) else Int64(row)
            self.write(targets, found, at, count)

    @cute.jit
    def across_warps(self, found: Any, thread: Any):
        """One finding of those of the warps of a row."""
        warps = self.lanes // WARP
        lane, warp = thread % WARP, thread // WARP
        buffers = [
            cute.make_tensor(arch.alloc_smem(kind, self.threads // WARP), cute.make_layout(self.threads // WARP))
            for kind in self.operation.types
        ]
        if lane == 0:
            for buffer, part in zip(buffers, found, strict=True):
                buffer[warp] = part
        arch.sync_threads()
        slot = warp // warps * warps + lane % warps
        return across_lanes(self.operation, tuple(buffer[slot] for buffer in buffers), warps)


class ColumnReduction(Reduction):
    """Reductions of columns: of `rows` rows of `n` neighbouring elements, in each of some batches."""

    @cute.jit
    def __call__(
        self, places: Any, rows: Int32, row_step: Int64, n: Int32, batches: Int32, batch_step: Int64, parts: Int32, each: Int32,
        count: Int64, stream: Int64,
    ):  # fmt: skip
        grid = (cute.ceil_div(n, self.lanes * self.width), parts, batches)
        self.kernel(self.sources(places), self.targets(places), rows, row_step, n, batch_step, each, count).launch(
            grid=grid, block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        sources: Any,
        targets: Any,
        rows: Int32,
        row_step: Int64,
        n: Int32,
        batch_step: Int64,
        each: Int32,
        count: Int64,
    ):
        operation, width = self.operation, self.width
        thread = arch.thread_idx()[0]
        block, part, batch = arch.block_idx()
        column = (block * self.lanes + thread % self.lanes) * width
        across, first = self.threads // self.lanes, thread // self.lanes
        last = min((part + 1) * each, rows)
        base = Int64(batch) * batch_step + column

        begin = part * each + first
        state = operation.fresh(width, self.first(operation.index(begin), (begin < last) & (column < n)))
        for start in range(begin, last, across * self.unroll):
            for u in range_constexpr(self.unroll):
                row = start + u * across
                inside = row < last if const_expr(self.exact) else (row < last) & (column < n)
                state = self.absorb(state, sources, base + row * row_step, operation.index(row), inside)

        if const_expr(across > 1):
            buffers = [
                cute.make_tensor(
                    arch.alloc_smem(kind, self.threads * width, 16),
                    cute.make_layout((width, self.lanes, across)),
                )
                for kind in operation.types
            ]
            for buffer, found in zip(buffers, state, strict=True):
                buffer[None, thread % self.lanes, first].store(found)
            arch.sync_threads()
            if first == 0:
                for other in range(1, across):
                    more = tuple(buffer[None, thread % self.lanes, other].load() for buffer in buffers)
                    state = operation.merge(state, more)
        if first == 0:
            for i in range_constexpr(width):
                if column + i < n:
                    at = (Int64(batch) * arch.grid_dim()[1] + part if const_expr(self.split) else Int64(batch)) * n
                    self.write(targets, tuple(found[i] for found in state), at + column + i, count)
