"""The parts of the native runtime that any compiled function may need."""

from __future__ import annotations

import ctypes
import signal

from ... import forks
from . import jit, reports, signal_handler, signals, soft_float

REPORTS = jit.Part(reports.reports)
SIGNALS = jit.Part(signal_handler.signals, loaded=signals.load)
SOFT_FLOAT = jit.Part(soft_float.floats)
PARTS = (REPORTS, SOFT_FLOAT, SIGNALS)


def _end_calls() -> None:
    """In a forked process: calls of threads that are not there watch no signals."""
    if jit.is_loaded(REPORTS):
        addresses = jit.part_library(REPORTS).addresses
        watchers = ctypes.c_int32.from_address(addresses[reports.watchers.symbol])
        before = ctypes.c_uint64.from_address(addresses[reports.old_handler.symbol])
        if watchers.value and before.value > 1:
            ctypes.CDLL(None).signal(int(signal.SIGINT), ctypes.c_void_p(before.value))
        watchers.value = 0
        ctypes.c_int32.from_address(addresses[reports.stop.symbol]).value = 0


forks.in_child(_end_calls)
