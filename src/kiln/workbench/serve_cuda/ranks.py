"""Which rank a thread stands for, where one process runs a program on several devices (`kiln run --devices N`).

A rank is a thread and those that it starts. Elsewhere there is none.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable


class _Current(threading.local):
    """The rank of a thread."""

    number: int | None = None


_current = _Current()
_ends: weakref.WeakKeyDictionary[threading.Thread, object] = weakref.WeakKeyDictionary()
"""What `point` returned at the end of threads."""
at_start: list[Callable[[], None]] = []
"""What a thread calls when it becomes part of a rank."""


def point() -> object:
    """Return what stands for all that this thread has done so far. `checked.py` of `ranks/` replaces it."""
    return None


def after(other: object) -> None:
    """This thread has waited for what `point` returned in another one."""


def retire() -> None:
    """This thread ends."""


def accesses(address: int, size: int, write: bool) -> None:
    """The driver reads or writes memory for this thread."""


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
        before = point() if number is not None else None
        run = self.run

        def run_as_part() -> None:
            self.__dict__.pop("run", None)  # breaks the reference cycle
            become(number)
            after(before)
            try:
                run()
            finally:
                if number is not None:
                    _ends[self] = point()
                    retire()

        self.run = run_as_part
        try:
            start(self)
        except BaseException:
            self.__dict__.pop("run", None)
            raise

    join = threading.Thread.join

    @functools.wraps(join)
    def join_and_know(self: threading.Thread, timeout: float | None = None) -> None:
        join(self, timeout)
        if not self.is_alive() and current() is not None:
            after(_ends.get(self))

    threading.Thread.start = start_as_part
    threading.Thread.join = join_and_know
