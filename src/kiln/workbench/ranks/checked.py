"""Tells the sanitizer what threads of the host do: which waited for which, and what they read, write and give back.

Without the sanitizer the functions do nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Protocol

from kiln._support import fork_safe
from kiln.base_dsl import sanitizing
from kiln.base_dsl.diagnostics import Span
from kiln.targets.cpu.sanitizer import several

from ..serve_cuda import device as served
from ..serve_cuda import ranks

_LANES = 64
_SKIPPED = ("kiln", "torch", "threading", "runpy", "contextlib", "weakref")
"""Packages whose frames are not where the program accesses memory."""


class _Lane(threading.local):
    """The number by which the sanitizer knows a thread; None: it has none yet."""

    number: int | None = None


class Memory(Protocol):
    """Symmetric memory, as `heap.Heap` has it."""

    def ranges(self) -> list[tuple[int, int]]: ...
    def multicast_range(self) -> tuple[int, int]: ...
    def device_of(self, address: int) -> int | None: ...
    def allocations(self, device: int) -> list[tuple[int, int]]: ...
    def reuse(self, device: int, address: int, size: int) -> None: ...


class _Checked:
    def __init__(self) -> None:
        self.heap: Memory | None = None
        """None: the sanitizer is off."""
        self.unwatched: Memory | None = None
        """The memory that it will watch when it is used."""
        self.free: list[int] = []
        self.lock = fork_safe.rlock()
        self.pending: list[tuple[int, int, int, bool]] = []
        """Memory that was given back, its device, and whether that has ended, until the detector hears of it."""


_lane = _Lane()
_checked = _Checked()


def begin(memory: Memory, place_of: Callable[[int], str]) -> None:
    """Let the sanitizer know of the ranks, one for each device of symmetric memory, and watch them if that is asked for."""
    sanitizing.run_on_devices(True)
    several.begin(memory.ranges(), memory.multicast_range(), _place, place_of)
    _checked.unwatched = memory
    if sanitizing.kinds():
        _watch()


def _watch() -> None:
    """Watch the ranks from now on. What they did before was not looked at, and comes before what follows."""
    several.load()  # first: threads of ranks that build it must not wait for it
    memory, _checked.unwatched = _checked.unwatched, None
    if memory is None:
        return
    _checked.free = list(range(len(memory.ranges()), _LANES))
    _checked.heap = memory
    ranks.point = point
    ranks.after = after
    ranks.accesses = accesses
    ranks.retire = retire


def is_on() -> bool:
    return _checked.heap is not None


def _place() -> several.Place:
    if _checked.unwatched is not None:  # the program has asked for the sanitizer itself
        _watch()
    tell_pending()
    return several.Place(served.current_number(), _here())


def _here() -> int:
    """Return the lane of this thread. A rank's own is its number; those that it starts get others."""
    if _lane.number is None:
        main = threading.current_thread().name == f"rank {ranks.current()}"
        with _checked.lock:
            _lane.number = int(ranks.current() or 0) if main or not _checked.free else _checked.free.pop(0)
    return _lane.number


# --- who has waited for whom -----------------------------------------------------------------------------------------


def point() -> int | None:
    """Return what stands for all that this thread has done so far."""
    return _here() if is_on() else None


def after(other: int | None) -> None:
    """This thread has waited for what `point` returned in another one."""
    if is_on() and other is not None and other != _here():
        several.host_follow(_here(), other)


def retire(lane: int | None) -> None:
    """A thread has ended and was joined: its lane is free."""
    if _checked.heap is not None and lane is not None and lane >= len(_checked.heap.ranges()):
        several.host_retire(lane)
        with _checked.lock:
            _checked.free.append(lane)


def meet(points: Sequence[int | None]) -> None:
    """Threads have waited for each other."""
    if is_on():
        several.host_meet(list(dict.fromkeys(each for each in points if each is not None)))


# --- memory ----------------------------------------------------------------------------------------------------------


def gives_back(device: int, low: int, high: int) -> bool:
    """Return whether the sanitizer takes care of memory that is given back: `tell_pending` gives it to the heap.

    The garbage collector may call this anywhere, also where the detector is at work.
    """
    if is_on():
        _checked.pending.append((device, low, high, False))
    return is_on()


def tell_pending() -> None:
    """Tell the detector of memory that was given back."""
    while _checked.heap is not None and _checked.pending:
        try:
            device, low, high, has_ended = _checked.pending.pop(0)
        except IndexError:  # another thread was faster
            return
        several.host_frees(low, high, has_ended, several.Place(device, device))
        if not has_ended:
            _checked.heap.reuse(device, low, high - low)


def takes(device: int, low: int, high: int) -> None:
    """Memory that was given back is used again, and cleared."""
    if is_on():
        several.host_takes(low, high, several.Place(device, device))


def ends(rank: int) -> None:
    """A rank has ended, and its device's memory with it."""
    if _checked.heap is not None:
        _checked.pending += [(rank, low, high, True) for low, high in _checked.heap.allocations(rank)]
        tell_pending()


def last_write(address: int) -> str:
    """Return who wrote an address last, as far as the sanitizer has seen it; empty if it has not."""
    return several.last_write(address) if is_on() else ""


def accesses(address: int, size: int, write: bool) -> None:
    """This thread reads or writes memory."""
    if _checked.heap is not None and size and _checked.heap.device_of(address) is not None:
        several.host_access(address, size, write, _span())


def _span() -> Span | None:
    """Return where the program is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _SKIPPED:
        frame = frame.f_back
    return None if frame is None else Span(frame.f_code.co_filename, frame.f_lineno)
