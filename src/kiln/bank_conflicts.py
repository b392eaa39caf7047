"""Bank conflicts of shared memory by line, counted on the CPU target by the hardware's rules.

    with kiln.bank_conflicts() as report:
        main(x, y)
    print(report)                                  # or report.places, report.json()

`kiln inspect --bank-conflicts prog.py` does the same for a whole program.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

from .base_dsl import sanitizing
from .base_dsl.target import Instrumented
from .hardware.bank_conflicts import Report, SharedAccess, report

__all__ = ["Report", "Session", "SharedAccess", "report"]


class Session(Report):
    """Runs what this thread calls on the CPU target and counts while it is open: `kiln.bank_conflicts()`."""

    def __init__(self) -> None:
        request = sanitizing.Request((sanitizing.BANKS,), raises=False)
        super().__init__(request.accesses)
        self._run = Instrumented(request)

    def __enter__(self) -> Session:
        self._run.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._run.__exit__()


class _Callable(types.ModuleType):
    """Makes this module callable: `kiln.bank_conflicts()` is a `Session`."""

    if TYPE_CHECKING:
        Report = Report
        Session = Session
        SharedAccess = SharedAccess
        report = report

    def __call__(self) -> Session:
        """Count bank conflicts of what this thread runs while the session is open."""
        return Session()


sys.modules[__name__].__class__ = _Callable
