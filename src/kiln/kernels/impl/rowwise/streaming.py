"""Persistent row-wise kernels that stream rows through shared memory.

Each thread copies its own vectors of the rows to come into pipeline stages in shared memory, and fills a stage again as
soon as its vector was used for the last time. Warps of a row exchange statistics through shared memory and mbarriers;
where the CTAs of a cluster share a row, one warp of each reduces those of its CTA and sends them to the others, without
waiting for stores to global memory. Memory is read once. Reductions over rows, gradients of weights for example, are
accumulated in registers until the last row; a second kernel adds those of all CTAs in a fixed order.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from .... import Boolean, Float32, Int32, Int64, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ...dispatch import arrays
from ...parts.vectors import as_f32, async_vector_atom, rounded, vector_atom
from .cluster_exchange import send
from .config import EXCHANGE_DEPTH, WARP, StreamingRowwiseConfig
from .partial_reduction import PartialReduction, partial_pitch
from .row_kernel import Row, RowTensors, launch, row_matrix, vector_at, wait_for_previous_kernel
from .row_part import AccessedPart
from .streaming_unaligned import StreamedEdges
from .vector_access import VectorAccess

if TYPE_CHECKING:
    from .row_kernel import RowKernel


@dataclasses.dataclass(frozen=True)
class StreamingRowProblem:
    """What a streaming kernel is compiled for: element types, the width of accesses, and the config."""

    sources: tuple[type[cute.Numeric], ...]
    """Element types of the matrices that are read."""
    outs: tuple[type[cute.Numeric], ...]
    """Element types of the matrices that are written."""
    columns: tuple[type[cute.Numeric], ...]
    """Element types of column vectors, such as a weight."""
    column_outs: tuple[type[cute.Numeric], ...]
    """Element types of reductions over rows."""
    width: int
    """Elements of a vector: of one access."""
    vectors: int
    """Vectors of a row that a thread has."""
    stages: int
    """Vectors that a thread has room for in shared memory."""
    exact: bool
    """Whether rows fill all vectors of all threads."""
    config: StreamingRowwiseConfig
    overlaps: bool = False
    """Whether CTAs are launched while the previous kernel ends, and wait for it (PDL)."""
    period: int = 0
    """Of unaligned rows (`streaming_unaligned.py`): after how many rows the alignment repeats; 0 if rows are
    aligned."""
    alignment: int = 1
    """Of unaligned rows: vectors to a multiple of which the first access of a row is aligned."""
    blocks: ClassVar[None] = None
    """Streamed rows are not quantised."""

    @property
    def unaligned(self) -> bool:
        """Whether the vectors of a row lie between edges."""
        return self.period > 0


class StreamedPart(AccessedPart):
    """A thread's vectors of a row in its pipeline stages, from stage `start` on; `in_flight` copies end with the last
    of them."""

    def __init__(self, rows: Streamed, start: Int32, in_flight: int) -> None:
        super().__init__(rows.kernel, rows.unit, rows.units)
        self._rows = rows
        self._start = start
        self._in_flight = in_flight
        self._arrived = 0

    def stage(self, v: int) -> Int32:
        """Return the stage of vector `v`. Where stages hold a multiple of whole rows, rows do not wrap."""
        problem = self._rows.kernel.problem
        at = self._start + v
        return at if problem.stages % problem.vectors == 0 else self._rows.kernel.wrap(at)

    def values(self, v: int) -> list[cute.TensorSSA]:
        if v >= self._arrived:
            arch.cp_async_wait_group(self._in_flight - 1 - v)
            self._arrived = v + 1
        return self.arrived(v)

    def arrived(self, v: int) -> list[cute.TensorSSA]:
        """Return vector `v` of each source, which is known to have arrived."""
        stage = self.stage(v)
        return [as_f32(buffer[None, stage].load()) for buffer in self._rows.buffers]

    def columns(self, v: int) -> list[cute.TensorSSA]:
        """Return the elements of each column vector that stand at vector `v`."""
        return [as_f32(buffer[None, v].load()) for buffer in self._rows.columns]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Statistics of the latest rows in shared memory (field, part, turn), and mbarriers that count them (turn).

    Each of the `parts` of a row is of `threads` threads in succession, beginning with the thread `first` of the row.
    """

    __kiln_static__ = True
    slots: cute.Tensor
    barriers: cute.Pointer
    parts: int
    threads: int
    first: Int32 | int


