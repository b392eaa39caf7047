"""The context of a call, which native code and Python share.

The wrapper of an executable keeps one `Context` on its stack and hands its address to everything it calls. Native code
records a fault or printed text there; if there is either, the wrapper returns a copy for Python to read and free.
"""

from __future__ import annotations

from ...native import Array, Ptr, i32, i64, size_of, struct, u64

WRAPPER = "kiln_entry"
"""The symbol of an executable's wrapper."""

MAX_ARGS = 12
"""The most numbers of a fault."""

FAULT = 1
TEXT = 2
WARNING = 4

WARN = "kiln_cpu_warn"
"""The function that records a warning."""

MEMORY_FAULT = 1 << 30
"""Added to the site of a launch: its kernel accessed memory that is not there (`signal_handler.py`)."""

STOP_INTERRUPT = 1
STOP_TIMEOUT = 2
STOP_STEPS = 4
COUNTS_STEPS = 8
IN_GROUP = 16
STOP_DEADLOCK = 32
"""Bits of `stop`: why kernels have to stop, that their steps are counted, and that other devices may have to run."""
STOPS = STOP_INTERRUPT | STOP_TIMEOUT | STOP_STEPS | STOP_DEADLOCK


@struct
class Context:
    """A call, as native code and Python see it."""

    status: i32  # FAULT | TEXT | WARNING
    lock: i32  # held while a fault is recorded
    order: i64  # linear index of the faulting block; the lowest one is kept
    stream: Ptr  # FILE* of the text printed so far, made at the first printf
    text: Ptr
    text_size: u64
    site: i32  # index into the executable's table of sites
    block: Array[i32, 3]
    thread: Array[i32, 3]
    grid: Array[i32, 3]  # of the launch that is running
    stop: i32  # STOP_INTERRUPT, ...: kernels have to stop; they poll it
    steps: i64  # that the launch has taken, if they are counted
    details: Ptr  # what every thread of a group did when it was stuck (`cpu/runtime/groups.py`)
    details_size: i64
    arguments: Array[i64, MAX_ARGS]
    warned_order: i64  # as `order`, `site`, `block` and `thread`, of a warning
    warned_site: i32
    warned_block: Array[i32, 3]
    warned_thread: Array[i32, 3]


def offset(field: str) -> int:
    """Byte offset of a field of the context."""
    return getattr(Context, field).offset


SIZE = size_of(Context)
