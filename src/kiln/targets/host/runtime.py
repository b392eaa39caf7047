"""The parts of the native runtime that any compiled function may need."""

from __future__ import annotations

import ctypes
import signal

from ..._support import fork_safe
from ...native.deferred_library import DeferredLibrary
from . import jit, signals

REPORTS = jit.Part(DeferredLibrary("reports", "reports", ".reports", __package__))
SIGNALS = jit.Part(DeferredLibrary("signals", "signals", ".signal_handler", __package__), loaded=signals.load)
SOFT_FLOAT = jit.Part(DeferredLibrary("soft_float", "floats", ".soft_float", __package__), prefix="__")
PARTS = (REPORTS, SOFT_FLOAT, SIGNALS)


def _end_calls() -> None:
    """Let no call watch signals in a forked process: its thread is not there."""
    if jit.is_loaded(REPORTS):
        addresses = jit.part_library(REPORTS).addresses
        watchers = ctypes.c_int32.from_address(addresses["kiln_cpu_watchers"])
        before = ctypes.c_uint64.from_address(addresses["kiln_cpu_old_handler"])
        if watchers.value and before.value > 1:
            ctypes.CDLL(None).signal(int(signal.SIGINT), ctypes.c_void_p(before.value))
        watchers.value = 0
        ctypes.c_int32.from_address(addresses["kiln_cpu_stop"]).value = 0


fork_safe.in_child(_end_calls)
