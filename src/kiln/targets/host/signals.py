"""Accesses outside memory: a signal in compiled code becomes a fault of the call, as error 700 is on a GPU.

`kiln_cpu_guarded(function, argument, name, caught)` calls a function; 0, or 1 if a signal ended it: then `caught` holds the
signal, the address and the place in the code. The handler jumps out of the function, which is safe where nothing is held: in
our own code, which has nothing to clean up, and in C functions that copy memory. Elsewhere (an allocator whose memory was
overwritten) it says what happened, and the signal takes its way.

A signal of anything else goes to the handler that was there before, unchanged.
"""

from __future__ import annotations

import ctypes
import platform
import signal

from ...mlir import context, ir
from ..lowering.builder import Builder, declare, function, global_, int_type, parsed_type, ptr_type

EXPORTS = (
    "kiln_cpu_guarded",
    "kiln_cpu_signal",
    "kiln_cpu_signal_key",
    "kiln_cpu_signal_previous",
    "kiln_cpu_signal_unsafe",
    "kiln_cpu_signal_safe",
    "kiln_cpu_leave_thread",
)
_SIGNALS = (int(signal.SIGSEGV), int(signal.SIGBUS), int(signal.SIGFPE))

# a record of a guarded call: words, then what setjmp needs (at most 312 bytes)
_PREVIOUS, _NAME, _CAUGHT, _JUMP = 0, 8, 16, 32
_RECORD_BYTES = 640
SIGNAL, ADDRESS, PLACE = range(3)
"""Words of `caught`."""

# what is known of a thread: its innermost record, and the stack for signals that it was given
_CURRENT, _STACK, _THREAD_BYTES = 0, 8, 16
_STACK_BYTES = 1 << 16

# struct sigaction, siginfo_t, stack_t and ucontext_t of Linux
_ACTION_BYTES, _ACTION_FLAGS = 152, 136
_SIGINFO, _ONSTACK, _NODEFER = 4, 0x08000000, 0x40000000
_CODE, _FAULT_ADDRESS = 8, 16
_DISABLE = 2
_SIGNAL_SET_BYTES = 128
_PROGRAM_COUNTER = 440 if platform.machine() in ("aarch64", "arm64") else 168

_UNSAFE_RANGES, _SAFE_PLACES = 4, 3
_COPY_BYTES = 4096
"""So large at most is a function that copies memory."""
_WORDS = (
    "kiln: kernel ",
    " accessed memory that is not there, and damaged memory of the process before;"
    " `kiln run --sanitize` finds the line\n",
)