@dataclasses.dataclass(frozen=True)
class Streamed:
    """The data of a thread of a streaming kernel."""

    __kiln_static__ = True
    kernel: Any
    tensors: RowTensors
    buffers: list[cute.Tensor]
    """The thread's stages of each source in shared memory, (element, stage)."""
    columns: list[cute.Tensor]
    """The thread's elements of each column vector in shared memory, (element, vector)."""
    accs: Any
    """Accumulators of reductions over rows, in registers."""
    unit: Int32
    """The first vector of the thread, counted in vectors of the row."""
    units: Int32
    """Vectors of a row."""
    step: Int32
    """Rows from one row of the thread to its next."""
    edges: Any
    """`StreamedEdges` of unaligned rows, or None."""


class StreamingRowKernel(VectorAccess):
    """The streaming kernel of a row function."""

    def __init__(self, function: type[Any], problem: StreamingRowProblem) -> None:
        self.problem = problem
        self.config: StreamingRowwiseConfig = problem.config
        self.function: RowKernel = function(problem)
        self.vectors: int = problem.vectors
        self.step: int = self.config.cluster * self.config.row_threads
        self.partial: int = problem.vectors if problem.exact else problem.vectors - 1
        self.width: int = 1 if problem.period else problem.width
        """Elements that matrices and their rows begin at multiples of."""

    @cute.jit
    def __call__(
        self,
        addresses: tuple[Int64 | cute.Tensor, ...],
        rows: Int32,
        n: Int32,
        lead: Int32,
        strides: tuple[Int64, ...],
        scalars: tuple[Float32, ...],
        lines: Int32,
        stream: Int64,
    ):
        """Launch `lines` CTAs or clusters, each of which has a line of partial reductions over rows.

        `addresses`: sources, outs, columns, partials, column outs; `strides`: those of rows; `lead`: elements from a
        cache line to the first row, for unaligned rows.
        """
        problem = self.problem
        config = self.config
        tensors, rest = self.function.tensors(addresses, rows, n, strides, scalars, self.width)
        pitch = partial_pitch(n, problem.width) if const_expr(problem.period > 0) else n
        count = len(problem.column_outs)
        partials = [row_matrix(p, Float32, lines, pitch, pitch, self.width) for p in rest[:count]]
        skew = Int32(strides[0])
        call = self.kernel(tensors._replace(partials=partials, lead=lead, skew=skew))
        launch(call, config, lines * config.cluster, stream, problem.overlaps)
        if const_expr(count > 0):
            column_outs = [vector_at(p, t, n) for p, t in zip(rest[count:], problem.column_outs, strict=True)]
            reduction = PartialReduction(problem.width, config.cluster, problem.overlaps, problem.period)
            reduction(partials, column_outs, lines, n, lead, skew, stream)

    @cute.kernel
    def kernel(self, tensors: RowTensors):
        problem = self.problem
        config = self.config
        thread = arch.thread_idx()[0]
        block = arch.block_idx()[0]
        rank = block % config.cluster
        group = thread // max(WARP, config.row_threads)
        lane = thread % config.row_threads
        unit = rank * config.row_threads + lane
        units = tensors.n // problem.width
        within = thread % WARP // config.row_threads  # of the rows of a warp; 0 if it has one
        line = block // config.cluster
        lines = arch.grid_dim()[0] // config.cluster
        edges: Any = None
        turn = line
        if const_expr(problem.period > 0):
            edges = StreamedEdges(self, tensors, line, rank, lane)
            unit = unit - edges.before
            units = edges.span.units
            turn = line // problem.period
            lines = (lines - line % problem.period + problem.period - 1) // problem.period

        buffers = [self.stage_buffer(x.element_type)[None, None, thread] for x in tensors.sources]
        held_columns = [self.column_buffer(x.element_type)[None, None, lane] for x in tensors.columns]
        inner = outer = self.exchange(
            min(WARP, config.row_threads), config.row_threads, unit - lane, config.groups, group
        )
        if const_expr(config.cluster > 1):
            begin = unit - lane - rank * config.row_threads if const_expr(problem.period > 0) else 0
            outer = self.exchange(config.row_threads, config.row_threads * config.cluster, begin, 1, 0)
            arch.mbarrier_init_fence()
            arch.cluster_arrive_relaxed()

        wait_for_previous_kernel(problem.overlaps)
        first = turn * config.rows + group * self.warp_rows
        step = lines * config.rows
        if const_expr(edges is not None):
            tensors = edges.take(tensors)
            edges.read(edges.present, first)
            if const_expr(config.overlapped):
                edges.read(edges.coming, first + step)
        accs = [cute.make_rmem_tensor((problem.width, problem.vectors), Float32) for _ in tensors.partials]
        streamed = Streamed(self, tensors, buffers, held_columns, accs, unit, units, step, edges)
        self.prologue(streamed, first + within, thread)
        if const_expr(config.cluster > 1):
            arch.cluster_wait()  # the other CTAs have started, and initialised their mbarriers
        self.main_loop(streamed, inner, outer, first, within, lane, rank)
        arch.cp_async_wait_group(0)
        if const_expr(config.cluster > 1):
            arch.cluster_arrive()
        self.write_partials(streamed, line, thread)
        if const_expr(config.cluster > 1):
            arch.cluster_wait()  # until no CTA has anything left to send to this one

    @cute.jit
    def prologue(self, streamed: Streamed, row: Int32, thread: Int32):
        """Fill all stages, clear the column accumulators and load the columns."""
        vectors = self.problem.vectors
        for s in range_constexpr(self.problem.stages):
            self.fetch(streamed, row + s // vectors * streamed.step, s % vectors, s)
        for registers in streamed.accs:
            registers.fill(0.0)
        if thread < self.config.row_threads:
            for x, buffer in zip(streamed.tensors.columns, streamed.columns, strict=True):
                self.read_columns(x, buffer, streamed)
        arch.sync_threads()

    @cute.jit
    def main_loop(
        self,
        streamed: Streamed,
        inner: Exchange,
        outer: Exchange,
        first: Int32,
        within: Int32,
        lane: Int32,
        rank: Int32 | int,
    ):
        """Compute the rows of the CTA."""
        problem = self.problem
        overlapped = self.config.overlapped
        tensors = streamed.tensors
        vectors = problem.vectors
        stages = problem.stages
        edges = streamed.edges
        step = streamed.step
        slot = lane % WARP, within + lane // WARP
        if const_expr(overlapped):
            self.accumulate(StreamedPart(streamed, Int32(0), stages), inner, Int32(0), slot, edges, False)
        start = Int32(0)
        count = Int32(0)
        for base in range(first, tensors.rows, step):
            if const_expr(overlapped):
                self.send_to_cluster(inner, outer, count, rank, streamed)
                if base + step < tensors.rows:
                    part = StreamedPart(streamed, self.wrap(start + vectors), stages - vectors)
                    self.accumulate(part, inner, count + 1, slot, edges, True)
            else:
                if const_expr(edges is not None):
                    edges.read(edges.coming, base + step)
                self.accumulate(StreamedPart(streamed, start, stages), inner, count, slot, edges, False)
                self.send_to_cluster(inner, outer, count, rank, streamed)
            statistics = self.reduced(outer, count, within, streamed)
            part = StreamedPart(streamed, start, 0)
            row = Row(statistics, statistics, tensors.scalars, tensors.n)
            if const_expr(edges is not None):
                edges.write(row, base)
            for v in self.partial_first(range(vectors)):  # no results are live across its branch
                self.write(streamed, part, row, base + within, v)
                if const_expr(problem.exact or v < vectors - 1):
                    self.refill(streamed, part, base + within, v)
            if const_expr(not problem.exact):
                self.refill(streamed, part, base + within, vectors - 1)
            if const_expr(edges is not None):
                edges.next_row()
                if const_expr(overlapped):
                    edges.read(edges.coming, base + 2 * step)
            start = self.wrap(start + vectors)
            count = count + 1

    @cute.jit
    def write(self, streamed: Streamed, part: StreamedPart, row: Row, index: Int32, v: int):
        """Write a vector of the results of row `index`, and add to the column accumulators."""
        width = self.problem.width
        outs = streamed.tensors.outs
        place = index
        pred = self.in_row(streamed.unit, streamed.units, v)
        exists = index < streamed.tensors.rows
        if const_expr(self.warp_rows > 1):  # the last rows of a warp may not exist
            pred = exists if const_expr(pred is None) else pred & exists
            place = select_(exists, index, Int32(0))
        results = self.function.results(part.arrived(v), part.columns(v), None, row)
        # accumulators come before predicated stores, which split basic blocks
        for registers, value in zip(streamed.accs, results[len(outs) :], strict=True):
            if const_expr(self.warp_rows > 1):
                value = cute.where(cute.full_like(value, exists, Boolean), value, cute.full_like(value, 0.0))
            registers[None, v].store(registers[None, v].load() + value)
        for out, value in zip(outs, results[: len(outs)], strict=True):
            target = cute.local_tile(out[place, None], (width,), (self.at(streamed.unit, v),))
            cute.copy(vector_atom(out.element_type, width), rounded(value, out.element_type), target, pred=pred)

    # -- memory ----------------------------------------------------------------------------------------------------

    def wrap(self, stage: Int32) -> Int32:
        """Return a stage index modulo the stages, of which it is less than twice as many."""
        return select_(stage >= self.problem.stages, stage - self.problem.stages, stage)

    def stage_buffer(self, dtype: type[cute.Numeric]) -> cute.Tensor:
        """Allocate pipeline stages (element, stage, thread): the vectors of a warp lie side by side."""
        return self._interleaved(dtype, self.problem.stages, self.config.threads)

    def column_buffer(self, dtype: type[cute.Numeric]) -> cute.Tensor:
        """Allocate shared memory for a column vector (element, vector, thread of a row)."""
        return self._interleaved(dtype, self.problem.vectors, self.config.row_threads)

    def _interleaved(self, dtype: type[cute.Numeric], vectors: int, threads: int) -> cute.Tensor:
        width = self.problem.width
        memory = arch.alloc_smem(dtype, width * threads * vectors, 16)
        return cute.make_tensor(memory, cute.make_layout((width, vectors, threads), stride=(1, width * threads, width)))

    @cute.jit
    def read_columns(self, x: cute.Tensor, buffer: cute.Tensor, streamed: Streamed):
        """Copy a thread's elements of a column vector to shared memory."""
        width = self.problem.width
        unit = streamed.unit
        units = streamed.units
        for v in range_constexpr(self.problem.vectors):
            if const_expr(streamed.edges is not None):
                for i in range_constexpr(width):
                    at = self.at(unit, v)
                    column = streamed.edges.span.head + self.at(unit, v) * width + i
                    buffer[i, v] = x[column] if (at >= 0) & (at < units) else x.element_type(0)
                continue
            buffer[None, v].store(self.read_vector(x, unit, units, v).load())

    @cute.jit
    def fetch(self, streamed: Streamed, row: Int32, v: int, stage: Int32 | int):
        """Begin to copy vector `v` of a row to a stage of the thread; zeros where it does not exist."""
        exists = row < streamed.tensors.rows
        inside = self.in_row(streamed.unit, streamed.units, v)
        pred = exists if const_expr(inside is None) else inside & exists
        place = select_(exists, row, Int32(0))
        for x, buffer in zip(streamed.tensors.sources, streamed.buffers, strict=True):
            atom = async_vector_atom(x.element_type, self.problem.width, self.function.priority)
            tile = cute.local_tile(x[place, None], (self.problem.width,), (self.at(streamed.unit, v),))
            cute.copy(atom, tile, buffer[None, stage], pred=pred)
        arch.cp_async_commit_group()

    def refill(self, streamed: Streamed, part: StreamedPart, row: Int32, v: int) -> None:
        """Begin to copy what the stage of vector `v` of a row holds next."""
        rows_ahead, vector = divmod(v + self.problem.stages, self.problem.vectors)
        self.fetch(streamed, row + rows_ahead * streamed.step, vector, part.stage(v))

    # -- statistics ------------------------------------------------------------------------------------------------

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return max(1, WARP // self.config.row_threads)

    @property
    def fields(self) -> int:
        """Values of the statistics that are exchanged: not the number of elements, which is known."""
        return self.function.fields - self.function.counts_elements

    def exchange(self, threads: int, row_threads: int, first: Int32 | int, groups: int, group: Int32 | int) -> Exchange:
        """Allocate the exchange of a group of the CTA, among parts of `threads` of the `row_threads` threads of a
        row."""
        fields = arrays.power_of_two(self.fields)
        parts = row_threads // threads
        barriers = EXCHANGE_DEPTH * groups
        memory = arch.alloc_smem(Float32, fields * parts * self.warp_rows * barriers, 16)
        pointer = arch.alloc_smem(Int64, barriers, 8)
        self.init_barriers(pointer, barriers, parts * self.warp_rows)
        slots = cute.make_tensor(memory, cute.make_layout((fields, parts * self.warp_rows, EXCHANGE_DEPTH, groups)))
        return Exchange(slots[None, None, None, group], pointer + EXCHANGE_DEPTH * group, parts, threads, first)

    @cute.jit
    def init_barriers(self, barriers: cute.Pointer, count: int, arrivals: int):
        """Initialise so many mbarriers."""
        if arch.thread_idx()[0] < count:
            arch.mbarrier_init(barriers + arch.thread_idx()[0], arrivals)

    def accumulate(
        self,
        part: Any,
        exchange: Exchange,
        count: Int32 | int,
        slot: tuple[Int32, Int32],
        edges: StreamedEdges | None,
        coming: bool,
    ) -> None:
        """Accumulate the statistics of a row, the present or the coming one, and store them for the warps of the
        CTA."""
        function = self.function
        edge = None if edges is None else edges.part(edges.coming if coming else edges.present)
        if function.takes_edge:
            part.edge = edge
        own, _ = function.accumulate(None, part)
        if edges is not None and not function.takes_edge:
            own = function.with_edge(own, edge, edges.has_edge)
        statistics = function.merge([own], min(WARP, self.config.row_threads))
        self.store_statistics(statistics, exchange, count % EXCHANGE_DEPTH, slot)

    @cute.jit
    def store_statistics(
        self, statistics: tuple[Float32 | float, ...], exchange: Exchange, turn: Int32, slot: tuple[Int32, Int32]
    ):
        """Store a warp's statistics of a row, and arrive at their mbarrier."""
        lane, part = slot
        arch.sync_warp()  # its lanes have read the previous statistics, whose slots may now be used again
        if lane == 0:
            for k, value in enumerate(statistics[self.function.counts_elements :]):
                exchange.slots[k, part, turn] = value
            arch.mbarrier_arrive(exchange.barriers + turn)

    @cute.jit
    def send_to_cluster(
        self, inner: Exchange, outer: Exchange, count: Int32 | int, rank: Int32 | int, streamed: Streamed
    ):
        """Reduce this CTA's statistics of a row that CTAs share, and send them to all. Its warps take turns."""
        thread = arch.thread_idx()[0]
        turn = count % EXCHANGE_DEPTH
        if const_expr(self.config.cluster > 1):
            if thread // WARP == count % inner.parts:
                statistics = self.reduced(inner, count, 0, streamed)
                if thread % WARP < self.config.cluster:
                    slot = outer.slots[None, rank, turn].iterator
                    barrier = outer.barriers + turn
                    send(slot, barrier, thread % WARP, list(statistics[self.function.counts_elements :]))

    def reduced(
        self, exchange: Exchange, count: Int32 | int, within: Int32 | int, streamed: Streamed
    ) -> tuple[Float32 | float, ...]:
        """Wait for the statistics of all parts of a row, and return their reduction."""
        turn = count % EXCHANGE_DEPTH
        lanes = min(WARP, exchange.parts)
        arch.mbarrier_wait(exchange.barriers + turn, count // EXCHANGE_DEPTH % 2)
        parts: list[Any] = []
        for i in range(exchange.parts // lanes):
            part = arch.thread_idx()[0] % lanes + i * lanes
            values = [exchange.slots[k, within + part, turn] for k in range(self.fields)]
            first = exchange.first + part * exchange.threads
            counted = [self.elements(first, exchange.threads, streamed)] * self.function.counts_elements
            parts.append((*counted, *values))
        return self.function.merge(parts, lanes)

    def elements(self, first: Int32, threads: int, streamed: Streamed) -> Float32 | float:
        """Return how many elements so many threads of a row have: a Python float where that is static."""
        width = self.problem.width
        vectors = self.problem.vectors
        units = streamed.units
        if self.problem.exact:
            return float(width * vectors * threads)
        rest = units - self.at(first, vectors - 1)
        elements = select_(rest < 0, Int32(0), select_(rest > threads, Int32(threads), rest)) * width
        if self.problem.period:  # the first threads have the edges of a row, and vectors before it
            elements = elements + select_(first <= 0, streamed.tensors.n - units * width + first * width, 0)
        return elements.to(Float32) + float(width * (vectors - 1) * threads)

    # -- reductions over rows --------------------------------------------------------------------------------------

    @cute.jit
    def write_partials(self, streamed: Streamed, line: Int32, thread: Int32):
        """Write the reductions over the rows of the CTA."""
        edges = streamed.edges
        accs = streamed.accs
        partials = streamed.tensors.partials
        if const_expr(self.config.rows > 1):
            edge_accs = [] if const_expr(edges is None) else edges.accs
            self.fold([*accs, *edge_accs], thread // self.config.row_threads, thread % self.config.row_threads)
        if thread < self.config.row_threads:
            if const_expr(edges is not None):
                edges.write_partials(partials, line)
            for out, registers in zip(partials, accs, strict=True):
                target = out[line, None] if const_expr(edges is None) else edges.line(out, line)
                for v in range_constexpr(self.problem.vectors):
                    tile = cute.local_tile(target, (self.problem.width,), (self.at(streamed.unit, v),))
                    pred = self.in_row(streamed.unit, streamed.units, v)
                    if const_expr(pred is None) or pred:
                        cute.autovec_copy(registers[None, v], tile)

    @cute.jit
    def fold(self, accs: Any, row: Int32, lane: Int32):
        """Add the accumulators of all rows of the CTA to those of its first."""
        row_threads = self.config.row_threads
        rows = self.config.rows
        memory = arch.alloc_smem(Float32, self.problem.width * self.config.threads, 16)
        for registers in accs:
            width, vectors = registers.shape
            layout = cute.make_layout((width, row_threads, rows), stride=(1, width, width * row_threads))
            buffer = cute.make_tensor(memory, layout)
            for v in range_constexpr(vectors):
                arch.sync_threads()
                buffer[None, lane, row].store(registers[None, v].load())
                arch.sync_threads()
                if row == 0:
                    folded = registers[None, v].load()
                    for other in range(1, rows):
                        folded = folded + buffer[None, lane, other].load()
                    registers[None, v].store(folded)
