"""Lets one thread at a time import Kiln's modules.

Python has a lock for each module. A thread that imports `a.b` holds the lock of `a.b` while it waits for `a`; if another
thread runs `a`, which imports `a.b`, Python sees the deadlock and goes on with half a module, or raises an error. Threads
that take this lock before any of those wait for each other instead. A thread for whose end another one waits goes
without: the other may have the lock.

A fork waits for imports: in the child, nobody would ever release the lock of a half-imported module.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import TYPE_CHECKING, Any

from . import fork_safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The kind that Python has for modules: a deadlock between this lock and one of a module is seen as well.
_Lock: Any = getattr(getattr(importlib, "_bootstrap", None), "_ModuleLock", lambda name: fork_safe.rlock())
_lock: list[Any] = []
_importing = fork_safe.wait_for(fork_safe.Shared(), last=True)


def _new() -> None:
    _lock[:] = [_Lock("modules of Kiln")]


def _new_in_child() -> None:
    if getattr(_lock[-1], "owner", None) != threading.get_ident():
        _new()


_new()
fork_safe.in_child(_new_in_child)


_this_thread = threading.local()


def waited_for(run: Callable[[], None]) -> Callable[[], None]:
    """Return what a thread is to run that imports without the lock: another one waits for its end, and may have it."""

    def run_without() -> None:
        _this_thread.is_waited_for = True
        run()

    return run_without


@contextlib.contextmanager
def at_a_time() -> Iterator[None]:
    """Keep other threads out while this one imports modules of Kiln."""
    with _importing.held():
        if getattr(_this_thread, "is_waited_for", False):
            yield
            return
        lock = _lock[-1]
        try:
            lock.acquire()
        except RuntimeError:  # the other thread waits for a module that this one is importing
            yield
            return
        try:
            yield
        finally:
            lock.release()
