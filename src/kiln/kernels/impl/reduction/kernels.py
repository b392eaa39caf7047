"""The reduction kernels: along contiguous elements (rows), or across them (columns).

Each thread folds its elements into one state for each position of a vector; states are merged within the thread, the
warp and the CTA in a fixed order, so that the same input gives the same result. A reduction may be split over CTAs:
each writes its state, and a second kernel merges them, in order.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from .... import BFloat16, Boolean, Float16, Float32, Float64, Int32, Int64, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ...dispatch import arrays
from ...parts.unaligned_rows import Span
from ...parts.vectors import as_f32, load_vector, total

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
    def types(self) -> tuple[type[cute.Numeric], ...]:
        """The types of a state."""
        return (self.dtype, self.index) if self.finds_position else (self.dtype,)

    @property
    def identity(self) -> float:
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

    def initial(self, width: int = 0, position: Int32 | Int64 | None = None) -> State:
        """Return states of no elements, for each position of a vector or (0) one; `position` is that of the first to
        come."""
        kinds = ((self.identity, self.dtype), (self.no_position if position is None else position, self.index))
        states = [cute.full((width,), x, kind) if width else kind(x) for x, kind in kinds]
        return tuple(states[: len(self.types)])

    def advance(self, state: State, values: cute.TensorSSA, position: Any) -> State:
        """Return states with elements that come after all those seen, at one position: of equals, the first stays."""
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
        """Return whether `a` comes before `b`; a NaN comes before every number."""
        first = a > b if self.name.endswith("max") else a < b
        return first | ((a != a) & (b == b)) if self.dtype.is_float else first

    def chosen(self, a: Any, b: Any) -> Any:
        """Return the one of two values that comes first."""
        if self.dtype.is_float:
            choose = cute.math.max if self.name.endswith("max") else cute.math.min
            return choose(a, b, propagate_nan=True)
        return where(self.beats(b, a), b, a)

    def is_chosen(self, value: Any, chosen: Any) -> Boolean | cute.TensorSSA:
        """Return whether a value is the one chosen among some: an equal, or a NaN, which is never passed over."""
        return (value == chosen) | (value != value) if self.dtype.is_float else value == chosen

    def merge(self, a: State, b: State) -> State:
        """Return one state of two; of equals, the one with the lower position."""
        if self.adds:
            return (a[0] + b[0],)
        value = self.chosen(a[0], b[0])
        if not self.finds_position:
            return (value,)
        return value, smaller(self.place(a, value), self.place(b, value))

    def place(self, state: State, chosen: Any) -> Any:
        """Return the position of a state if its value was chosen."""
        nowhere = (
            self.index(self.no_position)
            if isinstance(chosen, self.dtype)
            else cute.full_like(state[1], self.no_position)
        )
        return where(self.is_chosen(state[0], chosen), state[1], nowhere)

    def result(self, state: State, count: Int64, dtype: type[cute.Numeric]) -> Any:
        """Return the result for a state of `count` elements."""
        if self.finds_position:
            return state[1].to(dtype)
        if self.name == "mean":
            exact = Float32 if self.dtype is Float32 else Float64
            return (state[0].to(exact) / exact(count)).to(dtype)
        return state[0].to(dtype)


def where(condition: Boolean | cute.TensorSSA, a: Any, b: Any) -> Any:
    """Return `a` where the condition holds, else `b`; of numbers or vectors."""
    if isinstance(condition, Boolean):
        return select_(condition, a, b)
    return cute.where(condition, a, b)


def computed(value: Any, dtype: type[cute.Numeric]) -> Any:
    """Convert a number or vector to the type of the computation."""
    return as_f32(value) if dtype is Float32 and isinstance(value, cute.TensorSSA) else value.to(dtype)


def smaller(a: Any, b: Any) -> Any:
    """Return the smaller of two positions, or of each of two vectors of them."""
    return where(b < a, b, a)


def folded(operation: Operation, state: State, width: int) -> State:
    """Merge the states of the positions of a vector."""
    merged = tuple(part[0] for part in state)
    for i in range(1, width):
        merged = operation.merge(merged, tuple(part[i] for part in state))
    return merged


def across_lanes(operation: Operation, state: State, lanes: int) -> State:
    """Merge the states of neighbouring lanes, in all of them."""
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


@dataclasses.dataclass(frozen=True)
class ReductionSpecialisation:
    """What a kernel is specialised for.

    `lanes` are the threads along the contiguous mode, of a row or of a vector of columns. A `split` reduction writes
    states, not results; `from_partials` reads them. `exact`: every access is in bounds.

    Of rows: `plain`: one mode is kept, and one is reduced. `rows_at_once`: rows that a thread has at a time, of one
    chunk each; 0: rows have several chunks. Of columns: `even`: the rows of each CTA are a multiple of those that it
    reads at a time.
    """

    operation: Operation
    dtype: Any
    out: type[cute.Numeric]
    threads: int
    lanes: int
    width: int
    unroll: int
    split: bool
    from_partials: bool
    exact: bool
    plain: bool = False
    rows_at_once: int = 0
    unaligned: bool = False
    even: bool = False


class Reduction:
    """The base of both kernels: how they read elements and write results."""

    def __init__(self, spec: ReductionSpecialisation) -> None:
        self.spec = spec
        self.operation: Operation = spec.operation
        self.threads: int = spec.threads
        self.lanes: int = spec.lanes
        self.width: int = spec.width

    def sources(self, addresses: tuple[Int64 | cute.Tensor, ...]) -> list[cute.Pointer]:
        """Return the pointers of elements, and of positions where states are read."""
        pointers = [arrays.pointer(addresses[0], self.spec.dtype, 1)]
        if self.spec.from_partials and self.operation.finds_position:
            pointers.append(arrays.pointer(addresses[1], self.operation.index, 1))
        return pointers

    def targets(self, addresses: tuple[Int64 | cute.Tensor, ...]) -> list[cute.Pointer]:
        """Return the pointers of results, or of the values of states."""
        kinds = self.operation.types if self.spec.split else (self.spec.out,)
        rest = addresses[len(addresses) - len(kinds) :]
        return [arrays.pointer(address, kind, 1) for address, kind in zip(rest, kinds, strict=True)]

    def read(self, sources: list[cute.Pointer], offset: Int64, inside: Boolean | None) -> State:
        """Read some neighbouring elements or states; the identity where they are not `inside` (None: they are)."""
        operation = self.operation
        state: list[Any] = []
        for source, kind, instead in zip(
            sources, operation.types, (operation.identity, operation.no_position), strict=False
        ):
            fits = instead == 0 or source.dtype in (kind, Float16, BFloat16)
            tile = cute.make_tensor(
                (source + offset).with_alignment(self.width * arrays.element_bits(source.dtype) // 8),
                cute.make_layout(self.width),
            )
            value = load_vector(tile, self.width, inside, instead if fits else 0).load()
            if inside is not None and not fits:
                value = value.to(kind)
                value = cute.where(cute.full_like(value, inside, Boolean), value, cute.full_like(value, instead))
            state.append(value)
        return tuple(state)

    def as_state(self, read: State) -> State:
        """Convert what was read to the types of the computation."""
        return (computed(read[0], self.operation.dtype), *read[1:])

    @cute.jit
    def write(self, targets: list[cute.Pointer], state: Any, place: Int64, count: Int64):
        """Write a state, or its result."""
        if const_expr(self.spec.split):
            for target, part in zip(targets, state, strict=True):
                (target + place).store(part)
        else:
            (targets[0] + place).store(self.operation.result(state, count, self.spec.out))


class RowSizes(NamedTuple):
    """The rows of a launch: `n` contiguous elements, `repeats` of them in a row; rows lie in two modes.

    A CTA reduces `chunks_per_cta` chunks of a row; `count` is the number of elements of a result. The first row begins
    `lead` elements behind a vector.
    """

    kept: Any
    kept_strides: Any
    repeats: Int32
    repeat_stride: Int64
    n: Any
    lead: Int32
    chunks_per_cta: Int32
    count: Int64


class Piece(NamedTuple):
    """A thread's part of a chunk of a row: vectors and the position of the first, and elements at the edges."""

    vectors: list[State]
    position: Int32 | Int64
    edges: list[State]


