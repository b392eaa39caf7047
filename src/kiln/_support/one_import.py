"""Lets one thread at a time import Kiln's modules.

Python has a lock for each module. A thread that imports `a.b` holds the lock of `a.b` while it waits for `a`; if another
thread runs `a`, which imports `a.b`, Python sees the deadlock and goes on with half a module, or raises an error. Threads
that take this lock before any of those wait for each other instead.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import TYPE_CHECKING, Any

from . import fork_safe

if TYPE_CHECKING:
    from collections.abc import Iterator

# The kind that Python has for modules: a deadlock between this lock and one of a module is seen as well.
_Lock: Any = getattr(getattr(importlib, "_bootstrap", None), "_ModuleLock", lambda name: fork_safe.rlock())
_made: list[Any] = []


def _new() -> None:
    _made[:] = [_Lock("modules of Kiln")]


def _new_in_child() -> None:
    if getattr(_made[-1], "owner", None) != threading.get_ident():
        _new()


_new()
fork_safe.in_child(_new_in_child)


@contextlib.contextmanager
def at_a_time() -> Iterator[None]:
    """Keep other threads out while this one imports modules of Kiln."""
    lock = _made[-1]
    try:
        lock.acquire()
    except RuntimeError:  # the other thread waits for a module that this one is importing
        yield
        return
    try:
        yield
    finally:
        lock.release()
