"""Recording what warps do: what a build with the kind `events` adds to operations that wait, order, copy and multiply.

The hooks of the sanitizer mark the places. An event has a site, some values and the lanes that took part (`events.py`); what the values
are, `Kind` says.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..._support import fork_safe
from ...base_dsl import sanitizing
from ...base_dsl.compiler import source_span
from ...base_dsl.diagnostics import Span
from ...base_dsl.target import value_bytes
from ...dialects.nvgpu import mbarrier
from ...mlir import ir
from ..lowering.builder import Builder, int_type, ptr_type
from ..lowering.expansion import AnyOp
from . import events, spin_loops
from .runtime.engine_table import BULK_STORE
from .runtime.parts import set_sample
from .runtime.record_access import Fields
from .runtime.records import Mma
from .runtime.umma import A_IN_TENSOR_MEMORY
from .sanitizer.hooks import NoHooks

if TYPE_CHECKING:
    from ..host.jit import Library
    from .expand import Expander, Expansion

Value = ir.Value | int
EVENT = events.event.symbol
LAUNCH = events.launch.symbol
HANDED_OUT = events.handed_out.symbol
LOOKED = events.looked.symbol
LAUNCHED = events.launched.symbol
BOX_BYTES = events.box_bytes.symbol
TENSOR_BYTES = events.tensor_bytes.symbol


HANDS_OUT = "hands out"


class Kind(enum.Enum):
    """What an event is. Its values are given in brackets."""

    BARRIER = "barrier"
    """Arrival at a barrier [number, threads or 0 for all, 1 if it waits]; the cluster's has number 16."""
    PASSED = "passed"
    """A barrier has been waited for [1 for the cluster's]."""
    MBARRIER_INIT = "mbarrier init"
    """[address, arrivals]"""
    ARRIVE = "mbarrier arrive"
    """[address, arrivals, bytes expected]"""
    WAIT = "mbarrier wait"
    """Before a wait [address, parity]"""
    TRIED = "mbarrier tried"
    """After a wait that may fail [address, parity, 1 if the phase was complete]"""
    COPY = "cp.async"
    """[bytes, target, source]: lanes that copy as many bytes share an event"""
    BULK = "bulk copy"
    """[target, source, bytes, mbarrier or 0]"""
    BOX = "tma"
    """[tensor map, shared memory, mbarrier or 0, mask of CTAs, bytes, three coordinates, bytes of the tensor]; bit 32 of the mask says that
    the mbarrier of the first CTA of each pair is meant"""
    COMMIT = "commit"
    """[engine]"""
    WAITED = "waited"
    """Groups of an engine are done [engine, groups that may be left, 1 if only their sources were read]"""
    WGMMA = "wgmma"
    """[kind, descriptor of A or 0, descriptor of B]"""
    WGMMA_FENCE = "wgmma fence"
    WGMMA_WAITED = "wgmma waited"
    """[groups that may be left]"""
    TENSOR = "tensor memory"
    """An operation of tensor memory [address, columns or form]; an MMA [accumulators, instruction descriptor, 1 if A is in tensor memory,
    CTAs that multiply together]; a commit [mbarrier, mask of CTAs]"""
    FENCE = "fence"
    ATOMIC = "atomic"
    """[address]; with the detail `HANDS_OUT` an addition to a counter that hands out tiles"""
    REQUEST = "launch control"
    """A request for the work of a cluster that has not started [answer, mbarrier, 1 if all CTAs of the cluster get it]"""
    DEPENDS = "launch dependency"


@dataclasses.dataclass(frozen=True)
class EventSite:
    """Where something happens, and what."""

    kind: Kind
    kernel: str
    operation: str
    detail: str
    span: Span | None
    calls: tuple[Span, ...]


