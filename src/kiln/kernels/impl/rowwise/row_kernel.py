"""Row-wise kernels, and the kernel that holds rows in registers and shared memory.

A row is held by some threads of a CTA, or of the CTAs of a cluster, each of which has every so many-th vector of it:
memory is read once. Statistics are reduced within a warp by shuffles, then once through shared memory among the warps
of all CTAs of the row. Rows that are too long are read in chunks, once for the statistics and once for the results.

Quantised rows compute much for each byte, and CTAs that start together all compute at the same time, while memory
waits: a CTA can have several rows, and load the next one while it computes (`compute_double_buffered`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .... import (
    Boolean,
    Float8E4M3FN,
    Float8E5M2,
    Float32,
    Int32,
    Int64,
    Uint8,
    const_expr,
    cute,
    range_constexpr,
    select_,
)
from ....cute import arch
from ....cute.nvgpu import CacheEvictionPriority
from ...dispatch import arrays, devices
from ...parts.vectors import async_vector_atom, larger, maximum, rounded, total, vector_atom
from .block_formats import BlockScaleTensor, quantised, write_elements
from .config import STAGES, WARP, RowwiseConfig
from .row_part import PrefetchedColumns, ResidentPart, resident_columns
from .row_statistics import Statistics, max_statistics, read_statistics, sum_statistics
from .unaligned import ResidentEdges
from .vector_access import VectorAccess

if TYPE_CHECKING:
    from .block_formats import BlockFormat
    from .row_part import EdgePart

FP8_MAX = {Float8E4M3FN: 448.0, Float8E5M2: 57344.0}
"""The types that rows are quantised to, and their largest finite values."""


def launch(call: Any, config: Any, ctas: Int32, stream: Int64, overlaps: bool = False) -> None:
    """Launch a kernel of so many CTAs."""
    most = devices.current().generation.threads // config.threads  # GPUs differ in the threads of an SM
    call.launch(
        grid=(ctas, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster, 1, 1) if config.cluster > 1 else None,
        max_number_threads=config.threads,
        min_blocks_per_mp=max(1, min(config.ctas_per_sm, most)),
        stream=stream,
        use_pdl=overlaps,
    )


def wait_for_previous_kernel(overlaps: bool) -> None:
    """Wait until the previous kernel is complete, where launches overlap, and lets the CTAs of the next one start."""
    if overlaps:
        arch.griddepcontrol_wait()
        arch.griddepcontrol_launch_dependents()


def row_matrix(
    address: Int64 | cute.Tensor,
    dtype: type[cute.Numeric],
    rows: Int32,
    n: Any,
    step: Int32 | Int64 | int,
    width: int = 1,
) -> cute.Tensor:
    """Return the matrix at an address; address and row stride `step` are multiples of `width` elements."""
    layout = cute.make_layout((rows, n), stride=(cute.assume(step, divby=width) if width > 1 else step, 1))
    return cute.make_tensor(arrays.pointer(address, dtype, width), layout)


def vector_at(address: Int64 | cute.Tensor, dtype: type[cute.Numeric], n: Any, width: int = 1) -> cute.Tensor:
    """Return the vector of `n` elements at an address that is a multiple of `width` elements."""
    return cute.make_tensor(arrays.pointer(address, dtype, width), cute.make_layout((n,), stride=(1,)))


@dataclasses.dataclass(frozen=True)
class RowProblem:
    """What a kernel is compiled for: element types, the width of accesses, and the config."""

    sources: tuple[type[cute.Numeric], ...]
    """Element types of the matrices that are read."""
    outs: tuple[type[cute.Numeric], ...]
    """Element types of the matrices that are written."""
    columns: tuple[type[cute.Numeric] | None, ...]
    """Element types of column vectors, such as a weight."""
    row_values: int
    """How many f32 values are written for each row."""
    width: int
    """Elements of a vector: of one access."""
    vectors: int
    """Vectors of a row that a thread holds; 0: rows are read in chunks."""
    exact: bool
    """Whether rows fill all vectors of all threads."""
    config: RowwiseConfig
    overlaps: bool = False
    """Whether CTAs are launched while the previous kernel ends, and wait for it (PDL)."""
    unaligned: bool = False
    """Whether the vectors of a row lie between edges. In `exact` rows, all threads then have all vectors but the first
    and the last."""
    alignment: int = 1
    """Of unaligned rows: vectors to a multiple of which the first access of a row is aligned."""
    blocks: BlockFormat | None = None
    """How the first results are quantised in blocks."""
    column_outs: ClassVar[tuple[Any, ...]] = ()
    """Element types of reductions over rows, which only streaming kernels compute."""


class RowTensors(NamedTuple):
    """The arguments of a kernel."""

    sources: list[cute.Tensor]
    """Matrices that are read, (row, column)."""
    outs: list[Any]
    """Matrices that are written."""
    columns: list[cute.Tensor]
    """Vectors with an element for each column."""
    row_values: list[cute.Tensor]
    """Vectors with a value for each row, which are written."""
    partials: list[cute.Tensor]
    """Partial reductions over rows, (CTA or cluster, column)."""
    scalars: tuple[Float32, ...]
    rows: Int32
    n: Any
    """Elements of a row."""
    lead: Any = None
    """Of unaligned rows: elements from a cache line to the beginning of the first row."""
    skew: Int32 | None = None
    """Of unaligned rows: by how many elements more each row is off than the one before."""
    block_scales: BlockScaleTensor | None = None
    """The scale factors of rows that are quantised in blocks."""


class Row(NamedTuple):
    """What is known of a row when results are computed."""

    own: Statistics
    """The statistics of this thread's part of the row."""
    statistics: Statistics
    """The statistics of the whole row."""
    scalars: tuple[Float32, ...]
    """The scalars of the call, such as eps."""
    n: Any
    """Elements of the row."""


