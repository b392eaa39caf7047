"""Functions of rows that begin anywhere: what a `RowKernel` says of rows, for rows whose vectors lie between edges.

Threads hold a row, in registers or in shared memory, each some vectors and at most one element at the edges: two parts, each looked
at by itself. A number for each column is the same for all rows, and so no vector of it is where a row has one: three neighbouring
halves of vectors are read, and what is needed of them is shifted together. Rows that begin equally far from a vector, which lie
`width` rows apart, need the same of them; some such rows can be held at a time.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from .... import Boolean, Float32, Int32, Int64, Uint32, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ...dispatch import arrays, devices
from ...parts.unaligned_rows import Span, element_at, vectors_at
from ...parts.vectors import as_f32, either
from .row_kernel import WARP, RowKernel, RowProblem, RowwiseConfig, check_threads, launch

LINE = 128
"""Bytes of a line of the caches."""


@dataclasses.dataclass(frozen=True)
class UnalignedRowwiseConfig(RowwiseConfig):
    """How rows that begin anywhere are cut. A thread holds `held` rows at a time, and reads columns of `ahead` vectors ahead."""

    held: int = 1
    ahead: int = 1

    def vectors(self, n: int, width: int) -> int:
        """Vectors of `width` elements, of a row of `n`, that a thread holds at most; in each row a few elements are at the edges."""
        return max(1, -(-(n // width) // (self.cluster * self.row_threads)))

    def smem_bytes(self, n: int, width: int, bits: int, sources: int) -> int:
        """Shared memory of a block that reads some matrices of so many bits."""
        return self.held * super().smem_bytes(n, width, bits, sources)

    def check(self, n: int, width: int, bits: int, sources: int, device: devices.Device) -> None:
        """Refuse what cannot work for rows of `n` elements of so many bits, accessed `width` at a time."""
        check_threads(self, device)
        arrays.require(
            self.shared >= 0 and self.held >= 1 and self.ahead >= 1,
            f"{self}: shared is at least 0, held and ahead at least 1",
        )
        arrays.require(
            self.held == 1 or self.rows == 1, f"{self}: {self.held} rows at a time, but a block has {self.rows} others"
        )
        arrays.require(
            self.row_threads >= WARP, f"{self}: edges of rows take a warp, and {self.row_threads} threads have a row"
        )
        used = self.smem_bytes(n, width, bits, sources)
        arrays.require(
            used <= device.smem,
            f"{self} takes {used} bytes of shared memory, and a block has {device.smem}",
            hint="more in registers, fewer rows at a time, or a larger cluster",
        )

    def blocks(self, rows: int, width: int) -> int:
        """How many blocks so many rows take. Rows that are held at a time lie `width` apart."""
        groups = -(-rows // (width * self.held)) * width if self.held > 1 else -(-rows // self.rows)
        return groups * self.cluster


@dataclasses.dataclass(frozen=True)
class OddProblem(RowProblem):
    """What a kernel is made for. It is `exact` if all threads have all their vectors, but for the first and the last, in every row.

    The first thread of a row has a vector at a multiple of `lined` of them, which may lie before the row.
    """

    lined: int = 1
    config: UnalignedRowwiseConfig


def unaligned_config(
    n: int, width: int, sources: int, columns: int, rows: int, device: devices.Device
) -> UnalignedRowwiseConfig | None:
    """How rows that begin anywhere are cut, so that few threads have nothing; None if they are too short or too long.

    Measured on an H200. Short rows are held in registers, longer ones in shared memory: by one block if two of them fit on a
    multiprocessor, for blocks of a cluster wait for each other. With many columns, two rows at a time share what is read of them.
    """
    units = n // width
    if units < WARP:
        return None
    narrow = sources == 1 and columns < 2
    if (
        columns > 1
        and 256 < units <= 512 * 14
        and not 512 * 7 < units <= 512 * 8
        and rows >= 8 * device.multiprocessors
    ):
        threads = 128 if units <= 512 else 256 if units <= 1024 else 512
        config = UnalignedRowwiseConfig(
            threads, threads, 1 if units <= 512 * 7 else 2, 7, 1024 // threads, held=2, ahead=2
        )
    elif units <= (512 * 3 if sources > 1 else 1024):
        most = 3 if sources > 1 else 4 if columns else 5
        choices = [t for t in (32, 64, 128, 256, 512) if t * most >= units]
        threads = min(choices, key=lambda t: (t * -(-units // t), t))
        block = max(128, threads)
        config = UnalignedRowwiseConfig(block, threads, 1, 0, (768 if columns > 1 else 1024) // block)
    elif units <= 512 * (13 // sources):
        few = units <= 512 * 8
        config = UnalignedRowwiseConfig(
            512, 512, 1, 13, 3 if few and narrow else 2, ahead=1 if few or columns > 1 else 3
        )
    else:
        cluster = 2
        while units * sources > cluster * 512 * 8:
            cluster *= 2
        threads = 512 if columns or sources > 1 else 256
        config = UnalignedRowwiseConfig(threads, threads, cluster, 16, 3 if narrow else 2)
    fits = config.cluster <= device.cluster and config.smem_bytes(n, width, 128 // width, sources) <= device.smem
    return config if fits else None


def odd_problem(
    types: tuple[Any, Any, Any], n: int, width: int, config: UnalignedRowwiseConfig, overlaps: bool
) -> OddProblem:
    """What `OddRows` is made for, given types of sources, outs and columns.

    Vectors lie as in lines of the caches, or in parts of them, as long as no thread has one more for that.
    """
    across = config.cluster * config.row_threads
    fewest, most = ((n - k) // width - spare_vectors(types[2]) for k in (width - 1, 0))
    vectors = max(1, -(-most // across))
    lined = LINE * 8 // (types[0][0].width * width)
    while lined > 1 and most + lined - 1 > vectors * across:
        lined //= 2
    exact = config.rows == 1 and fewest >= (vectors - 1) * across
    return OddProblem(*types, 0, width, vectors, exact, config=config, overlaps=overlaps, lined=lined)


def spare_vectors(columns: Any) -> int:
    """Vectors at the end of a row that are taken element by element: what lies beside them in columns may not exist."""
    return 1 if any(x is not None for x in columns) else 0


class OddPart:
    """A thread's vectors of a row, as a `Part`."""

    __kiln_static__ = True
    alone = None

    def __init__(self, kernel: OddRows, span: Span, held: list[Any], unit: Any) -> None:
        self._kernel = kernel
        self._span = span
        self._held = held
        self._unit = unit
        self.count = kernel.vectors
        self.in_registers = kernel.says.shared == 0

    def values(self, v: int) -> list[Any]:
        """Vector `v` of each source; zeros where the row has no elements."""
        return [as_f32(held[v].load()) for held in self._held]

    def first(self) -> list[Any]:
        """A vector of each source with elements of the row, if there are any: the first vector may lie before it."""
        found = self.values(0)
        if self._kernel.problem.lined == 1 or self.count == 1:
            return found
        return either(self._kernel.inside(self._unit, self._span, 0), found, self.values(1))

    def kept(self, v: int, value: Any, instead: float) -> Any:
        """A value where the row has elements, else a number."""
        there = self._kernel.inside(self._unit, self._span, v)
        if there is None:
            return value
        return cute.where(cute.full_like(value, there, Boolean), value, cute.full_like(value, instead))

    def elements(self) -> Any:
        """How many elements there are."""
        found, width = Float32(0.0), float(self._kernel.width)
        for v in range(self.count):
            there = self._kernel.inside(self._unit, self._span, v)
            found = found + (width if there is None else select_(there, Float32(width), Float32(0.0)))
        return found

    def again(self) -> None:
        """Values will be read another time: they need not be held until then."""
        if not self.in_registers:
            arch.cp_async_wait_group(0)


