"""What kernels over the rows of matrices share: how a row is cut, held and reduced.

A row is held by some threads of a block, or of the blocks of a cluster, each of which has every so many-th vector of it, in
registers or in shared memory: memory is read once. What the threads find out about their parts is merged within a warp by shuffles, then once through
shared memory between the warps of all blocks of the row. Rows too long to be held are read chunk by chunk, once to find out
and once more to write.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from .... import Boolean, Float8E4M3FN, Float8E5M2, Float32, Int32, Int64, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ....cute.nvgpu import CacheEvictionPriority, CopyUniversalOp, cpasync
from ...dispatch import arrays, devices
from ...parts.vectors import as_f32, larger, maximum, total
from .row_statistics import State, most_of, told

WARP = 32
LARGEST = {Float8E4M3FN: 448.0, Float8E5M2: 57344.0}
"""The types that rows are quantized to, and their largest numbers."""
MOST_IN_REGISTERS, MOST_ELEMENTS, MOST_KEPT = 64, 128, 64
"""Elements of a row that a thread holds at most, in registers and altogether; and of which it keeps what it has computed."""
REGISTERS, OTHERS = 65536, 32
"""Registers of a multiprocessor, and those of a thread that are for other things than what it keeps."""


def check_threads(config: Any, device: devices.Device) -> None:
    """Refuse numbers of threads of a block and of a row, and of blocks that share one, that cannot work."""
    for name in ("threads", "row_threads", "cluster"):
        value = getattr(config, name)
        arrays.require(
            isinstance(value, int) and value >= 1 and value & (value - 1) == 0,
            f"{config}: {name} is {value!r}, not a power of two",
        )
    arrays.require(WARP <= config.threads <= 1024, f"{config}: a block has 32 to 1024 threads, not {config.threads}")
    arrays.require(
        config.row_threads <= config.threads,
        f"{config}: {config.row_threads} threads of a row in a block of {config.threads}",
    )
    arrays.require(
        config.cluster == 1 or config.row_threads == config.threads,
        f"{config}: blocks that share a row hold nothing else, so row_threads is {config.threads}",
    )
    arrays.require(
        config.cluster <= device.cluster, f"{config}: a cluster has at most {device.cluster} blocks on this device"
    )


@dataclasses.dataclass(frozen=True)
class RowwiseConfig:
    """How rows are cut.

    `threads` of a block hold one or more rows, `row_threads` of them each row, or each part of one of `cluster` blocks. Up to
    `shared` vectors of each thread are copied to shared memory, its others to registers. `together` blocks fit on a
    multiprocessor at least: it limits registers.
    """

    threads: int = 128
    row_threads: int = 32
    cluster: int = 1
    shared: int = 0
    together: int = 1

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.threads // self.row_threads

    def vectors(self, n: int, width: int) -> int:
        """Vectors of `width` elements of a row of `n` that a thread holds; 0 if the row is not held."""
        found = -(-n // (self.cluster * self.row_threads * width))
        in_registers = (found - min(found, self.shared)) * width
        return found if in_registers <= MOST_IN_REGISTERS and found * width <= MOST_ELEMENTS else 0

    def smem_bytes(self, n: int, width: int, bits: int, sources: int) -> int:
        """Shared memory of a block that reads some matrices of so many bits."""
        held = sources * min(self.shared, self.vectors(n, width)) * self.threads * width * bits // 8
        return held + 8 * 4 * self.cluster * (self.threads // WARP or 1)

    @arrays.checked_once
    def check(self, n: int, width: int, bits: int, sources: int, device: devices.Device) -> None:
        """Refuse what cannot work for rows of `n` elements of so many bits, accessed `width` at a time."""
        check_threads(self, device)
        arrays.require(self.shared >= 0, f"{self}: {self.shared} vectors in shared memory")
        arrays.require(
            self.vectors(n, width) > 0 or self.shared == 0,
            f"{self}: a thread holds at most {MOST_ELEMENTS} elements, {MOST_IN_REGISTERS} of them in registers, and a row of {n} has more",
            hint="more threads or a larger cluster; with nothing in shared memory the row is read twice",
        )
        arrays.require(
            self.shared == 0 or width * bits >= 32,
            f"{self}: copies into shared memory take 4 bytes or more, and {width} elements of {bits} bits can be copied at once",
            hint="shared=0, or rows that are aligned",
        )
        used = self.smem_bytes(n, width, bits, sources)
        arrays.require(
            used <= device.smem,
            f"{self} takes {used} bytes of shared memory, and a block has {device.smem}",
            hint="more in registers, or a larger cluster",
        )


def launch(call: Any, config: RowwiseConfig, blocks: Any, stream: Any, overlaps: bool = False) -> None:
    """Launch a kernel over so many blocks, cut like this."""
    call.launch(
        grid=(blocks, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster, 1, 1) if config.cluster > 1 else None,
        max_number_threads=config.threads,
        min_blocks_per_mp=config.together,
        stream=stream,
        use_pdl=overlaps,
    )


_AHEAD = 4
"""Vectors of columns that are read ahead of their use, all columns together; half as many where a thread holds many."""


class Part:
    """A thread's part of a row: vectors of its sources and columns, in f32, wherever they are held.

    Those of the sources are in registers (element, vector) first, then in shared memory. Columns are read some vectors ahead of
    their use, for what is read after a store waits until it is needed.
    """

    __kiln_static__ = True
    alone: Any = None
    """A thread's element at the edges of a row that begins anywhere, a part of its own, where this one is to be taken with it."""

    def __init__(
        self, kernel: RowKernel, held: list[Any], shared: list[Any], columns: list[Any], unit: Any, units: Any
    ) -> None:
        self._kernel = kernel
        self._registers = held
        self._shared = shared
        self._columns = columns
        self._unit = unit
        self._units = units
        self._read: dict[int, list[Any]] = {}
        self.count = kernel.vectors

    @property
    def in_registers(self) -> bool:
        """Whether values can be kept until they are written."""
        return self._kernel.shared == 0 and self._kernel.whole

    @property
    def few(self) -> bool:
        """Whether there are so few elements that something of each can be kept in registers, wherever they are held."""
        config = self._kernel.config
        free = REGISTERS // (config.threads * config.together) - OTHERS
        most = (
            MOST_KEPT if config.cluster == 1 else MOST_KEPT // 2
        )  # blocks that share a row need registers for that, too
        return self._kernel.whole and self.count * self._kernel.width <= min(most, free)

    def values(self, v: int) -> list[Any]:
        """Vector `v` of each source; zeros where the row has ended."""
        return [as_f32(x) for x in self.held(v)]

    def held(self, v: int) -> list[Any]:
        """The same in their own types."""
        return [x.load() for x in self._places(v)]

    def _places(self, v: int) -> list[Any]:
        before = self.count - self._kernel.shared
        return [x[None, v] for x in self._registers] if v < before else [x[None, v - before] for x in self._shared]

    def put(self, v: int, source: int, value: Any) -> None:
        """Hold another vector instead of that of a source, of its type."""
        self._places(v)[source].store(value)

    def first(self) -> list[Any]:
        """A vector of each source with elements of the row, if there are any."""
        return self.values(0)

    def prepare(self, v: int = 0) -> None:
        """Begin to read the columns of vector `v` and of some after it."""
        if not self._columns:
            return
        ahead = _AHEAD if self.count <= 4 else _AHEAD // 2
        for place in range(v, min(self.count, v + max(1, ahead // len(self._columns)))):
            if place not in self._read:
                self._read[place] = [self._kernel.read_vector(c, self._unit, self._units, place) for c in self._columns]

    def columns(self, v: int) -> list[Any]:
        """What stands for the same columns in the vectors."""
        self.prepare(v)
        return [as_f32(held.load()) for held in self._read[v]] if self._columns else []

    def exists(self, v: int) -> Any:
        """Whether the row has elements there; None: it does everywhere."""
        return None if self._kernel.full(v) else self._unit + v * self._kernel.config.row_threads < self._units

    def kept(self, v: int, value: Any, instead: float) -> Any:
        """A value where the row has elements, else a number."""
        there = self.exists(v)
        if there is None:
            return value
        return cute.where(cute.full_like(value, there, Boolean), value, cute.full_like(value, instead))

    def elements(self) -> Any:
        """How many elements there are: a Python number where that is known."""
        if self._kernel.exact:
            return float(self._kernel.width * self.count)
        width = float(self._kernel.width)
        there = [self.exists(v) for v in range(self.count)]
        found: Any = width * there.count(None)
        for some in there:
            found = found if some is None else found + select_(some, Float32(width), Float32(0.0))
        return found

    def release(self) -> None:
        """Columns will be read another time, if they are many."""
        if self.count * len(self._columns) > _AHEAD:
            self._read.clear()

    def again(self) -> None:
        """Values will be read another time: they need not be held until then."""
        self.release()
        if self._kernel.shared > 0:
            arch.cp_async_wait_group(0)


@dataclasses.dataclass(frozen=True)
class RowProblem:
    """What a kernel is made for: the types of its matrices and vectors, how wide accesses are, and how rows are cut.

    With `vectors` of 0 rows are read in chunks. `exact` rows fill all vectors of all threads. `notes` are numbers of each row
    that are written. Where the kernel `overlaps`, its blocks are launched while the one before ends, and wait for it.
    """

    sources: tuple[Any, ...]
    outs: tuple[Any, ...]
    columns: tuple[Any, ...]
    notes: int
    width: int
    vectors: int
    exact: bool
    config: RowwiseConfig
    overlaps: bool = False
    sums: ClassVar[int] = 0
    """Numbers for each column that are summed over rows, which only kernels that stream them do."""


class RowKernel:
    """A kernel that reads matrices row by row, finds something out about each row, and writes matrices.

    A subclass says what a thread finds out (`fresh`, `absorb`), how findings of several are one (`merge`), and what is
    written (`results`). A finding is a tuple of Float32.
    """

    fields = 1
    """Numbers of a finding."""
    counted = False
    """Whether the first of them is the number of elements."""
    priority = CacheEvictionPriority.EVICT_NORMAL
    """How long lines that were read stay in the L2 cache, beside those that were written."""
    overlaps = False
    """Whether its blocks are launched while the kernel before it ends, on devices that can."""
    between_edges = True
    """Whether rows that begin anywhere may be taken between edges."""
    takes_alone = False
    """Whether `absorb` takes an element at the edges of a row, too, with those of a thread; else it is a part of its own."""
    rereads = False
    """Whether `results` takes elements of sources, of their types, besides what was kept of them."""
    quantizes = False
    """Whether the first result is divided by a number of its row, which is noted, so that the largest is as large as its type has."""
    finds_largest = False
    """Of a kind that quantizes: whether findings tell the largest result (`largest_of`); else results are computed for that, and once more."""

    def __init__(self, problem: RowProblem) -> None:
        self.problem = problem
        self.config = problem.config
        self.width = problem.width
        self.whole = problem.vectors > 0
        self.vectors = problem.vectors or 4
        self.exact = problem.exact

    @property
    def shared(self) -> int:
        """Vectors of a thread's part of a row in shared memory."""
        return min(self.config.shared, self.problem.vectors)

    # -- what a subclass says --------------------------------------------------------------------------------------

    def fresh(self) -> State:
        """What is known of nothing."""
        raise NotImplementedError

    def absorb(self, state: State | None, part: Part) -> tuple[State, list[Any] | None]:
        """What is known after a thread's part of a row, and anything to keep of each vector for `results`.

        None stands for what is known of nothing.
        """
        raise NotImplementedError

    def merge(self, states: list[State], lanes: int) -> State:
        """What some findings of each of `lanes` lanes come to, known to all of them."""
        raise NotImplementedError

    def results(
        self,
        values: list[Any],
        columns: list[Any],
        kept: Any,
        own: State,
        state: State,
        numbers: tuple[Any, ...],
        n: Any,
    ) -> list[Any]:
        """What is written for one vector of each source, given what the thread found out and what is known of the row.

        After what is written comes what is added to sums over rows, if the problem has any.
        """
        raise NotImplementedError

    def largest_of(self, state: State, numbers: tuple[Any, ...]) -> tuple[Any, Any]:
        """Where findings tell it: the largest magnitude of the first results of a row, and a factor of theirs that `results` leaves out."""
        raise NotImplementedError

    def noted(self, state: State, numbers: tuple[Any, ...]) -> list[Any]:
        """Numbers to write for each row, as many as the problem has notes. Of quantized rows: what they are to be multiplied by."""
        return [state[-2]] if self.quantizes else []

    # -- the kernel ------------------------------------------------------------------------------------------------

    def matrix(self, address: Any, dtype: Any, rows: Any, n: Any, step: Any) -> Any:
        """A matrix at an address; `step` elements from one row to the next."""
        pointer = arrays.pointer(address, dtype, self.width)
        return cute.make_tensor(pointer, cute.make_layout((rows, n), stride=(cute.assume(step, divby=self.width), 1)))

    def vector(self, address: Any, dtype: Any, n: Any) -> Any:
        """A number for each column, at an address."""
        return cute.make_tensor(arrays.pointer(address, dtype, self.width), cute.make_layout((n,), stride=(1,)))

    @cute.jit
    def __call__(self, places: Any, rows: Int32, n: Int32, steps: Any, numbers: Any, blocks: Int32, stream: Int64):
        """Launch over so many blocks. `places`: sources, outs, columns, notes; `steps`: from row to row of the matrices."""
        problem = self.problem
        types = (*problem.sources, *problem.outs)
        matrices = [self.matrix(p, t, rows, n, step) for p, t, step in zip(places, types, steps, strict=False)]
        rest = places[len(types) :]
        present = [t for t in problem.columns if t is not None]
        columns = [self.vector(p, t, n) for p, t in zip(rest, present, strict=False)]
        rest = rest[len(present) :]
        notes = [cute.make_tensor(arrays.pointer(p, Float32, 1), cute.make_layout(rows)) for p in rest]
        sources, outs = matrices[: len(problem.sources)], matrices[len(problem.sources) :]
        call = self.kernel(sources, outs, columns, notes, numbers, rows, n)
        launch(call, self.config, blocks, stream, problem.overlaps)

    @cute.kernel
    def kernel(self, sources: Any, outs: Any, columns: Any, notes: Any, numbers: Any, rows: Int32, n: Int32):
        config, width = self.config, self.width
        if const_expr(self.problem.overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()
        thread = arch.thread_idx()[0]
        block = arch.block_idx()[0]
        rank = block % config.cluster
        within = thread // config.row_threads
        unit = rank * (config.row_threads * self.vectors) + thread % config.row_threads
        units = n // width

        slots = config.cluster * max(1, config.row_threads // WARP)
        exchange = self.exchange_buffer(slots)
        row = block // config.cluster * config.rows + within
        exists = row < rows

        if const_expr(config.cluster > 1):
            arch.cluster_arrive_relaxed()
        shared = (
            [self.fetch(x, row, exists, unit, units, thread) for x in sources] if const_expr(self.shared > 0) else []
        )
        if const_expr(config.cluster > 1):
            arch.cluster_wait()  # the other blocks have begun, so that their shared memory can be written to

        if const_expr(self.whole):
            before = self.vectors - self.shared
            held = [self.read(x, row, exists, unit, units, before) for x in sources] if const_expr(before > 0) else []
            part = Part(self, held, shared, columns, unit, units)
            part.prepare()
            if const_expr(self.shared > 0):
                arch.cp_async_wait_group(0)
            (own, kept), done = self.absorb(None, part), None
            part.release()
            part.prepare()
            state = self.gathered(own, exchange, within, thread, rank, slots)
            if const_expr(self.quantizes):
                most: Any = None
                if const_expr(not self.finds_largest):
                    most, done = self.largest(part, kept, own, state, numbers, n)
                    most = self.most_of_row(most, self.exchange_buffer(slots, fields=1), within, thread, rank, slots)
                    part.release()
                state = self.with_scale(state, most, numbers)
            self.note(notes, state, numbers, row, exists, rank, thread)
            self.finish(outs, part, kept, own, state, numbers, n, row, exists, unit, units, done)
        else:
            state = self.fresh()
            step = config.cluster * config.row_threads * self.vectors
            for start in range(0, units, step):
                state = self.chunk(sources, columns, state, row, exists, start + unit, units)
            state = self.gathered(state, exchange, within, thread, rank, slots)
            if const_expr(self.quantizes):
                most = Float32(0.0)
                if const_expr(not self.finds_largest):
                    for start in range(0, units, step):
                        held = [self.read(x, row, exists, start + unit, units, self.vectors) for x in sources]
                        part = Part(self, held, [], columns, start + unit, units)
                        most = maximum(most, self.largest(part, None, state, state, numbers, n)[0])
                    most = self.most_of_row(most, self.exchange_buffer(slots, fields=1), within, thread, rank, slots)
                state = self.with_scale(state, most, numbers)
            self.note(notes, state, numbers, row, exists, rank, thread)
            for start in range(0, units, step):
                held = [self.read(x, row, exists, start + unit, units, self.vectors) for x in sources]
                part = Part(self, held, [], columns, start + unit, units)
                self.finish(outs, part, None, state, state, numbers, n, row, exists, start + unit, units)

    @cute.jit
    def note(self, notes: Any, state: Any, numbers: Any, row: Any, exists: Any, rank: Any, thread: Any):
        """Write what is to be noted of a row, once."""
        if const_expr(len(notes) > 0):
            if exists & (rank == 0) & (thread % self.config.row_threads == 0):
                for out, value in zip(notes, self.noted(state, numbers), strict=True):
                    out[row] = value

    @cute.jit
    def chunk(self, sources: Any, columns: Any, state: Any, row: Any, exists: Any, unit: Any, units: Any):
        """What is known after a chunk of a row that is not held."""
        held = [self.read(x, row, exists, unit, units, self.vectors) for x in sources]
        return self.absorb(state, Part(self, held, [], columns, unit, units))[0]

    def largest(self, part: Part, kept: Any, own: State, state: State, numbers: Any, n: Any) -> tuple[Any, Any]:
        """The largest magnitude of a thread's part of the first results of a row, and these, if they are few."""
        most: Any = None
        done: list[Any] = []
        for v in range(part.count):
            done.append(self.results_at(v, part, kept, own, state, numbers, n)[0])
            size = part.kept(v, cute.math.abs(done[-1]), 0.0)
            most = size if most is None else larger(most, size)
        return total(most, larger), done if part.few else None

    def results_at(self, v: int, part: Part, kept: Any, own: State, state: State, numbers: Any, n: Any) -> list[Any]:
        """What is written for vector `v`, of its values or of what was kept of them."""
        weights = part.columns(v)
        part.prepare(v + 1)
        values = part.values(v) if kept is None else part.held(v) if self.rereads else []
        return self.results(values, weights, None if kept is None else kept[v], own, state, numbers, n)

    def most_of_row(self, most: Any, exchange: Any, within: Any, thread: Any, rank: Any, slots: int) -> Any:
        """The largest of numbers of the threads of a row."""
        ((found,),) = self.gathered_each([(most,)], exchange, [within], thread, rank, slots, most_of)
        return found

    def with_scale(self, state: State, most: Any, numbers: Any) -> State:
        """What is known of a row, with what its results are multiplied by later, and now. Magnitudes below 1e-12 count as that."""
        factor: Any = Float32(1.0)
        if self.finds_largest:
            most, factor = self.largest_of(state, numbers)
        found, limit = maximum(most, Float32(1e-12)), LARGEST[self.problem.outs[0]]
        scale = found * (1.0 / limit)
        return (*state, scale, arch.rcp_approx(scale) * factor)

    # -- memory ----------------------------------------------------------------------------------------------------

    def atom(self, dtype: Any, priority: Any = CacheEvictionPriority.EVICT_NORMAL) -> Any:
        """A copy of one vector."""
        bits = self.width * dtype.width
        return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=bits, l2_evict_priority=priority)

    def fetch_atom(self, dtype: Any) -> Any:
        """A copy of one vector of a source to shared memory; zeros instead where there is none."""
        bits = self.width * dtype.width
        mode = cpasync.LoadCacheMode.GLOBAL if bits == 128 else cpasync.LoadCacheMode.ALWAYS
        op = cpasync.CopyG2SOp(mode)
        return cute.make_copy_atom(op, dtype, num_bits_per_copy=bits, l2_evict_priority=self.priority)

    def full(self, v: int) -> bool:
        """Whether all threads of a row have a vector `v`: but for the last, where one block has the row."""
        return self.exact or (self.whole and self.config.cluster == 1 and v < self.vectors - 1)

    def there(self, exists: Any, unit: Any, units: Any, v: int) -> Any:
        """Whether a row that may exist has vector `v` of a thread; None: all do. A row that has its blocks to itself exists."""
        if self.config.rows == 1:
            return None if self.full(v) else unit < units
        return exists if self.full(v) else (unit < units) & exists

    def part(self, x: Any, row: Any, exists: Any, unit: Any) -> Any:
        """A vector of a row; of the first row where there is none."""
        place = row if self.config.rows == 1 else select_(exists, row, Int32(0))
        return cute.local_tile(x[place, None], (self.width,), (unit,))

    @cute.jit
    def read(self, x: Any, row: Any, exists: Any, unit: Any, units: Any, count: Any):
        """The first vectors of a thread's part of a row, zeros where it ends."""
        # of narrow accesses there are many, which must not wait for each other: those with a hint are branched around
        wide = self.width * x.element_type.width == 128
        atom = self.atom(x.element_type, self.priority) if wide else self.atom(x.element_type)
        held = cute.make_rmem_tensor((self.width, count), x.element_type)
        for v in range_constexpr(count):
            at = unit + v * self.config.row_threads
            there = self.there(exists, at, units, v)
            if const_expr(there is not None):
                held[None, v].fill(0)
            cute.copy(atom, self.part(x, row, exists, at), held[None, v], pred=there)
        return held

    @cute.jit
    def finish(
        self, outs: Any, part: Any, kept: Any, own: Any, state: Any, numbers: Any, n: Any, row: Any, exists: Any,
        unit: Any, units: Any, done: Any = None,
    ):  # fmt: skip
        """Compute and write a thread's part of the results, vector by vector: that takes the fewest registers.

        The first of them may be `done`.
        """
        for v in range_constexpr(self.vectors):
            first = [] if done is None else [done[v]]
            made = first
            if const_expr(len(first) < len(outs)):
                made = first + self.results_at(v, part, kept, own, state, numbers, n)[len(first) :]
            if const_expr(self.quantizes):
                made = [made[0] * state[-1], *made[1:]]
            at = unit + v * self.config.row_threads
            for out, value in zip(outs, made, strict=True):
                held = cute.make_rmem_tensor((self.width,), out.element_type)
                held.store(value.to(out.element_type))
                place, atom = self.part(out, row, exists, at), self.atom(out.element_type)
                cute.copy(atom, held, place, pred=self.there(exists, at, units, v))

    @cute.jit
    def read_vector(self, x: Any, unit: Any, units: Any, v: Any):
        """One vector of a thread's part of a number for each column, zeros where there is none."""
        atom = self.atom(x.element_type)
        held = cute.make_rmem_tensor((self.width,), x.element_type)
        at = unit + v * self.config.row_threads
        part = cute.local_tile(x, (self.width,), (at,))
        if const_expr(self.full(v)):
            cute.copy(atom, part, held)
        else:
            held.fill(0)
            cute.copy(atom, part, held, pred=at < units)
        return held

    def fetch_buffer(self, dtype: Any, thread: Any) -> Any:
        """A thread's own shared memory (element, vector), which lies between that of its neighbours."""
        width, threads = self.width, self.config.threads
        memory = arch.alloc_smem(dtype, width * threads * self.shared, 16)
        layout = cute.make_layout((width, self.shared, threads), stride=(1, width * threads, width))
        return cute.make_tensor(memory, layout)[None, None, thread]

    @cute.jit
    def fetch(self, x: Any, row: Any, exists: Any, unit: Any, units: Any, thread: Any):
        """Begin to copy the last vectors of a thread's part of a row to its shared memory; zeros where the row ends."""
        held = self.fetch_buffer(x.element_type, thread)
        self.copy_row(x, row, exists, unit, units, held)
        arch.cp_async_commit_group()
        return held

    @cute.jit
    def copy_row(self, x: Any, row: Any, exists: Any, unit: Any, units: Any, held: Any):
        """Begin to copy vectors to shared memory of a thread (element, vector)."""
        atom = self.fetch_atom(x.element_type)
        for v in range_constexpr(self.shared):
            place = self.vectors - self.shared + v
            at = unit + place * self.config.row_threads
            cute.copy(atom, self.part(x, row, exists, at), held[None, v], pred=self.there(exists, at, units, place))

    # -- findings of several threads -------------------------------------------------------------------------------

    def exchange_buffer(self, slots: int, held: int = 1, fields: int | None = None) -> Any:
        """Shared memory for the findings of the warps of a block's rows, of which each thread holds some at a time."""
        fields = self.fields if fields is None else fields
        if slots == 1 or fields == 0:
            return None
        shape = (slots, fields, held * self.config.rows)
        memory = arch.alloc_smem(Float32, slots * fields * held * self.config.rows)
        return cute.make_tensor(memory, cute.make_layout(shape))

    def gathered(self, own: Any, exchange: Any, within: Any, thread: Any, rank: Any, slots: Any) -> Any:
        """What the findings of all threads of a row come to."""
        return self.gathered_each([own], exchange, [within], thread, rank, slots)[0]

    @cute.jit
    def gathered_each(self, owns: Any, exchange: Any, places: Any, thread: Any, rank: Any, slots: Any, how: Any = None):
        """The same for several rows of the same threads, which wait for each other once; `how` findings are merged."""
        config, merge = self.config, self.merge if const_expr(how is None) else how
        if const_expr(len(owns[0]) == 0):
            return owns
        states = [merge([own], min(WARP, config.row_threads)) for own in owns]
        if const_expr(slots == 1):
            return states
        warps = max(1, config.row_threads // WARP)
        lane = thread % WARP
        slot = rank * warps + thread % config.row_threads // WARP
        if lane < config.cluster:
            if const_expr(config.cluster > 1):
                pointer = arch.map_dsmem_ptr(exchange.iterator, lane)
                there = cute.make_tensor(pointer, exchange.layout)
            else:
                there = exchange
            for state, place in zip(states, places, strict=True):
                for k in range_constexpr(len(state)):
                    if const_expr(not isinstance(state[k], float)):
                        there[slot, k, place] = state[k]
        if const_expr(config.cluster > 1):
            arch.cluster_arrive()
            arch.cluster_wait()
        else:
            arch.sync_threads()
        lanes = min(WARP, slots)
        others = [lane % lanes + i * lanes for i in range(slots // lanes)]
        return [
            merge([told(state, exchange[other, None, place]) for other in others], lanes)
            for state, place in zip(states, places, strict=True)
        ]
