"""Locks and counters that stay usable in a forked process.

Only the forking thread continues in a forked process: locks that other threads held stay locked, and what they began
never ends. So a fork waits until no thread compiles or imports (`wait_for`); in the child, locks of other threads are
open again, counters count the forking thread alone, and functions registered with `in_child` clean up.

The end of a process waits likewise, and then lets no other thread compile: a daemon thread inside LLVM would go on
while the library's memory is freed, and crash.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol, TypeVar

    class Lock(Protocol):
        def acquire(self, *, timeout: float) -> bool: ...

        def release(self) -> None: ...

    L = TypeVar("L", bound=Lock)

SECONDS = 5.0
"""The longest that a fork waits for a compilation, which may itself wait for the forking thread."""

ending = threading.Event()
"""Set when the process ends: only the thread that ends it may still compile."""

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_counts: list[Count] = []
_awaited: list[Lock] = []
_awaited_last: list[Lock] = []
_held: list[Lock] = []
_cleaning: list[Callable[[], None]] = []


def lock() -> threading.Lock:
    """Return a lock for a few lines that do not fork."""
    new = threading.Lock()
    _locks.add(new)
    return new


def rlock() -> Any:
    """Return a lock that a thread can take several times."""
    new = threading.RLock()
    _locks.add(new)
    return new


def condition() -> threading.Condition:
    """Return a condition whose lock a thread can take several times."""
    return threading.Condition(rlock())


def wait_for(lock: L, last: bool = False) -> L:
    """Let a fork wait until no other thread holds this lock; return the lock.

    `last`: threads take it while they hold locks of the other kind.
    """
    (_awaited_last if last else _awaited).append(lock)
    return lock


class Shared:
    """A lock that any number of threads hold at once (`with shared.held():`); `acquire` waits for all other threads."""

    def __init__(self) -> None:
        self._entrance = rlock()
        self._inside: dict[int, threading.Lock] = {}
        in_child(self._inside.clear)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock together with others."""
        thread = threading.get_ident()
        if thread in self._inside:
            yield
            return
        own = threading.Lock()
        own.acquire()
        with self._entrance:
            self._inside[thread] = own
        try:
            yield
        finally:
            self._inside.pop(thread, None)  # it is not there in a child that was forked inside
            own.release()

    def acquire(self, timeout: float = -1) -> bool:
        """Keep other threads out; return whether those inside left within `timeout` seconds each."""
        if not self._entrance.acquire(timeout=timeout):
            return False
        for thread, own in list(self._inside.items()):
            if thread != threading.get_ident():
                own.acquire(timeout=timeout)
        return True

    def release(self) -> None:
        """Let other threads in again."""
        self._entrance.release()


def in_child(clean: Callable[[], None]) -> None:
    """Call a function in every forked child, after locks have been opened."""
    _cleaning.append(clean)


class _Own(threading.local):
    number = 0


class Count(ctypes.c_int64):
    """A counter over all threads, in a word that native code reads."""

    def __init__(self) -> None:
        ctypes.c_int64.__init__(self, 0)  # super() does not work in classes of ctypes
        self._own = _Own()
        self._lock = lock()
        _counts.append(self)

    def add(self, number: int) -> None:
        """Add `number` to this thread's count."""
        with self._lock:
            self.value += number
            self._own.number += number

    def forget_others(self) -> None:
        """Count this thread's alone."""
        self.value = self._own.number


def _before() -> None:
    for one in (*_awaited, *_awaited_last):
        if one.acquire(timeout=SECONDS):
            _held.append(one)


def _after() -> None:
    while _held:
        _held.pop().release()


def _after_in_child() -> None:
    _after()
    for one in list(_locks):
        owned = getattr(one, "_is_owned", None)
        if owned is None or not owned():
            one._at_fork_reinit()
    for count in _counts:
        count.forget_others()
    for clean in _cleaning:
        clean()


def _at_end() -> None:
    ending.set()
    _before()
    _held.clear()  # they are never given back


atexit.register(_at_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