class OddColumns:
    """A number for each of a thread's columns, for some of them: read ahead of their use."""

    __kiln_static__ = True

    def __init__(self, kernel: OddRows, span: Span, columns: list[Any], unit: Any) -> None:
        self._kernel = kernel
        self._span = span
        self._columns = columns
        self._unit = unit
        self._read: dict[int, list[Any]] = {}

    def prepare(self, v: int = 0) -> None:
        """Begin to read those of vector `v` and of some after it."""
        for u in range(v, min(self._kernel.vectors, v + self._kernel.config.ahead)):
            if u not in self._read:
                self._read[u] = [
                    self._kernel.halves(c, self._span, self._kernel.at(self._unit, u)) for c in self._columns
                ]

    def values(self, v: int) -> list[Any]:
        """Those of vector `v`."""
        self.prepare(v)
        return [as_f32(self._kernel.shifted(held, self._span.head)) for held in self._read.pop(v)]


class EdgePart:
    """A thread's element at the edges of a row, as a `Part` of one vector of one element."""

    __kiln_static__ = True
    alone = None
    in_registers = False
    count = 1

    def __init__(self, alone: list[Any], there: Any, columns: list[Any] | None = None) -> None:
        self._alone = alone
        self._there = there
        self._columns = columns or []

    def values(self, v: int) -> list[Any]:
        """The element of each source; 0 where there is none."""
        return [cute.TensorSSA.from_elements([value], Float32) for value in self._alone]

    def columns(self, v: int) -> list[Any]:
        """What stands for its column in the vectors."""
        return self._columns

    def first(self) -> list[Any]:
        """The element of each source, if there is one."""
        return self.values(0)

    def kept(self, v: int, value: Any, instead: float) -> Any:
        """A value if there is an element, else a number."""
        return cute.TensorSSA.from_elements([select_(self._there, value[0], Float32(instead))], Float32)

    def elements(self) -> Any:
        """How many elements there are."""
        return select_(self._there, Float32(1.0), Float32(0.0))

    def again(self) -> None:
        """Values are held."""


