"""Traces of what happened inside kernels, measured or predicted: the file format `kiln.trace/1`, and Perfetto's.

    trace = Trace("gemm", source="predicted", clock_mhz=1755.0)
    warp = trace.track(block=0, warp=3, role="producer")
    trace.add(warp, "mbarrier_wait", 120, 410, kind="wait", line="gemm.py:88")
    Path("gemm.trace.json").write_text(dumps([trace]))

A measured and a predicted trace of a kernel have the same tracks and names, so that they lie over each other:
`to_chrome([measured, predicted])`. docs/reference/trace-format.md has the file, field by field.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypedDict

from ..base_dsl.diagnostics import value_error

Object: TypeAlias = dict[str, object]
"""An object of JSON."""
FORMAT = "kiln.trace/1"
SOURCES = {
    "measured": "by marks in the kernel, on a GPU",
    "predicted": "by the clock, without a GPU",
    "ordered": "by marks on the CPU target, which has no clock: times are the numbers of the marks",
}
KINDS = {
    "run": "a warp, or a CTA, from its first instruction to its last",
    "range": "a range that the program names",
    "mark": "a moment that the program names",
    "wait": "a thread waits: for a barrier, an mbarrier, a group of asynchronous operations",
    "arrive": "a thread, or an engine, arrives where others wait",
    "issue": "a thread hands an operation to an engine",
    "compute": "a warp multiplies, or does what else it waits for itself",
    "work": "an engine carries an operation out",
}
UNITS = {"measured": "cycles", "predicted": "cycles", "ordered": "steps"}
WARP_RUNS = "warp"
"""The name of the event of the kind `run` of a warp."""


def event_name(operation: str) -> str:
    """Return the name of an operation's events: that of the operation without its dialect, as `mbarrier_wait`."""
    return operation.rpartition(".")[2]


@dataclasses.dataclass(frozen=True)
class Track:
    """Where events happen one after another: a warp, or an engine that works for a CTA or for a warp."""

    block: int
    """The number of the CTA in the grid, x running fastest."""
    warp: int | None = None
    """The number of the warp in its CTA; for an engine, that of the warp it works for, None where that is the CTA."""
    engine: str = ""
    """What carries the events out: an engine by its name in `hardware/engines.py`, such as `wgmma` or `bulk load`, or
    another part of the SM or of the program. Empty for a warp's own track."""
    role: str = ""
    """What the program calls the warp, such as `producer`; not part of what tells tracks apart."""
    sm: int | None = None
    """The SM that the CTA ran on, if that is known; not part of what tells tracks apart."""

    @property
    def key(self) -> tuple[int, int, str]:
        """What tells tracks apart, and how they are sorted: CTAs, their warps, then engines."""
        return self.block, -1 if self.warp is None else self.warp, self.engine

    @property
    def name(self) -> str:
        """The name that is shown of it in its CTA."""
        of_warp = [] if self.warp is None else [f"warp {self.warp}"]
        role = [f"({self.role})"] if self.role and not self.engine else []
        return " ".join([*([self.engine] if self.engine else []), *of_warp, *role]) or "CTA"


@dataclasses.dataclass
class Event:
    """What happened on a track from `begin` to `end`; both are the same for a moment."""

    track: int
    """The index of the track."""
    name: str
    begin: float
    end: float
    kind: str
    """One of `KINDS`."""
    line: str = ""
    """The place in the program, as `gemm.py:88`; empty if it is not known."""
    args: Object = dataclasses.field(default_factory=dict)
    """What else is known, by name: `payload` of a mark, `mbarrier`, `stage`, `bytes` and the like."""


@dataclasses.dataclass(frozen=True)
class Edge:
    """One event let another go on: the arrival, or the copy, that ended a wait. Both are indices of events."""

    source: int
    target: int


