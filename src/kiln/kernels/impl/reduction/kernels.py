"""The reduction kernels: along contiguous elements (rows), or across them (columns).

Each thread folds its elements into one state for each position of a vector; states are merged within the thread, the warp and the CTA in
a fixed order, so that the same input gives the same result. A reduction may be split over CTAs: each writes its state, and a second
kernel merges them, in order.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from .... import BFloat16, Boolean, Float16, Float32, Float64, Int32, Int64, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp
from ...dispatch import arrays
from ...parts.unaligned_rows import Span
from ...parts.vectors import as_f32, total

WARP = 32
State = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Operation:
    """What a reduction computes: "sum", "mean", "max", "min", "argmax" or "argmin", in a type.

    `index` is the type of positions.
    """

    name: str
    dtype: Any
    index: Any

    @property
    def finds_position(self) -> bool:
        """Whether a state has a position beside its value."""
        return self.name.startswith("arg")

    @property
    def adds(self) -> bool:
        """Whether values are summed."""
        return self.name in ("sum", "mean")

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of a state."""
        return (self.dtype, self.index) if self.finds_position else (self.dtype,)

    @property
    def identity(self) -> Any:
        """The value that changes no state."""
        if self.adds:
            return 0
        if not self.dtype.is_float:
            return self.dtype.min if self.name.endswith("max") else self.dtype.max
        return float("-inf") if self.name.endswith("max") else float("inf")

    @property
    def no_position(self) -> int:
        """The position of an element that does not exist: behind all others."""
        return self.index.max

    def initial(self, width: int = 0, position: Any = None) -> State:
        """Returns states of no elements, for each position of a vector or (0) one; `position` is that of the first to come."""
        kinds = ((self.identity, self.dtype), (self.no_position if position is None else position, self.index))
        made = [cute.full((width,), x, kind) if width else kind(x) for x, kind in kinds]
        return tuple(made[: len(self.types)])

    def advance(self, state: State, values: Any, position: Any) -> State:
        """Returns states with elements that come after all those seen, at one position: of equals, the first stays."""
        if not self.finds_position:
            return self.merge(state, (values,))
        best, places = state
        if self.dtype.is_float:
            behind = values <= best if self.name.endswith("max") else values >= best
            taken = ~behind & (best == best)
        else:
            taken = values > best if self.name.endswith("max") else values < best
        return cute.where(taken, values, best), cute.where(taken, cute.full_like(places, position), places)

    def beats(self, a: Any, b: Any) -> Any:
        """Returns whether `a` comes before `b`; a NaN comes before every number."""
        first = a > b if self.name.endswith("max") else a < b
        return first | ((a != a) & (b == b)) if self.dtype.is_float else first

    def chosen(self, a: Any, b: Any) -> Any:
        """Returns the one of two values that comes first."""
        if self.dtype.is_float:
            choose = cute.math.max if self.name.endswith("max") else cute.math.min
            return choose(a, b, propagate_nan=True)
        return where(self.beats(b, a), b, a)

    def is_chosen(self, value: Any, chosen: Any) -> Any:
        """Returns whether a value is the one chosen among some: an equal, or a NaN, which is never passed over."""
        return (value == chosen) | (value != value) if self.dtype.is_float else value == chosen

    def merge(self, a: State, b: State) -> State:
        """Returns one state of two; of equals, the one with the lower position."""
        if self.adds:
            return (a[0] + b[0],)
        value = self.chosen(a[0], b[0])
        if not self.finds_position:
            return (value,)
        return value, smaller(self.place(a, value), self.place(b, value))

    def place(self, state: State, chosen: Any) -> Any:
        """Returns the position of a state if its value was chosen."""
        nowhere = (
            self.index(self.no_position)
            if isinstance(chosen, self.dtype)
            else cute.full_like(state[1], self.no_position)
        )
        return where(self.is_chosen(state[0], chosen), state[1], nowhere)

    def result(self, state: State, count: Any, dtype: Any) -> Any:
        """Returns the result for a state of `count` elements."""
        if self.finds_position:
            return state[1].to(dtype)
        if self.name == "mean":
            exact = Float32 if self.dtype is Float32 else Float64
            return (state[0].to(exact) / exact(count)).to(dtype)
        return state[0].to(dtype)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Returns `a` where the condition holds, else `b`; of numbers or vectors."""
    if isinstance(condition, Boolean):
        return select_(condition, a, b)
    return cute.where(condition, a, b)


def computed(value: Any, dtype: Any) -> Any:
    """Converts a number or vector to the type of the computation."""
    return as_f32(value) if dtype is Float32 and isinstance(value, cute.TensorSSA) else value.to(dtype)


def smaller(a: Any, b: Any) -> Any:
    """Returns the smaller of two positions, or of each of two vectors of them."""
    return where(b < a, b, a)


def folded(operation: Operation, state: State, width: int) -> State:
    """Merges the states of the positions of a vector."""
    found = tuple(part[0] for part in state)
    for i in range(1, width):
        found = operation.merge(found, tuple(part[i] for part in state))
    return found


def across_lanes(operation: Operation, state: State, lanes: int) -> State:
    """Merges the states of neighbouring lanes, in all of them."""
    offsets = [1 << k for k in reversed(range((lanes - 1).bit_length()))]
    value = state[0]
    for offset in offsets:
        other = arch.shuffle_sync_bfly(value, offset)
        value = value + other if operation.adds else operation.chosen(value, other)
    if not operation.finds_position:
        return (value,)
    position = operation.place(state, value)
    for offset in offsets:
        position = smaller(position, arch.shuffle_sync_bfly(position, offset))
    return value, position


class Reduction:
    """The base of both kernels."""

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
        """Whether a CTA writes a state, not a result."""
        self.from_partials = found
        """Whether states are read, not elements."""
        self.exact = exact
        """Whether every access is in bounds."""

    def sources(self, places: Any) -> list[Any]:
        """Returns the pointers of elements, and of positions where states are read."""
        found = [arrays.pointer(places[0], self.dtype, 1)]
        if self.from_partials and self.operation.finds_position:
            found.append(arrays.pointer(places[1], self.operation.index, 1))
        return found

    def targets(self, places: Any) -> list[Any]:
        """Returns the pointers of results, or of the values of states."""
        kinds = self.operation.types if self.split else (self.out,)
        taken = len(places) - len(kinds)
        return [arrays.pointer(place, kind, 1) for place, kind in zip(places[taken:], kinds, strict=True)]

    def read(self, sources: list[Any], offset: Any, inside: Any) -> State:
        """Reads some neighbouring elements or states; the identity where they do not exist."""
        operation = self.operation
        found: list[Any] = []
        for source, kind, instead in zip(
            sources, operation.types, (operation.identity, operation.no_position), strict=False
        ):
            fits = instead == 0 or source.dtype in (kind, Float16, BFloat16)
            value = self.vector(source, offset, inside, instead if fits else 0).load()
            if inside is not None and not fits:
                value = value.to(kind)
                value = cute.where(cute.full_like(value, inside, Boolean), value, cute.full_like(value, instead))
            found.append(value)
        return tuple(found)

    def as_state(self, read: State) -> State:
        """Converts what was read to the types of the computation."""
        return (computed(read[0], self.operation.dtype), *read[1:])

    @cute.jit
    def vector(self, source: Any, offset: Any, inside: Any, instead: Any):
        """Reads some neighbouring elements; a number where they do not exist."""
        held = cute.make_rmem_tensor((self.width,), source.dtype)
        atom = cute.make_copy_atom(
            CopyUniversalOp(), source.dtype, num_bits_per_copy=self.width * arrays.element_bits(source.dtype)
        )
        moved = (source + offset).with_alignment(self.width * arrays.element_bits(source.dtype) // 8)
        part = cute.make_tensor(moved, cute.make_layout(self.width))
        if const_expr(inside is None):
            cute.copy(atom, part, held)
        else:
            held.fill(instead)
            cute.copy(atom, part, held, pred=inside)
        return held

    @cute.jit
    def write(self, targets: Any, state: Any, place: Any, count: Any):
        """Writes a state, or its result."""
        if const_expr(self.split):
            for target, part in zip(targets, state, strict=True):
                (target + place).store(part)
        else:
            (targets[0] + place).store(self.operation.result(state, count, self.out))


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is static of the rows that are reduced, beside their sizes."""

    plain: bool = False
    """One mode of rows is kept, and one is reduced."""
    single: int = 0
    """Rows that a thread has at a time, of a chunk each; 0: a row has several chunks."""
    unaligned: bool = False
    """Rows are unaligned."""