class OddRows:
    """The kernel, for what a `RowKernel` says."""

    def __init__(self, kind: type[RowKernel], problem: OddProblem) -> None:
        self.says = kind(problem)
        self.problem = problem
        self.config = problem.config
        self.width = problem.width
        self.vectors = problem.vectors

    @cute.jit
    def __call__(
        self, places: Any, rows: Int32, n: Int32, lead: Int32, steps: Any, numbers: Any, blocks: Int32, stream: Int64
    ):
        """Launch over so many blocks. `places`: sources, outs, columns; `steps`: from row to row of the matrices."""
        problem = self.problem
        types = (*problem.sources, *problem.outs)
        matrices = [
            cute.make_tensor(arrays.pointer(p, t, 1), cute.make_layout((rows, n), stride=(step, 1)))
            for p, t, step in zip(places, types, steps, strict=False)
        ]
        present = [t for t in problem.columns if t is not None]
        columns = [self.says.vector(p, t, n) for p, t in zip(places[len(types) :], present, strict=True)]
        sources, outs = matrices[: len(problem.sources)], matrices[len(problem.sources) :]
        call = self.kernel(sources, outs, columns, numbers, rows, n, lead, Int32(steps[0]))
        launch(call, self.config, blocks, stream, problem.overlaps)

    @cute.kernel
    def kernel(
        self, sources: Any, outs: Any, columns: Any, numbers: Any, rows: Int32, n: Int32, lead: Int32, skew: Int32
    ):
        config = self.config
        if const_expr(self.problem.overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()
        index, within = arch.block_idx()[0] // config.cluster, arch.thread_idx()[0] // config.row_threads
        given = sources, outs, columns, numbers
        if const_expr(config.held > 1):
            first = index // self.width * (config.held * self.width) + index % self.width
            if first < rows:
                more = [first + k * self.width for k in range(1, config.held)]
                places = [first, *(select_(row < rows, row, first) for row in more)]
                self.work(given, places, n, n, lead + first * skew)
        elif const_expr(config.rows == 1):
            self.work(given, [index], n, n, lead + index * skew)
        else:
            row = index * config.rows + within
            place = select_(row < rows, row, Int32(0))
            self.work(given, [place], n, select_(row < rows, n, Int32(0)), lead + place * skew)

    @cute.jit
    def work(self, given: Any, places: Any, n: Any, length: Any, begin: Any):
        """Compute rows at some places, which begin equally far from vectors; they have `n` elements, or 0 if they do not exist."""
        config, says, (sources, outs, columns, numbers) = self.config, self.says, given
        thread, rank = arch.thread_idx()[0], arch.block_idx()[0] % config.cluster
        lane, within = thread % config.row_threads, thread // config.row_threads
        slots = config.cluster * max(1, config.row_threads // WARP)
        exchange = says.exchange_buffer(slots, config.held)
        if const_expr(config.cluster > 1):
            arch.cluster_arrive_relaxed()
        span = Span(begin, length, self.width, spare=spare_vectors(columns))
        unit = rank * config.row_threads + lane
        (column,) = span.edges(unit, config.cluster * config.row_threads)
        edged, there = (rank == 0) & (lane < WARP), column < length  # nobody else has an edge
        unit = unit - ((begin + span.head) // self.width & (self.problem.lined - 1))
        edges = [EdgePart([element_at(x[row, None], column, there) for x in sources], there) for row in places]
        parts = [
            OddPart(self, span, [self.read(x[row, None], span, unit, thread) for x in sources], unit) for row in places
        ]
        weights = OddColumns(self, span, columns, unit)
        own, found = [], []
        for k in range_constexpr(len(places)):
            if const_expr(says.shared > 0):
                arch.cp_async_wait_group(len(sources) * (len(places) - 1 - k))
            part: Any = parts[k]
            own.append(says.absorb(None, part))
            found.append(self.with_edge(own[k][0], edges[k], edged))
        weights.prepare()
        if const_expr(config.cluster > 1):
            arch.cluster_wait()  # the other blocks have begun, so that their shared memory can be written to
        states = says.gathered_each(found, exchange, [within + k for k in range(len(places))], thread, rank, slots)
        if edged & there:
            alone = [cute.TensorSSA.from_elements([x[column].to(Float32)], Float32) for x in columns]
            for k in range_constexpr(len(places)):
                made = says.results(edges[k].values(0), alone, None, own[k][0], states[k], numbers, n)
                for out, value in zip(outs, made, strict=True):
                    out[places[k], column] = value[0].to(out.element_type)
        for v in range_constexpr(self.vectors):
            ready = weights.values(v)
            weights.prepare(v + 1)
            for k in range_constexpr(len(places)):
                mine, kept = own[k]
                made = says.results(
                    parts[k].values(v), ready, None if kept is None else kept[v], mine, states[k], numbers, n
                )
                for out, value in zip(outs, made, strict=True):
                    self.write(out[places[k], None], value, span, unit, v)

    @cute.jit
    def with_edge(self, own: Any, edge: Any, edged: Any):
        """What is known after a thread's element at the edges, too."""
        found = own
        if const_expr(len(own) > 0) and edged:
            found = self.says.merge([own, self.says.absorb(None, edge)[0]], 1)
        return found

    # -- memory ----------------------------------------------------------------------------------------------------

    def at(self, unit: Any, v: int) -> Any:
        """Which vector of a row a thread's vector `v` is: the vectors of all threads of the row come before the next of each."""
        return unit + v * (self.config.cluster * self.config.row_threads)

    def inside(self, unit: Any, span: Span, v: int) -> Any:
        """Whether a row has that vector; None: it does for all threads."""
        at, there = self.at(unit, v), None
        if self.problem.lined > 1 and v == 0:
            there = at >= 0
        if v == self.vectors - 1 or not self.problem.exact:
            there = at < span.units if there is None else there & (at < span.units)
        return there

    def read(self, row: Any, span: Span, unit: Any, thread: Any) -> list[Any]:
        """A thread's vectors of a row, zeros where there are none: the first in registers, others on their way to shared memory."""
        says, dtype, count = self.says, row.element_type, self.vectors - self.says.shared
        buffer: Any = says.fetch_buffer(dtype, thread) if count < self.vectors else None
        held: list[Any] = [None] * self.vectors
        # one that may be missing comes first: else what is done with the others is done before it is asked for
        for v in (self.vectors - 1, *range(self.vectors - 1)):
            there, part = self.inside(unit, span, v), self.part(row, span, unit, v)
            if v < count:
                held[v] = cute.make_rmem_tensor((self.width,), dtype)
                if there is not None:
                    held[v].fill(0)
                cute.copy(says.atom(dtype, says.priority), part, held[v], pred=there)
            else:
                held[v] = buffer[None, v - count]
                cute.copy(says.fetch_atom(dtype), part, held[v], pred=there)
        if buffer is not None:
            arch.cp_async_commit_group()
        return held

    def part(self, row: Any, span: Span, unit: Any, v: int) -> Any:
        """A thread's vector of a row."""
        return cute.local_tile(span.middle(row), (self.width,), (self.at(unit, v),))

    def write(self, row: Any, value: Any, span: Span, unit: Any, v: int) -> None:
        """Write a vector, if the row has it."""
        dtype = row.element_type
        written = cute.make_rmem_tensor((self.width,), dtype)
        written.store(value.to(dtype))
        cute.copy(self.says.atom(dtype), written, self.part(row, span, unit, v), pred=self.inside(unit, span, v))

    def halves(self, column: Any, span: Span, unit: Any) -> Any:
        """Three neighbouring halves of vectors of a number for each column, which have those of a row's vector.

        The first three stand for those of a vector that the row does not have.
        """
        half = self.width // 2
        first = select_((unit >= 0) & (unit < span.units), (span.head + unit * self.width) // half, 0)
        return vectors_at(column, half, 3, first, 1, None)

    def shifted(self, held: Any, head: Any) -> Any:
        """The vector that begins in the first of three halves, as far in it as a row's vectors are beside such halves."""
        dtype, width = held.element_type, self.width
        each = 32 // dtype.width
        words = [word for k in range(3) for word in held[None, k].load().bitcast(Uint32).to_elements()]
        odd = (head & 1) != 0
        if each == 1:
            words = [select_(odd, high, low) for low, high in itertools.pairwise(words)]
        else:
            if width == 8:
                words = [select_((head & 2) != 0, high, low) for low, high in itertools.pairwise(words)]
            chosen = select_(odd, Int32(0x5432), Int32(0x3210))
            words = [Uint32(arch.prmt(low, high, chosen)) for low, high in itertools.pairwise(words)]
        return cute.TensorSSA.from_elements(words[: width // each], Uint32).bitcast(dtype)
