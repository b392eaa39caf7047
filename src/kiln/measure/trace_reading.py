"""What a trace tells: the path of events that the kernel's time consists of, and the stages of its pipelines.

Both work on measured and predicted traces alike, as far as these have edges and the addresses of mbarriers.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .trace_format import Event, Trace

INSTRUCTIONS = "instructions"
"""What a warp does between its events."""
_MOST_STEPS = 100_000


@dataclasses.dataclass(frozen=True)
class Step:
    """A part of the critical path: from `begin` to `end` nothing else could have let the kernel end earlier."""

    track: int
    what: str
    """The name of an event, or `instructions`."""
    line: str
    begin: float
    end: float
    event: int | None = None


def critical_path(trace: Trace) -> list[Step]:
    """Return the steps that the time of a trace consists of, the first first.

    The path is walked backwards from the last event. An event that another let go on began, as far as the path goes, when that one
    ended; one without a cause follows the event before it on its track.
    """
    events = trace.events
    shown = [index for index, event in enumerate(events) if event.kind not in ("run", "range", "mark")]
    if not shown:
        return []
    causes: dict[int, int] = {}
    for edge in trace.edges:
        before = causes.get(edge.target)
        if before is None or events[edge.source].end > events[before].end:
            causes[edge.target] = edge.source
    tracks = _by_track(trace, shown)
    last, path = _last(trace, shown)
    at: int | None = last
    now = path[0].begin if path else events[last].end
    seen: set[int] = set()
    while at is not None and len(path) < _MOST_STEPS:
        seen.add(at)
        event = events[at]
        before = _before(tracks[_place(trace, event)], events, event)
        cause = causes.get(at)
        if cause in seen or (cause is not None and events[cause].end > now):
            cause = None
        if trace.tracks[event.track].engine:  # it began when it was issued, or when the engine was free
            then = max(
                (each for each in (before, cause) if each is not None), key=lambda each: events[each].end, default=None
            )
            since = event.begin
        elif cause is not None and events[cause].end >= event.begin:
            then = cause
            since = events[cause].end
        else:  # what it waited for was there before
            then = before
            since = event.begin
        since = min(since, now)
        if now > since:
            path.append(Step(event.track, event.name, event.line, since, now, at))
        if then is not None and events[then].end < since:
            path.append(Step(event.track, INSTRUCTIONS, event.line, events[then].end, since))
            since = events[then].end
        now = since
        at = then if then not in seen else None
    if now > 0 and path:
        path.append(Step(path[-1].track, INSTRUCTIONS, path[-1].line, 0.0, now))
    return path[::-1]


def _last(trace: Trace, shown: Sequence[int]) -> tuple[int, list[Step]]:
    """Return the last event of the warp that ends last, with what it does after that; else the last of all events."""
    events = trace.events
    last = max(range(len(events)), key=lambda index: events[index].end)
    own = [index for index in shown if events[index].track == events[last].track]
    if events[last].kind != "run" or not own:
        return max(shown, key=lambda index: events[index].end), []
    after = max(own, key=lambda index: events[index].end)
    before = events[after]
    end = events[last].end
    return after, [Step(before.track, INSTRUCTIONS, before.line, before.end, end)] if before.end < end else []


Place: TypeAlias = tuple[int, int, str]


def _place(trace: Trace, event: Event) -> Place:
    """Return what an event happens on: a warp, or an engine of the CTA, which may work for several warps."""
    track = trace.tracks[event.track]
    return track.block, -1 if track.engine or track.warp is None else track.warp, track.engine


def _by_track(trace: Trace, shown: Sequence[int]) -> dict[Place, list[int]]:
    events = trace.events
    tracks: dict[Place, list[int]] = defaultdict(list)
    for index in sorted(shown, key=lambda index: (events[index].end, events[index].begin)):
        tracks[_place(trace, events[index])].append(index)
    return tracks


def _before(track: Sequence[int], events: Sequence[Event], event: Event) -> int | None:
    """Return the last event of a track that ended when this one began."""
    number = bisect.bisect_right(track, event.begin, key=lambda index: events[index].end)
    while number and events[track[number - 1]] is event:
        number -= 1
    return track[number - 1] if number else None


@dataclasses.dataclass(frozen=True)
class Share:
    """A part of the critical path: the steps of one name and line on tracks of one kind."""

    what: str
    where: str
    """The engine, or the role or "warps"."""
    line: str
    cycles: float
    share: float


def shares(trace: Trace, path: Sequence[Step]) -> list[Share]:
    """Return what a critical path consists of, the largest part first."""
    cycles: dict[tuple[str, str, str], float] = defaultdict(float)
    for step in path:
        track = trace.tracks[step.track]
        cycles[step.what, track.engine or track.role or "warps", step.line] += step.end - step.begin
    total = sum(cycles.values()) or 1.0
    ordered = sorted(cycles.items(), key=lambda item: -item[1])
    return [Share(*key, of, of / total) for key, of in ordered]


# --- pipelines -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Fill:
    """A stage of a pipeline that is filled once, and used."""

    stage: int
    begin: float
    """When the first copy into it was issued."""
    landed: float
    """When the last of its bytes were there."""
    needed: float
    """When the first warp waited for it; `landed` if none did."""
    released: float
    """When it was empty again; at the latest, when it was filled again."""


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The stages of a CTA that copies of the same lines fill."""

    block: int
    lines: tuple[str, ...]
    stages: int
    fills: tuple[Fill, ...]

    @property
    def early(self) -> float:
        """The cycles by which data is there before it is needed, the median of all fills; below 0 it is late."""
        return _median([each.needed - each.landed for each in self.fills])

    @property
    def late(self) -> float:
        """The cycles that warps waited for data that was late, in all."""
        return sum(max(0.0, each.landed - each.needed) for each in self.fills)

    @property
    def empty(self) -> float:
        """The part of the time from the first copy to the last use in which a stage is empty."""
        begin = min(each.begin for each in self.fills)
        end = max(each.released for each in self.fills)
        held = sum(each.released - each.begin for each in self.fills)
        return max(0.0, 1 - held / (self.stages * (end - begin))) if end > begin else 0.0


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def pipelines(trace: Trace) -> list[Pipeline]:
    """Return the pipelines that copies fill, by the mbarriers that these complete: a stage is a full barrier."""
    return _Stages(trace).pipelines()


