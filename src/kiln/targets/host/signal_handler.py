"""Accesses outside memory: a signal in compiled code becomes a fault of the call, like error 700 on a GPU.

`guarded` calls a function; a signal ends it and returns to the caller. The handler jumps out of the function, which is
safe where no locks are held: in our own code, and in C functions that copy memory. Elsewhere (an allocator whose memory
was overwritten) it prints what happened, and passes the signal on.

A signal of anything else goes to the handler that was there before, unchanged.
"""
# pyright: reportReturnType=false

from __future__ import annotations

from signal import SIG_UNBLOCK

from ...native import Array, Fn, Library, Ptr, i32, i64, local, native, size_of, struct, text, u32, u64
from . import libc
from .signals import SAFE_PLACES, SIGINFO, SIGNALS, UNSAFE_RANGES

_COPY_BYTES = 4096
"""The most bytes of code of a function that copies memory."""
_STACK_BYTES = 1 << 16
_DISABLE = 2
_SIGNAL_SET_WORDS = 16
_WORDS = (
    "kiln: kernel ",
    " accessed memory that is not there, and damaged memory of the process before;"
    " `kiln run --sanitize` finds the line\n",
)

signals: Library = Library("signals", prefix="kiln_cpu_", passes=0, opt=0)
key = signals.variable("signal_key", u32)
previous = signals.variable("signal_previous", Array[u64, 2 * len(SIGNALS)])
"""The handler and its flags that were there before, of each signal."""
unsafe = signals.variable("signal_unsafe", Array[u64, 2 * UNSAFE_RANGES])
"""Address ranges of code that may hold locks."""
safe = signals.variable("signal_safe", Array[u64, SAFE_PLACES])
"""Functions in these ranges that hold none."""
counter = signals.variable("signal_counter", u64)
"""Where a `ucontext_t` of this machine has the program counter, in bytes."""
chaining = signals.variable("signal_chaining", u64)
"""The thread that is calling the previous handler."""


@struct
class Caught:
    """A caught signal."""

    signal: u64
    address: u64
    place: u64  # in the code


@struct
class Record:
    """A guarded call."""

    previous: Ptr[Record]
    name: Ptr
    caught: Ptr[Caught]
    padding: u64
    jump: Array[u64, 76]  # what setjmp needs: at most 312 bytes, aligned to 16


@struct
class Thread:
    """The record of a thread: its innermost guarded call, and its signal stack."""

    current: Ptr[Record]
    stack: Ptr


@struct
class Stack:
    """`stack_t` of Linux."""

    memory: Ptr
    flags: i32
    size: u64


@struct
class SignalInfo:
    """The start of `siginfo_t` of Linux."""

    number: i32
    error: i32
    code: i32  # at most 0: sent by a process, not by an instruction
    padding: i32
    address: u64


@native
def this_thread() -> Ptr[Thread]:
    """Return the record of this thread, with a signal stack and unblocked signals.

    A stack overflow cannot be handled on the stack itself, and a thread that blocks the signals would just die.
    """
    thread = Ptr[Thread](libc.pthread_getspecific(key.value))
    if thread == None:
        thread = Ptr[Thread](libc.calloc(1, size_of(Thread)))
        libc.pthread_setspecific(key.value, thread)
        ours = local(u64, _SIGNAL_SET_WORDS)
        libc.memset(ours, 0, 8 * _SIGNAL_SET_WORDS)
        ours[0] = sum(1 << (number - 1) for number in SIGNALS)
        libc.pthread_sigmask(int(SIG_UNBLOCK), ours, None)
        stack = local(Stack)
        libc.sigaltstack(None, stack)
        if stack.flags == _DISABLE:
            thread.stack = libc.malloc(_STACK_BYTES)
            set_stack(thread.stack, 0)
    return thread


@native
def set_stack(memory: Ptr, flags: i32) -> None:
    stack = local(Stack)
    stack.memory = memory
    stack.flags = flags
    stack.size = _STACK_BYTES
    libc.sigaltstack(stack, None)


@signals.export
def leave_thread(thread: Ptr[Thread]) -> None:
    """Free the record at the end of a thread."""
    if thread.stack != None:
        set_stack(None, _DISABLE)
        libc.free(thread.stack)
    libc.free(thread)


@signals.export
def guarded(called: Fn[[Ptr], None], argument: Ptr, name: Ptr, caught: Ptr) -> i32:
    """Call a function; return 1 if a signal ended it, which `caught` (a `Caught`) describes, else 0."""
    record = local(Record)
    thread = this_thread()
    record.previous = thread.current
    record.name = name
    record.caught = caught
    jumped = libc._setjmp(record.jump)
    if jumped == 0:
        thread.current = record
        called(argument)
        thread.current = record.previous
    return jumped


@native
def can_be_left(place: u64) -> bool:
    """Return whether code at an address holds no locks."""
    for number in range(SAFE_PLACES):
        if place - safe.place[number] < _COPY_BYTES:
            return True
    for number in range(UNSAFE_RANGES):
        if place >= unsafe.place[2 * number] and place < unsafe.place[2 * number + 1]:
            return False
    return True


@native
def chain(number: i32, info: Ptr[SignalInfo], machine: Ptr) -> None:
    """Do what would have happened without our handler."""
    handler = u64(0)
    flags = u64(0)
    own = libc.pthread_self()
    for position, signal in enumerate(SIGNALS):
        if number == signal:
            handler = previous.place[2 * position]
            flags = previous.place[2 * position + 1]
    # a handler that raises the signal again for whom it found before it means the one before both
    if handler > 1 and chaining.value != own:
        chaining.value = own
        if flags & SIGINFO != 0:
            Fn[[i32, Ptr, Ptr], None](handler)(number, info, machine)
        else:
            Fn[[i32], None](handler)(number)
        chaining.value = 0
    else:
        libc.signal(number, None)  # the instruction is tried again, and ends the process
        if info.code <= 0:
            libc.raise_(number)


@signals.export
def signal(number: i32, info: Ptr[SignalInfo], machine: Ptr) -> None:
    """The handler."""
    thread = Ptr[Thread](libc.pthread_getspecific(key.value))
    record = Ptr[Record](None)
    if thread != None:
        record = thread.current
    if record == None or info.code <= 0:
        chain(number, info, machine)
        return
    thread.current = record.previous
    place = Ptr[u64](machine + counter.value)[0]
    caught = record.caught
    caught.signal = i64(number)
    caught.address = info.address
    caught.place = place
    if can_be_left(place):
        libc.longjmp(record.jump, 1)
    else:
        libc.write(2, text(_WORDS[0]), len(_WORDS[0]))
        libc.write(2, record.name, libc.strlen(record.name))
        libc.write(2, text(_WORDS[1]), len(_WORDS[1]))
        chain(number, info, machine)
