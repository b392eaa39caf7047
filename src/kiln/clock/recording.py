"""What the warps of a kernel did: recorded on the CPU target, in the order of each warp.

with Recording(blocks=4) as recording:
    main(x, y)
for launch in recording.launches: ...
"""

from __future__ import annotations

import dataclasses
import heapq
from typing import TYPE_CHECKING

import numpy as np

from ..base_dsl import sanitizing
from ..base_dsl.target import Instrumented
from ..hardware.warp_accesses import WarpAccess
from ..targets.cpu.event_recorder import Recorded
from ..targets.cpu.events import VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from ..targets.cpu.event_recorder import EventSite

_NEXT = 4
_EVENT = np.dtype(
    [
        ("site", "u4"),
        ("time", "u4"),
        ("warp", "u4"),
        ("mask", "u4"),
        ("in_bucket", "u4"),
        ("unused", "u4"),
        ("following", "u4", _NEXT),
        ("values", "u8", VALUES),
    ]
)
_WARP = np.dtype([("launch", "u4"), ("block", "u4"), ("number", "u4"), ("last", "u4", 32)])


@dataclasses.dataclass(frozen=True)
class Event:
    """What lanes of a warp did at a site; the values are those of the first lane."""

    site: EventSite
    mask: int
    values: tuple[int, ...]
    repeats: bool = False
    """Whether other lanes did it at the same time with another first value, and stand before it."""


@dataclasses.dataclass
class Warp:
    """The events of a warp in order."""

    block: int
    number: int
    events: list[Event]


@dataclasses.dataclass
class Launch:
    """The recorded warps of a launch: those of some CTAs."""

    kernel: str
    warps: list[Warp]

    @property
    def blocks(self) -> list[int]:
        """The CTAs that were recorded."""
        return sorted({warp.block for warp in self.warps})


class Recording:
    """Runs what this thread calls on the CPU target while it is open, and records some CTAs of each launch."""

    def __init__(self, blocks: int = 4) -> None:
        request = sanitizing.Request((*sanitizing.COUNTS, sanitizing.EVENTS), raises=False)
        request.blocks = blocks
        self._delivered: list[object] = request.accesses
        self._run = Instrumented(request)

    def __enter__(self) -> Self:
        self._run.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._run.__exit__()

    @property
    def launches(self) -> list[Launch]:
        """The launches of all calls, in order."""
        return [launch for one in self._delivered if isinstance(one, Recorded) for launch in _launches(one)]

    @property
    def accesses(self) -> list[WarpAccess]:
        """The accesses of warps to memory, by place."""
        return [one for one in self._delivered if isinstance(one, WarpAccess)]


def _launches(recorded: Recorded) -> Iterator[Launch]:
    events = np.frombuffer(recorded.events, dtype=_EVENT)
    warps = np.frombuffer(recorded.warps, dtype=_WARP)
    order = np.argsort(events["warp"][1:], kind="stable") + 1
    starts = np.searchsorted(events["warp"][order], np.arange(len(warps) + 1))
    for launch in np.unique(warps["launch"]):
        recorded_warps: list[Warp] = []
        for index in np.flatnonzero(warps["launch"] == launch):
            own = order[starts[index] : starts[index + 1]]
            sequence: list[Event] = []
            seen: set[tuple[int, int]] = set()
            for number in _sorted(events, own):
                row = events[number]
                moment = int(row["site"]), int(row["time"])
                values = tuple(map(int, row["values"]))
                sequence.append(Event(recorded.sites[row["site"]], int(row["mask"]), values, moment in seen))
                seen.add(moment)
            recorded_warps.append(Warp(int(warps[index]["block"]), int(warps[index]["number"]), sequence))
        kernels = {event.site.kernel for warp in recorded_warps for event in warp.events}
        yield Launch(kernels.pop() if len(kernels) == 1 else "", recorded_warps)


def _sorted(events: np.ndarray, own: np.ndarray) -> list[int]:
    """Return the numbers of a warp's events so that each stands before those that its lanes had next.

    Among those that may come next, the one that was recorded first does. Lanes that took different ways round a loop may have had two
    events in different order: then the one that was recorded first comes first.
    """
    following = {int(number): [int(each) for each in events[number]["following"] if each] for number in own}
    before = dict.fromkeys(following, 0)
    for nexts in following.values():
        for each in nexts:
            before[each] += 1
    ready = [number for number, count in before.items() if not count]
    heapq.heapify(ready)
    ordered: list[int] = []
    placed: set[int] = set()
    while len(ordered) < len(before):
        if not ready:  # a circle
            ready.append(min(number for number in before if number not in placed))
        number = heapq.heappop(ready)
        if number in placed:
            continue
        placed.add(number)
        ordered.append(number)
        for each in following[number]:
            before[each] -= 1
            if not before[each]:
                heapq.heappush(ready, each)
    return ordered
