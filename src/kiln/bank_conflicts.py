"""Bank conflicts of shared memory, counted on the CPU target by the hardware's rules, for each line of a program.

    with kiln.bank_conflicts() as report:
        main(x, y)
    print(report)                                  # or report.places, report.json()

`kiln inspect --bank-conflicts prog.py` does the same for a whole program.
"""

from __future__ import annotations

import sys
import types

from .base_dsl import sanitizing
from .base_dsl.target import Instrumented
from .hardware.bank_conflicts import Report, SharedAccess, report

__all__ = ["Report", "Session", "SharedAccess", "report"]


class Session(Report):
    """`kiln.bank_conflicts()`: while open, programs that this thread calls run on the CPU target and are counted."""

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
    """This module can be called: `kiln.bank_conflicts()` is a `Session`."""

    def __call__(self) -> Session:
        return Session()


sys.modules[__name__].__class__ = _Callable
