"""Ranges inside kernels: `with cute.testing.range("load"): ...` records when each warp began and ended its body.

They compile to nothing, except while a `RangeTrace` is open: then the first thread of each warp writes time and place
to its warp's ring buffer in global memory, from which the trace reads them.

    with RangeTrace() as trace:
        main(x, y)  # must not have been called before: it would keep the code without ranges
    trace.events()
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ..base_dsl import trace as tracing
from ..base_dsl.diagnostics import DSLRuntimeError, type_error
from ..base_dsl.ranges import const_expr
from ..base_dsl.target import get_target
from ..base_dsl.typing import Constexpr, Int32, Int64
from ..hardware import driver
from . import arch
from .host.addresses import make_ptr
from .layout.layout import make_layout
from .program.dsl import DSL
from .tensor.tensor import make_tensor
from .typing import AddressSpace

WARPS = 4096
"""The number of warps that are recorded, the first of the grid."""
EVENTS = 128
"""The number of beginnings and ends that a warp's ring buffer holds, the last ones."""
_WORDS = 4
_HEADER = 32 << 10
_SIZE = _HEADER + WARPS * EVENTS * _WORDS * 8


class RangeEvent(NamedTuple):
    """The beginning or end of a range. `time` is in SM cycles (CPU: earlier marks), `nanoseconds` the GPU's clock."""

    name: str
    begins: bool
    block: int
    """The number of the CTA in the grid, x running fastest."""
    warp: int
    """The number of the warp in its CTA."""
    time: int
    nanoseconds: int


class RangeTrace:
    """Lets kernels that are compiled while it is open record their ranges. The buffer lives as long as this object."""

    def __init__(self) -> None:
        self.on_host: bool = get_target().on_host
        self.names: list[str] = []
        self.lost: int = 0
        """The events that later ones of the same warp replaced; known once events were read."""
        self._memory = ctypes.create_string_buffer(_SIZE + 16) if self.on_host else None
        self._address = ctypes.c_uint64()

    def __enter__(self) -> RangeTrace:
        global _open
        if _open is not None:
            raise DSLRuntimeError("a trace of ranges is open already")
        if self._memory is not None:
            self._address.value = -(-ctypes.addressof(self._memory) // 16) * 16
        else:
            driver.ensure_context()
            driver.call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(_SIZE))
            driver.clear_memory(self._address.value, _SIZE)
        _open = self
        return self

    def __exit__(self, *_: object) -> None:
        global _open
        _open = None

    def __del__(self) -> None:
        if self._memory is None and self._address.value:
            driver.function("cuMemFree_v2")(self._address)

    @property
    def address(self) -> int:
        """The address of the ring buffers."""
        return self._address.value

    def code(self, name: str, ends: bool) -> int:
        """Return the code that is written for a mark."""
        if name not in self.names:
            self.names.append(name)
        return 2 * self.names.index(name) + ends

    def events(self) -> list[RangeEvent]:
        """Return all recorded events, warp by warp, in order."""
        if self._memory is not None:
            data = ctypes.string_at(self.address, _SIZE)
        else:
            driver.call("cuCtxSynchronize")
            data = driver.read_memory(self.address, _SIZE)
        events_so_far: list[RangeEvent] = []
        self.lost = 0
        for slot, count in enumerate(struct.unpack_from(f"<{WARPS}i", data)):
            self.lost += max(0, count - EVENTS)
            for number in range(max(0, count - EVENTS), count):
                where = _HEADER + 8 * _WORDS * (slot * EVENTS + number % EVENTS)
                time, nanoseconds, code, place = struct.unpack_from("<4q", data, where)
                name = self.names[code // 2]
                events_so_far.append(RangeEvent(name, not code % 2, place >> 32, place & 0xFFFFFFFF, time, nanoseconds))
        return events_so_far


_open: RangeTrace | None = None


@contextlib.contextmanager
def kernel_range(name: str) -> Iterator[None]:
    """Record the body as a range of this name in a trace (`kiln profile --prof-type trace`); otherwise do nothing."""
    if not isinstance(name, str):
        raise type_error(f'range() takes a name, got {name!r}: write range("load")')
    trace = _open
    if trace is None or tracing.current() is None:
        yield
        return
    _mark(trace.address, trace.code(name, False), trace.on_host)
    yield
    _mark(trace.address, trace.code(name, True), trace.on_host)


@DSL.jit
def _mark(address: Constexpr, code: Constexpr, on_host: Constexpr) -> None:
    x, y, z = arch.thread_idx()
    width, height, depth = arch.block_dim()
    thread = x + width * (y + height * z)
    column, row, layer = arch.block_idx()
    columns, rows, _ = arch.grid_dim()
    block = column + columns * (row + rows * layer)
    slot = block * ((width * height * depth + 31) // 32) + thread // 32
    if thread % 32 == 0 and slot < WARPS:
        counts = make_ptr(Int32, Int64(address), AddressSpace.gmem, assumed_align=4)
        # On the CPU target the marks of all warps are counted, which makes their order the time.
        time = Int64(arch.atomic_add(counts + WARPS, Int32(1))) if const_expr(on_host) else arch.clock64()
        nanoseconds = Int64(0) if const_expr(on_host) else arch.globaltimer()
        place = slot * EVENTS + arch.atomic_add(counts + slot, Int32(1)) % EVENTS
        rings = make_ptr(Int64, Int64(address + _HEADER), AddressSpace.gmem, assumed_align=8)
        entry = make_tensor(rings + place * _WORDS, make_layout(_WORDS))
        entry[0] = time
        entry[1] = nanoseconds
        entry[2] = Int64(code)
        entry[3] = Int64(block) * (1 << 32) + Int64(thread // 32)
