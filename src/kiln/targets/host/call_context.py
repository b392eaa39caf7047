"""What native code and Python share about one call: the context.

The wrapper of an executable keeps one `Context` on its stack and hands its address to everything it calls. Native code
records a fault or printed text there; if there is either, the wrapper returns a copy for Python to read and free.
"""

from __future__ import annotations

import ctypes

WRAPPER = "kiln_entry"
"""The symbol of an executable's wrapper."""

MAX_ARGS = 12
"""How many numbers a fault can carry."""

FAULT = 1
TEXT = 2

MEMORY_FAULT = 1 << 30
"""Added to the site of a launch: its kernel accessed memory that is not there (`signals.py`)."""

STOP_INTERRUPT = 1
STOP_TIMEOUT = 2
STOP_STEPS = 4
COUNTS_STEPS = 8
"""Bits of `stop`: why kernels have to stop, and that their steps are counted."""
STOPS = STOP_INTERRUPT | STOP_TIMEOUT | STOP_STEPS


class Context(ctypes.Structure):
    """The layout is fixed by ctypes; generated code takes the offsets from here."""

    _fields_ = [
        ("status", ctypes.c_int32),  # FAULT | TEXT
        ("lock", ctypes.c_int32),  # held while a fault is recorded
        ("order", ctypes.c_int64),  # linear index of the faulting block; the lowest one is kept
        ("stream", ctypes.c_void_p),  # FILE* of the text printed so far, made at the first printf
        ("text", ctypes.c_void_p),
        ("text_size", ctypes.c_size_t),
        ("site", ctypes.c_int32),  # index into the executable's table of sites
        ("block", ctypes.c_int32 * 3),
        ("thread", ctypes.c_int32 * 3),
        ("grid", ctypes.c_int32 * 3),  # of the launch that is running
        ("stop", ctypes.c_int32),  # STOP_INTERRUPT, ...: kernels have to stop; they poll it
        ("steps", ctypes.c_int64),  # that the launch has taken, if they are counted
        ("details", ctypes.c_void_p),  # what every thread of a group did when it was stuck (`cpu/runtime/scheduler.py`)
        ("details_size", ctypes.c_int64),
        ("arguments", ctypes.c_int64 * MAX_ARGS),
    ]


def offset(field: str) -> int:
    """Byte offset of a field of the context."""
    return getattr(Context, field).offset


SIZE = ctypes.sizeof(Context)
