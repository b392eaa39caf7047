"""Counting accesses of warps: what a build with the kinds `banks` and `sectors` adds to accesses of memory.

`banks` counts the wavefronts of shared memory, `sectors` the sectors of global memory.

Shared memory has 32 banks of 4 bytes. A warp's access takes one wavefront for each group of lanes that the hardware
serves together - all 32 for accesses of up to 4 bytes, 16 for 8 bytes, 8 for 16 bytes and for a matrix of `ldmatrix`
and `stmatrix` - and in each group as many as the most different words that fall into one bank. Lanes that want the same
word share it.

Global memory is fetched and written in sectors of 32 bytes. An access takes as many as its lanes touch; ideally as
many as the different bytes would fill, lying next to each other. Copies by TMA and bulk copies are by no warp, and not
counted; neither are atomic operations.

Lanes of an access belong together if they execute the same operation in the same iteration of every loop around it. The
code that counts is in `access_counts.py`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ..._support import fork_safe
from ...analysis import pointers
from ...base_dsl import sanitizing
from ...base_dsl.compiler import source_span
from ...base_dsl.diagnostics import Span
from ...hardware.warp_accesses import GlobalAccess, SharedAccess, WarpAccess, count
from ...mlir import context, ir
from ..lowering.builder import Builder, global_, int_attr, int_type, parsed_type, ptr_type
from .access_counts import MIX, Counters, access, counter, flush
from .loop_iterations import LoopIterations, loops_around

if TYPE_CHECKING:
    from ..host.jit import Library
    from .expand import Expander, Expansion

COUNTERS = "kiln_access_counters"
"""The global variable of an instrumented module: a `Counters` for each place."""
ACCESS = access.symbol
FLUSH = flush.symbol
_MIX = MIX - (1 << 64)
_HOST_ALIGNMENT = 16
"""What allocators of the host align arrays to; those of GPUs align them to sectors. An argument that begins in the
middle of a sector counts as if it began 16 bytes earlier: what is misaligned by less remains so."""


_lock = fork_safe.rlock()
"""A lock that is held during an instrumented call: there is one counter."""


@functools.lru_cache(maxsize=1)
def library() -> Library:
    """Return the counter, compiled and loaded once per process."""
    from ..host import jit
    from .runtime.parts import PARTS

    with _lock:
        return jit.loading(counter, parts=PARTS)()


# --- what expansions add ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """Where memory is accessed, and how."""

    kind: type[WarpAccess]
    kernel: str
    operation: str
    width: int
    span: Span | None
    calls: tuple[Span, ...]


KINDS: dict[str, type[WarpAccess]] = {sanitizing.BANKS: SharedAccess, sanitizing.SECTORS: GlobalAccess}
"""What is counted by kind of build."""
_SPACES: dict[str, type[WarpAccess]] = {"smem": SharedAccess, "gmem": GlobalAccess, "generic": GlobalAccess}
"""What is counted by memory space. Arrays of the host, such as numpy's, have generic addresses."""


