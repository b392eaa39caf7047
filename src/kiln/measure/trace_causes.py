"""What follows from a measured trace: how long engines were at work, and which arrival let which wait go on.

Warps record when they issue, arrive and wait; engines record nothing. Their work lasts from the issue until a wait for
it has ended, which is when it was seen to be complete: it may have been complete before, as `args` says.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections import defaultdict
from typing import TYPE_CHECKING

from ..hardware.engines import BULK_LOAD, BULK_SOURCE, BULK_STORE, COPY, TCGEN05, WGMMA

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .trace_format import Event, Trace

_OF_WARPGROUPS = ("wgmma",)
_WARPS = 4
"""Warps of a warpgroup, which issue to its engine together."""


def add_causes(trace: Trace) -> None:
    """Add the work of engines to a trace of warps, and edges to the waits that ended by it, or by an arrival."""
    recorded = list(enumerate(trace.events))
    works = _by_commits(trace, recorded)
    works += _groups(trace, recorded, {issue for issue, _ in works}) + _by_mbarriers(trace, recorded)
    for issue, wait in works:
        _add_work(trace, issue, wait)
    _mbarrier_arrivals(trace, recorded)
    _barrier_arrivals(trace, recorded)
    _add_roles(trace, recorded)


_DOES = {
    **dict.fromkeys((BULK_LOAD.name, COPY.name), "load"),
    **dict.fromkeys((WGMMA.name, TCGEN05.name), "mma"),
    **dict.fromkeys((BULK_STORE.name, BULK_SOURCE.name), "store"),
}
"""What a warp does that issues to an engine, or waits for it."""


def _add_roles(trace: Trace, events: Sequence[tuple[int, Event]]) -> None:
    """Name warps whose work is of one kind, as those of kernels are whose warps have roles."""
    does: dict[int, set[str]] = defaultdict(set)
    for _, event in events:
        does[event.track].add("mma" if event.kind == "compute" else _DOES.get(str(event.args.get("engine")), ""))
    for number, kinds in does.items():
        if "mma" in kinds:
            role = "" if "load" in kinds else "consumer"
        else:
            role = {"load": "producer", "store": "epilogue"}.get("".join(kinds - {""}), "")
        if not trace.tracks[number].role:
            trace.tracks[number] = dataclasses.replace(trace.tracks[number], role=role)


def _by_commits(trace: Trace, events: Sequence[tuple[int, Event]]) -> list[tuple[int, int]]:
    """Return issues whose completion arrives at an mbarrier, with the first waits there that ended after that."""
    waits = _at(trace, events, "mbarrier", ("wait",))
    works: list[tuple[int, int]] = []
    pending: dict[tuple[int, object], list[int]] = defaultdict(list)
    for index, event in sorted(events, key=lambda one: (one[1].begin, one[1].end)):
        engine = event.args.get("engine")
        if event.kind == "issue" and engine and "mbarrier" not in event.args:
            pending[event.track, engine].append(index)
        elif event.kind == "arrive" and engine and "mbarrier" in event.args:
            those = waits[trace.tracks[event.track].block, event.args["mbarrier"]]
            after = bisect.bisect_left(those, (event.end, -1))
            issued = pending.pop((event.track, engine), [])
            works += [(issue, those[after][1]) for issue in issued if after < len(those)]
    return works


def _groups(trace: Trace, events: Sequence[tuple[int, Event]], others: Collection[int]) -> list[tuple[int, int]]:
    """Return issues with the waits for groups of operations that saw them complete: groups complete in order."""
    works: list[tuple[int, int]] = []
    pending: dict[tuple[int, object], list[int]] = defaultdict(list)
    for index, event in sorted(events, key=lambda one: (one[1].end, one[1].begin)):
        queue = pending[event.track, event.args.get("engine")]
        if event.kind == "issue" and "mbarrier" not in event.args and index not in others:
            queue.append(index)
        left = event.args.get("left")
        if event.kind == "wait" and isinstance(left, int):
            complete = queue[: max(0, len(queue) - left)]
            del queue[: len(complete)]
            works += [(issue, index) for issue in complete]
    return works


def _by_mbarriers(trace: Trace, events: Sequence[tuple[int, Event]]) -> list[tuple[int, int]]:
    """Return issues with the first waits at their mbarrier that ended after them."""
    waits = _at(trace, events, "mbarrier", ("wait",))
    works: list[tuple[int, int]] = []
    for index, event in events:
        if event.kind != "issue" or "mbarrier" not in event.args:
            continue
        those = waits[trace.tracks[event.track].block, event.args["mbarrier"]]
        after = bisect.bisect_left(those, (event.end, -1))
        if after < len(those):
            works.append((index, those[after][1]))
    return works


def _at(
    trace: Trace, events: Sequence[tuple[int, Event]], what: str, kinds: Sequence[str]
) -> dict[tuple[int, object], list[tuple[float, int]]]:
    """Return the ends and indices of events of some kinds, in order, by CTA and the mbarrier or barrier."""
    ends: dict[tuple[int, object], list[tuple[float, int]]] = defaultdict(list)
    for index, event in events:
        if event.kind in kinds and what in event.args:
            ends[trace.tracks[event.track].block, event.args[what]].append((event.end, index))
    for those in ends.values():
        those.sort()
    return ends


def _add_work(trace: Trace, issue: int, wait: int) -> None:
    """Add the work of an issue on the track of its engine, and an edge to the wait that saw it complete."""
    event = trace.events[issue]
    track = trace.tracks[event.track]
    engine = str(event.args.get("engine", ""))
    if not engine:
        return
    warp = track.warp
    if engine in _OF_WARPGROUPS and warp is not None:
        if warp % _WARPS:
            return
    else:
        warp = None
    where = trace.track(track.block, warp, engine, sm=track.sm)
    args = {name: value for name, value in event.args.items() if name not in ("engine", "left")}
    begin = event.begin
    end = max(begin, trace.events[wait].end)
    work = trace.add(where, event.name, begin, end, kind="work", line=event.line, **args)
    trace.events[work].args["until"] = "it was seen to be complete"
    trace.link(work, wait)


def _mbarrier_arrivals(trace: Trace, events: Sequence[tuple[int, Event]]) -> None:
    """Add an edge to each wait at an mbarrier from the last arrival of another warp while it waited."""
    caused = {edge.target for edge in trace.edges}
    arrivals = _at(trace, events, "mbarrier", ("arrive",))
    for index, event in events:
        if event.kind != "wait" or "mbarrier" not in event.args or index in caused:
            continue
        those = arrivals[trace.tracks[event.track].block, event.args["mbarrier"]]
        at = bisect.bisect_right(those, (event.end, len(trace.events))) - 1
        while at >= 0 and trace.events[those[at][1]].track == event.track:
            at -= 1
        if at >= 0 and those[at][0] >= event.begin:
            trace.link(those[at][1], index)


def _barrier_arrivals(trace: Trace, events: Sequence[tuple[int, Event]]) -> None:
    """Add an edge to each wait at a barrier of a CTA, or of a cluster, from the warp that came last.

    Each warp comes to a barrier once before it opens, so that the warps' n-th arrivals belong together, if all have
    as many. Where a warp arrives and waits apart, its arrivals count.
    """
    warps: dict[tuple[object, object], dict[int, list[int]]] = {}
    for index, event in events:
        if event.kind in ("arrive", "wait") and "barrier" in event.args:
            barrier = event.args["barrier"]
            block = trace.tracks[event.track].block
            where = _cluster(trace, block) if barrier == "cluster" else block
            warps.setdefault((where, barrier), {}).setdefault(event.track, []).append(index)
    for (_, barrier), by_track in warps.items():
        blocks = {trace.tracks[track].block for track in by_track}
        if barrier == "cluster" and len(blocks) < math.prod(trace.cluster):
            continue  # the last one may be in a CTA that was not recorded
        kinds = {track: _in_order(trace, those) for track, those in by_track.items()}
        arrivals = [arrive or wait for arrive, wait in kinds.values()]
        if len({len(those) for those in arrivals}) > 1:
            continue
        waits = {track: wait for track, (_, wait) in kinds.items()}
        for number, together in enumerate(zip(*arrivals, strict=True)):
            last = max(together, key=lambda index: trace.events[index].begin)
            for track, those in waits.items():
                if number < len(those) and trace.events[last].track != track:
                    trace.link(last, those[number])


def _cluster(trace: Trace, block: int) -> tuple[int, ...]:
    """Return the place of a CTA's cluster in the grid."""
    x, y, _ = trace.grid
    place = (block % x, block // x % y, block // (x * y))
    return tuple(index // extent for index, extent in zip(place, trace.cluster, strict=True))


def _in_order(trace: Trace, indices: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the arrivals among events of a warp, and the waits, both in order."""
    ordered = sorted(indices, key=lambda index: trace.events[index].begin)
    arrivals = [index for index in ordered if trace.events[index].kind == "arrive"]
    return arrivals, [index for index in ordered if trace.events[index].kind == "wait"]
