"""Counting bank conflicts: what a build with the kind `banks` adds to accesses of shared memory.

Shared memory has 32 banks of 4 bytes. A warp's access takes one wavefront for each group of lanes that the hardware
serves together - all 32 for accesses of up to 4 bytes, 16 for 8 bytes, 8 for 16 bytes and for a matrix of `ldmatrix` and
`stmatrix` - and in each group as many as the most different words that fall into one bank. Lanes that want the same
word share it.

The lanes of an access come one after another here. They belong together if they execute the same operation in the
same iteration of every loop around it. What they accessed is kept until the last lane of the warp has come, or the
block has ended.

    kiln_cpu_banks_access(counters, key, thread, threads, address, width)    one lane's part
    kiln_cpu_banks_flush()                                                   count what is left, at the end of a block
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from ... import forks
from ...base_dsl import cache
from ...base_dsl.compiler import Compilation, source_span
from ...hardware.bank_conflicts import SharedAccess, count
from ...mlir import context, ir
from ..lowering.builder import Builder, declare, global_, int_attr, int_type, parsed_type, ptr_type, translate
from ..lowering.llvm_text import fix_float_literals
from .sanitizer.native import Code, Value, define

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...base_dsl.diagnostics import Span
    from ..host.jit import Library
    from .expand import Expander, Expansion

COUNTERS = "kiln_bank_counters"
"""The global variable of an instrumented module: a `Counters` for each place."""
ACCESS, FLUSH, STATE = "kiln_cpu_banks_access", "kiln_cpu_banks_flush", "kiln_cpu_banks_state"
BANKS = 32
BUCKETS = 1 << 16
_MIX = -7046029254386353131


class Counters(ctypes.Structure):
    """What is counted at one place."""

    _fields_ = [
        ("accesses", ctypes.c_int64),  # by warps
        ("wavefronts", ctypes.c_int64),
        ("ideal", ctypes.c_int64),  # wavefronts without conflicts
        ("worst", ctypes.c_int64),  # wavefronts of one group of lanes
        ("lanes", ctypes.c_int64),
    ]


class Pending(ctypes.Structure):
    """An access whose lanes have not all come."""

    _fields_ = [
        ("key", ctypes.c_int64),
        ("counters", ctypes.c_int64),
        ("following", ctypes.c_int32),  # in its bucket, or the free list; 0: none
        ("mask", ctypes.c_uint32),  # lanes that have come; 0: not in use
        ("width", ctypes.c_int32),
        ("padding", ctypes.c_int32),
        ("words", ctypes.c_uint32 * 32),  # the lanes' addresses in words; the lowest 32 bits are enough
    ]


class State(ctypes.Structure):
    """The counter's memory; zero at the start."""

    _fields_ = [
        ("pending", ctypes.c_int64),  # address of an array of `Pending`; number 0 is not used
        ("room", ctypes.c_int32),
        ("used", ctypes.c_int32),
        ("free", ctypes.c_int32),
        ("padding", ctypes.c_int32),
        ("words", ctypes.c_uint32 * BANKS),  # of one group of lanes
        ("count", ctypes.c_int32 * BANKS),  # different words of each bank
        ("buckets", ctypes.c_int32 * BUCKETS),
    ]


# --- native functions ------------------------------------------------------------------------------------------------