class EventRecorder:
    """The sites of one module, and the code that an instrumented build adds there."""

    def __init__(self, expansion: Expansion) -> None:
        self.expansion = expansion
        self.sites: list[EventSite] = []
        self._numbers: dict[EventSite, int] = {}

    def site(self, op: AnyOp, kernel: str, kind: Kind, detail: str = "") -> int:
        """Return the number of a site. Operations traced several times at one place have one."""
        span, calls = source_span(op.location)
        site = EventSite(kind, kernel, op.operation.name, detail, span, calls)
        if site not in self._numbers:
            self._numbers[site] = len(self.sites)
            self.sites.append(site)
        return self._numbers[site]

    def event(self, x: Expander, op: AnyOp, b: Builder, kind: Kind, *values: Value, detail: str = "") -> None:
        """Record an event of a kernel's thread."""
        if not x.function.is_kernel:
            return
        i64 = int_type(64)
        i32 = int_type(32)
        indices = x.function.indices
        block = b.linear(indices["block_idx"], indices["grid_dim"])
        thread = b.linear(indices["thread_idx"], indices["block_dim"])
        memory = x.at_entry(op.location).alloca(i64, events.VALUES)
        for place in range(events.VALUES):
            b.store(_wide(b, values[place] if place < len(values) else 0), b.byte_gep(memory, 8 * place))
        self.expansion.declare(EVENT, [i32, i32, i32, ptr_type()], [])
        b.call(EVENT, [], [b.i32(self.site(op, x.function.name, kind, detail)), block, thread, memory])

    def handed_out(self, x: Expander, op: AnyOp, b: Builder, pointer: ir.Value, value: ir.Value) -> ir.Value:
        """Return the next number that a CTA gets if all CTAs of the launch take turns."""
        self.event(x, op, b, Kind.ATOMIC, pointer, detail=HANDS_OUT)
        i32 = int_type(32)
        indices = x.function.indices
        block = b.linear(indices["block_idx"], indices["grid_dim"])
        thread = b.linear(indices["thread_idx"], indices["block_dim"])
        self.expansion.declare(HANDED_OUT, [i32, i32, ptr_type(), i32], [i32])
        return b.call(HANDED_OUT, [i32], [block, thread, pointer, value]).results[0]

    def looked(
        self, x: Expander, op: AnyOp, b: Builder, pointer: ir.Value, type_: ir.Type, compare: ir.Value | None = None
    ) -> None:
        """Before a look at memory in a loop that waits: what it waits for may be up to a CTA that does not run.

        A compare-and-swap gives what it expects as `compare`, an integer.
        """
        if not (x.function.is_kernel and spin_loops.waits(op)):
            return
        i32 = int_type(32)
        indices = x.function.indices
        block = b.linear(indices["block_idx"], indices["grid_dim"])
        thread = b.linear(indices["thread_idx"], indices["block_dim"])
        size = value_bytes(type_)
        is_number = isinstance(type_, ir.IntegerType) and size in (1, 2, 4, 8)
        how = events.SWAPS if compare is not None else events.ADDS if is_number else events.KEEPS
        expected = b.i64(0) if compare is None else _wide(b, compare)
        numbers = b.i32(1 << min(size, 8).bit_length() - 1), b.i32(how), expected
        self.expansion.declare(LOOKED, [i32, i32, ptr_type(), i32, i32, int_type(64)], [i32])
        late = b.call(LOOKED, [i32], [block, thread, pointer, *numbers]).results[0]
        stuck = b.if_(b.compare("ne", late, 0))
        site = x.module.site(op, "recording", spin_loops.what(op), x.function.name)
        x.fault(stuck, site, [stuck.value("llvm.ptrtoint", int_type(64), (pointer,))])
        x.end(stuck)

    def hooks(self, x: Expander, op: AnyOp) -> EventHooks:
        """Return what the expansion of an operation adds."""
        return EventHooks(x, op, self)

    def launch(
        self, b: Builder, grid: Sequence[ir.Value], block: Sequence[ir.Value], cluster: Sequence[ir.Value]
    ) -> None:
        """Before a launch."""
        i64 = int_type(64)
        i32 = int_type(32)
        self.expansion.declare(LAUNCH, [i64, i32, i64], [])
        blocks = b.i64(1)
        for size in grid:
            blocks = b.binary("muli", blocks, _wide(b, size))
        threads = b.product([b.value("arith.trunci", i32, (size,)) if size.type == i64 else size for size in block])
        ctas = b.i64(1)
        for size in cluster:
            ctas = b.binary("muli", ctas, _wide(b, size))
        b.call(LAUNCH, [], [blocks, threads, ctas])

    def launched(self, b: Builder) -> None:
        """After a launch."""
        self.expansion.declare(LAUNCHED, [], [])
        b.call(LAUNCHED, [], [])


