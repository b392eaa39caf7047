"""Kernels whose blocks take rows in turn, and always have the next ones on the way.

Each thread copies its own vectors of the rows to come into a ring in shared memory; a slot is filled again as soon as its vector
has been used for the last time. What the warps of a row find out about it they tell each other; where the blocks of a cluster share
a row, one warp of each merges what its block has found, and tells the others, without waiting for what has been written to global
memory. Memory is read once. Sums over rows stay in registers until the last row; a second kernel adds those of all blocks, in a
fixed order.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import Boolean, Float32, Int32, Int64, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, cpasync
from ...dispatch import arrays
from ...parts.vectors import as_f32, either
from .cluster_exchange import send
from .partial_reduction import LineSums, line_pitch, wait_for_kernel_before
from .row_kernel import WARP, check_threads
from .streaming_unaligned import StreamEdges

if TYPE_CHECKING:
    from ...dispatch.devices import Device

MOST_ELEMENTS = 64
"""Elements of a row that a thread has at most."""
TURNS = 4
"""Rows whose findings are kept. Which block sends those of a row knows that all have sent those of two rows before, and that their
warps have read those of four rows before."""


@dataclasses.dataclass(frozen=True)
class StreamingRowwiseConfig:
    """How rows are cut that blocks take in turn.

    `row_threads` of the `threads` of a block have a row, or a part of one that `cluster` blocks share. Each thread has a row's vectors
    in shared memory, or on the way there, and `ahead` more. `overlapped`: the next row's too, which is looked at while findings about
    the present one are exchanged.
    """

    threads: int = 512
    row_threads: int = 512
    cluster: int = 1
    ahead: int = 1
    overlapped: bool = False

    @property
    def rows(self) -> int:
        """Rows of a block at a time."""
        return self.threads // self.row_threads

    @property
    def groups(self) -> int:
        """Threads of a block that wait for each other: those of a row, or of a warp with several."""
        return self.threads // max(WARP, self.row_threads)

    def vectors(self, n: int, width: int) -> int:
        """Vectors of `width` elements of a row of `n` that a thread has."""
        return -(-n // (self.cluster * self.row_threads * width))

    def slots(self, n: int, width: int) -> int:
        """Vectors of a thread in shared memory."""
        return (2 if self.overlapped else 1) * self.vectors(n, width) + self.ahead

    def smem_bytes(self, n: int, width: int, sources: int, columns: int, fields: int, sums: int) -> int:
        """Shared memory of a block: sources and columns of so many bits for each element, findings of so many numbers."""
        held = self.threads * self.slots(n, width) * sources + self.row_threads * self.vectors(n, width) * columns
        findings = self.threads // min(WARP, self.row_threads) + (self.cluster if self.cluster > 1 else 0)
        told = TURNS * (4 * arrays.power_of_two(fields) * findings + 8 * (self.groups + 1))
        folded = 4 * width * self.threads if sums and self.rows > 1 else 0
        return width * held // 8 + told + folded + 32

    def fits(self, n: int, width: int, sources: int, columns: int, fields: int, sums: int, device: Device) -> bool:
        """Whether a row and its sums can be held, as `check` demands."""
        return (
            self.vectors(n, width) * width <= MOST_ELEMENTS
            and self.cluster <= device.cluster
            and self.smem_bytes(n, width, sources, columns, fields, sums) <= device.smem
        )

    def check(
        self, n: int, width: int, bits: int, sources: int, columns: int, fields: int, sums: int, device: Device
    ) -> None:
        """Refuse what cannot work for rows of `n` elements, accessed `width` of at least `bits` bits at a time."""
        check_threads(self, device)
        vectors = self.vectors(n, width)
        arrays.require(
            vectors * width <= MOST_ELEMENTS,
            f"{self}: a thread has at most {MOST_ELEMENTS} elements, and of a row of {n} it would have {vectors * width}",
            hint="more threads or a larger cluster",
        )
        arrays.require(self.ahead >= 0, f"{self}: {self.ahead} vectors ahead")
        arrays.require(
            width * bits >= 32,
            f"{self}: copies into shared memory take 4 bytes or more, and {width} elements of {bits} bits can be copied at once",
            hint="a RowwiseConfig, or rows that are aligned",
        )
        used = self.smem_bytes(n, width, sources, columns, fields, sums)
        arrays.require(
            used <= device.smem,
            f"{self} takes {used} bytes of shared memory, and a block has {device.smem}",
            hint="less ahead, or a larger cluster",
        )


@dataclasses.dataclass(frozen=True)
class StreamProblem:
    """What a kernel is made for: types (`totals` of sums over rows), how wide accesses are, how rows are cut.

    `exact` rows fill all vectors of all threads. Where kernels `overlap`, their blocks are launched while the one before ends, and
    wait for it. With a `period` rows begin anywhere (`streaming_unaligned.py`), those so far apart equally far from a multiple of `lined`
    vectors.
    """

    sources: tuple[Any, ...]
    outs: tuple[Any, ...]
    columns: tuple[Any, ...]
    totals: tuple[Any, ...]
    width: int
    vectors: int
    slots: int
    exact: bool
    config: StreamingRowwiseConfig
    overlaps: bool = False
    period: int = 0
    lined: int = 1

    @property
    def sums(self) -> int:
        """How many numbers for each column are summed over rows."""
        return len(self.totals)


class StreamPart:
    """A thread's part of a row: vectors of its sources and columns, in f32."""

    __kiln_static__ = True
    alone: Any = None
    in_registers = False

    def __init__(
        self, stream: RowStream, ring: list[Any], weights: list[Any], start: Any, ahead: int, unit: Any, units: Any
    ) -> None:
        self._stream = stream
        self._ring = ring
        self._weights = weights
        self._start = start
        self._ahead = ahead
        self._unit = unit
        self._units = units
        self._arrived = 0
        self.count = stream.problem.vectors

    def slot(self, v: int) -> Any:
        """Where vector `v` is. Where the ring has room for whole rows, they do not wrap."""
        problem = self._stream.problem
        return self._start + v if problem.slots % problem.vectors == 0 else self._stream.wrapped(self._start + v)

    def values(self, v: int) -> list[Any]:
        """Vector `v` of each source; zeros where the row has ended."""
        if v >= self._arrived:
            arch.cp_async_wait_group(self._ahead - 1 - v)
            self._arrived = v + 1
        return self.arrived(v)

    def again(self) -> None:
        """Values will be read another time."""

    def arrived(self, v: int) -> list[Any]:
        """Vector `v` of each source, where it is known to have arrived."""
        place = self.slot(v)
        return [as_f32(buffer[None, place].load()) for buffer in self._ring]

    def first(self) -> list[Any]:
        """A vector of each source with elements of the row, if there are any: the first vector may lie before it."""
        there = self._stream.before_row(self._unit) if self.count > 1 else None
        return self.values(0) if there is None else either(there, self.values(0), self.values(1))

    def columns(self, v: int) -> list[Any]:
        """What stands for the same columns in the vectors."""
        return [as_f32(held[None, v].load()) for held in self._weights]

    def kept(self, v: int, value: Any, instead: float) -> Any:
        """A value where the row has elements, else a number."""
        there = self._stream.inside(self._unit, self._units, v)
        if there is None:
            return value
        return cute.where(cute.full_like(value, there, Boolean), value, cute.full_like(value, instead))

    def elements(self) -> Any:
        """How many elements there are: a Python number where that is known."""
        width, count = float(self._stream.problem.width), 0.0
        missing: list[Any] = []
        for v in range(self.count):
            there = self._stream.inside(self._unit, self._units, v)
            count, missing = count + width, missing + ([] if there is None else [there])
        found: Any = count
        for there in missing:
            found = found - select_(there, Float32(0.0), Float32(width))
        return found