class RowReduction(Reduction):
    """Reductions along contiguous elements."""

    @property
    def searches(self) -> bool:
        """Whether positions are found among elements, not states."""
        return self.operation.finds_position and not self.spec.from_partials

    @cute.jit
    def __call__(
        self, addresses: tuple[Int64 | cute.Tensor, ...], sizes: RowSizes, ctas: Int32, parts: Int32, stream: Int64
    ):
        """Launch `parts` times so many CTAs. `addresses`: elements or states, results or states."""
        self.kernel(self.sources(addresses), self.targets(addresses), sizes).launch(
            grid=(ctas, parts, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, sources: list[cute.Pointer], targets: list[cute.Pointer], sizes: RowSizes):
        operation = self.operation
        thread = arch.thread_idx()[0]
        block, part, _ = arch.block_idx()
        row_count = sizes.kept[0] * sizes.kept[1]
        group = self.threads // self.lanes
        if const_expr(self.spec.rows_at_once > 0):
            rows = [
                (block * self.spec.rows_at_once + k) * group + thread // self.lanes
                for k in range(self.spec.rows_at_once)
            ]
            bases = [self.base(row, row_count, sizes) for row in rows]
            pieces = [self.piece(sources, base, sizes, 0, 0) for base in bases]
            states = [self.accumulate(self.start(), piece) for piece in pieces]
        else:
            row = block * group + thread // self.lanes
            base = self.base(row, row_count, sizes)
            chunk = self.lanes * self.width * self.spec.unroll
            chunks = (sizes.n + (chunk - 1)) // chunk
            state = self.start()
            each = sizes.chunks_per_cta
            for number in range(part * each, min((part + 1) * each, sizes.repeats * chunks)):
                repeat = 0 if const_expr(self.spec.plain) else number // chunks
                start = number if const_expr(self.spec.plain) else number % chunks
                piece = self.piece(sources, base + repeat * sizes.repeat_stride, sizes, repeat, start)
                state = self.accumulate(state, piece)
            rows = [row]
            states = [state]
        reduced = [across_lanes(operation, self.thread_state(state), min(WARP, self.lanes)) for state in states]
        if const_expr(self.lanes > WARP):
            reduced = [self.across_warps(state, thread) for state in reduced]
        for row, state in zip(rows, reduced, strict=True):
            if (row < row_count) & (thread % self.lanes == 0):
                at = Int64(row) * arch.grid_dim()[1] + part if const_expr(self.spec.split) else Int64(row)
                self.write(targets, state, at, sizes.count)

    def start(self) -> State:
        """Return the initial states: one if positions are wanted, else one for each position of a vector."""
        return self.operation.initial(0 if self.searches else self.width)

    def thread_state(self, state: State) -> State:
        """Merge a thread's states."""
        return state if self.searches else folded(self.operation, state, self.width)

    def base(self, row: Int32, row_count: Int32, sizes: RowSizes) -> Int64:
        """Return the offset of a row; of the first, if the row does not exist."""
        place = where(row < row_count, row, Int32(0))
        strides = sizes.kept_strides
        if self.spec.plain:
            return Int64(place) * strides[1]
        return Int64(place // sizes.kept[1]) * strides[0] + Int64(place % sizes.kept[1]) * strides[1]

    def piece(
        self, sources: list[cute.Pointer], base: Int64, sizes: RowSizes, repeat: Int32 | int, number: Int32 | int
    ) -> Piece:
        """Begin to read a thread's part of a chunk of a row."""
        operation = self.operation
        width = self.width
        lanes = self.lanes
        lane = arch.thread_idx()[0] % lanes
        before = operation.index(repeat) * sizes.n
        span = Span(sizes.lead + Int32(base) if self.spec.unaligned else None, sizes.n, width)
        unit = number * (lanes * self.spec.unroll) + lane
        vectors: list[State] = []
        for u in range(self.spec.unroll):
            inside = None if self.spec.exact else unit + u * lanes < span.units
            offset = base + span.head + (unit + u * lanes) * width
            vectors.append(self.read(sources, offset, inside))
        edges: list[State] = []
        for column in span.edges(lane, lanes):
            pred = (number == 0) & (column < sizes.n)
            edges.append((self.edge(sources[0] + (base + column), pred), operation.index(before + column), pred))
        return Piece(vectors, before + span.head + unit * width, edges)

    @cute.jit
    def edge(self, source: cute.Pointer, pred: Boolean):
        """Read an element at the edge of a row; the identity where there is none."""
        value = self.operation.dtype(self.operation.identity)
        if pred:
            value = source.load().to(self.operation.dtype)
        return value

    @cute.jit
    def accumulate(self, state: Any, piece: Piece):
        """Return states with a part of a chunk."""
        operation = self.operation
        if const_expr(self.searches):
            state = self.search(state, [vector[0] for vector in piece.vectors], piece.position)
        else:
            for vector in piece.vectors:
                state = operation.merge(state, self.as_state(vector))
        for value, position, pred in piece.edges:
            if pred:  # few threads have one
                if const_expr(self.searches):
                    state = operation.merge(state, (value, position))
                else:
                    others = [operation.dtype(operation.identity) for _ in range(self.width - 1)]
                    state = operation.merge(state, (cute.TensorSSA.from_elements([value, *others], operation.dtype),))
        return state

    @cute.jit
    def search(self, state: Any, values: list[cute.TensorSSA], position: Any):
        """Return the first of the best of those seen and of a chunk, whose first element has a position; searched only
        if it is better."""
        operation = self.operation
        width = self.width
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
    def across_warps(self, state: Any, thread: Int32):
        """Merge the states of the warps of a row."""
        warps = self.lanes // WARP
        lane = thread % WARP
        warp = thread // WARP
        buffers = [
            cute.make_tensor(arch.alloc_smem(kind, self.threads // WARP), cute.make_layout(self.threads // WARP))
            for kind in self.operation.types
        ]
        if lane == 0:
            for buffer, part in zip(buffers, state, strict=True):
                buffer[warp] = part
        arch.sync_threads()
        slot = warp // warps * warps + lane % warps
        return across_lanes(self.operation, tuple(buffer[slot] for buffer in buffers), warps)


class ColumnSizes(NamedTuple):
    """The columns of a launch: batches of `rows` rows of `n` contiguous elements. A CTA reduces `rows_per_cta` rows;
    `count` is the number of elements of a result."""

    rows: Int32
    row_stride: Int64
    n: Any
    batch_stride: Int64
    rows_per_cta: Int32
    count: Int64


class ColumnReduction(Reduction):
    """Reductions across contiguous elements."""

    @cute.jit
    def __call__(
        self,
        addresses: tuple[Int64 | cute.Tensor, ...],
        sizes: ColumnSizes,
        batches: Int32,
        parts: Int32,
        stream: Int64,
    ):
        """Launch `parts` CTAs for the columns that one has, in each batch. `addresses`: elements or states, results or
        states."""
        grid = (cute.ceil_div(sizes.n, self.lanes * self.width), parts, batches)
        self.kernel(self.sources(addresses), self.targets(addresses), sizes).launch(
            grid=grid, block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, sources: list[cute.Pointer], targets: list[cute.Pointer], sizes: ColumnSizes):
        operation = self.operation
        width = self.width
        thread = arch.thread_idx()[0]
        block, part, batch = arch.block_idx()
        column = (block * self.lanes + thread % self.lanes) * width
        across = self.threads // self.lanes
        first = thread // self.lanes
        last = min((part + 1) * sizes.rows_per_cta, sizes.rows)
        base = Int64(batch) * sizes.batch_stride + column

        begin = part * sizes.rows_per_cta + first
        state = operation.initial(width, None if const_expr(self.spec.from_partials) else begin)
        for start in range(begin, last, across * self.spec.unroll):
            for u in range_constexpr(self.spec.unroll):
                row = start + u * across
                inside: Any = None if const_expr(self.spec.exact) else column < sizes.n
                if const_expr(not self.spec.even):
                    inside = row < last if const_expr(inside is None) else inside & (row < last)
                read = self.as_state(self.read(sources, base + row * sizes.row_stride, inside))
                if const_expr(self.spec.from_partials):
                    state = operation.merge(state, read)
                else:
                    state = operation.advance(state, read[0], operation.index(row))

        if const_expr(across > 1):
            layout = cute.make_layout((width, self.lanes, across))
            buffers = [
                cute.make_tensor(arch.alloc_smem(kind, self.threads * width, 16), layout) for kind in operation.types
            ]
            for buffer, part_state in zip(buffers, state, strict=True):
                buffer[None, thread % self.lanes, first].store(part_state)
            arch.sync_threads()
            if first == 0:
                for other in range(1, across):
                    others = tuple(buffer[None, thread % self.lanes, other].load() for buffer in buffers)
                    state = operation.merge(state, others)
        if first == 0:
            for i in range_constexpr(width):
                if column + i < sizes.n:
                    result = Int64(batch) * arch.grid_dim()[1] + part if const_expr(self.spec.split) else Int64(batch)
                    at = result * sizes.n + column + i
                    self.write(targets, tuple(value[i] for value in state), at, sizes.count)