class _Stages:
    """The copies into stages, the waits for them, and who issued and released them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.loads: dict[tuple[int, int], list[int]] = defaultdict(list)
        """Copies by CTA and mbarrier."""
        self.waits: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        """Waits by CTA and mbarrier, then by track."""
        self.causes: dict[int, list[int]] = defaultdict(list)
        self.waits_of: dict[int, list[int]] = defaultdict(list)
        """All waits of a track, in the order of their ends."""
        for index, event in enumerate(trace.events):
            mbarrier = event.args.get("mbarrier")
            if event.kind == "wait":
                self.waits_of[event.track].append(index)
            if not isinstance(mbarrier, int):
                continue
            key = trace.tracks[event.track].block, mbarrier
            if event.kind == "work":
                self.loads[key].append(index)
            elif event.kind == "wait":
                self.waits[key][event.track].append(index)
        for own in (*self.waits_of.values(), *(each for by_track in self.waits.values() for each in by_track.values())):
            own.sort(key=self._end)
        for edge in trace.edges:
            self.causes[edge.target].append(edge.source)

    def _end(self, index: int) -> float:
        return self.trace.events[index].end

    def _issue(self, load: int) -> int | None:
        return next((each for each in self.causes[load] if self.trace.events[each].kind == "issue"), None)

    def _issued(self, load: int) -> float:
        issue = self._issue(load)
        return self.trace.events[load if issue is None else issue].begin

    def pipelines(self) -> list[Pipeline]:
        groups: dict[tuple[int, tuple[str, ...]], list[list[Fill]]] = defaultdict(list)
        for key in sorted(self.loads, key=lambda key: (key[0], min(map(self._issued, self.loads[key])))):
            lines = tuple(sorted({self.trace.events[index].line for index in self.loads[key]}))
            stages = groups[key[0], lines]
            stages.append(self._fills(len(stages), self.loads[key], self.waits[key]))
        ordered: list[Pipeline] = []
        for (block, lines), stages in groups.items():
            fills = sorted((each for own in stages for each in own), key=lambda one: one.begin)
            ordered.append(Pipeline(block, lines, len(stages), tuple(fills)))
        return ordered

    def _fills(self, stage: int, loads: Sequence[int], waits: Mapping[int, Sequence[int]]) -> list[Fill]:
        """Return the fills of a stage: the copies between two waits of the warp that waits for it most often."""
        events = self.trace.events
        phases = max(waits.values(), key=len, default=[])
        ends = [events[index].end for index in phases]
        copies: dict[int, list[int]] = defaultdict(list)
        for index in loads:
            copies[bisect.bisect_left(ends, events[index].end)].append(index)
        order = sorted(copies)
        fills: list[Fill] = []
        for number, phase in enumerate(order):
            own = [events[each[phase]] for each in waits.values() if phase < len(each)]
            landed = max(map(self._end, copies[phase]))
            needed = min((each.begin for each in own), default=landed)
            if number + 1 < len(order):
                released = self._released(min(copies[order[number + 1]], key=self._issued))
            else:
                released = max((each.end for each in own), default=landed)
            fills.append(Fill(stage, min(map(self._issued, copies[phase])), landed, needed, max(released, landed)))
        return fills

    def _released(self, load: int) -> float:
        """Return when the stage that a copy fills was released: by what its issuer waited for last before, or just now."""
        events = self.trace.events
        issued = self._issued(load)
        issue = self._issue(load)
        if issue is None:
            return issued
        waits = self.waits_of[events[issue].track]
        number = bisect.bisect_right(waits, events[issue].begin, key=self._end)
        arrivals = [self._end(cause) for cause in self.causes[waits[number - 1]]] if number else []
        return min(max(arrivals, default=issued), issued)
