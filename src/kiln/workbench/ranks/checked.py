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
from kiln.targets.cpu.sanitizer import state as native

from ..serve_cuda import device as served
from ..serve_cuda import ranks

_LANES = 64
_SKIPPED = ("kiln", "torch", "threading", "runpy", "contextlib", "weakref")
"""Packages whose frames are not where the program accesses memory."""


class _Lane(threading.local):
    """The number by which the sanitizer knows a thread, a rank's own that of the rank; None: it has none yet."""

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
        """Lanes that no thread has had."""
        self.retired: dict[int, native.Point] = {}
        """Lanes of threads that have ended, and all that these knew."""
        self.lock = fork_safe.rlock()
        self.pending: list[tuple[int, int, int]] = []
        """Memory that was given back, and its device, until the detector hears of it."""


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


def lead(number: int) -> None:
    """This thread is the one that runs the program of a rank."""
    _lane.number = number


def _here(start: native.Point | None = None) -> int:
    """Return the lane of this thread, which begins after `start`."""
    if _lane.number is None:
        with _checked.lock:
            _lane.number = _new_lane(start)
    return _lane.number


def _new_lane(start: native.Point | None) -> int:
    """Return a lane for a thread. It is not that of a thread whose launches could race with this one's, if there is another."""
    joined = [lane for lane, end in _checked.retired.items() if start is not None and _knows(start, lane, end)]
    if joined or (_checked.retired and not _checked.free):
        lane = joined[0] if joined else next(iter(_checked.retired))
        del _checked.retired[lane]
    else:
        if not _checked.free:
            several.say_left_out(f"more than {_LANES} threads at once")
        lane = _checked.free.pop(0) if _checked.free else int(ranks.current() or 0)
    return lane


def _knows(point: native.Point, lane: int, end: native.Point) -> bool:
    """Return whether what a thread had done in its lane at its end comes before a point."""
    if point.forgotten != end.forgotten:
        return point.forgotten > end.forgotten
    return point.ended[lane] >= end.ended[lane]


# --- who has waited for whom -----------------------------------------------------------------------------------------


def point() -> native.Point | None:
    """Return what stands for all that this thread has done so far. Nothing may be locked: this waits for launches."""
    return several.host_point(_here()) if is_on() else None


def after(other: object) -> None:
    """This thread has waited for what `point` returned in another one."""
    if is_on() and isinstance(other, native.Point):
        several.host_follow(_here(other), other)


def retire() -> None:
    """This thread ends, and its lane is another's."""
    if _checked.heap is not None and _lane.number is not None and _lane.number >= len(_checked.heap.ranges()):
        lane, _lane.number = _lane.number, None
        end = several.host_point(lane)
        several.host_retire(lane)
        with _checked.lock:
            _checked.retired[lane] = end


def lane() -> int | None:
    """Return what stands for this thread in `meet`."""
    return _here() if is_on() else None


def meet(lanes: Sequence[int | None]) -> None:
    """Threads, which do nothing else now, have waited for each other."""
    if is_on():
        several.host_meet(list(dict.fromkeys(each for each in lanes if each is not None)))


# --- memory ----------------------------------------------------------------------------------------------------------


def gives_back(device: int, low: int, high: int) -> bool:
    """Return whether the sanitizer takes care of memory that is given back: `tell_pending` gives it to the heap.

    The garbage collector may call this anywhere, also where the detector is at work.
    """
    if is_on():
        _checked.pending.append((device, low, high))
    return is_on()


def tell_pending() -> None:
    """Tell the detector of memory that was given back."""
    while _checked.heap is not None and _checked.pending:
        try:
            device, low, high = _checked.pending.pop(0)
        except IndexError:  # another thread was faster
            return
        several.host_frees(low, high, False, several.Place(device, _here()))
        _checked.heap.reuse(device, low, high - low)


def takes(device: int, low: int, high: int) -> None:
    """Memory that was given back is used again, and cleared."""
    if is_on():
        several.host_takes(low, high, several.Place(device, _here()))


def ends(rank: int) -> None:
    """A rank has ended, and its device's memory with it."""
    if _checked.heap is not None:
        tell_pending()
        for low, high in _checked.heap.allocations(rank):
            several.host_frees(low, high, True, several.Place(rank, _here()))


def last_write(address: int) -> str:
    """Return who wrote an address last, as far as the sanitizer has seen it; empty if it has not."""
    return several.last_write(address) if is_on() else ""


def watches(address: int) -> bool:
    """Return whether the sanitizer looks at accesses of this thread to an address."""
    return _checked.heap is not None and bool(sanitizing.kinds()) and _checked.heap.device_of(address) is not None


def accesses(address: int, size: int, write: bool, offsets: Sequence[int] = (0,)) -> None:
    """This thread reads or writes some bytes of memory at each of some offsets from an address."""
    if size and watches(address):
        several.host_access([address + offset for offset in offsets], size, write, _span())


def _span() -> Span | None:
    """Return where the program is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _SKIPPED:
        frame = frame.f_back
    return None if frame is None else Span(frame.f_code.co_filename, frame.f_lineno)
