"""Which rank a thread stands for, where one process runs a program on several devices (`kiln run --devices N`).

A rank is a thread and those that it starts. Elsewhere there is none.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable


class _Current(threading.local):
    """The rank of a thread."""

    number: int | None = None


_current = _Current()
at_start: list[Callable[[], None]] = []
"""What a thread calls when it becomes part of a rank."""


def current() -> int | None:
    """Return the rank of this thread; None where a process is a program."""
    return _current.number


def become(number: int | None) -> None:
    """Make this thread part of a rank."""
    _current.number = number
    if number is not None:
        for step in at_start:
            step()


def let_threads_inherit() -> None:
    """Let threads be part of the rank of those that start them."""
    start = threading.Thread.start

    @functools.wraps(start)
    def start_as_part(self: threading.Thread) -> None:
        number = current()
        run = self.run

        def run_as_part() -> None:
            self.__dict__.pop("run", None)  # breaks the reference cycle
            become(number)
            run()

        self.run = run_as_part
        try:
            start(self)
        except BaseException:
            self.__dict__.pop("run", None)
            raise

    threading.Thread.start = start_as_part
