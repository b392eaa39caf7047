"""Edges of unaligned rows, whose vectors lie between a few elements before and behind them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from .... import Float32, Int32, Uint32, cute, select_
from ....cute import arch
from ...parts.unaligned_rows import Span, element_at, vectors_at
from ...parts.vectors import as_f32
from .config import WARP, UnalignedRowwiseConfig
from .row_part import EdgePart, PrefetchedColumns

if TYPE_CHECKING:
    from .... import Boolean
    from .row_kernel import Position, Row, RowKernel, RowTensors
    from .row_part import ResidentPart
    from .vector_access import VectorAccess

CACHE_LINE = 128
"""Bytes of a cache line."""


def spare_vectors(columns: Any) -> int:
    """Return how many vectors at the end of a row are edges: the half vectors of columns beside them may not exist."""
    return 1 if any(x is not None for x in columns) else 0


class Edges:
    """Where the vectors of rows lie that begin `begin` elements behind a cache line, and which element at their edges a
    thread has.

    The first thread of a row has a vector at a multiple of `alignment` of them, which may lie before the row.
    """

    __kiln_static__ = True

    def __init__(
        self, kernel: VectorAccess, begin: Int32, n: Any, rank: Int32 | int, lane: Int32, spare: int = 0
    ) -> None:
        config = kernel.config
        width = kernel.problem.width
        self.span: Span = Span(begin, n, width, spare)
        self.before: Int32 = (begin + self.span.head) // width & (kernel.problem.alignment - 1)
        """Vectors that the first threads of a row have before it."""
        (self.column,) = self.span.edges(rank * config.row_threads + lane, config.cluster * config.row_threads)
        self.has_edge: Boolean = (rank == 0) & (lane < WARP)
        """Whether the thread's warp has the edges."""
        self.pred: Boolean = self.has_edge & (self.column < n)


class ResidentEdges(Edges):
    """The edges of rows on chip that begin equally far from a vector: `width` rows apart.

    A column vector is the same for all rows, so that none of its vectors is aligned with those of a row: three
    neighbouring half vectors are read and shifted together, once for all rows of a thread.
    """

    def __init__(self, kernel: RowKernel, tensors: Any, at: Position) -> None:
        begin = tensors.lead + at.row * tensors.skew
        lane = at.thread % kernel.config.row_threads
        super().__init__(kernel, begin, tensors.n, at.rank, lane, spare_vectors(tensors.columns))
        if kernel.config.rows > 1:
            self.pred = self.pred & at.exists
        self._kernel = kernel

    def position(self, at: Position, row: Int32, k: int) -> Position:
        """Return where the thread works on row number `k` of its rows."""
        unit = at.unit - self.before
        return at._replace(row=row, unit=unit, units=self.span.units, within=at.within + k, edges=self)

    def part(self, sources: list[cute.Tensor], at: Position) -> EdgePart:
        """Read a thread's element of a row."""
        return EdgePart([element_at(x[at.row, None], self.column, self.pred) for x in sources], self.pred)

    @cute.jit
    def write(self, tensors: RowTensors, parts: list[ResidentPart], rows: list[Row]):
        """Write the results at the edges of rows."""
        if self.pred:
            columns = [cute.TensorSSA.from_elements([x[self.column].to(Float32)], Float32) for x in tensors.columns]
            for part, row in zip(parts, rows, strict=True):
                results = self._kernel.results(part.edge.values(0), columns, None, row)
                for out, value in zip(tensors.outs, results, strict=True):
                    out[part.at.row, self.column] = value[0].to(out.element_type)

    def columns(self, columns: list[cute.Tensor], unit: Int32) -> PrefetchedColumns:
        """Return the columns at a thread's vectors of the rows."""
        kernel = self._kernel
        config = kernel.config
        assert isinstance(config, UnalignedRowwiseConfig)
        return PrefetchedColumns(
            columns,
            kernel.vectors,
            config.prefetch,
            True,
            lambda x, v: self._halves(x, kernel.at(unit, v)),
            lambda halves: as_f32(self._shifted(halves)),
        )

    def _halves(self, column: cute.Tensor, unit: Int32) -> cute.Tensor:
        """Read three neighbouring half vectors of a column vector, which contain the elements of a row's vector.

        For a vector that the row does not have, the first three are read.
        """
        span = self.span
        half = span.width // 2
        first = select_((unit >= 0) & (unit < span.units), (span.head + unit * span.width) // half, 0)
        return vectors_at(column, half, 3, first, 1, None)

    def _shifted(self, halves: cute.Tensor) -> cute.TensorSSA:
        """Return the vector that begins in the first of three half vectors, at the offset of a row's vectors."""
        dtype = halves.element_type
        width = self.span.width
        per_word = 32 // dtype.width
        words = [word for k in range(3) for word in halves[None, k].load().bitcast(Uint32).to_elements()]
        shifted_by_one = (self.span.head & 1) != 0
        if per_word == 1:
            words = [select_(shifted_by_one, high, low) for low, high in itertools.pairwise(words)]
        else:
            if width == 8:
                words = [select_((self.span.head & 2) != 0, high, low) for low, high in itertools.pairwise(words)]
            chosen = select_(shifted_by_one, Int32(0x5432), Int32(0x3210))
            words = [Uint32(arch.prmt(low, high, chosen)) for low, high in itertools.pairwise(words)]
        return cute.TensorSSA.from_elements(words[: width // per_word], Uint32).bitcast(dtype)
