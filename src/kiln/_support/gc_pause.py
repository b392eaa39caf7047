"""Pauses of Python's garbage collector, while many objects are made that stay alive."""

from __future__ import annotations

import gc

from . import fork_safe


class _Collection:
    """While entered, by any thread, the cyclic garbage collector is off.

    Tracing and importing make many objects that stay alive, and every collection visits all objects of the process:
    with PyTorch loaded, a tenth of the time of a compilation.
    """

    def __init__(self) -> None:
        self._lock = fork_safe.lock()
        self._entered = fork_safe.Count()
        self._was_enabled = False
        fork_safe.in_child(self._forget_others)

    def __enter__(self) -> None:
        with self._lock:
            self._entered.add(1)
            if self._entered.value == 1:
                self._was_enabled = gc.isenabled()
                gc.disable()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered.add(-1)
            self._forget_others()

    def _forget_others(self) -> None:
        if not self._entered.value and self._was_enabled:
            self._was_enabled = False
            gc.enable()


gc_paused = _Collection()
