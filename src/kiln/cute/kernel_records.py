"""Reads what the warps of a traced kernel recorded: entries become events, and clocks of SMs one time."""

from __future__ import annotations

import dataclasses
import itertools
import os
import struct
from typing import TYPE_CHECKING

from ..base_dsl.kernel_trace import ENTRY, HEADER, OPERAND_BITS, REGION, Header
from ..measure.trace_format import WARP_RUNS, Trace, event_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..base_dsl.kernel_trace import Site, TracedKernel

_LOW = 0xFFFF_FFFF
_LANE = 16
"""The bit of a header's `sm` from which on it has the lane."""


@dataclasses.dataclass
class _Warp:
    """The record of a warp."""

    header: Header
    number: int
    entries: list[tuple[int, int]]
    """Clock, or word of a payload, and code."""

    @property
    def sm(self) -> int:
        return self.header.sm & (1 << _LANE) - 1


def read_kernel(kernel: TracedKernel, data: bytes, on_host: bool) -> Trace | None:
    """Return the trace of a kernel's last launch from the bytes of its region; None if it was not launched."""
    warps = list(_warps(kernel, data))
    if not warps:
        return None
    grid = tuple(warps[0].header.grid)
    trace = Trace(kernel.name, source="ordered" if on_host else "measured", arch="" if on_host else kernel.arch)
    trace.grid = (grid[0], grid[1], grid[2])
    trace.block = kernel.block
    trace.cluster = kernel.cluster
    trace.notes = list(kernel.notes)
    times = _Times(warps, on_host)
    trace.clock_mhz = times.mhz
    for warp in warps:
        _add_warp(trace, kernel, warp, times, on_host)
    trace.lost = sum(warp.header.lost for warp in warps) // ENTRY
    launches = max(warp.header.launches for warp in warps)
    if launches > 1:
        trace.notes.append(f"the last of {launches} launches of this kernel")
    if open_ := sum(not warp.header.end for warp in warps):
        trace.notes.append(f"{open_} warps did not come to their end, so the last of their marks are missing")
    if sms := times.unsure:
        trace.notes.append(f"the clocks of {sms} SMs are compared by the GPU's clock, whose steps are {times.step} ns")
    return trace