class Piece(NamedTuple):
    """A thread's part of a chunk of a row: vectors and the position of the first, and elements at the edges."""

    vectors: list[State]
    position: Any
    edges: list[State]


class RowReduction(Reduction):
    """Reductions along rows: of one of `rows` by one of `repeats`, each `n` neighbouring elements, `repeats` apart."""

    def __init__(self, shape: Shape, *cut: Any) -> None:
        super().__init__(*cut)
        self.shape = shape
        self.seeks = self.operation.finds_position and not self.from_partials

    @cute.jit
    def __call__(
        self, places: Any, kept: Any, kept_steps: Any, repeats: Int32, repeat_step: Int64, n: Any, lead: Int32, parts: Int32,
        each: Int32, count: Int64, blocks: Int32, stream: Int64,
    ):  # fmt: skip
        self.kernel(
            self.sources(places), self.targets(places), kept, kept_steps, repeats, repeat_step, n, lead, each, count
        ).launch(grid=(blocks, parts, 1), block=(self.threads, 1, 1), stream=stream)

    @cute.kernel
    def kernel(
        self, sources: Any, targets: Any, kept: Any, kept_steps: Any, repeats: Int32, repeat_step: Int64, n: Any, lead: Int32,
        each: Int32, count: Int64,
    ):  # fmt: skip
        operation, shape = self.operation, self.shape
        thread = arch.thread_idx()[0]
        block, part, _ = arch.block_idx()
        rows, group = kept[0] * kept[1], self.threads // self.lanes
        if const_expr(shape.single > 0):
            taken = [(block * shape.single + k) * group + thread // self.lanes for k in range(shape.single)]
            bases = [self.base(row, rows, kept, kept_steps) for row in taken]
            pieces = [self.piece(sources, base, n, lead, 0, 0) for base in bases]
            states = [self.accumulate(self.start(), piece) for piece in pieces]
        else:
            row = block * group + thread // self.lanes
            base = self.base(row, rows, kept, kept_steps)
            chunk = self.lanes * self.width * self.unroll
            chunks = (n + (chunk - 1)) // chunk
            state = self.start()
            for number in range(part * each, min((part + 1) * each, repeats * chunks)):
                repeat = 0 if const_expr(shape.plain) else number // chunks
                start = number if const_expr(shape.plain) else number % chunks
                state = self.accumulate(state, self.piece(sources, base + repeat * repeat_step, n, lead, repeat, start))
            taken, states = [row], [state]
        found = [across_lanes(operation, self.thread_state(state), min(WARP, self.lanes)) for state in states]
        if const_expr(self.lanes > WARP):
            found = [self.across_warps(state, thread) for state in found]
        for row, state in zip(taken, found, strict=True):
            if (row < rows) & (thread % self.lanes == 0):
                at = Int64(row) * arch.grid_dim()[1] + part if const_expr(self.split) else Int64(row)
                self.write(targets, state, at, count)

    def start(self) -> State:
        """Returns the initial states: one if positions are wanted, else one for each position of a vector."""
        return self.operation.initial(0 if self.seeks else self.width)

    def thread_state(self, state: State) -> State:
        """Merges a thread's states."""
        return state if self.seeks else folded(self.operation, state, self.width)

    def base(self, row: Any, rows: Any, kept: Any, kept_steps: Any) -> Any:
        """Returns the offset of a row; of the first, if the row does not exist."""
        place = where(row < rows, row, Int32(0))
        if self.shape.plain:
            return Int64(place) * kept_steps[1]
        return Int64(place // kept[1]) * kept_steps[0] + Int64(place % kept[1]) * kept_steps[1]

    def piece(self, sources: list[Any], base: Any, n: Any, lead: Any, repeat: Any, number: Any) -> Piece:
        """Begins to read a thread's part of a chunk of a row."""
        operation, width, lanes = self.operation, self.width, self.lanes
        lane = arch.thread_idx()[0] % lanes
        before = operation.index(repeat) * n
        span = Span(lead + Int32(base) if self.shape.unaligned else None, n, width)
        unit = number * (lanes * self.unroll) + lane
        vectors: list[State] = []
        for u in range(self.unroll):
            inside = None if self.exact else unit + u * lanes < span.units
            offset = base + span.head + (unit + u * lanes) * width
            vectors.append(self.read(sources, offset, inside))
        edges: list[State] = []
        for column in span.edges(lane, lanes):
            there = (number == 0) & (column < n)
            edges.append((self.edge(sources[0] + (base + column), there), operation.index(before + column), there))
        return Piece(vectors, before + span.head + unit * width, edges)

    @cute.jit
    def edge(self, source: Any, there: Any):
        """Reads an element at the edge of a row; the identity where there is none."""
        found = self.operation.dtype(self.operation.identity)
        if there:
            found = source.load().to(self.operation.dtype)
        return found

    @cute.jit
    def accumulate(self, state: Any, piece: Any):
        """Returns states with a part of a chunk."""
        operation = self.operation
        if const_expr(self.seeks):
            state = self.search(state, [vector[0] for vector in piece.vectors], piece.position)
        else:
            for vector in piece.vectors:
                state = operation.merge(state, self.as_state(vector))
        for value, position, there in piece.edges:
            if there:  # few threads have one
                if const_expr(self.seeks):
                    state = operation.merge(state, (value, position))
                else:
                    others = [operation.dtype(operation.identity) for _ in range(self.width - 1)]
                    state = operation.merge(state, (cute.TensorSSA.from_elements([value, *others], operation.dtype),))
        return state

    @cute.jit
    def search(self, state: Any, values: Any, position: Any):
        """Returns the first of the best of those seen and of a chunk, whose first element has a position; searched only if it is better."""
        operation, width = self.operation, self.width
        best = values[0]
        for value in values[1:]:
            best = operation.chosen(best, value)
        best = computed(total(best, operation.chosen), operation.dtype)
        if operation.beats(best, state[0]) | ((state[1] == operation.no_position) & (best == state[0])):
            elements = [
                (u * self.lanes * width + i, wide[i])
                for u, wide in enumerate(computed(value, operation.dtype) for value in values)
                for i in range(width)
            ]
            place = operation.index(elements[-1][0])
            for offset, value in reversed(elements[:-1]):
                place = where(operation.is_chosen(value, best), operation.index(offset), place)
            state = (best, operation.index(position) + place)
        return state

    @cute.jit
    def across_warps(self, found: Any, thread: Any):
        """Merges the states of the warps of a row."""
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
    """Reductions of columns: of `rows` rows of `n` neighbouring elements, in each of some batches.

    `even`: each part of the rows is a multiple of those that a CTA reads at a time.
    """

    def __init__(self, even: bool, *cut: Any) -> None:
        super().__init__(*cut)
        self.even = even

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
        state = operation.initial(width, None if const_expr(self.from_partials) else begin)
        for start in range(begin, last, across * self.unroll):
            for u in range_constexpr(self.unroll):
                row = start + u * across
                inside = None if const_expr(self.exact) else column < n
                if const_expr(not self.even):
                    inside = row < last if const_expr(inside is None) else inside & (row < last)
                found = self.as_state(self.read(sources, base + row * row_step, inside))
                if const_expr(self.from_partials):
                    state = operation.merge(state, found)
                else:
                    state = operation.advance(state, found[0], operation.index(row))

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