class AccessCounter:
    """The places of one module where an instrumented build counts, and the code it adds there."""

    def __init__(self, expansion: Expansion, kinds: Collection[str]) -> None:
        self.expansion = expansion
        self._counts: set[type[WarpAccess]] = {KINDS[kind] for kind in kinds if kind in KINDS}
        self.places: list[Place] = []
        self._numbers: dict[Place, int] = {}
        self._operations = 0
        self._iterations = LoopIterations()

    def access(
        self,
        x: Expander,
        op: ir.Operation,
        b: Builder,
        space: str,
        address: ir.Value,
        bytes_: int,
        alignment: int,
        what: str,
        where: ir.Value | None = None,
    ) -> None:
        """Count before an access to `bytes_` bytes: as many accesses of the hardware as the alignment makes of it.

        `where` is false in lanes that do not take part.
        """
        kind = _SPACES.get(space)
        if not x.function.is_kernel or kind not in self._counts:
            return
        if where is not None:
            b = b.if_(where)
        number = b.value("llvm.ptrtoint", int_type(64), (address,))
        array = _argument(x, address) if kind is GlobalAccess else None
        if array is not None:
            start = b.value("llvm.ptrtoint", int_type(64), (array,))
            number = b.binary("subi", number, b.binary("andi", start, _HOST_ALIGNMENT))
        whole = min(16, bytes_ & -bytes_, max(1, alignment))
        for piece in range(0, bytes_, whole):
            self._piece(x, op, b, kind, b.binary("addi", number, piece), whole, what)

    def _piece(
        self,
        x: Expander,
        op: ir.Operation,
        b: Builder,
        kind: type[WarpAccess],
        address: ir.Value,
        width: int,
        what: str,
    ) -> None:
        span, calls = source_span(op.location)
        place = Place(kind, x.function.name, what, width, span, calls)
        number = self._numbers.get(place)
        if number is None:
            number = self._numbers[place] = len(self.places)
            self.places.append(place)
        self._operations += 1
        i32 = int_type(32)
        i64 = int_type(64)
        key = b.binary("addi", b.binary("muli", self._moment(x, op, b), _MIX), self._operations)
        indices = x.function.indices
        block = b.linear(indices["block_idx"], indices["grid_dim"])
        key = b.binary("addi", b.binary("muli", key, _MIX), b.value("arith.extui", i64, (block,)))
        thread = b.linear(indices["thread_idx"], indices["block_dim"])
        threads = b.product(indices["block_dim"])
        counters = b.byte_gep(b.address_of(COUNTERS), number * ctypes.sizeof(Counters))
        counters = b.value("llvm.ptrtoint", i64, (counters,))
        self.expansion.declare(ACCESS, [i64, i64, i32, i32, i64, i32, i32], [])
        is_global = b.i32(int(kind is GlobalAccess))
        b.call(ACCESS, [], [counters, key, thread, threads, address, b.i32(width), is_global])

    def _moment(self, x: Expander, op: ir.Operation, b: Builder) -> ir.Value:
        """Return a number (i64) that differs from one iteration of the loops around an operation to the next."""
        moment = b.i64(0)
        for loop in loops_around(op):
            done = self._iterations.number(x, b, loop)
            moment = b.binary("addi", b.binary("muli", moment, _MIX), b.binary("addi", done, 1))
        return moment

    def end_of_block(self, b: Builder) -> None:
        """At the end of a block, or of a group of them."""
        self.expansion.declare(FLUSH, [], [])
        b.call(FLUSH, [], [])

    def finish(self) -> None:
        """Make the counters, when all places are known."""
        size = max(1, len(self.places)) * ctypes.sizeof(Counters)
        zero = ir.DenseElementsAttr.get_splat(
            ir.RankedTensorType.get([size], int_type(8), loc=ir.Location.unknown(context())), int_attr(int_type(8), 0)
        )
        array = parsed_type(f"!llvm.array<{size} x i8>")
        global_(self.expansion.module, COUNTERS, array, zero, linkage="external")


def _argument(x: Expander, address: ir.Value) -> ir.Value | None:
    """Return the pointer of the kernel's argument that an address is derived from, if it can be told."""
    pointer = address
    for _ in range(256):
        if isinstance(address.owner, ir.Block) and address.owner == x.entry:
            return pointer
        sources = pointers.address_sources(address)
        if not sources:
            break
        address = sources[0]
        if address.type == ptr_type():
            pointer = address
    return None


# --- calls -----------------------------------------------------------------------------------------------------------


def counted(call: Callable[[int], None], address: int, places: list[Place]) -> Callable[[int], None]:
    """Return a call of an instrumented executable that delivers its counts when it returns or fails."""
    counters = (Counters * max(1, len(places))).from_address(address)

    def run(slots: int) -> None:
        with _lock:
            ctypes.memset(ctypes.addressof(counters), 0, ctypes.sizeof(counters))
            try:
                call(slots)
            finally:
                count(
                    [
                        place.kind(
                            place.kernel,
                            place.operation,
                            place.width,
                            place.span,
                            place.calls,
                            counter.accesses,
                            counter.served,
                            counter.ideal,
                            counter.worst,
                            counter.lanes,
                            counter.highest - counter.lowest,
                        )
                        for place, counter in zip(places, counters)
                        if counter.accesses
                    ]
                )

    run.__dict__["call"] = call
    return run