class EventHooks(NoHooks):
    """What the expansion of an operation adds to a build that records events."""

    def __init__(self, x: Expander, op: AnyOp, recorder: EventRecorder) -> None:
        self.x = x
        self.op = op
        self.recorder = recorder

    def _event(self, b: Builder, kind: Kind, *values: Value, detail: str = "") -> None:
        self.recorder.event(self.x, self.op, b, kind, *values, detail=detail)

    def arrival(
        self,
        b: Builder,
        frame: ir.Value,
        number: ir.Value | None,
        count: ir.Value | None,
        mode: int,
        arrive: Callable[[], ir.Value | None],
    ) -> ir.Value | None:
        """Arrive at a barrier; an arrival with status 2 did not count yet."""
        status = arrive()
        came = b if status is None else b.if_(b.compare("ne", status, 2))
        self._event(came, Kind.BARRIER, 16 if number is None else number, 0 if count is None else count, mode)
        return status

    def passed(self, b: Builder, cluster: bool = False) -> None:
        self._event(b, Kind.PASSED, int(cluster))

    def atomic(self, b: Builder, address: ir.Value, type_: ir.Type, modifiers: str = "") -> ir.Value:
        self._event(b, Kind.ATOMIC, address)
        return address

    def request(self, b: Builder, response: ir.Value, mbarrier: ir.Value, multicast: bool) -> None:
        self._event(b, Kind.REQUEST, response, mbarrier, int(multicast))

    def depends(self, b: Builder) -> None:
        self._event(b, Kind.DEPENDS)

    def fence(self, b: Builder, kind: str) -> None:
        self._event(b, Kind.FENCE, detail=kind)

    def mbarrier_init(self, b: Builder, address: ir.Value, count: ir.Value) -> ir.Value:
        self._event(b, Kind.MBARRIER_INIT, address, count)
        return address

    def mbarrier_arrive(
        self,
        b: Builder,
        address: ir.Value,
        count: ir.Value | int,
        bytes_: ir.Value | int,
        how: int | None = None,
        modifiers: str = "",
    ) -> ir.Value:
        self._event(b, Kind.ARRIVE, address, count, bytes_)
        return address

    def mbarrier_wait(self, b: Builder, address: ir.Value, phase: ir.Value) -> ir.Value:
        self._event(b, Kind.WAIT, address, phase)
        return address

    def mbarrier_waited(self, b: Builder, address: ir.Value, phase: ir.Value, done: ir.Value, relaxed: bool) -> None:
        if self.op.operation.name in _MAY_FAIL:
            self._event(b, Kind.TRIED, address, phase, done)

    def copy(
        self, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, size: int
    ) -> tuple[ir.Value, ir.Value]:
        self._event(b, Kind.COPY, bytes_, target, source)
        return target, source

    def bulk_copy(
        self,
        b: Builder,
        target: ir.Value,
        source: ir.Value,
        bytes_: ir.Value,
        mbarrier: ir.Value | None = None,
        combines: bool = False,
    ) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value | None]:
        self._event(b, Kind.BULK, target, source, bytes_, 0 if mbarrier is None else mbarrier)
        return target, source, bytes_, mbarrier

    def store_async(self, b: Builder, target: ir.Value, bytes_: int, mbarrier: ir.Value) -> tuple[ir.Value, ir.Value]:
        self._event(b, Kind.BULK, target, 0, bytes_, mbarrier)
        return target, mbarrier

    def box(
        self,
        b: Builder,
        map_: ir.Value,
        shared: ir.Value,
        mbarrier: ir.Value | None,
        places: Sequence[ir.Value],
        what: str,
        mask: ir.Value | int = -1,
        cta_group: int = 1,
    ) -> None:
        i64 = int_type(64)
        i32 = int_type(32)
        self.recorder.expansion.declare(BOX_BYTES, [ptr_type()], [i64])
        self.recorder.expansion.declare(TENSOR_BYTES, [ptr_type()], [i64])
        bytes_ = b.call(BOX_BYTES, [i64], [map_]).results[0]
        whole = b.call(TENSOR_BYTES, [i64], [map_]).results[0]
        coordinates = [b.load(i32, b.byte_gep(places[0], 4 * mode)) for mode in range(3)]
        arrives = 0 if mbarrier is None else mbarrier
        ctas = b.binary("ori", _wide(b, mask), (cta_group - 1) << 32)
        self._event(b, Kind.BOX, map_, shared, arrives, ctas, bytes_, *coordinates, whole, detail=what)

    def commit(self, b: Builder, engine: int) -> None:
        self._event(b, Kind.COMMIT, engine)

    def waited(self, b: Builder, left: int | ir.Value, engine: int) -> None:
        self._event(b, Kind.WAITED, engine, left)

    def bulk_commit(self, b: Builder) -> None:
        self._event(b, Kind.COMMIT, BULK_STORE)

    def bulk_waited(self, b: Builder, left: int | ir.Value, read: bool) -> None:
        self._event(b, Kind.WAITED, BULK_STORE, left, int(read))

    def wgmma(
        self, b: Builder, accumulator: tuple[ir.Value, int], a: tuple[ir.Value, int], right: ir.Value, kind: int
    ) -> None:
        self._event(b, Kind.WGMMA, kind, 0 if a[1] else a[0], right, detail=_shape(self.op))

    def wgmma_fence(self, b: Builder) -> None:
        self._event(b, Kind.WGMMA_FENCE)

    def wgmma_waited(self, b: Builder, left: int) -> None:
        self._event(b, Kind.WGMMA_WAITED, left)

    def tensor_access(self, b: Builder, address: ir.Value, form: int, stores: bool) -> None:
        self._event(b, Kind.TENSOR, address, form, detail="st" if stores else "ld")

    def tensor_waits(self, b: Builder, stores: bool) -> None:
        self._event(b, Kind.TENSOR, detail="wait st" if stores else "wait ld")

    def tensor_mma(self, b: Builder, mma: ir.Value) -> None:
        record = Fields(b, mma, Mma)
        flags = b.binary("andi", record.load("flags"), A_IN_TENSOR_MEMORY)
        in_memory = b.value("arith.extui", int_type(32), (b.compare("ne", flags, 0),))
        values = record.load("d"), record.load("idesc"), in_memory, record.load("cta_group")
        self._event(b, Kind.TENSOR, *values, detail="mma")

    def tensor_copy(self, b: Builder, address: ir.Value, descriptor: ir.Value, form: int) -> None:
        self._event(b, Kind.TENSOR, address, form, detail="cp")

    def tensor_commit(self, b: Builder, mbarrier: ir.Value, mask: ir.Value) -> None:
        self._event(b, Kind.TENSOR, mbarrier, mask, detail="commit")