@dataclasses.dataclass
class Trace:
    """The events of a launch. Times of all tracks are comparable, and 0 is when the first one began."""

    kernel: str
    source: str = "measured"
    """One of `SOURCES`."""
    device: str = ""
    arch: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    launch: int = 0
    """The number of the launch in its call."""
    clock_mhz: float | None = None
    """Cycles in a microsecond; None if that is not known."""
    mark_cycles: float | None = None
    """What a mark costs the warp that makes it, as measured beside the trace."""
    lost: int = 0
    """Marks that are missing because a buffer was full."""
    notes: list[str] = dataclasses.field(default_factory=list)
    tracks: list[Track] = dataclasses.field(default_factory=list)
    events: list[Event] = dataclasses.field(default_factory=list)
    edges: list[Edge] = dataclasses.field(default_factory=list)
    _indices: dict[tuple[int, int, str], int] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def unit(self) -> str:
        """What times are counted in: `cycles` of the SM's clock, or `steps`."""
        return UNITS[self.source]

    def track(
        self, block: int, warp: int | None = None, engine: str = "", *, role: str = "", sm: int | None = None
    ) -> int:
        """Return the index of a track, which is added if there is none of this CTA, warp and engine."""
        track = Track(block, warp, engine, role, sm)
        if len(self._indices) != len(self.tracks):
            self._indices = {there.key: index for index, there in enumerate(self.tracks)}
        index = self._indices.setdefault(track.key, len(self.tracks))
        if index == len(self.tracks):
            self.tracks.append(track)
        return index

    def add(
        self,
        track: int,
        name: str,
        begin: float,
        end: float | None = None,
        *,
        kind: str,
        line: str = "",
        **args: object,
    ) -> int:
        """Add an event, by default a moment, and return its index, by which `link` knows it."""
        self.events.append(Event(track, name, begin, begin if end is None else end, kind, line, args))
        return len(self.events) - 1

    def link(self, source: int, target: int) -> None:
        """Say that one event let another go on."""
        self.edges.append(Edge(source, target))

    def on(self, track: int) -> list[Event]:
        """Return the events of a track as they began, those that contain others first."""
        return sorted((each for each in self.events if each.track == track), key=lambda each: (each.begin, -each.end))

    def check(self) -> None:
        """Raise an error that says which rule of the format the trace breaks, if it breaks one."""
        if self.source not in SOURCES:
            raise value_error(f"the source of a trace is {self.source!r}", f"it is one of {', '.join(SOURCES)}")
        keys: set[tuple[int, int, str]] = set()
        for track in self.tracks:
            if track.key in keys:
                raise value_error(f"there are two tracks {track.name!r} of CTA {track.block}", "events share one")
            keys.add(track.key)
        for number, event in enumerate(self.events):
            if not 0 <= event.track < len(self.tracks):
                raise value_error(f"event {number} ({event.name}) is on track {event.track} of {len(self.tracks)}")
            if event.kind not in KINDS:
                raise value_error(
                    f"event {number} ({event.name}) is a {event.kind!r}", f"it is one of {', '.join(KINDS)}"
                )
            if event.end < event.begin:
                raise value_error(
                    f"event {number} ({event.name}) ends at {event.end}, before it begins at {event.begin}"
                )
        for edge in self.edges:
            if not (0 <= edge.source < len(self.events) and 0 <= edge.target < len(self.events)):
                raise value_error(f"an edge leads from event {edge.source} to {edge.target} of {len(self.events)}")


# --- files -----------------------------------------------------------------------------------------------------------


def dumps(traces: Sequence[Trace]) -> str:
    """Return traces, one for each launch, as the text of a file."""
    for each in traces:
        each.check()
    return json.dumps({"format": FORMAT, "launches": [_to_json(each) for each in traces]}, separators=(",", ":"))