def build() -> ir.Module:
    """The counter as a module."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        declare(module, "realloc", [ptr_type(), int_type(64)], [ptr_type()])
        declare(module, "memset", [ptr_type(), int_type(32), int_type(64)], [ptr_type()])
        array = parsed_type(f"!llvm.array<{ctypes.sizeof(State)} x i8>")
        zero = ir.DenseElementsAttr.get_splat(
            ir.RankedTensorType.get([ctypes.sizeof(State)], int_type(8)), int_attr(int_type(8), 0)
        )
        global_(module, STATE, array, zero, linkage="external")
        define(module, "kiln_cpu_banks_settle", [64], 0, _settle)
        define(module, "kiln_cpu_banks_take", [64, 32], 32, _take)
        define(module, ACCESS, [64, 64, 32, 32, 64, 32], 0, _access)
        define(module, FLUSH, [], 0, _flush)
        return module


def _settle(code: Code, address: Value) -> None:
    """Count an access."""
    state, entry = code.struct(code.symbol(STATE), State), code.struct(address, Pending)
    counters = code.struct(entry.counters, Counters)
    width, mask = entry.width, entry.mask
    words = (width > 4).choose(width >> 2, 1)  # of a lane
    lanes = (width > 4).choose(code.i32(BANKS) // words, BANKS)  # that are served together
    most, total, ideal = (code.variable(0, 32) for _ in range(3))
    groups = code.i32(BANKS) // lanes
    with code.loop(groups) as group:
        count = code.variable(0, 32)
        code.call_c("memset", [(state.place("count"),), code.i32(0), code.i64(4 * BANKS)])
        with code.loop(lanes) as number:
            lane = group * lanes + number
            with code.when((mask >> lane & 1) != 0), code.loop(words) as part:
                word = entry.at("words", lane) + part
                known = code.variable(0, 32)
                with code.loop(count.get()) as earlier:
                    with code.when(state.at("words", earlier) == word):
                        known.set(1)
                with code.when(known.get() == 0):
                    bank = word & (BANKS - 1)
                    state.set_at("words", count.get(), word)
                    count.set(count.get() + 1)
                    state.set_at("count", bank, state.at("count", bank) + 1)
        degree = code.variable(0, 32)
        with code.loop(code.i32(BANKS)) as bank:
            with code.when(state.at("count", bank) > degree.get()):
                degree.set(state.at("count", bank))
        total.set(total.get() + degree.get())
        ideal.set(ideal.get() + (count.get() != 0).narrow())
        with code.when(degree.get() > most.get()):
            most.set(degree.get())
    counters.accesses = counters.accesses + 1
    counters.wavefronts = counters.wavefronts + total.get().wide()
    counters.ideal = counters.ideal + ideal.get().wide()
    counters.lanes = counters.lanes + mask.population().wide()
    with code.when(most.get().wide() > counters.worst):
        counters.worst = most.get().wide()


def _pending(code: Code, state: Any, number: Value) -> Any:
    return code.struct(state.pending + number.wide() * ctypes.sizeof(Pending), Pending)


def _take(code: Code, key: Value, bucket: Value) -> Value:
    """A fresh entry of a bucket; its number."""
    state = code.struct(code.symbol(STATE), State)
    number = code.variable(state.free, 32)
    with code.when(number.get() == 0):
        with code.when(state.used == 0):
            state.used = 1  # number 0 means none
        with code.when(state.used >= state.room):
            state.room = state.room * 2 + 1024
            size = state.room.wide() * ctypes.sizeof(Pending)
            state.pending = code.call_c("realloc", [(state.pending,), size])
        number.set(state.used)
        state.used = state.used + 1
    with code.otherwise():
        state.free = _pending(code, state, number.get()).following
    entry = _pending(code, state, number.get())
    entry.key = key
    entry.mask = 0
    entry.following = state.at("buckets", bucket)
    state.set_at("buckets", bucket, number.get())
    return number.get()


def _access(
    code: Code, counters: Value, key: Value, thread: Value, threads: Value, address: Value, width: Value
) -> None:
    state = code.struct(code.symbol(STATE), State)
    first, lane = thread & -32, thread & 31
    left = threads - first
    wanted = (left >= 32).choose(-1, (code.i32(1) << left) - 1)
    key = (key ^ (first.wide() * _MIX)) * _MIX
    bucket = (key >> 48).narrow()
    number, before = code.variable(state.at("buckets", bucket), 32), code.variable(0, 32)

    def another() -> Value:
        found = (number.get() != 0).narrow()
        # number 0 has memory too, once there is any: it is looked at and never matches
        differs = (_pending(code, state, (state.pending != 0).choose(number.get(), 0)).key != key).narrow()
        return (found & differs) != 0

    with code.when(state.pending == 0):
        number.set(code.call("kiln_cpu_banks_take", [key, bucket], 32))
    with code.otherwise(), code.repeat(another):
        before.set(number.get())
        number.set(_pending(code, state, number.get()).following)
    with code.when(number.get() == 0):
        number.set(code.call("kiln_cpu_banks_take", [key, bucket], 32))
        before.set(0)
    entry = _pending(code, state, number.get())
    bit = code.i32(1) << lane
    with code.when((entry.mask & bit) != 0):  # the same lane again: another access
        code.call("kiln_cpu_banks_settle", [entry.address])
        entry.mask = 0
    entry.counters = counters
    entry.width = width
    entry.mask = bit | entry.mask
    entry.set_at("words", lane, (address >> 2).narrow())
    with code.when(entry.mask == wanted):
        code.call("kiln_cpu_banks_settle", [entry.address])
        with code.when(before.get() == 0):
            state.set_at("buckets", bucket, entry.following)
        with code.otherwise():
            _pending(code, state, before.get()).following = entry.following
        entry.mask = 0
        entry.following = state.free
        state.free = number.get()


def _flush(code: Code) -> None:
    state = code.struct(code.symbol(STATE), State)
    with code.when(state.used > 1):
        with code.loop(state.used, 1) as number:
            entry = _pending(code, state, number)
            with code.when(entry.mask != 0):
                code.call("kiln_cpu_banks_settle", [entry.address])
        code.call_c("memset", [(state.place("buckets"),), code.i32(0), code.i64(4 * BUCKETS)])
        state.used = 1
        state.free = 0


def _object() -> bytes:
    from ..host import jit
    from ..host.lower import TO_LLVM

    module = build()
    compilation = Compilation(module, "kiln_cpu_banks")
    with context():
        module.operation.verify()
        compilation.run("to-llvm", TO_LLVM)
        text = fix_float_literals(translate(module))
    return jit.emit_object(jit.optimize(text, 2), 2)


_lock = forks.rlock()
"""Held during an instrumented call: there is one counter."""


@functools.lru_cache(maxsize=1)
def library() -> Library:
    """The counter, compiled and loaded once per process."""
    from ..host import jit
    from .runtime.parts import PARTS

    with _lock:
        exports = (ACCESS, FLUSH, STATE)
        return cache.keep("banks", "/".join(jit.host()), _object, lambda data: jit.Library(data, exports, parts=PARTS))


# --- what expansions add ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """Where shared memory is accessed, and how."""

    kernel: str
    operation: str
    width: int
    span: Span | None
    calls: tuple[Span, ...]


class BankCounter:
    """What one module's instrumented build knows."""

    def __init__(self, expansion: Expansion) -> None:
        self.expansion = expansion
        self.places: list[Place] = []
        self._numbers: dict[Place, int] = {}
        self._operations = 0
        self._loops: dict[ir.Operation, ir.Value] = {}

    def access(
        self, x: Expander, op: ir.Operation, b: Builder, address: ir.Value, bytes_: int, alignment: int, what: str
    ) -> None:
        """Before an access to `bytes_` bytes: as many accesses of the hardware as the alignment makes of it."""
        if not x.function.is_kernel:
            return
        whole = min(16, bytes_ & -bytes_, max(1, alignment))
        for piece in range(0, bytes_, whole):
            self._piece(x, op, b, b.byte_gep(address, piece) if piece else address, whole, what)

    def _piece(self, x: Expander, op: ir.Operation, b: Builder, address: ir.Value, width: int, what: str) -> None:
        span, calls = source_span(op.location)
        place = Place(x.function.name, what, width, span, calls)
        number = self._numbers.get(place)
        if number is None:
            number = self._numbers[place] = len(self.places)
            self.places.append(place)
        self._operations += 1
        i32, i64 = int_type(32), int_type(64)
        key = b.binary("addi", b.binary("muli", self._moment(x, op, b), b.i64(_MIX)), b.i64(self._operations))
        (bx, by, bz), (gx, gy, _) = x.function.indices["block_idx"], x.function.indices["grid_dim"]
        block = b.binary("addi", bx, b.binary("muli", gx, b.binary("addi", by, b.binary("muli", gy, bz))))
        key = b.binary("addi", b.binary("muli", key, b.i64(_MIX)), b.value("arith.extui", i64, (block,)))
        (tx, ty, tz), (dx, dy, dz) = x.function.indices["thread_idx"], x.function.indices["block_dim"]
        thread = b.binary("addi", tx, b.binary("muli", dx, b.binary("addi", ty, b.binary("muli", dy, tz))))
        threads = b.binary("muli", dx, b.binary("muli", dy, dz))
        counters = b.byte_gep(b.address_of(COUNTERS), number * ctypes.sizeof(Counters))
        addresses = [b.value("llvm.ptrtoint", i64, (pointer,)) for pointer in (counters, address)]
        self.expansion.declare(ACCESS, [i64, i64, i32, i32, i64, i32], [])
        b.call(ACCESS, [], [addresses[0], key, thread, threads, addresses[1], b.i32(width)])

    def _moment(self, x: Expander, op: ir.Operation, b: Builder) -> ir.Value:
        """A number (i64) that differs from one iteration of the loops around an operation to the next."""
        moment, parent = b.i64(0), op.parent
        while parent is not None:
            around = parent.operation
            if around.name == "func.func":
                break
            if around.name == "scf.for":
                lower, _, step = list(around.operands)[:3]
                index = around.regions[0].blocks[0].arguments[0]
                done = b.binary("divui", b.binary("subi", index, lower), step)
                moment = _mixed(b, moment, done)
            elif around.name == "scf.while":
                moment = _mixed(b, moment, b.load(int_type(64), self._counter(x, around)))
            parent = around.parent
        return moment

    def _counter(self, x: Expander, loop: ir.Operation) -> ir.Value:
        """Where the iterations of an open loop are counted."""
        if loop not in self._loops:
            i64 = int_type(64)
            cell = self._loops[loop] = x.at_entry(loop.location).alloca(i64)
            start = Builder(ir.InsertionPoint(loop), loop.location)
            start.store(start.i64(0), cell)
            each = Builder(ir.InsertionPoint.at_block_begin(loop.regions[1].blocks[0]), loop.location)
            each.store(each.binary("addi", each.load(i64, cell), each.i64(1)), cell)
        return self._loops[loop]

    def end_of_block(self, b: Builder) -> None:
        """At the end of a block, or of a group of them."""
        self.expansion.declare(FLUSH, [], [])
        b.call(FLUSH, [], [])

    def finish(self) -> None:
        """All places are known: make the counters."""
        size = max(1, len(self.places)) * ctypes.sizeof(Counters)
        zero = ir.DenseElementsAttr.get_splat(
            ir.RankedTensorType.get([size], int_type(8), loc=ir.Location.unknown(context())), int_attr(int_type(8), 0)
        )
        array = parsed_type(f"!llvm.array<{size} x i8>")
        global_(self.expansion.module, COUNTERS, array, zero, linkage="external")


