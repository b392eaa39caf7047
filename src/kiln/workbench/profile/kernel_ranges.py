"""`kiln profile --prof-type trace`: what happens in a kernel, as a timeline for Perfetto and as a table."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...cute.kernel_trace import KernelTrace
from ...measure import trace_format
from ..core.contracts import ContractError
from .result import Profile, add_row, new_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from ...measure.trace_format import Trace

OWN = ".kiln.json"
"""The suffix of traces in the format `kiln.trace/1`."""
PERFETTO = ".trace.json"
"""The suffix of traces for Perfetto."""


class Choices(NamedTuple):
    """What of a kernel is traced."""

    level: str = "waits"
    blocks: tuple[int, ...] = tuple(range(8))
    marks: int = 4096
    lane: int | None = None

    def trace(self) -> KernelTrace:
        """Return a trace that records this."""
        return KernelTrace(self.level, tuple(self.blocks), self.marks, self.lane)


def choices_of(fields: Mapping[str, Any]) -> Choices:
    """Return choices that went through JSON."""
    return Choices(**fields)


def blocks_of(text: str) -> tuple[int, ...]:
    """Return the CTAs that `--trace-ctas` names, as `0-7,131`."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ContractError(f"--trace-ctas {text}: {part!r} is no number and no range such as 0-7")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(dict.fromkeys(numbers))


def summary(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return kind, count, total, median and longest of the events of a name and a line, the longest in total first."""
    times: dict[tuple[str, str, str], list[float]] = {}
    for trace in traces:
        for event in trace.events:
            if event.kind != "run":
                times.setdefault((event.name, event.kind, event.line), []).append(event.end - event.begin)
    rows = [
        {
            "name": name,
            "kind": kind,
            "line": line,
            "count": len(each),
            "total": sum(each),
            "median": statistics.median(each),
            "longest": max(each),
        }
        for (name, kind, line), each in times.items()
    ]
    return sorted(rows, key=lambda each: (-each["total"], each["name"], each["line"]))


def written(traces: Sequence[Trace], path: str, times: Sequence[float], cost: object) -> dict[str, object]:
    """Write traces to two files, and return what of them is printed; `times` are microseconds with and without marks."""
    own = path.removesuffix(PERFETTO) + OWN
    with open(path, "w") as file:
        json.dump(trace_format.to_chrome(traces), file)
    with open(own, "w") as file:
        file.write(trace_format.dumps(traces))
    return {
        "unit": traces[0].unit if traces else "cycles",
        "timed": bool(traces) and all(each.clock_mhz for each in traces),
        "ranges": summary(traces),
        "lost": sum(each.lost for each in traces),
        "notes": [f"{each.kernel}: {note}" for each in traces for note in each.notes],
        "us": list(times),
        "mark": None if cost is None else str(cost),
        "path": path,
        "own": own,
    }


def profile_of(result: Mapping[str, Any], name: str) -> Profile:
    """Return the result of a tracing job as a profile."""
    if not result["ranges"]:
        raise ContractError(
            f'{name} has no range in its kernels: write `with cute.testing.range("load"):` around what is to be seen, '
            "or ask for --trace=waits"
        )
    unit = result["unit"]
    shown = "times are microseconds" if result["timed"] else f"a microsecond there is one of the {unit}"
    notes = [f"{result['path']}: open it at ui.perfetto.dev; {shown}", f"{result['own']}: the same for programs"]
    if result["lost"]:
        notes.append(f"{result['lost']} marks were lost: --trace-marks keeps more of a warp")
    if result["us"]:
        traced, untraced = result["us"]
        notes.append(
            f"{traced:.4g} us with the marks, {untraced:.4g} us without: {traced / untraced:.3f} times as long"
        )
    if result["mark"]:
        notes.append(f"a mark takes {result['mark']}")
    return Profile("trace", name, [], notes=[*notes, *result["notes"]], extra={"trace": dict(result)})


def tables(result: Mapping[str, Any] | None) -> list[RenderableType]:
    """Return what is printed of a trace."""
    if result is None:
        return []
    unit = result["unit"]
    columns = ("event", "kind", "line", "count", f"median {unit}", f"longest {unit}", f"total {unit}")
    table = new_table(*columns, left=(0, 1, 2))
    for each in result["ranges"]:
        numbers = (each["count"], f"{each['median']:g}", f"{each['longest']:g}", f"{each['total']:g}")
        add_row(table, each["name"], each["kind"], each["line"], *numbers)
    return [table]


def read(path: str) -> Profile:
    """Return the profile of traces in the format `kiln.trace/1`."""
    traces = trace_format.loads(Path(path).read_bytes())
    unit = traces[0].unit if traces else "cycles"
    notes = [f"{trace.kernel}: {trace.source} {trace.device}".rstrip() for trace in traces]
    notes += [note for trace in traces for note in trace.notes]
    return Profile(
        "trace",
        Path(path).name.removesuffix(OWN),
        [],
        notes=notes,
        extra={"trace": {"unit": unit, "ranges": summary(traces), "own": path}},
    )


def file_for(report: Path) -> Path:
    """Return where the trace of a profile is written, for Perfetto; `OWN` stands in for `PERFETTO` in the other file."""
    report.parent.mkdir(parents=True, exist_ok=True)
    return report.with_name(f"{report.name}{PERFETTO}")