def loads(text: str | bytes) -> list[Trace]:
    """Return the traces of a file's text."""
    try:
        data = json.loads(text)
    except ValueError as reason:
        raise value_error(f"this is no trace: {reason}") from None
    said = data.get("format") if isinstance(data, dict) else None
    if said != FORMAT:
        raise value_error(f"the format of this file is {said!r}", f"this version of Kiln reads {FORMAT}")
    try:
        traces = [_from_json(each) for each in data["launches"]]
    except (KeyError, IndexError, TypeError, ValueError) as reason:
        raise value_error(f"this is no trace of the format {FORMAT}: {type(reason).__name__}: {reason}") from None
    for each in traces:
        each.check()
    return traces


class _Track(TypedDict):
    block: int
    warp: int | None
    engine: str
    role: str
    sm: int | None


class _Site(TypedDict):
    name: str
    kind: str
    line: str


_LISTS = ("notes", "tracks", "events", "edges", "_indices")
_SCALARS = tuple(field.name for field in dataclasses.fields(Trace) if field.name not in _LISTS)


def _to_json(trace: Trace) -> Object:
    sites: dict[tuple[str, str, str], int] = {}
    events: list[list[object]] = []
    for each in trace.events:
        site = sites.setdefault((each.name, each.kind, each.line), len(sites))
        events.append([each.track, site, each.begin, each.end, *([each.args] if each.args else [])])
    return {
        **{name: getattr(trace, name) for name in _SCALARS},
        "unit": trace.unit,
        "notes": trace.notes,
        "tracks": [dataclasses.asdict(each) for each in trace.tracks],
        "sites": [{"name": name, "kind": kind, "line": line} for name, kind, line in sites],
        "events": events,
        "edges": [[each.source, each.target] for each in trace.edges],
    }


class _Launch(TypedDict):
    """The lists of a trace as JSON; its other fields are those of `Trace`."""

    notes: list[str]
    tracks: list[_Track]
    sites: list[_Site]
    events: list[tuple[int, int, float, float] | tuple[int, int, float, float, Object]]
    edges: list[tuple[int, int]]


def _from_json(data: _Launch) -> Trace:
    fields: Mapping[str, object] = data
    values = {name: fields[name] for name in _SCALARS}
    trace = Trace("", notes=list(data["notes"]))
    for name, value in values.items():
        setattr(trace, name, tuple(value) if isinstance(value, list) else value)
    for event in data["events"]:
        site = data["sites"][event[1]]
        own = event[4] if len(event) == 5 else {}
        trace.events.append(Event(event[0], site["name"], event[2], event[3], site["kind"], site["line"], own))
    trace.tracks = [Track(**each) for each in data["tracks"]]
    trace.edges = [Edge(*each) for each in data["edges"]]
    return trace


# --- Perfetto and Chrome ---------------------------------------------------------------------------------------------

_LANES = 64
"""The most tracks that are shown of one, whose events overlap."""


class ChromeTrace(TypedDict):
    """Chrome's format of traces."""

    traceEvents: list[Object]
    displayTimeUnit: str
    otherData: Object


def to_chrome(traces: Sequence[Trace]) -> ChromeTrace:
    """Return traces as an object to write as JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

    CTAs are processes, warps and engines their threads. Events of a track that overlap, as those of engines do, are
    shown on further tracks of the same name, which lets arrows lead to them. Traces of one kernel stand side by side,
    CTA by CTA. Times are microseconds if all clocks are known, else a cycle or a step is shown as one.
    """
    timed = all(trace.clock_mhz and trace.unit == "cycles" for trace in traces)
    shown: list[Object] = []
    for number, trace in enumerate(traces):
        scale = 1 / trace.clock_mhz if timed and trace.clock_mhz else 1.0
        shown += _Shown(trace, number, len(traces), scale).all()
    units = sorted({trace.unit for trace in traces})
    unit = "microseconds" if timed else " and ".join(units)
    return {"traceEvents": shown, "displayTimeUnit": "ns", "otherData": {"unit": unit, "format": FORMAT}}