def _mixed(b: Builder, moment: ir.Value, number: ir.Value) -> ir.Value:
    if isinstance(number.type, ir.IndexType):
        number = b.value("arith.index_cast", int_type(64), (number,))
    elif number.type != int_type(64):
        number = b.value("arith.extui", int_type(64), (number,))
    return b.binary("addi", b.binary("muli", moment, b.i64(_MIX)), b.binary("addi", number, b.i64(1)))


# --- calls -----------------------------------------------------------------------------------------------------------


def counted(call: Callable[[int], None], address: int, places: list[Place]) -> Callable[[int], None]:
    """The call of an instrumented executable: what was counted at its places is delivered when it returns or fails."""
    counters = (Counters * max(1, len(places))).from_address(address)

    def run(slots: int) -> None:
        with _lock:
            ctypes.memset(ctypes.addressof(counters), 0, ctypes.sizeof(counters))
            try:
                call(slots)
            finally:
                count(
                    [
                        SharedAccess(
                            place.kernel, place.operation, place.width, place.span, place.calls, found.accesses,
                            found.wavefronts, found.ideal, found.worst, found.lanes,
                        )
                        for place, found in zip(places, counters)
                        if found.accesses
                    ]
                )  # fmt: skip

    run.__dict__["call"] = call
    return run