_MAY_FAIL = {op.OPERATION_NAME for op in (mbarrier.MbarrierTryWait, mbarrier.MbarrierTestWait)}


def _shape(op: AnyOp) -> str:
    """Return what decides how long an MMA takes, in words."""
    attributes = op.operation.attributes
    names = ("n", "a_type", "b_type", "a_major", "b_major")
    return " ".join(f"{name}={attributes[name]}" for name in names if name in attributes)


def _wide(b: Builder, value: Value) -> ir.Value:
    i64 = int_type(64)
    if isinstance(value, int):
        return b.i64(value)
    if value.type == i64:
        return value
    if value.type == ptr_type():
        return b.value("llvm.ptrtoint", i64, (value,))
    if isinstance(value.type, ir.IndexType):
        return b.value("arith.index_cast", i64, (value,))
    return b.value("arith.extui", i64, (value,))


# --- calls -----------------------------------------------------------------------------------------------------------

_lock = fork_safe.rlock()
"""A lock that is held during a call that records: there is one recorder."""


@functools.lru_cache(maxsize=1)
def library() -> Library:
    """Return the recorder, compiled and loaded once per process."""
    from ..host import jit
    from .runtime.parts import PARTS

    with _lock:
        return jit.loading(events.recorder, parts=PARTS)()


@dataclasses.dataclass
class Recorded:
    """The events of a call: native structures as bytes."""

    sites: list[EventSite]
    events: bytes
    """Each as `events.Event`, the first unused."""
    warps: bytes
    """Each as `events.Warp`."""


def recorded(call: Callable[[int], None], sites: list[EventSite]) -> Callable[[int], None]:
    """Return a call of an instrumented executable that hands its events to the request in force."""

    def run(slots: int) -> None:
        request = sanitizing.request()
        with _lock:
            recorder = library()
            ctypes.CFUNCTYPE(None)(recorder.addresses[events.clear.symbol])()
            state = events.State.from_address(recorder.addresses[events.state.symbol])
            state.sites = len(sites)
            set_sample(0 if request is None else request.blocks)
            try:
                call(slots)
            finally:
                set_sample(0)
                if request is not None and state.used:
                    data = ctypes.string_at(_address(state.events), state.used * ctypes.sizeof(events.Event))
                    warps = ctypes.string_at(_address(state.warps), state.warps_used * ctypes.sizeof(events.Warp))
                    request.accesses.append(Recorded(sites, data, warps))

    run.__dict__["call"] = call
    return run


def _address(pointer: object) -> int:
    return pointer if isinstance(pointer, int) else ctypes.cast(pointer, ctypes.c_void_p).value or 0  # pyright: ignore[reportArgumentType]