@dataclasses.dataclass
class _Shown:
    """A trace for Perfetto, as one of several."""

    trace: Trace
    number: int
    count: int
    scale: float
    """Microseconds of a cycle or step."""

    def all(self) -> list[Object]:
        threads: dict[int, int] = {}
        return [*self._processes(), *self._slices(threads), *self._arrows(threads)]

    def _process(self, block: int) -> int:
        return block * self.count + self.number

    def _processes(self) -> Iterator[Object]:
        several = f" of launch {self.trace.launch}" if self.trace.launch else ""
        for block in sorted({track.block for track in self.trace.tracks}):
            sm = next((track.sm for track in self.trace.tracks if track.block == block and track.sm is not None), None)
            place = "" if sm is None else f" on SM {sm}"
            said = f"{self.trace.kernel}{several}: block {block}{place} ({self.trace.source})"
            yield from self._named("process", self._process(block), 0, said, self._process(block))

    def _named(self, what: str, process: int, thread: int, name: str, order: int) -> Iterator[Object]:
        where = {"ph": "M", "pid": process, "tid": thread}
        yield {"name": f"{what}_name", **where, "args": {"name": name}}
        yield {"name": f"{what}_sort_index", **where, "args": {"sort_index": order}}

    def _slices(self, threads: dict[int, int]) -> Iterator[Object]:
        """Yield the events, and note on which thread each is."""
        indices: dict[int, list[int]] = {}
        for index, event in enumerate(self.trace.events):
            indices.setdefault(event.track, []).append(index)
        order = sorted(range(len(self.trace.tracks)), key=lambda index: self.trace.tracks[index].key)
        for rank, which in enumerate(order):
            track = self.trace.tracks[which]
            for lane, own in enumerate(_lanes(self.trace.events, indices.get(which, []))):
                thread = rank * _LANES + lane
                yield from self._named("thread", self._process(track.block), thread, track.name, thread)
                for index in own:
                    threads[index] = thread
                    yield self._slice(self.trace.events[index], track, thread)

    def _slice(self, event: Event, track: Track, thread: int) -> Object:
        lasts = event.end - event.begin
        args = {"kind": event.kind, "line": event.line, self.trace.unit: lasts, **event.args}
        return {
            "name": event.name,
            "cat": event.kind,
            "ph": "X",
            "pid": self._process(track.block),
            "tid": thread,
            "ts": event.begin * self.scale,
            "dur": lasts * self.scale,
            "args": {name: value for name, value in args.items() if value != ""},
        }

    def _arrows(self, threads: Mapping[int, int]) -> Iterator[Object]:
        events = self.trace.events
        for number, edge in enumerate(self.trace.edges):
            for phase, index in (("s", edge.source), ("f", edge.target)):
                event = events[index]
                process = self._process(self.trace.tracks[event.track].block)
                inside = event.end - min(0.5, (event.end - event.begin) / 2)  # Perfetto takes the slice at this time
                where = {"pid": process, "tid": threads[index], "ts": inside * self.scale}
                same = {"name": "lets go on", "cat": "cause", "id": number * self.count + self.number}
                yield {**same, "ph": phase, **where, **({"bp": "e"} if phase == "f" else {})}


def _lanes(events: Sequence[Event], indices: Iterable[int]) -> list[list[int]]:
    """Return the events of a track for as many lanes as they need: those of one lane are nested, or apart."""
    lanes: list[list[int]] = []
    open_: list[list[float]] = []
    for index in sorted(indices, key=lambda index: (events[index].begin, -events[index].end)):
        event = events[index]
        for ends in open_:
            while ends and ends[-1] <= event.begin:
                ends.pop()
        lane = next((at for at, ends in enumerate(open_) if not ends or event.end <= ends[-1]), len(lanes))
        if lane == len(lanes) < _LANES:
            lanes.append([])
            open_.append([])
        lane = min(lane, _LANES - 1)
        lanes[lane].append(index)
        open_[lane].append(event.end)
    return lanes
