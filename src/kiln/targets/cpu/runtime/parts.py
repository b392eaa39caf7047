"""The native half of the CPU target that no program changes: libraries, which are compiled when they are first needed.

Host code for GPUs needs reports and signals only.
"""

from __future__ import annotations

from ....native import Library
from ...host import reports, signal_handler, soft_float
from . import engines, groups, launches, threads

assert engines.waiting is groups.waiting  # they add to it

PARTS: dict[str, Library] = {
    library.name: library
    for library in (reports.reports, launches.launching, threads.waiting, soft_float.floats, signal_handler.signals)
}