class Board:
    """Where the latest findings about rows are told: boxes (number, finding, turn), and mbarriers that count them (turn).

    Each of the `findings` about a row is of `threads` threads, one after the other, beginning with the thread `first` of the row.
    """

    __kiln_static__ = True

    def __init__(self, boxes: Any, barriers: Any, findings: int, threads: int, first: Any) -> None:
        self.boxes = boxes
        self.barriers = barriers
        self.findings = findings
        self.threads = threads
        self.first = first


class RowStream:
    """The kernel, for what a `kind` of `RowKernel` finds out about rows and makes of them."""

    def __init__(self, kind: type[Any], problem: StreamProblem) -> None:
        self.problem = problem
        self.config = problem.config
        self.rule = kind(problem)
        self.width = 1 if problem.period else problem.width
        """Elements that matrices, and rows of them, begin at multiples of."""

    @cute.jit
    def __call__(
        self, places: Any, rows: Int32, n: Int32, lead: Int32, steps: Any, numbers: Any, lines: Int32, stream: Int64
    ):
        """`places`: sources, outs, columns, sums of all blocks or clusters (`lines` of them), sums; `steps`: from row to row.

        `lead` is how far after a line of the caches the first row begins, where rows begin anywhere.
        """
        problem, config = self.problem, self.config
        types = (*problem.sources, *problem.outs)
        matrices = [self.matrix(p, t, rows, n, step) for p, t, step in zip(places, types, steps, strict=False)]
        rest = places[len(types) :]
        present = [t for t in problem.columns if t is not None]
        columns = [
            cute.make_tensor(arrays.pointer(p, t, self.width), cute.make_layout((n,)))
            for p, t in zip(rest, present, strict=False)
        ]
        rest = rest[len(present) :]
        pitch = line_pitch(n, problem.width) if const_expr(problem.period > 0) else n
        partial = [self.matrix(p, Float32, lines, pitch, pitch) for p in rest[: problem.sums]]
        sources, outs = matrices[: len(problem.sources)], matrices[len(problem.sources) :]
        skew = Int32(steps[0])
        self.kernel(sources, outs, columns, partial, numbers, rows, n, lead, skew).launch(
            grid=(lines * config.cluster, 1, 1),
            block=(config.threads, 1, 1),
            cluster=(config.cluster, 1, 1) if config.cluster > 1 else None,
            max_number_threads=config.threads,
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=problem.overlaps,
        )
        if const_expr(problem.sums > 0):
            sums = [
                cute.make_tensor(arrays.pointer(p, t, 1), cute.make_layout((n,)))
                for p, t in zip(rest[problem.sums :], problem.totals, strict=True)
            ]
            adding = LineSums(problem.width, config.cluster, problem.overlaps, problem.period)
            adding(partial, sums, lines, n, lead, skew, stream)

    def matrix(self, address: Any, dtype: Any, rows: Any, n: Any, step: Any) -> Any:
        """A matrix at an address; `step` elements from one row to the next."""
        pointer = arrays.pointer(address, dtype, self.width)
        layout = cute.make_layout((rows, n), stride=(cute.assume(step, divby=self.width), 1))
        return cute.make_tensor(pointer, layout)

    @cute.kernel
    def kernel(
        self, sources: Any, outs: Any, columns: Any, partial: Any, numbers: Any, rows: Int32, n: Int32, lead: Int32, skew: Int32
    ):  # fmt: skip
        problem, config = self.problem, self.config
        vectors, slots = problem.vectors, problem.slots
        thread = arch.thread_idx()[0]
        block = arch.block_idx()[0]
        rank, group, lane = block % config.cluster, thread // max(WARP, config.row_threads), thread % config.row_threads
        unit, units = rank * config.row_threads + lane, n // problem.width
        within = thread % WARP // config.row_threads  # of the rows of a warp; 0 if it has one
        line, lines = block // config.cluster, arch.grid_dim()[0] // config.cluster
        edges: Any = None
        turn = line
        if const_expr(problem.period > 0):
            edges = StreamEdges(self, line, rows, n, lead, skew, rank, lane)
            unit, units, rows = unit - edges.before, edges.span.units, edges.rows
            turn, lines = line // problem.period, (lines - line % problem.period + problem.period - 1) // problem.period

        ring = [self.ring_buffer(x.element_type)[None, None, thread] for x in sources]
        weights = [self.weight_buffer(x.element_type)[None, None, lane] for x in columns]
        inner = outer = self.board(min(WARP, config.row_threads), config.row_threads, unit - lane, config.groups, group)
        if const_expr(config.cluster > 1):
            begin = unit - lane - rank * config.row_threads if const_expr(problem.period > 0) else 0
            outer = self.board(config.row_threads, config.row_threads * config.cluster, begin, 1, 0)
            arch.mbarrier_init_fence()
            arch.cluster_arrive_relaxed()

        wait_for_kernel_before(problem.overlaps)
        first, step = turn * config.rows + group * self.each, lines * config.rows
        if const_expr(edges is not None):
            sources, outs = ([edges.vectors(x) for x in group] for group in (sources, outs))
            edges.take(sources, outs, columns, len(partial))
            edges.read(edges.present, first)
            if const_expr(config.overlapped):
                edges.read(edges.coming, first + step)
        for s in range_constexpr(slots):
            self.fetch(sources, ring, first + within + s // vectors * step, rows, unit, units, s % vectors, s)
        summed = [cute.make_rmem_tensor((problem.width, vectors), Float32) for _ in partial]
        for held in summed:
            held.fill(0.0)
        if thread < config.row_threads:
            for x, held in zip(columns, weights, strict=True):
                self.read_weights(x, held, unit, units, edges)
        arch.sync_threads()
        if const_expr(config.cluster > 1):
            arch.cluster_wait()  # the other blocks have begun, and made their mbarriers

        where = lane % WARP, within + lane // WARP
        if const_expr(config.overlapped):
            part = StreamPart(self, ring, weights, Int32(0), slots, unit, units)
            self.find(part, inner, Int32(0), where, edges, False)
        start, count = Int32(0), Int32(0)
        for base in range(first, rows, step):
            row = base + within
            if const_expr(config.overlapped):
                self.relay(inner, outer, count, rank, units, n)
                if base + step < rows:
                    part = StreamPart(self, ring, weights, self.wrapped(start + vectors), slots - vectors, unit, units)
                    self.find(part, inner, count + 1, where, edges, True)
            else:
                if const_expr(edges is not None):
                    edges.read(edges.coming, base + step)
                part = StreamPart(self, ring, weights, start, slots, unit, units)
                self.find(part, inner, count, where, edges, False)
                self.relay(inner, outer, count, rank, units, n)
            state = self.gathered(outer, count, within, units, n)
            part = StreamPart(self, ring, weights, start, 0, unit, units)
            if const_expr(edges is not None):
                edges.finish(state, numbers, n, base)
            for v in self.order():
                self.finish(outs, summed, part, state, numbers, n, row, rows, unit, units, v)
                if const_expr(problem.exact or v < vectors - 1):
                    self.refill(sources, ring, part, row, step, rows, unit, units, v)
            if const_expr(not problem.exact):
                self.refill(sources, ring, part, row, step, rows, unit, units, vectors - 1)
            if const_expr(edges is not None):
                edges.advance()
                if const_expr(config.overlapped):
                    edges.read(edges.coming, base + 2 * step)
            start, count = self.wrapped(start + vectors), count + 1
        arch.cp_async_wait_group(0)
        if const_expr(config.cluster > 1):
            arch.cluster_arrive()
        self.write_sums(partial, summed, line, thread, unit, units, edges)
        if const_expr(config.cluster > 1):
            arch.cluster_wait()  # until nobody has anything left to send to this block

    def order(self) -> list[int]:
        """In which order vectors are finished. One that may not exist comes first: no sums are held while it is written or not."""
        found = list(range(self.problem.vectors))
        return found if self.problem.exact else [found[-1], *found[:-1]]

    @cute.jit
    def finish(
        self, outs: Any, summed: Any, part: Any, state: Any, numbers: Any, n: Any, row: Any, rows: Any, unit: Any, units: Any, v: Any
    ):  # fmt: skip
        """Write a vector of the results, and add to the sums."""
        width, there, place = self.problem.width, self.inside(unit, units, v), row
        if const_expr(self.each > 1):  # the last rows of a warp may not exist
            there = row < rows if const_expr(there is None) else there & (row < rows)
            place = select_(row < rows, row, Int32(0))
        made = self.rule.results(part.arrived(v), part.columns(v), None, state, state, numbers, n)
        for held, value in zip(
            summed, made[len(outs) :], strict=True
        ):  # before stores that may not be done, which part the code
            if const_expr(self.each > 1):
                value = cute.where(cute.full_like(value, row < rows, Boolean), value, cute.full_like(value, 0.0))
            held[None, v].store(held[None, v].load() + value)
        for out, value in zip(outs, made[: len(outs)], strict=True):
            held = cute.make_rmem_tensor((width,), out.element_type)
            held.store(value.to(out.element_type))
            target = cute.local_tile(out[place, None], (width,), (self.at(unit, v),))
            if const_expr(there is None):
                cute.copy(self.atom(out.element_type), held, target)
            else:
                cute.copy(self.atom(out.element_type), held, target, pred=there)

    # -- memory ----------------------------------------------------------------------------------------------------

    def at(self, unit: Any, v: int) -> Any:
        """Where a thread's vector `v` is in a row: the vectors of all threads of the row come before the next of each."""
        return unit + v * (self.config.cluster * self.config.row_threads)

    def inside(self, unit: Any, units: Any, v: int) -> Any:
        """Whether a row has that vector; None: it does for all threads.

        Only a thread's last vector may be missing, and the first where rows begin anywhere.
        """
        there = self.before_row(unit) if v == 0 else None
        if self.problem.exact or v < self.problem.vectors - 1:
            return there
        last = self.at(unit, v) < units
        return last if there is None else there & last

    def before_row(self, unit: Any) -> Any:
        """Whether a thread's first vector does not lie before the row; None: it never does."""
        return unit >= 0 if self.problem.lined > 1 else None

    def wrapped(self, slot: Any) -> Any:
        """A place in the ring, given one less than two rounds on."""
        return select_(slot >= self.problem.slots, slot - self.problem.slots, slot)

    def atom(self, dtype: Any) -> Any:
        """A copy of one vector."""
        return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=self.problem.width * dtype.width)

    def ring_buffer(self, dtype: Any) -> Any:
        """Shared memory (element, slot, thread): the vectors of a warp lie side by side."""
        width, threads, slots = self.problem.width, self.config.threads, self.problem.slots
        memory = arch.alloc_smem(dtype, width * threads * slots, 16)
        return cute.make_tensor(memory, cute.make_layout((width, slots, threads), stride=(1, width * threads, width)))

    def weight_buffer(self, dtype: Any) -> Any:
        """Shared memory for a number for each column (element, vector, thread of a row)."""
        width, threads, vectors = self.problem.width, self.config.row_threads, self.problem.vectors
        memory = arch.alloc_smem(dtype, width * threads * vectors, 16)
        return cute.make_tensor(memory, cute.make_layout((width, vectors, threads), stride=(1, width * threads, width)))

    @cute.jit
    def read_weights(self, x: Any, held: Any, unit: Any, units: Any, edges: Any):
        """Copy a number for each of a thread's columns to shared memory."""
        for v in range_constexpr(self.problem.vectors):
            if const_expr(edges is not None):
                for i in range_constexpr(self.problem.width):
                    there, column = self.at(unit, v), edges.span.head + self.at(unit, v) * self.problem.width + i
                    held[i, v] = x[column] if (there >= 0) & (there < units) else x.element_type(0)
                continue
            part = cute.local_tile(x, (self.problem.width,), (self.at(unit, v),))
            given, there = cute.make_rmem_tensor((self.problem.width,), x.element_type), self.inside(unit, units, v)
            if const_expr(there is None):
                cute.copy(self.atom(x.element_type), part, given)
            else:
                given.fill(0)
                cute.copy(self.atom(x.element_type), part, given, pred=there)
            held[None, v].store(given.load())

    @cute.jit
    def fetch(self, sources: Any, ring: Any, row: Any, rows: Any, unit: Any, units: Any, v: Any, slot: Any):
        """Begin to copy a vector of a row to a slot, where nobody else touches it; zeros where there is none."""
        exists, inside = row < rows, self.inside(unit, units, v)
        there = exists if const_expr(inside is None) else inside & exists
        place = select_(exists, row, Int32(0))
        for x, buffer in zip(sources, ring, strict=True):
            bits = self.problem.width * x.element_type.width
            mode = cpasync.LoadCacheMode.GLOBAL if bits == 128 else cpasync.LoadCacheMode.ALWAYS
            atom = cute.make_copy_atom(
                cpasync.CopyG2SOp(mode),
                x.element_type,
                num_bits_per_copy=bits,
                l2_evict_priority=self.rule.priority,
            )
            part = cute.local_tile(x[place, None], (self.problem.width,), (self.at(unit, v),))
            cute.copy(atom, part, buffer[None, slot], pred=there)
        arch.cp_async_commit_group()

    def refill(
        self, sources: Any, ring: Any, part: Any, row: Any, step: Any, rows: Any, unit: Any, units: Any, v: int
    ) -> None:
        """Begin to copy what comes a round of the ring after vector `v` of a row."""
        further, later = divmod(v + self.problem.slots, self.problem.vectors)
        self.fetch(sources, ring, row + further * step, rows, unit, units, later, part.slot(v))

    # -- findings of several warps ---------------------------------------------------------------------------------

    @property
    def each(self) -> int:
        """Rows of a warp."""
        return max(1, WARP // self.config.row_threads)

    @property
    def numbers(self) -> int:
        """Numbers of a finding that are told: not how many elements it is of, which is known."""
        return self.rule.fields - self.rule.counted

    def board(self, threads: int, across: int, first: Any, groups: int, group: Any) -> Board:
        """One for findings of some of the `across` threads of a row, for each group of a block."""
        numbers, findings = arrays.power_of_two(self.numbers), across // threads
        memory = arch.alloc_smem(Float32, numbers * findings * self.each * TURNS * groups, 16)
        barriers = arch.alloc_smem(Int64, TURNS * groups, 8)
        self.make_barriers(barriers, TURNS * groups, findings * self.each)
        boxes = cute.make_tensor(memory, cute.make_layout((numbers, findings * self.each, TURNS, groups)))
        return Board(boxes[None, None, None, group], barriers + TURNS * group, findings, threads, first)

    @cute.jit
    def make_barriers(self, barriers: Any, many: Any, arrivals: Any):
        """Make so many mbarriers."""
        if arch.thread_idx()[0] < many:
            arch.mbarrier_init(barriers + arch.thread_idx()[0], arrivals)

    def find(self, part: Any, board: Any, count: Any, where: Any, edges: Any, ahead: bool) -> None:
        """Find out about a row, and tell the warps of the block."""
        edge = None if edges is None else edges.part(edges.coming if ahead else edges.present)
        if self.rule.takes_alone:
            part.alone = edge
        own, _ = self.rule.absorb(None, part)
        if edges is not None and not self.rule.takes_alone:
            own = self.with_edge(own, edge, edges.has)
        self.tell(self.rule.merge([own], min(WARP, self.config.row_threads)), board, count % TURNS, where)

    @cute.jit
    def with_edge(self, own: Any, edge: Any, has: Any):
        """What is known after a thread's element at the edges, too."""
        found = own
        if has:
            found = self.rule.merge([own, self.rule.absorb(None, edge)[0]], 1)
        return found

    @cute.jit
    def tell(self, state: Any, board: Any, turn: Any, where: Any):
        """Store a finding where the warps of the block read it, and count that."""
        lane, finding = where
        arch.sync_warp()  # its lanes have read what they were told before: their places may be used again
        if lane == 0:
            for k, value in enumerate(state[self.rule.counted :]):
                board.boxes[k, finding, turn] = value
            arch.mbarrier_arrive(board.barriers + turn)

    @cute.jit
    def relay(self, inner: Any, outer: Any, count: Any, rank: Any, units: Any, n: Any):
        """Where blocks share a row: merge what this one has found, and tell all of them. Its warps do that in turn."""
        thread, turn = arch.thread_idx()[0], count % TURNS
        if const_expr(self.config.cluster > 1):
            if thread // WARP == count % inner.findings:
                state = self.gathered(inner, count, 0, units, n)
                if thread % WARP < self.config.cluster:
                    box, barrier = outer.boxes[None, rank, turn].iterator, outer.barriers + turn
                    send(box, barrier, thread % WARP, list(state[self.rule.counted :]))

    def gathered(self, board: Board, count: Any, within: Any, units: Any, n: Any) -> Any:
        """What the findings on a board come to, once they are there."""
        turn, lanes = count % TURNS, min(WARP, board.findings)
        arch.mbarrier_wait(board.barriers + turn, count // TURNS % 2)
        found: list[Any] = []
        for i in range(board.findings // lanes):
            place = arch.thread_idx()[0] % lanes + i * lanes
            told = [board.boxes[k, within + place, turn] for k in range(self.numbers)]
            counted = [self.elements(board.first + place * board.threads, board.threads, units, n)] * self.rule.counted
            found.append((*counted, *told))
        return self.rule.merge(found, lanes)

    def elements(self, first: Any, threads: int, units: Any, n: Any) -> Any:
        """How many elements so many threads of a row have: a Python number where that is known."""
        width, vectors = self.problem.width, self.problem.vectors
        if self.problem.exact:
            return float(width * vectors * threads)
        rest = units - self.at(first, vectors - 1)
        found = select_(rest < 0, Int32(0), select_(rest > threads, Int32(threads), rest)) * width
        if self.problem.period:  # the first threads have the edges of a row, and vectors before it
            found = found + select_(first <= 0, n - units * width + first * width, 0)
        return found.to(Float32) + float(width * (vectors - 1) * threads)

    # -- sums over rows --------------------------------------------------------------------------------------------

    @cute.jit
    def write_sums(self, partial: Any, summed: Any, line: Any, thread: Any, unit: Any, units: Any, edges: Any):
        """Write what the block has summed over its rows."""
        if const_expr(self.config.rows > 1):
            alone = [] if const_expr(edges is None) else edges.sums
            self.fold([*summed, *alone], thread // self.config.row_threads, thread % self.config.row_threads)
        if thread < self.config.row_threads:
            if const_expr(edges is not None):
                edges.write_sums(partial, line)
            for out, held in zip(partial, summed, strict=True):
                whole = out[line, None] if const_expr(edges is None) else edges.line(out, line)
                for v in range_constexpr(self.problem.vectors):
                    part = cute.local_tile(whole, (self.problem.width,), (self.at(unit, v),))
                    there = self.inside(unit, units, v)
                    if const_expr(there is None) or there:
                        cute.autovec_copy(held[None, v], part)

    @cute.jit
    def fold(self, summed: Any, row: Any, lane: Any):
        """Add the sums of all rows of the block to those of its first."""
        across, rows = self.config.row_threads, self.config.rows
        memory = arch.alloc_smem(Float32, self.problem.width * self.config.threads, 16)
        for held in summed:
            width, vectors = held.shape
            layout = cute.make_layout((width, across, rows), stride=(1, width, width * across))
            buffer = cute.make_tensor(memory, layout)
            for v in range_constexpr(vectors):
                arch.sync_threads()
                buffer[None, lane, row].store(held[None, v].load())
                arch.sync_threads()
                if row == 0:
                    whole = held[None, v].load()
                    for other in range(1, rows):
                        whole = whole + buffer[None, lane, other].load()
                    held[None, v].store(whole)