def _warps(kernel: TracedKernel, data: bytes) -> Iterator[_Warp]:
    layout = kernel.layout
    for index in range(len(kernel.blocks) * layout.warps):
        start = REGION + index * layout.warp_bytes
        header = Header.from_buffer_copy(data, start)
        if not header.launches:
            continue
        header.block = kernel.blocks[index // layout.warps]
        room = layout.warp_bytes - HEADER
        used = min(header.bytes, room) if header.end else 0
        entries: list[tuple[int, int]] = []
        for chunk in range(start + HEADER, start + HEADER + used, layout.chunk_bytes):
            end = min(chunk + layout.chunk_bytes, start + HEADER + used)
            for word, code in struct.iter_unpack("<2I", data[chunk : end - (end - chunk) % ENTRY]):
                if not code:
                    break
                entries.append((word, code))
        yield _Warp(header, index % layout.warps, entries)


class _Times:
    """The time of a clock of any SM, in cycles since the first warp began.

    SMs count cycles from different moments. All read the GPU's clock, too, which goes in steps: of what an SM read, the
    reading that is furthest ahead is the least late.
    """

    def __init__(self, warps: Sequence[_Warp], on_host: bool) -> None:
        self.mhz: float | None = None
        self.unsure = 0
        self.step = 0
        self._starts: dict[int, int] = {}
        """By SM, the clock at which the first recorded warp began."""
        self._shifts: dict[int, int] = {}
        """By SM, the cycles from the first warp's beginning until then."""
        if on_host:
            first = min(warp.header.begin for warp in warps)
            self._starts = {0: first}
            self._shifts = {0: 0}
            return
        whole = [warp.header for warp in warps if warp.header.end and warp.header.ended > warp.header.began]
        nanoseconds = sum(header.ended - header.began for header in whole)
        rate = sum(header.end - header.begin for header in whole) / nanoseconds if nanoseconds else 0.0
        self.mhz = 1000 * rate if rate else None
        ahead: dict[int, float] = {}
        for warp in warps:
            header = warp.header
            start = self._starts.setdefault(warp.sm, header.begin)
            self._starts[warp.sm] = min(start, header.begin)
        for warp in warps:
            header = warp.header
            stamps = [(header.begin, header.began), *([(header.end, header.ended)] if header.end else [])]
            for clock, clock_of_gpu in stamps:
                shift = clock_of_gpu * rate - (clock - self._starts[warp.sm])
                ahead[warp.sm] = max(ahead.get(warp.sm, shift), shift)
        first_shift = min(ahead.values())
        self._shifts = {sm: round(shift - first_shift) for sm, shift in ahead.items()}
        if len(ahead) > 1:
            self.unsure = len(ahead)
            self.step = _step([stamp for header in whole for stamp in (header.began, header.ended)])

    def of(self, sm: int, clock: int) -> int:
        """Return the time of a clock of an SM."""
        return clock - self._starts[sm] + self._shifts[sm]


def _step(stamps: Sequence[int]) -> int:
    """Return the least difference of clocks that are not the same."""
    each = sorted(set(stamps))
    return min((later - earlier for earlier, later in itertools.pairwise(each)), default=0)


@dataclasses.dataclass
class _Open:
    """An event that has begun."""

    site: Site
    begin: int
    args: dict[str, object]


def _add_warp(trace: Trace, kernel: TracedKernel, warp: _Warp, times: _Times, on_host: bool) -> None:
    """Add the events of a warp."""
    header = warp.header
    sm = None if on_host else warp.sm
    key = 0 if on_host else warp.sm
    track = trace.track(header.block, warp.number, sm=sm)
    clock = header.begin
    open_: list[_Open] = []
    whole = trace.add(track, WARP_RUNS, times.of(key, header.begin), kind="run")
    for word, code, payload in _with_payloads(warp.entries, kernel.sites):
        site = kernel.sites[code >> OPERAND_BITS]
        clock += (word - clock) & _LOW
        now = times.of(key, clock)
        args = _args(site, code, payload)
        if site.phase == "begin":
            open_.append(_Open(site, now, args))
        elif site.phase == "moment":
            trace.add(track, _name(site), now, now, kind=site.kind, line=_line(site), **args)
        elif begun := _begun(open_, site):
            _add(trace, track, begun, now, {**begun.args, **args})
    end = times.of(key, header.end) if header.end else times.of(key, clock)
    for each in open_:
        _add(trace, track, each, end, {**each.args, "ends": "not seen"})
    trace.events[whole].end = end
    trace.events[whole].args = {} if on_host else {"lane": header.sm >> _LANE}


def _with_payloads(entries: Sequence[tuple[int, int]], sites: Sequence[Site]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield clock and code of each entry, with the words that belong to it."""
    last: tuple[int, int, list[int]] | None = None
    for word, code in entries:
        if sites[code >> OPERAND_BITS].phase == "payload":
            if last is not None:
                last[2].append(word)
            continue
        if last is not None:
            yield last
        last = (word, code, [])
    if last is not None:
        yield last


def _begun(open_: list[_Open], site: Site) -> _Open | None:
    """Take the event that an end belongs to from those that have begun; None if its beginning is lost."""
    for index in range(len(open_) - 1, -1, -1):
        one = open_[index].site
        if one.token == site.token and one.kind == site.kind and site.name in ("", one.name):
            return open_.pop(index)
    return None


def _add(trace: Trace, track: int, begun: _Open, end: int, args: dict[str, object]) -> None:
    site = begun.site
    trace.add(track, _name(site), begun.begin, end, kind=site.kind, line=_line(site), **args)


def _args(site: Site, code: int, payload: Sequence[int]) -> dict[str, object]:
    args: dict[str, object] = {}
    if site.operand in ("mbarrier", "barrier"):
        args[site.operand] = code & (1 << OPERAND_BITS) - 1
    elif site.operand == "cluster":
        args["barrier"] = "cluster"
    elif site.operand and payload:
        args["payload" if site.phase != "end" else "payload at end"] = _number(site.operand, payload)
    if site.engine:
        args["engine"] = site.engine
    if site.left is not None:
        args["left"] = site.left
    if site.count > 1:
        args["count"] = site.count
    return args


_FORMATS = {"i32": "<i", "u32": "<I", "f32": "<f", "i64": "<q", "u64": "<Q", "f64": "<d", "i1": "<I"}


def _number(type_: str, words: Sequence[int]) -> object:
    """Return the number that words are."""
    form = _FORMATS[type_]
    data = struct.pack(f"<{len(words)}I", *words)
    value = struct.unpack_from(form, data.ljust(struct.calcsize(form), b"\0"))[0]
    return bool(value) if type_ == "i1" else value


def _name(site: Site) -> str:
    return site.name if site.kind in ("range", "mark") else event_name(site.name)


def _line(site: Site) -> str:
    return "" if site.span is None else f"{os.path.basename(site.span.filename)}:{site.span.line}"
