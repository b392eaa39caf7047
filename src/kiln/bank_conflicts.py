"""Bank conflicts and coalescing by line, counted on the CPU target by the hardware's rules.

    with kiln.bank_conflicts() as report:
        main(x, y)
    print(report)                                  # or report.places, report.json()

`kiln.coalescing()` counts the sectors of global memory in the same way. `kiln inspect --bank-conflicts prog.py` and
`kiln inspect --coalescing prog.py` do the same for a whole program.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from ._support import lazy
from .base_dsl import sanitizing
from .base_dsl.target import Instrumented
from .hardware.warp_accesses import CoalescingReport, GlobalAccess, Report, SharedAccess, report

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "CoalescingReport",
    "CoalescingSession",
    "GlobalAccess",
    "Report",
    "Session",
    "SharedAccess",
    "coalescing",
    "report",
]


__dir__ = lazy.listing(__name__)


class _Counting:
    """Runs what this thread calls on the CPU target and counts while it is open."""

    _run: Instrumented

    def _count(self, *kinds: str) -> list[Any]:
        """Prepare to count; returns where the counts will be."""
        request = sanitizing.Request(kinds, raises=False)
        self._run = Instrumented(request)
        return request.accesses

    def __enter__(self) -> Self:
        self._run.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._run.__exit__()


class Session(_Counting, Report):
    """Runs what this thread calls on the CPU target and counts while it is open: `kiln.bank_conflicts()`."""

    def __init__(self) -> None:
        Report.__init__(self, self._count(sanitizing.BANKS))


class CoalescingSession(_Counting, CoalescingReport):
    """Runs what this thread calls on the CPU target and counts while it is open: `kiln.coalescing()`."""

    def __init__(self) -> None:
        CoalescingReport.__init__(self, self._count(sanitizing.SECTORS))


class AccessSession(_Counting):
    """Counts both at once: `conflicts` and `coalescing` are the reports."""

    def __init__(self) -> None:
        accesses = self._count(*sanitizing.COUNTS)
        self.conflicts: Report = Report(accesses)
        self.coalescing: CoalescingReport = CoalescingReport(accesses)


def coalescing() -> CoalescingSession:
    """Count the sectors of global memory that warps touch while the session is open, by source line.

    A sector has 32 bytes. A warp that loads 32 neighbouring f32 touches 4, which is ideal; one that walks down a
    column touches 32. Kernels run on the CPU target. TMA and other bulk copies are not counted, as no warp makes their
    accesses, nor are atomic operations.

    Returns a report: `places` has the counts of each line, `sectors`, `excess` and `accesses` are totals, and
    `json()` returns the places as JSON. Nsight Compute calls `sectors / accesses` "sectors per request".

        with kiln.coalescing() as report:
            main(x, y)
        print(report)
    """
    return CoalescingSession()


_Opened = Session  # in the class, the name is its own


class _Callable(types.ModuleType):
    """Makes this module callable: `kiln.bank_conflicts()` is a `Session`."""

    if TYPE_CHECKING:
        CoalescingReport = CoalescingReport
        CoalescingSession = CoalescingSession
        GlobalAccess = GlobalAccess
        Report = Report
        Session = Session
        SharedAccess = SharedAccess
        AccessSession = AccessSession
        coalescing = staticmethod(coalescing)
        report = staticmethod(report)

    def __call__(self) -> _Opened:
        """Count bank conflicts of what this thread runs while the session is open."""
        return Session()


sys.modules[__name__].__class__ = _Callable
