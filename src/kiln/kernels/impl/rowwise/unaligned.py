"""Row-wise kernels for unaligned rows: a row function, applied to rows whose vectors lie between edges.

Threads hold a row, in registers or in shared memory, each some vectors and at most one element at the edges: two parts,
which are accumulated one by one. A column vector is the same for all rows, so that none of its vectors is aligned with
those of a row: three neighbouring half vectors are read and shifted together. Rows that begin equally far from a vector
are `width` rows apart and need the same shift; a thread can hold some of them at a time.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from .... import Float32, Int32, Int64, Uint32, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ...parts.unaligned_rows import Span, element_at, vectors_at
from ...parts.vectors import as_f32, async_vector_atom, rounded, vector_atom
from .config import WARP, UnalignedRowwiseConfig
from .row_kernel import Row, RowKernel, RowProblem, launch, wait_for_previous_kernel
from .row_part import EdgePart, PrefetchedColumns
from .vector_access import AccessedPart, VectorAccess

CACHE_LINE = 128
"""Bytes of a cache line."""


@dataclasses.dataclass(frozen=True)
class UnalignedRowProblem(RowProblem):
    """What a kernel is specialised for. In `exact` rows all threads have all vectors but the first and the last.

    The first thread of a row has a vector at a multiple of `alignment` of them, which may lie before the row.
    """

    alignment: int = 1
    config: UnalignedRowwiseConfig


def unaligned_problem(
    types: tuple[Any, Any, Any], n: int, width: int, config: UnalignedRowwiseConfig, overlaps: bool
) -> UnalignedRowProblem:
    """Return what the kernel is specialised for, given the types of sources, outs and columns.

    Vectors are aligned with cache lines, or with parts of them, as long as no thread gets one more for that.
    """
    threads = config.cluster * config.row_threads
    fewest, most = ((n - k) // width - spare_vectors(types[2]) for k in (width - 1, 0))
    vectors = max(1, -(-most // threads))
    alignment = CACHE_LINE * 8 // (types[0][0].width * width)
    while alignment > 1 and most + alignment - 1 > vectors * threads:
        alignment //= 2
    exact = config.rows == 1 and fewest >= (vectors - 1) * threads
    return UnalignedRowProblem(*types, 0, width, vectors, exact, config=config, overlaps=overlaps, alignment=alignment)


def spare_vectors(columns: Any) -> int:
    """Return how many vectors at the end of a row are edges: the half vectors of columns beside them may not exist."""
    return 1 if any(x is not None for x in columns) else 0


class UnalignedPart(AccessedPart):
    """A thread's vectors of an unaligned row."""

    def __init__(self, kernel: UnalignedRowKernel, units: Any, held: list[Any], unit: Any) -> None:
        super().__init__(kernel, unit, units)
        self._held = held
        self.in_registers: bool = kernel.function.smem_vectors == 0

    def values(self, v: int) -> list[Any]:
        return [as_f32(vectors[v].load()) for vectors in self._held]

    def reread(self) -> None:
        if not self.in_registers:
            arch.cp_async_wait_group(0)


