"""Ranges inside kernels (`cute.testing.range`), as a timeline for Perfetto and as a table."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.contracts import ContractError
from .result import Profile, add_row, new_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType

    from ...cute.kernel_ranges import RangeEvent


class Span(NamedTuple):
    """A range in cycles (on the CPU target, in steps); `at` is the GPU's global clock at its start."""

    name: str
    block: int
    warp: int
    start: int
    end: int
    at: int


def spans(events: Iterable[RangeEvent]) -> list[Span]:
    """Pair starts with ends, leaving out those whose other half is lost; in the order of the ends, warp by warp."""
    spans_: list[Span] = []
    begun: dict[tuple[int, int], list[RangeEvent]] = {}
    for event in events:
        stack = begun.setdefault((event.block, event.warp), [])
        if event.begins:
            stack.append(event)
        elif stack and stack[-1].name == event.name:
            first = stack.pop()
            spans_.append(Span(event.name, event.block, event.warp, first.time, event.time, first.nanoseconds))
    return spans_


def chrome(ranges: list[Span], on_host: bool) -> dict[str, Any]:
    """Return a trace for Perfetto and Chrome: CTAs are processes, warps threads.

    A cycle is shown as a microsecond. Clocks of SMs are not synchronised, so a CTA starts where the GPU's coarse
    global clock saw its first range; the CPU target has one clock.
    """
    first: dict[int, Span] = {}
    for span in ranges:
        if span.block not in first or span.start < first[span.block].start:
            first[span.block] = span
    origin = min((span.at for span in first.values()), default=0)
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": block, "args": {"name": f"block {block}"}} for block in sorted(first)
    ]
    for span in sorted(ranges, key=lambda span: (span.block, span.warp, span.start, -span.end)):
        begun = span.start if on_host else span.start - first[span.block].start + first[span.block].at - origin
        name = {"name": span.name, "ph": "X", "pid": span.block, "tid": span.warp}
        events.append({**name, "ts": begun, "dur": span.end - span.start})
    return {"traceEvents": events, "otherData": {"unit": "steps" if on_host else "cycles"}}


def summary(ranges: list[Span]) -> list[dict[str, Any]]:
    """Return count, total, median and longest of each range, the longest in total first."""
    times: dict[str, list[int]] = {}
    for span in ranges:
        times.setdefault(span.name, []).append(span.end - span.start)
    rows = [
        {"name": name, "count": len(each), "total": sum(each), "median": statistics.median(each), "longest": max(each)}
        for name, each in times.items()
    ]
    return sorted(rows, key=lambda each: (-each["total"], each["name"]))


def profile_of(result: Mapping[str, object], name: str) -> Profile:
    """Return the result of a tracing job as a profile."""
    if not result["ranges"]:
        raise ContractError(
            f'{name} has no range in its kernels: write `with cute.testing.range("load"):` around what is to be seen'
        )
    notes = [f"{result['path']}: open it at ui.perfetto.dev; a microsecond there is one of the {result['unit']}"]
    if result["lost"]:
        notes.append(f"{result['lost']} beginnings and ends were lost: warps keep their last ones only")
    return Profile("trace", name, [], notes=notes, extra={"trace": dict(result)})


def tables(result: Mapping[str, Any] | None) -> list[RenderableType]:
    """Return what is printed of a trace."""
    if result is None:
        return []
    unit = result["unit"]
    table = new_table("range", "count", f"median {unit}", f"longest {unit}", f"total {unit}", left=(0,))
    for each in result["ranges"]:
        add_row(table, each["name"], each["count"], f"{each['median']:g}", each["longest"], each["total"])
    return [table]


def file_for(report: Path) -> Path:
    """Return where the trace of a profile is written."""
    report.parent.mkdir(parents=True, exist_ok=True)
    return report.with_name(f"{report.name}.trace.json")