class Position(NamedTuple):
    """The row and the vectors that a thread works on."""

    row: Int32
    exists: Boolean
    """Whether there is such a row."""
    unit: Int32
    """The first vector of the thread, counted in vectors of the row."""
    units: Int32
    """Vectors of a row."""
    within: Int32
    """The row among those of the CTA."""
    thread: Int32
    """The index of the thread in the CTA."""
    rank: Int32 | int
    """The rank of the CTA in the cluster."""
    edges: Any = None
    """`ResidentEdges` of unaligned rows, or None."""


class RowKernel(VectorAccess):
    """A function of rows, and the kernel that holds rows on chip to compute it.

    A subclass says what statistics a thread accumulates (`accumulate`), how they are reduced, unless they add up
    (`initial`, `merge`), and what is written (`results`).
    """

    fields = 1
    """Values of the statistics."""
    counts_elements = False
    """Whether the first of them is the number of elements."""
    priority = CacheEvictionPriority.EVICT_NORMAL
    """L2 eviction priority of lines that are read, beside those that are written."""
    overlaps = False
    """Whether its CTAs are launched while the previous kernel ends, on devices that can."""
    supports_unaligned = True
    """Whether unaligned rows may be held in vectors between edges."""
    takes_edge = False
    """Whether `accumulate` takes a part's `edge`, too; else the edge is accumulated as a part of its own."""
    rereads = False
    """Whether `results` takes elements of sources, in their own types, besides saved values."""
    quantizes = False
    """Whether the first result is divided by a scale factor of its row, so that the largest becomes the largest of its
    type."""
    tracks_absmax = False
    """Of a function that quantises: whether statistics give the largest result (`absmax`); else results are computed
    twice."""

    def __init__(self, problem: RowProblem) -> None:
        self.problem = problem
        self.config: RowwiseConfig = problem.config
        self.width: int = problem.width
        self.resident: bool = problem.vectors > 0
        self.vectors: int = problem.vectors or 4
        self.exact: bool = problem.exact
        threads = self.config.row_threads
        if problem.unaligned:
            self.partial = self.vectors - 1 if self.exact else 0
            self.step = threads * self.config.cluster
            self.rank_step = threads
        else:
            one_cta = self.resident and self.config.cluster == 1
            self.partial = self.vectors if self.exact else self.vectors - 1 if one_cta else 0
            self.step = threads
            self.rank_step: int = threads * self.vectors

    @property
    def smem_vectors(self) -> int:
        """Vectors of a thread's part of a row in shared memory."""
        return min(self.config.smem_vectors, self.problem.vectors)

    # -- the function of rows --------------------------------------------------------------------------------------

    def initial(self) -> Statistics:
        """Return the statistics of no elements: zeros, for those that add up."""
        return tuple(Float32(0.0) for _ in range(self.fields))

    def accumulate(self, before: Statistics | None, part: Any) -> tuple[Statistics, list[Any] | None]:
        """Return the statistics with a thread's part of a row, and a saved value of each vector for `results`, or None.

        None for `before` is the same as `initial`. Without statistics there is nothing to do.
        """
        return (), None

    def merge(self, parts: list[Statistics], lanes: int) -> Statistics:
        """Return the statistics of several parts of each of `lanes` lanes, in all of them: their sum, for those that
        add up."""
        return sum_statistics(parts, lanes)

    def results(self, values: list[Any], columns: list[Any], saved: Any, row: Row) -> list[Any]:
        """Return what is written for one vector of each source, then what is added to the column reductions, if there
        are any."""
        raise NotImplementedError

    def absmax(self, statistics: Statistics, scalars: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return the largest magnitude of the first results of a row, and a common scale of theirs that `results`
        leaves out."""
        raise NotImplementedError

    def row_values(self, statistics: Statistics, scalars: tuple[Float32, ...]) -> list[Float32]:
        """Return the values to write for a row; for quantised rows the scale factor."""
        return [statistics[-2]] if self.quantizes else []

    @cute.jit
    def with_edge(self, own: tuple[Float32 | float, ...], edge: EdgePart | None, has_edge: Boolean | None):
        """Return a thread's statistics with those of its element at the edges, if there is one."""
        result = own
        if const_expr(edge is not None and len(own) > 0) and has_edge:
            result = self.merge([own, self.accumulate(None, edge)[0]], 1)
        return result

    # -- the kernel ------------------------------------------------------------------------------------------------

    def tensors(
        self,
        addresses: tuple[Int64 | cute.Tensor, ...],
        rows: Int32,
        n: Any,
        strides: tuple[Int64, ...],
        scalars: tuple[Float32, ...],
        width: int,
        column_width: int = 0,
    ) -> tuple[RowTensors, Any]:
        """Return the tensors at the first addresses, multiples of so many elements, and the other addresses."""
        problem = self.problem
        types = (*problem.sources, *problem.outs)
        matrices = [row_matrix(p, t, rows, n, s, width) for p, t, s in zip(addresses, types, strides, strict=False)]
        if problem.blocks is not None:  # as bytes
            place = len(problem.sources)
            packed = problem.blocks.packed
            step = strides[place] // packed
            matrices[place] = row_matrix(addresses[place], Uint8, rows, n // packed, step, width // packed)
        rest = addresses[len(types) :]
        present = [t for t in problem.columns if t is not None]
        columns = [vector_at(p, t, n, column_width or width) for p, t in zip(rest, present, strict=False)]
        sources = matrices[: len(problem.sources)]
        outs = matrices[len(problem.sources) :]
        return RowTensors(sources, outs, columns, [], [], scalars, rows, n), rest[len(present) :]

    @cute.jit
    def __call__(
        self,
        addresses: tuple[Int64 | cute.Tensor, ...],
        rows: Int32,
        n: Int32,
        lead: Int32,
        strides: tuple[Int64, ...],
        scalars: tuple[Float32, ...],
        ctas: Int32,
        stream: Int64,
    ):
        """Launch so many CTAs.

        `addresses`: sources, outs, columns, row values, scale factors of blocks; `strides`: those of rows of the
        matrices, and how many rows a matrix of a batch has; `lead`: elements from a cache line to the first row, for
        unaligned rows.
        """
        width = 1 if const_expr(self.problem.unaligned) else self.width
        tensors, rest = self.tensors(addresses, rows, n, strides, scalars, width, self.width)
        blocks = self.problem.blocks
        if const_expr(blocks is not None):
            scales = BlockScaleTensor.at(rest[-1], blocks, rows, n, Int32(strides[-1]))
            tensors = tensors._replace(block_scales=scales)
            rest = rest[:-1]
        tensors = tensors._replace(row_values=[vector_at(p, Float32, rows) for p in rest])
        if const_expr(self.problem.unaligned):
            tensors = tensors._replace(lead=lead, skew=Int32(strides[0]))
        launch(self.kernel(tensors), self.config, ctas, stream, self.problem.overlaps)

    @cute.kernel
    def kernel(self, tensors: RowTensors):
        config = self.config
        wait_for_previous_kernel(self.problem.overlaps)
        thread = arch.thread_idx()[0]
        block = arch.block_idx()[0]
        rank = block % config.cluster
        within = thread // config.row_threads
        unit = rank * self.rank_step + thread % config.row_threads
        units = tensors.n // self.width
        row = block // config.cluster * config.rows + within
        at = Position(row, row < tensors.rows, unit, units, within, thread, rank)
        if const_expr(self.problem.unaligned):
            self.compute_unaligned(tensors, at, block // config.cluster)
        elif const_expr(config.rows_per_cta > 1):
            self.compute_double_buffered(tensors, self.exchange_buffer())
        elif const_expr(self.resident):
            self.compute_resident(tensors, [at])
        else:
            self.compute_chunks(tensors, at, self.exchange_buffer())

    @cute.jit
    def compute_unaligned(self, tensors: RowTensors, at: Position, index: Int32):
        """Compute the rows of a thread: `rows_per_cta` of them begin equally far from vectors, `width` rows apart."""
        config = self.config
        width = self.width
        rows = tensors.rows
        if const_expr(config.rows_per_cta > 1):
            first = index // width * (config.rows_per_cta * width) + index % width
            if first < rows:
                others = [first + k * width for k in range(1, config.rows_per_cta)]
                places = [first, *(select_(row < rows, row, first) for row in others)]
                edges = ResidentEdges(self, tensors, at._replace(row=first))
                self.compute_resident(tensors, [edges.position(at, row, k) for k, row in enumerate(places)])
        else:
            edges = ResidentEdges(self, tensors, at)
            self.compute_resident(tensors, [edges.position(at, at.row, 0)])

    @cute.jit
    def compute_resident(self, tensors: RowTensors, places: list[Position]):
        """Compute rows that are held on chip: one, or some unaligned ones that begin equally far from vectors."""
        config = self.config
        sources = tensors.sources
        exchange = self.exchange_buffer(len(places))
        if const_expr(config.cluster > 1):
            arch.cluster_arrive_relaxed()
        edges = [None if at.edges is None else at.edges.part(sources, at) for at in places]
        smem = [[self.fetch(x, at) for x in sources] if const_expr(self.smem_vectors > 0) else [] for at in places]
        if const_expr(config.cluster > 1):
            arch.cluster_wait()  # the other CTAs have started, so that their shared memory can be written
        before = self.vectors - self.smem_vectors
        columns = self.prefetched_columns(tensors.columns, places[0])
        parts = []
        for at, buffers, edge in zip(places, smem, edges, strict=True):
            registers = [self.read(x, at, before) for x in sources] if const_expr(before > 0) else []
            parts.append(ResidentPart(self, at, registers, buffers, columns, edge))
        columns.prefetch()
        accumulated = []
        for k in range_constexpr(len(parts)):
            if const_expr(self.smem_vectors > 0):
                arch.cp_async_wait_group(len(sources) * (len(parts) - 1 - k))
            accumulated.append(self.accumulate(None, parts[k]))
        self.compute_results(tensors, parts, accumulated, exchange)

    @cute.jit
    def compute_double_buffered(self, tensors: Any, exchange: Any):
        """Compute the rows of a CTA in turn, each of which is wholly in shared memory.

        A row is reduced twice: a thread that has the second result knows that all have read what was exchanged first,
        so one buffer for each exchange is enough.
        """
        thread = arch.thread_idx()[0]
        first = arch.block_idx()[0] * self.config.rows_per_cta
        sources = tensors.sources
        max_exchange = self.exchange_buffer(fields=1)
        buffers = [self.smem_buffer(x.element_type, thread, STAGES) for x in sources]
        count = min(Int32(self.config.rows_per_cta), tensors.rows - first)
        zero = Int32(0)
        units = tensors.n // self.width
        at = Position(first, Boolean(True), thread, units, zero, thread, zero)
        self.fetch_stage(sources, buffers, at, zero)
        arch.cp_async_commit_group()
        for turn in range(count):
            if turn + 1 < count:
                self.fetch_stage(sources, buffers, at._replace(row=first + turn + 1), (turn + 1) % STAGES)
            arch.cp_async_commit_group()
            arch.cp_async_wait_group(1)
            smem = [x[None, None, turn % STAGES] for x in buffers]
            place = at._replace(row=first + turn)
            part = ResidentPart(self, place, [], smem, self.prefetched_columns(tensors.columns, place))
            part.prefetch()
            self.compute_results(tensors, [part], [self.accumulate(None, part)], exchange, max_exchange)

    @cute.jit
    def compute_results(
        self,
        tensors: RowTensors,
        parts: list[ResidentPart],
        accumulated: Any,
        exchange: cute.Tensor | None,
        max_exchange: Any = None,
    ):
        """Compute rows from what was accumulated of the parts that their threads hold. Only one row is quantised."""
        first = parts[0]
        has_edge = None if first.edge is None else first.at.edges.has_edge
        owns = [self.with_edge(own, part.edge, has_edge) for (own, _), part in zip(accumulated, parts, strict=True)]
        first_results = None
        first.release()
        first.prefetch()
        statistics = self.reduce_rows(
            owns, exchange, [part.at.within for part in parts], first.at.thread, first.at.rank
        )
        rows = [Row(own, x, tensors.scalars, tensors.n) for (own, _), x in zip(accumulated, statistics, strict=True)]
        if const_expr(self.quantizes):
            largest: Any = None
            if const_expr(not self.tracks_absmax):
                largest, first_results = self.largest_result(first, accumulated[0][1], rows[0])
                if const_expr(max_exchange is None):
                    max_exchange = self.exchange_buffer(fields=1)
                largest = self.row_max(largest, max_exchange, first.at)
                first.release()
            rows = [self.with_scale(rows[0], largest)]
        self.write_row_values(tensors.row_values, rows[0], first.at)
        if const_expr(first.edge is not None):
            first.at.edges.write(tensors, parts, rows)
        self.write(tensors, parts, [saved for _, saved in accumulated], rows, first_results)

    @cute.jit
    def compute_chunks(self, tensors: Any, at: Any, exchange: Any):
        """Compute a row in two passes, chunk by chunk; in three where results are quantised by their own maximum."""
        if const_expr(self.config.cluster > 1):
            arch.cluster_arrive_relaxed()
            arch.cluster_wait()
        state = self.initial()
        step = self.config.cluster * self.config.row_threads * self.vectors
        for start in range(0, at.units, step):
            state = self.accumulate(state, self.chunk(tensors, at, start))[0]
        state = self.reduce_row(state, exchange, at)
        row = Row(state, state, tensors.scalars, tensors.n)
        if const_expr(self.quantizes):
            largest = Float32(0.0)
            if const_expr(not self.tracks_absmax):
                for start in range(0, at.units, step):
                    part = self.chunk(tensors, at, start)
                    largest = maximum(largest, self.largest_result(part, None, row)[0])
                largest = self.row_max(largest, self.exchange_buffer(fields=1), at)
            row = self.with_scale(row, largest)
        self.write_row_values(tensors.row_values, row, at)
        for start in range(0, at.units, step):
            part = self.chunk(tensors, at, start)
            self.write(tensors, [part], [None], [row])

    def chunk(self, tensors: Any, at: Position, start: Any) -> ResidentPart:
        """Read a thread's vectors of the chunk of a row that begins at vector `start`."""
        place = at._replace(unit=start + at.unit)
        registers = [self.read(x, place, self.vectors) for x in tensors.sources]
        return ResidentPart(self, place, registers, [], self.prefetched_columns(tensors.columns, place))

    def prefetched_columns(self, columns: list[cute.Tensor], at: Position) -> PrefetchedColumns:
        """Return the columns at a thread's vectors of a row."""
        return resident_columns(self, columns, at) if at.edges is None else at.edges.columns(columns, at.unit)

    @cute.jit
    def write_row_values(self, row_values: list[cute.Tensor], row: Row, at: Position):
        """Write the values of a row, once."""
        if const_expr(len(row_values) > 0):
            if at.exists & (at.rank == 0) & (at.thread % self.config.row_threads == 0):
                for out, value in zip(row_values, self.row_values(row.statistics, row.scalars), strict=True):
                    out[at.row] = value

    def largest_result(self, part: ResidentPart, saved: Any, row: Row) -> tuple[Any, Any]:
        """Return the largest magnitude of a thread's first results of a row, and these results, if there is room for
        them."""
        largest: Any = None
        results: list[Any] = []
        for v in range(part.count):
            results.append(self.results_at(v, part, saved, row)[0])
            magnitude = part.masked(v, cute.math.abs(results[-1]), 0.0)
            largest = magnitude if largest is None else larger(largest, magnitude)
        return total(largest, larger), results if part.saves else None

    def results_at(self, v: int, part: ResidentPart, saved: Any, row: Row) -> list[cute.TensorSSA]:
        """Return the results of vector `v`, from its values or from what was saved of them."""
        columns = part.columns(v)
        part.prefetch(v + 1)
        values = part.values(v) if saved is None else part.raw(v) if self.rereads else []
        return self.results(values, columns, None if saved is None else saved[v], row)

    def row_max(self, value: Float32, exchange: Any, at: Position) -> Any:
        """Return the largest value of the threads of a row."""
        ((result,),) = self.reduce_rows([(value,)], exchange, [at.within], at.thread, at.rank, max_statistics)
        return result

    def with_scale(self, row: Row, largest: Float32 | None) -> Row:
        """Append to a row's statistics the scale factor of its results, and its reciprocal. Magnitudes below 1e-12
        count as that."""
        deferred: Any = Float32(1.0)
        if self.tracks_absmax:
            largest, deferred = self.absmax(row.statistics, row.scalars)
        scale = maximum(largest, Float32(1e-12)) * (1.0 / FP8_MAX[self.problem.outs[0]])
        return row._replace(statistics=(*row.statistics, scale, arch.rcp_approx(scale) * deferred))

    # -- memory ----------------------------------------------------------------------------------------------------

    def read_order(self, vectors: range) -> list[int]:
        """Return the order in which a thread's vectors are read: those first that a row may not have, if it is
        unaligned; else the others would be used before they are issued."""
        return self.partial_first(vectors) if self.problem.unaligned else list(vectors)

    def predicate(self, at: Position, v: int) -> Boolean | None:
        """Return whether a thread's vector `v` exists; None if all do. A row that has its CTAs to itself exists."""
        inside = self.in_row(at.unit, at.units, v)
        if self.config.rows == 1:
            return inside
        return at.exists if inside is None else inside & at.exists

    def tile(self, x: cute.Tensor, at: Position, v: int) -> cute.Tensor:
        """Return a thread's vector `v` of a row in memory; of the first row where the row does not exist."""
        row = x[at.row if self.config.rows == 1 else select_(at.exists, at.row, Int32(0)), None]
        vectors = row if at.edges is None else at.edges.span.middle(row)
        return cute.local_tile(vectors, (self.width,), (self.at(at.unit, v),))

    @cute.jit
    def read(self, x: cute.Tensor, at: Position, count: int):
        """Read the first vectors of a thread's part of a row, zeros behind its end."""
        # narrow accesses are many and must not wait for each other: ptxas branches around those with a cache hint
        wide = self.width * x.element_type.width == 128
        priority = self.priority if wide else CacheEvictionPriority.EVICT_NORMAL
        atom = vector_atom(x.element_type, self.width, priority)
        registers = cute.make_rmem_tensor((self.width, count), x.element_type)
        for v in self.read_order(range(count)):
            pred = self.predicate(at, v)
            if const_expr(pred is not None):
                registers[None, v].fill(0)
            cute.copy(atom, self.tile(x, at, v), registers[None, v], pred=pred)
        return registers

    @cute.jit
    def write(
        self,
        tensors: RowTensors,
        parts: list[ResidentPart],
        saved: list[list[cute.TensorSSA | tuple[cute.TensorSSA, Float32]] | None],
        rows: list[Row],
        first_results: list[cute.TensorSSA] | None = None,
    ):
        """Compute and write results vector by vector, which takes the fewest registers. The first may be known."""
        outs = tensors.outs
        for v in range_constexpr(self.vectors):
            for part, values, row in zip(parts, saved, rows, strict=True):
                results = [] if first_results is None else [first_results[v]]
                if const_expr(len(results) < len(outs)):
                    results = results + self.results_at(v, part, values, row)[len(results) :]
                if const_expr(self.quantizes):
                    results = [results[0] * row.statistics[-1], *results[1:]]
                written = zip(outs, results, strict=True)
                if const_expr(self.problem.blocks is not None):
                    out, value = next(written)
                    self.write_blocks(out, value, tensors, part.at, v)
                for out, value in written:
                    atom = vector_atom(out.element_type, self.width)
                    registers = rounded(value, out.element_type)
                    cute.copy(atom, registers, self.tile(out, part.at, v), pred=self.predicate(part.at, v))

    def write_blocks(self, out: cute.Tensor, value: cute.TensorSSA, tensors: RowTensors, at: Position, v: int) -> None:
        """Quantise a thread's vector `v` of results, and write it and the scale factors of its blocks."""
        blocks = self.problem.blocks
        scales = tensors.block_scales
        assert blocks is not None
        assert scales is not None
        if blocks.scaled:
            value = value * tensors.scalars[-1]
        elements, scale = quantised(value, blocks)
        pred = self.predicate(at, v)
        row = out[at.row if self.config.rows == 1 else select_(at.exists, at.row, Int32(0)), None]
        unit = self.at(at.unit, v)
        write_elements(elements, cute.local_tile(row, (cute.size(elements),), (unit,)), pred)
        is_first = unit % blocks.lanes(self.width) == 0
        vector = unit * self.width // blocks.vector
        scales.write(blocks, at.row, vector, scale, is_first if pred is None else is_first & pred)

    def smem_buffer(self, dtype: type[cute.Numeric], thread: Int32, *stages: int) -> cute.Tensor:
        """Allocate shared memory for rows and return the thread's part (element, vector, stage...), interleaved by
        threads."""
        width = self.width
        threads = self.config.threads
        step = width * threads
        count = self.smem_vectors
        for extent in stages:
            count *= extent
        memory = arch.alloc_smem(dtype, step * count, 16)
        shape = (width, self.smem_vectors, *stages, threads)
        strides = (1, step, *(step * self.smem_vectors for _ in stages), width)
        return cute.make_tensor(memory, cute.make_layout(shape, stride=strides))[(*[None] * (len(shape) - 1), thread)]

    def fetch(self, x: cute.Tensor, at: Position) -> cute.Tensor:
        """Begin to copy the last vectors of a thread's part of a row to shared memory."""
        buffer = self.smem_buffer(x.element_type, at.thread)
        self.copy_row(x, at, buffer)
        arch.cp_async_commit_group()
        return buffer

    @cute.jit
    def fetch_stage(self, sources: Any, buffers: Any, at: Any, stage: Any):
        """Begin to copy a row to a stage of shared memory; zeros behind its end."""
        for x, buffer in zip(sources, buffers, strict=True):
            self.copy_row(x, at, buffer[None, None, stage])

    def copy_row(self, x: cute.Tensor, at: Position, buffer: cute.Tensor) -> None:
        """Begin to copy vectors to a thread's shared memory (element, vector)."""
        atom = async_vector_atom(x.element_type, self.width, self.priority)
        before = self.vectors - self.smem_vectors
        for v in self.read_order(range(before, self.vectors)):
            cute.copy(atom, self.tile(x, at, v), buffer[None, v - before], pred=self.predicate(at, v))

    # -- reduction of statistics -----------------------------------------------------------------------------------

    @property
    def row_warps(self) -> int:
        """Warps of a row, in all CTAs that share it; at least 1."""
        return self.config.cluster * max(1, self.config.row_threads // WARP)

    def exchange_buffer(self, rows: int = 1, fields: int | None = None) -> cute.Tensor | None:
        """Allocate shared memory for the statistics of the warps of a CTA's rows, `rows` of each thread; None for one
        warp."""
        fields = self.fields if fields is None else fields
        if self.row_warps == 1 or fields == 0:
            return None
        shape = (self.row_warps, fields, rows * self.config.rows)
        memory = arch.alloc_smem(Float32, self.row_warps * fields * rows * self.config.rows)
        return cute.make_tensor(memory, cute.make_layout(shape))

    def reduce_row(self, own: tuple[Float32, ...], exchange: cute.Tensor | None, at: Position) -> Any:
        """Return the statistics of a row from those of its threads."""
        return self.reduce_rows([own], exchange, [at.within], at.thread, at.rank)[0]

    @cute.jit
    def reduce_rows(
        self,
        owns: list[tuple[Float32 | float, ...]],
        exchange: Any,
        places: list[Int32],
        thread: Int32,
        rank: Int32 | int,
        how: Any = None,
    ):
        """Reduce the statistics of several rows of the same threads with one synchronisation, by `how` instead of
        `merge`."""
        config = self.config
        merge = self.merge if const_expr(how is None) else how
        if const_expr(len(owns[0]) == 0):
            return owns
        states = [merge([own], min(WARP, config.row_threads)) for own in owns]
        if const_expr(self.row_warps == 1):
            return states
        warps = max(1, config.row_threads // WARP)
        lane = thread % WARP
        slot = rank * warps + thread % config.row_threads // WARP
        if lane < config.cluster:
            if const_expr(config.cluster > 1):
                pointer = arch.map_dsmem_ptr(exchange.iterator, lane)
                target = cute.make_tensor(pointer, exchange.layout)
            else:
                target = exchange
            for state, place in zip(states, places, strict=True):
                for k in range_constexpr(len(state)):
                    if const_expr(not isinstance(state[k], float)):
                        target[slot, k, place] = state[k]
        if const_expr(config.cluster > 1):
            arch.cluster_arrive()
            arch.cluster_wait()
        else:
            arch.sync_threads()
        lanes = min(WARP, self.row_warps)
        slots = [lane % lanes + i * lanes for i in range(self.row_warps // lanes)]
        return [
            merge([read_statistics(state, exchange[other, None, place]) for other in slots], lanes)
            for state, place in zip(states, places, strict=True)
        ]