def build() -> ir.Module:
    """The part of the runtime that catches signals."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
        for name, inputs, results in (
            ("_setjmp", [ptr], [i32]),
            ("longjmp", [ptr, i32], []),
            ("pthread_getspecific", [i32], [ptr]),
            ("pthread_setspecific", [i32, ptr], [i32]),
            ("pthread_self", [], [i64]),
            ("pthread_sigmask", [i32, ptr, ptr], [i32]),
            ("sigaltstack", [ptr, ptr], [i32]),
            ("signal", [i32, ptr], [ptr]),
            ("raise", [i32], [i32]),
            ("write", [i32, ptr, i64], [i64]),
            ("strlen", [ptr], [i64]),
            ("calloc", [i64, i64], [ptr]),
            ("malloc", [i64], [ptr]),
            ("free", [ptr], []),
        ):
            declare(module, name, inputs, results)
        zero = ir.IntegerAttr.get(i32, 0)
        global_(module, "kiln_cpu_signal_key", i32, zero, linkage="external")
        global_(module, "kiln_cpu_signal_chaining", i64, ir.IntegerAttr.get(i64, 0), linkage="internal")
        for name, words in (
            ("previous", 2 * len(_SIGNALS)), ("unsafe", 2 * _UNSAFE_RANGES), ("safe", _SAFE_PLACES),
        ):  # fmt: skip
            array = parsed_type(f"!llvm.array<{words} x i64>")
            global_(module, f"kiln_cpu_signal_{name}", array, ir.Attribute.parse("#llvm.zero"), linkage="external")
        for number, text in enumerate(_WORDS):
            array = parsed_type(f"!llvm.array<{len(text)} x i8>")
            global_(module, f"kiln.words.{number}", array, ir.StringAttr.get(text), linkage="internal", constant=True)
        _thread(module)
        _leave_thread(module)
        _guarded(module)
        _is_safe(module)
        _chain(module)
        _handler(module)
        return module


def _open(
    module: ir.Module, name: str, inputs: list[ir.Type], results: list[ir.Type]
) -> tuple[Builder, list[ir.Value]]:
    entry = function(module, name, inputs, results).regions[0].blocks[0]
    return Builder(ir.InsertionPoint(entry), ir.Location.unknown()), list(entry.arguments)


def _return(b: Builder, *values: ir.Value) -> None:
    b.op("func.return", (), values)


def _is_null(b: Builder, pointer: ir.Value) -> ir.Value:
    return b.compare("eq", b.value("llvm.ptrtoint", int_type(64), (pointer,)), b.i64(0))


def _key(b: Builder) -> ir.Value:
    return b.load(int_type(32), b.address_of("kiln_cpu_signal_key"))


def _thread(module: ir.Module) -> None:
    """`kiln_cpu_signal_thread()`: what is known of this thread. It is given a stack for signals if it has none: the
    signal of a stack that is full cannot be handled on it. A thread that blocks all signals would die of these unheard."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    b, _ = _open(module, "kiln_cpu_signal_thread", [], [ptr])
    cell = b.alloca(ptr)
    stack = b.alloca(i64, 3)  # a stack_t: address, flags, size
    b.store(b.call("pthread_getspecific", [ptr], [_key(b)]).results[0], cell)
    new = b.if_(_is_null(b, b.load(ptr, cell)))
    made = new.call("calloc", [ptr], [new.i64(1), new.i64(_THREAD_BYTES)]).results[0]
    new.store(made, cell)
    new.call("pthread_setspecific", [i32], [_key(new), made])
    blocked = new.alloca(i64, _SIGNAL_SET_BYTES // 8)
    for word in range(_SIGNAL_SET_BYTES // 8):
        new.store(new.i64(0 if word else sum(1 << (number - 1) for number in _SIGNALS)), new.gep(blocked, i64, word))
    new.call("pthread_sigmask", [i32], [new.i32(int(signal.SIG_UNBLOCK)), blocked, new.null()])
    new.call("sigaltstack", [i32], [new.null(), stack])
    none = new.if_(new.compare("eq", new.load(i32, new.byte_gep(stack, 8)), new.i32(_DISABLE)))
    memory = none.call("malloc", [ptr], [none.i64(_STACK_BYTES)]).results[0]
    none.store(memory, none.byte_gep(made, _STACK))
    none.store(memory, stack)
    none.store(none.i64(0), none.byte_gep(stack, 8))
    none.store(none.i64(_STACK_BYTES), none.byte_gep(stack, 16))
    none.call("sigaltstack", [i32], [stack, none.null()])
    _return(b, b.load(ptr, cell))


def _leave_thread(module: ir.Module) -> None:
    """`kiln_cpu_leave_thread(thread)`: at the end of a thread."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    b, (thread,) = _open(module, "kiln_cpu_leave_thread", [ptr], [])
    given = b.load(ptr, b.byte_gep(thread, _STACK))
    ours = b.if_(b.binary("xori", _is_null(b, given), b.const(int_type(1), 1)))
    stack = ours.alloca(i64, 3)
    ours.store(ours.null(), stack)
    ours.store(ours.i64(_DISABLE), ours.byte_gep(stack, 8))
    ours.store(ours.i64(_STACK_BYTES), ours.byte_gep(stack, 16))
    ours.call("sigaltstack", [i32], [stack, ours.null()])
    ours.call("free", [], [given])
    b.call("free", [], [thread])
    _return(b)


def _guarded(module: ir.Module) -> None:
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    b, (called, argument, name, caught) = _open(module, "kiln_cpu_guarded", [ptr, ptr, ptr, ptr], [i32])
    record = b.alloca(i64, _RECORD_BYTES // 8, 16)
    current = b.byte_gep(b.call("kiln_cpu_signal_thread", [ptr], []).results[0], _CURRENT)
    b.store(b.load(ptr, current), b.byte_gep(record, _PREVIOUS))
    b.store(name, b.byte_gep(record, _NAME))
    b.store(caught, b.byte_gep(record, _CAUGHT))
    jumped = b.call("_setjmp", [i32], [b.byte_gep(record, _JUMP)]).results[0]
    plain = b.if_(b.compare("eq", jumped, b.i32(0)))
    plain.store(record, current)
    plain.call_pointer(called, [argument])
    plain.store(plain.load(ptr, plain.byte_gep(record, _PREVIOUS)), current)
    _return(b, jumped)


def _is_safe(module: ir.Module) -> None:
    """`kiln_cpu_signal_is_safe(place)`: whether code at a place can be left."""
    i1, i64 = int_type(1), int_type(64)
    b, (place,) = _open(module, "kiln_cpu_signal_is_safe", [i64], [i1])
    unsafe, copying = b.const(i1, 0), b.const(i1, 0)
    for number in range(_UNSAFE_RANGES):
        begin, end = (b.load(i64, b.gep(b.address_of("kiln_cpu_signal_unsafe"), i64, 2 * number + n)) for n in range(2))
        inside = b.binary("andi", b.compare("uge", place, begin), b.compare("ult", place, end))
        unsafe = b.binary("ori", unsafe, inside)
    for number in range(_SAFE_PLACES):
        begin = b.load(i64, b.gep(b.address_of("kiln_cpu_signal_safe"), i64, number))
        inside = b.compare("ult", b.binary("subi", place, begin), b.i64(_COPY_BYTES))
        copying = b.binary("ori", copying, inside)
    _return(b, b.binary("ori", copying, b.binary("xori", unsafe, b.const(i1, 1))))


def _chain(module: ir.Module) -> None:
    """`kiln_cpu_signal_chain(number, info, context)`: what would have happened without our handler."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    b, (number, info, machine) = _open(module, "kiln_cpu_signal_chain", [i32, ptr, ptr], [])
    table = b.address_of("kiln_cpu_signal_previous")
    handler, flags = b.i64(0), b.i64(0)
    for position, known in enumerate(_SIGNALS):
        here = b.compare("eq", number, b.i32(known))
        handler = b.select(here, b.load(i64, b.gep(table, i64, 2 * position)), handler)
        flags = b.select(here, b.load(i64, b.gep(table, i64, 2 * position + 1)), flags)
    # a handler that raises the signal again for whom it found before it means the one before both
    chaining = b.address_of("kiln_cpu_signal_chaining")
    own = b.call("pthread_self", [i64], []).results[0]
    again = b.compare("eq", b.load(i64, chaining), own)
    usable = b.binary("andi", b.compare("ugt", handler, b.i64(1)), b.binary("xori", again, b.const(int_type(1), 1)))
    other, default = b.if_else(usable)
    other.store(own, chaining)
    callee = other.value("llvm.inttoptr", ptr, (handler,))
    wants_info = other.compare("ne", other.binary("andi", flags, other.i64(_SIGINFO)), other.i64(0))
    three, one = other.if_else(wants_info)
    three.call_pointer(callee, [number, info, machine])
    one.call_pointer(callee, [number])
    other.store(other.i64(0), chaining)
    default.call("signal", [ptr], [number, default.null()])  # the instruction is tried again, and ends the process
    code = default.load(i32, default.byte_gep(info, _CODE))
    default.if_(default.compare("sle", code, default.i32(0))).call("raise", [i32], [number])
    _return(b)


def _handler(module: ir.Module) -> None:
    ptr, i1, i32, i64 = ptr_type(), int_type(1), int_type(32), int_type(64)
    b, (number, info, machine) = _open(module, "kiln_cpu_signal", [i32, ptr, ptr], [])
    cell = b.alloca(ptr)
    b.store(b.null(), cell)
    thread = b.call("pthread_getspecific", [ptr], [_key(b)]).results[0]
    known = b.if_(b.binary("xori", _is_null(b, thread), b.const(i1, 1)))
    known.store(known.load(ptr, known.byte_gep(thread, _CURRENT)), cell)
    record = b.load(ptr, cell)
    sent = b.compare("sle", b.load(i32, b.byte_gep(info, _CODE)), b.i32(0))  # by a process, not by an instruction
    foreign = b.binary("ori", sent, _is_null(b, record))
    pass_on, ours = b.if_else(foreign)
    pass_on.call("kiln_cpu_signal_chain", [], [number, info, machine])
    ours.store(ours.load(ptr, ours.byte_gep(record, _PREVIOUS)), ours.byte_gep(thread, _CURRENT))
    place = ours.load(i64, ours.byte_gep(machine, _PROGRAM_COUNTER))
    caught = ours.load(ptr, ours.byte_gep(record, _CAUGHT))
    ours.store(ours.value("arith.extui", i64, (number,)), ours.gep(caught, i64, SIGNAL))
    ours.store(ours.load(i64, ours.byte_gep(info, _FAULT_ADDRESS)), ours.gep(caught, i64, ADDRESS))
    ours.store(place, ours.gep(caught, i64, PLACE))
    safe = ours.call("kiln_cpu_signal_is_safe", [i1], [place]).results[0]
    leave, stay = ours.if_else(safe)
    leave.call("longjmp", [], [leave.byte_gep(record, _JUMP), leave.i32(1)])
    name = stay.load(ptr, stay.byte_gep(record, _NAME))
    for text, size in (
        (stay.address_of("kiln.words.0"), stay.i64(len(_WORDS[0]))),
        (name, stay.call("strlen", [i64], [name]).results[0]),
        (stay.address_of("kiln.words.1"), stay.i64(len(_WORDS[1]))),
    ):
        stay.call("write", [i64], [stay.i32(2), text, size])
    stay.call("kiln_cpu_signal_chain", [], [number, info, machine])
    _return(b)


# --- installing ------------------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_addresses: dict[str, int] = {}


def load(addresses: dict[str, int]) -> None:
    """Make the handler ready, once its code is loaded, and install it."""
    key = ctypes.c_uint32.from_address(addresses["kiln_cpu_signal_key"])
    if _libc.pthread_key_create(ctypes.byref(key), ctypes.c_void_p(addresses["kiln_cpu_leave_thread"])):
        return
    safe = (ctypes.c_uint64 * _SAFE_PLACES).from_address(addresses["kiln_cpu_signal_safe"])
    for number, copying in enumerate((_libc.memcpy, _libc.memmove, _libc.memset)):
        safe[number] = ctypes.cast(copying, ctypes.c_void_p).value or 0
    unsafe = (ctypes.c_uint64 * (2 * _UNSAFE_RANGES)).from_address(addresses["kiln_cpu_signal_unsafe"])
    for number, (begin, end) in enumerate(_code_with_locks()[:_UNSAFE_RANGES]):
        unsafe[2 * number], unsafe[2 * number + 1] = begin, end
    _addresses.update(addresses)
    install()


def install() -> None:
    """Put the handler before those of the signals now, unless it is there."""
    if not _addresses:
        return
    ours = _addresses["kiln_cpu_signal"]
    for position, number in enumerate(_SIGNALS):
        found, wanted = (ctypes.create_string_buffer(_ACTION_BYTES) for _ in range(2))
        if _libc.sigaction(number, None, found):
            continue
        handler = ctypes.c_uint64.from_buffer(found).value
        if handler == ours:
            continue
        previous = (ctypes.c_uint64 * 2).from_address(_addresses["kiln_cpu_signal_previous"] + 16 * position)
        previous[0], previous[1] = handler, ctypes.c_uint32.from_buffer(found, _ACTION_FLAGS).value
        ctypes.c_uint64.from_buffer(wanted).value = ours
        ctypes.c_uint32.from_buffer(wanted, _ACTION_FLAGS).value = _SIGINFO | _ONSTACK | _NODEFER
        _libc.sigaction(number, wanted, None)


def _code_with_locks() -> list[tuple[int, int]]:
    """Where the code of the C library's allocator and streams lies: it may hold locks when a signal comes."""
    wanted = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (_libc.malloc, _libc.free, _libc.fprintf)]
    found: list[tuple[int, int]] = []
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                begin, end = (int(number, 16) for number in line.split(" ", 1)[0].split("-"))
                if any(begin <= address < end for address in wanted):
                    found.append((begin, end))
    except OSError:
        pass
    return found
