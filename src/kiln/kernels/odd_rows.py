"""Functions of rows that begin anywhere: what a `RowKernel` says of rows, for rows whose vectors lie between edges.

Threads hold a row in registers, each some vectors and at most one element at the edges: two parts, each looked at by itself. A
number for each column is the same for all rows, and so no vector of it is where a row has one: three neighbouring halves of
vectors are read, and what is needed of them is shifted together.
"""

from __future__ import annotations

import itertools
from typing import Any

from .. import cute
from ..base_dsl.numeric.operators import select
from ..base_dsl.ranges import const_expr, range_constexpr
from ..base_dsl.typing import Boolean, Float32, Int32, Int64, Uint32
from ..cute import arch
from . import arrays, devices
from .row_edges import Span, element_at, vector_atom, vectors_at
from .row_kernel import WARP, RowKernel, RowTiling, as_f32


def odd_tiling(n: int, width: int, sources: int, columns: int, device: devices.Device) -> RowTiling | None:
    """How rows that begin anywhere are cut, so that few threads have nothing; None if they are too short or too long."""
    units = n // width
    if units < WARP:
        return None
    most, cluster = 3 if sources > 1 or (columns > 1 and units > 1024) else 4 if columns else 5, 1
    while cluster * 512 * most < units:
        cluster *= 2
    if cluster > device.cluster:
        return None
    choices = [512] if cluster > 1 else [t for t in (32, 64, 128, 256, 512) if t * most >= units]
    threads = min(choices, key=lambda t: (t * -(-units // t), t))
    block = max(128, threads)
    return RowTiling(block, threads, cluster, 0, (768 if columns > 1 and block < 512 else 1024) // block)


def odd_vectors(n: int, width: int, tiling: RowTiling) -> int:
    """Vectors of a row that a thread holds."""
    return -(-(n // width) // (tiling.cluster * tiling.row_threads))


class OddPart:
    """A thread's vectors of a row, as a `Part`."""

    __kiln_static__ = True
    in_registers = True

    def __init__(self, kernel: OddRows, span: Span, held: list[Any], columns: list[Any], unit: Any) -> None:
        self._kernel = kernel
        self._span = span
        self._held = held
        self._columns = columns
        self._unit = unit
        self._read: dict[int, list[Any]] = {}
        self.count = kernel.vectors

    def unit(self, v: int) -> Any:
        """Which vector of the row `v` is."""
        return self._unit + v * self._kernel.tiling.row_threads

    def values(self, v: int) -> list[Any]:
        """Vector `v` of each source; zeros where the row has no elements."""
        return [as_f32(held[None, v].load()) for held in self._held]

    def prepare(self, v: int = 0) -> None:
        """Begin to read the columns of vector `v`."""
        if v < self.count and v not in self._read:
            self._read[v] = [self._kernel.halves(c, self._span, self.unit(v)) for c in self._columns]

    def columns(self, v: int) -> list[Any]:
        """What stands for the same columns in the vectors."""
        self.prepare(v)
        return [as_f32(self._kernel.shifted(held, self._span.head)) for held in self._read.get(v, [])]

    def exists(self, v: int) -> Any:
        """Whether the row has elements there."""
        return self.unit(v) < self._span.units

    def kept(self, v: int, value: Any, instead: float) -> Any:
        """A value where the row has elements, else a number."""
        there = cute.full_like(value, self.exists(v), Boolean)
        return cute.where(there, value, cute.full_like(value, instead))

    def elements(self) -> Any:
        """How many elements there are."""
        found = Float32(0.0)
        for v in range(self.count):
            found = found + select(self.exists(v), Float32(float(self._kernel.width)), Float32(0.0))
        return found

    def release(self) -> None:
        """Columns will be read another time."""
        self._read.clear()

    def again(self) -> None:
        """Values will be read another time: they need not be held until then."""
        self.release()


class EdgePart:
    """A thread's element at the edges of a row, as a `Part` of one vector of one element."""

    __kiln_static__ = True
    in_registers = False
    count = 1

    def __init__(self, alone: list[Any], there: Any) -> None:
        self._alone = alone
        self._there = there

    def values(self, v: int) -> list[Any]:
        """The element of each source; 0 where there is none."""
        return [cute.TensorSSA.from_elements([value], Float32) for value in self._alone]

    def kept(self, v: int, value: Any, instead: float) -> Any:
        """A value if there is an element, else a number."""
        return cute.TensorSSA.from_elements([select(self._there, value[0], Float32(instead))], Float32)

    def elements(self) -> Any:
        """How many elements there are."""
        return select(self._there, Float32(1.0), Float32(0.0))

    def again(self) -> None:
        """Values are held."""


class OddRows:
    """The kernel, for what a `RowKernel` says."""

    def __init__(self, kind: type[RowKernel], problem: Any) -> None:
        self.says = kind(problem)
        self.problem = problem
        self.tiling: RowTiling = problem.tiling
        self.width: int = problem.width
        self.vectors: int = problem.vectors

    @cute.jit
    def __call__(
        self, places: Any, rows: Int32, n: Int32, lead: Int32, steps: Any, numbers: Any, blocks: Int32, stream: Int64
    ):
        """Launch over so many blocks. `places`: sources, outs, columns; `steps`: from row to row of the matrices."""
        problem, tiling = self.problem, self.tiling
        types = (*problem.sources, *problem.outs)
        matrices = [
            cute.make_tensor(arrays.pointer(p, t, 1), cute.make_layout((rows, n), stride=(step, 1)))
            for p, t, step in zip(places, types, steps, strict=False)
        ]
        present = [t for t in problem.columns if t is not None]
        columns = [
            cute.make_tensor(arrays.pointer(p, t, self.width), cute.make_layout((n,)))
            for p, t in zip(places[len(types) :], present, strict=True)
        ]
        sources, outs = matrices[: len(problem.sources)], matrices[len(problem.sources) :]
        self.kernel(sources, outs, columns, numbers, rows, n, lead, Int32(steps[0])).launch(
            grid=(blocks, 1, 1),
            block=(tiling.threads, 1, 1),
            cluster=(tiling.cluster, 1, 1) if tiling.cluster > 1 else None,
            max_number_threads=tiling.threads,
            min_blocks_per_mp=tiling.together,
            stream=stream,
            use_pdl=problem.overlaps,
        )

    @cute.kernel
    def kernel(
        self, sources: Any, outs: Any, columns: Any, numbers: Any, rows: Int32, n: Int32, lead: Int32, skew: Int32
    ):
        tiling, says = self.tiling, self.says
        if const_expr(self.problem.overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()
        thread, block = arch.thread_idx()[0], arch.block_idx()[0]
        rank, lane, within = block % tiling.cluster, thread % tiling.row_threads, thread // tiling.row_threads
        row = block // tiling.cluster * tiling.rows + within
        exists = row < rows
        place = row if exists else Int32(0)
        length = n if exists else Int32(0)
        # what is read of columns beside a row's last vector exists if the row has one vector more
        span = Span(lead + place * skew, length, self.width, spare=1 if const_expr(len(columns) > 0) else 0)
        slots = tiling.cluster * max(1, tiling.row_threads // WARP)
        exchange = says.exchange_buffer(slots)
        if const_expr(tiling.cluster > 1):
            arch.cluster_arrive_relaxed()
        lines = [x[place, None] for x in sources]
        unit = rank * (tiling.row_threads * self.vectors) + lane
        (column,) = span.edges(rank * tiling.row_threads + lane, tiling.cluster * tiling.row_threads)
        alone = [element_at(line, column, column < length) for line in lines]
        held = [
            vectors_at(span.middle(line), self.width, self.vectors, unit, tiling.row_threads, span.units)
            for line in lines
        ]
        part: Any = OddPart(self, span, held, columns, unit)
        edge: Any = EdgePart(alone, column < length)
        edged = (rank == 0) & (lane < WARP)  # nobody else has an edge
        own, kept = says.absorb(None, part)
        found = own
        if edged:
            found = says.merge([own, says.absorb(None, edge)[0]], 1)
        part.release()
        part.prepare()
        if const_expr(tiling.cluster > 1):
            arch.cluster_wait()
        state = says.gathered(found, exchange, within, thread, rank, slots)
        lines = [out[place, None] for out in outs]
        if edged & (column < length):
            weights = [cute.TensorSSA.from_elements([x[column].to(Float32)], Float32) for x in columns]
            made = says.results(edge.values(0), weights, None, own, state, numbers, n)
            for line, value in zip(lines, made, strict=True):
                line[column] = value[0].to(line.element_type)
        for v in range_constexpr(self.vectors):
            weights = part.columns(v)
            part.prepare(v + 1)
            made = says.results(part.values(v), weights, None if kept is None else kept[v], own, state, numbers, n)
            for line, value in zip(lines, made, strict=True):
                written = cute.make_rmem_tensor((self.width,), line.element_type)
                written.store(value.to(line.element_type))
                there = cute.local_tile(span.middle(line), (self.width,), (part.unit(v),))
                cute.copy(vector_atom(line.element_type, self.width), written, there, pred=part.exists(v))

    def halves(self, column: Any, span: Span, unit: Any) -> Any:
        """Three neighbouring halves of vectors of a number for each column, which have those of a row's vector.

        The first three stand for those of a vector that the row does not have.
        """
        half = self.width // 2
        first = select(unit < span.units, (span.head + unit * self.width) // half, 0)
        return vectors_at(column, half, 3, first, 1, None)

    def shifted(self, held: Any, head: Any) -> Any:
        """The vector that begins in the first of three halves, as far in it as a row's vectors are beside such halves."""
        dtype, width = held.element_type, self.width
        each = 32 // dtype.width
        words = [word for k in range(3) for word in held[None, k].load().bitcast(Uint32).to_elements()]
        odd = (head & 1) != 0
        if each == 1:
            words = [select(odd, high, low) for low, high in itertools.pairwise(words)]
        else:
            if width == 8:
                words = [select((head & 2) != 0, high, low) for low, high in itertools.pairwise(words)]
            chosen = select(odd, Int32(0x5432), Int32(0x3210))
            words = [Uint32(arch.prmt(low, high, chosen)) for low, high in itertools.pairwise(words)]
        return cute.TensorSSA.from_elements(words[: width // each], Uint32).bitcast(dtype)
