"""Ranges inside kernels (`cute.testing.range`), as a time line for Perfetto and as a table."""

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
    """A range from its beginning to its end, in cycles (on the CPU target, in marks); `at` is the GPU's clock at its beginning."""

    name: str
    block: int
    warp: int
    start: int
    end: int
    at: int


def spans(events: Iterable[RangeEvent]) -> list[Span]:
    """Beginnings with their ends; those whose other half is lost are left out. In the order of the ends, warp by warp."""
    found: list[Span] = []
    begun: dict[tuple[int, int], list[RangeEvent]] = {}
    for event in events:
        stack = begun.setdefault((event.block, event.warp), [])
        if event.begins:
            stack.append(event)
        elif stack and stack[-1].name == event.name:
            first = stack.pop()
            found.append(Span(event.name, event.block, event.warp, first.time, event.time, first.nanoseconds))
    return found


def chrome(found: list[Span], on_host: bool) -> dict[str, Any]:
    """A trace that Perfetto and Chrome show: blocks are processes, warps threads.

    Times are cycles, as if each took a microsecond. Clocks of multiprocessors have nothing in common, so a block's begins where the GPU's
    clock, which is coarse, saw its first range begin; on the CPU target there is one clock.
    """
    first: dict[int, Span] = {}
    for span in found:
        if span.block not in first or span.start < first[span.block].start:
            first[span.block] = span
    origin = min((span.at for span in first.values()), default=0)
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": block, "args": {"name": f"block {block}"}} for block in sorted(first)
    ]
    for span in sorted(found, key=lambda span: (span.block, span.warp, span.start, -span.end)):
        begun = span.start if on_host else span.start - first[span.block].start + first[span.block].at - origin
        name = {"name": span.name, "ph": "X", "pid": span.block, "tid": span.warp}
        events.append({**name, "ts": begun, "dur": span.end - span.start})
    return {"traceEvents": events, "otherData": {"unit": "steps" if on_host else "cycles"}}


def summary(found: list[Span]) -> list[dict[str, Any]]:
    """By name: how many, how long in all, the median, the longest; the longest in all first."""
    times: dict[str, list[int]] = {}
    for span in found:
        times.setdefault(span.name, []).append(span.end - span.start)
    made = [
        {"name": name, "count": len(each), "total": sum(each), "median": statistics.median(each), "longest": max(each)}
        for name, each in times.items()
    ]
    return sorted(made, key=lambda each: (-each["total"], each["name"]))


def profile_of(result: Mapping[str, Any], name: str) -> Profile:
    """What the job that traced has to say."""
    if not result["ranges"]:
        raise ContractError(
            f'{name} has no range in its kernels: write `with cute.testing.range("load"):` around what is to be seen'
        )
    notes = [f"{result['path']}: open it at ui.perfetto.dev; a microsecond there is one of the {result['unit']}"]
    if result["lost"]:
        notes.append(f"{result['lost']} beginnings and ends were lost: warps keep their last ones only")
    return Profile("trace", name, [], notes=notes, extra={"trace": dict(result)})


def tables(result: Mapping[str, Any] | None) -> list[RenderableType]:
    """What is printed of a trace."""
    if result is None:
        return []
    unit = result["unit"]
    table = new_table("range", "count", f"median {unit}", f"longest {unit}", f"total {unit}", left=(0,))
    for each in result["ranges"]:
        add_row(table, each["name"], each["count"], f"{each['median']:g}", each["longest"], each["total"])
    return [table]


def file_for(report: Path) -> Path:
    """Where the trace of a profile is written."""
    report.parent.mkdir(parents=True, exist_ok=True)
    return report.with_name(f"{report.name}.trace.json")