class UnalignedRowKernel(VectorAccess):
    """The kernel of a row function for unaligned rows."""

    def __init__(self, function: type[RowKernel], problem: UnalignedRowProblem) -> None:
        self.function: RowKernel = function(problem)
        self.problem = problem
        self.config: Any = problem.config
        self.width: int = problem.width
        self.vectors: int = problem.vectors
        self.partial: int = problem.vectors - 1 if problem.exact else 0

    @cute.jit
    def __call__(
        self, addresses: Any, rows: Int32, n: Int32, lead: Int32, strides: Any, scalars: Any, ctas: Int32, stream: Int64
    ):
        """Launch so many CTAs. `addresses`: sources, outs, columns; `strides`: those of rows of the matrices."""
        tensors, _ = self.function.tensors(addresses, rows, n, strides, scalars, 1, self.width)
        call = self.kernel(tensors._replace(lead=lead, skew=Int32(strides[0])))
        launch(call, self.config, ctas, stream, self.problem.overlaps)

    @cute.kernel
    def kernel(self, tensors: Any):
        config = self.config
        rows = tensors.rows
        n = tensors.n
        lead = tensors.lead
        skew = tensors.skew
        wait_for_previous_kernel(self.problem.overlaps)
        index = arch.block_idx()[0] // config.cluster
        within = arch.thread_idx()[0] // config.row_threads
        if const_expr(config.rows_per_cta > 1):
            first = index // self.width * (config.rows_per_cta * self.width) + index % self.width
            if first < rows:
                others = [first + k * self.width for k in range(1, config.rows_per_cta)]
                places = [first, *(select_(row < rows, row, first) for row in others)]
                self.compute(tensors, places, n, lead + first * skew)
        elif const_expr(config.rows == 1):
            self.compute(tensors, [index], n, lead + index * skew)
        else:
            row = index * config.rows + within
            place = select_(row < rows, row, Int32(0))
            self.compute(tensors, [place], select_(row < rows, n, Int32(0)), lead + place * skew)

    @cute.jit
    def compute(self, tensors: Any, places: Any, length: Any, begin: Any):
        """Compute rows that begin equally far from vectors; their `length` is 0 if they do not exist."""
        config = self.config
        function = self.function
        sources = tensors.sources
        outs = tensors.outs
        columns = tensors.columns
        thread = arch.thread_idx()[0]
        rank = arch.block_idx()[0] % config.cluster
        lane = thread % config.row_threads
        within = thread // config.row_threads
        exchange = function.exchange_buffer(config.rows_per_cta)
        if const_expr(config.cluster > 1):
            arch.cluster_arrive_relaxed()
        span = Span(begin, length, self.width, spare=spare_vectors(columns))
        unit = rank * config.row_threads + lane
        (column,) = span.edges(unit, config.cluster * config.row_threads)
        # no other thread has an edge
        has_edge = (rank == 0) & (lane < WARP)
        pred = column < length
        unit = unit - ((begin + span.head) // self.width & (self.problem.alignment - 1))
        edges = [EdgePart([element_at(x[row, None], column, pred) for x in sources], pred) for row in places]
        parts = [
            UnalignedPart(self, span.units, [self.read(x[row, None], span, unit, thread) for x in sources], unit)
            for row in places
        ]
        held_columns = PrefetchedColumns(
            columns,
            self.vectors,
            config.prefetch,
            lambda x, v: self.halves(x, span, self.at(unit, v)),
            lambda halves: as_f32(self.shifted(halves, span.head)),
        )
        accumulated = []
        owns = []
        for k in range_constexpr(len(places)):
            if const_expr(function.smem_vectors > 0):
                arch.cp_async_wait_group(len(sources) * (len(places) - 1 - k))
            part: Any = parts[k]
            accumulated.append(function.accumulate(None, part))
            owns.append(function.with_edge(accumulated[k][0], edges[k], has_edge))
        held_columns.prefetch()
        if const_expr(config.cluster > 1):
            arch.cluster_wait()  # the other CTAs have started, so that their shared memory can be written
        statistics = function.reduce_rows(owns, exchange, [within + k for k in range(len(places))], thread, rank)
        rows = [
            Row(own, known, tensors.scalars, tensors.n) for (own, _), known in zip(accumulated, statistics, strict=True)
        ]
        if has_edge & pred:
            edge_columns = [cute.TensorSSA.from_elements([x[column].to(Float32)], Float32) for x in columns]
            for k in range_constexpr(len(places)):
                results = function.results(edges[k].values(0), edge_columns, None, rows[k])
                for out, value in zip(outs, results, strict=True):
                    out[places[k], column] = value[0].to(out.element_type)
        for v in range_constexpr(self.vectors):
            column_values = held_columns.values(v)
            held_columns.prefetch(v + 1)
            for k in range_constexpr(len(places)):
                saved = accumulated[k][1]
                results = function.results(
                    parts[k].values(v), column_values, None if saved is None else saved[v], rows[k]
                )
                for out, value in zip(outs, results, strict=True):
                    self.write(out[places[k], None], value, span, unit, v)

    # -- memory ----------------------------------------------------------------------------------------------------

    def read(self, row: Any, span: Span, unit: Any, thread: Any) -> list[Any]:
        """Read a thread's vectors of a row, zeros outside of it: the first into registers, others asynchronously into
        smem."""
        function = self.function
        dtype = row.element_type
        count = self.vectors - self.function.smem_vectors
        buffer: Any = function.smem_buffer(dtype, thread) if count < self.vectors else None
        held: list[Any] = [None] * self.vectors
        # the predicated one first: else the others would be used before it is issued
        for v in (self.vectors - 1, *range(self.vectors - 1)):
            pred = self.in_row(unit, span.units, v)
            tile = self.tile(row, span, unit, v)
            if v < count:
                held[v] = cute.make_rmem_tensor((self.width,), dtype)
                if pred is not None:
                    held[v].fill(0)
                cute.copy(vector_atom(dtype, self.width, function.priority), tile, held[v], pred=pred)
            else:
                held[v] = buffer[None, v - count]
                cute.copy(async_vector_atom(dtype, self.width, function.priority), tile, held[v], pred=pred)
        if buffer is not None:
            arch.cp_async_commit_group()
        return held

    def tile(self, row: Any, span: Span, unit: Any, v: int) -> Any:
        """Return a thread's vector of a row in memory."""
        return cute.local_tile(span.middle(row), (self.width,), (self.at(unit, v),))

    def write(self, row: Any, value: Any, span: Span, unit: Any, v: int) -> None:
        """Write a vector, if the row has it."""
        atom = vector_atom(row.element_type, self.width)
        registers = rounded(value, row.element_type)
        cute.copy(atom, registers, self.tile(row, span, unit, v), pred=self.in_row(unit, span.units, v))

    def halves(self, column: Any, span: Span, unit: Any) -> Any:
        """Read three neighbouring half vectors of a column vector, which contain the elements of a row's vector.

        For a vector that the row does not have, the first three are read.
        """
        half = self.width // 2
        first = select_((unit >= 0) & (unit < span.units), (span.head + unit * self.width) // half, 0)
        return vectors_at(column, half, 3, first, 1, None)

    def shifted(self, halves: Any, head: Any) -> Any:
        """Return the vector that begins in the first of three half vectors, at the offset of a row's vectors."""
        dtype = halves.element_type
        width = self.width
        per_word = 32 // dtype.width
        words = [word for k in range(3) for word in halves[None, k].load().bitcast(Uint32).to_elements()]
        shifted_by_one = (head & 1) != 0
        if per_word == 1:
            words = [select_(shifted_by_one, high, low) for low, high in itertools.pairwise(words)]
        else:
            if width == 8:
                words = [select_((head & 2) != 0, high, low) for low, high in itertools.pairwise(words)]
            chosen = select_(shifted_by_one, Int32(0x5432), Int32(0x3210))
            words = [Uint32(arch.prmt(low, high, chosen)) for low, high in itertools.pairwise(words)]
        return cute.TensorSSA.from_elements(words[: width // per_word], Uint32).bitcast(dtype)
