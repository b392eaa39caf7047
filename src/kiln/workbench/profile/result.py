"""Profiles of any origin: metrics of kernels and costs of lines, in tables of one profile or of two side by side."""

from __future__ import annotations

import dataclasses
import linecache
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..._support import notebook
from ..core.text import near_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType
    from rich.table import Table

METRICS = {
    "Duration (us)": "time on the GPU",
    "TC%": "of the cycles in which the tensor cores could work",
    "DRAM%": "of the bandwidth of the GPU's memory",
    "L2 hit%": "of the accesses to the L2 cache",
    "Occupancy%": "resident warps, of those that an SM can hold",
    "Theoretical%": "warps that could be there",
    "Limited by": "what keeps more CTAs from an SM",
    "Registers/thread": "",
    "SMEM/block (KB)": "shared memory, in 1024 bytes",
    "Spills (B)": "stored to and loaded from local memory for want of registers, per thread",
}
"""The metrics that are shown first, in this order."""

STALLS = {
    "barrier": "waits for other warps at a barrier, or for WGMMA",
    "branch_resolving": "waits for the target of a branch",
    "dispatch_stall": "the dispatcher holds it back",
    "drain": "ended, and waits for its stores",
    "gmma": "waits for WGMMA",
    "imc_miss": "waits for a constant that is not in the cache: the kernel's arguments, at its beginning",
    "lg_throttle": "too many accesses to global or local memory: fewer and wider ones",
    "long_scoreboard": "waits for data of global or local memory, or for an mbarrier",
    "math_pipe_throttle": "waits for a pipeline that computes",
    "membar": "waits at a fence",
    "mio_throttle": "too many accesses to shared memory, shuffles or special functions",
    "no_instructions": "waits for its next instruction: code that jumps, or does not fit into the cache",
    "not_selected": "ready, but another warp had its turn",
    "selected": "works",
    "short_scoreboard": "waits for data of shared memory, or for a special function",
    "sleeping": "sleeps",
    "wait": "the fixed latency of the instruction before",
    "warpgroup_arrive": "waits for the other warps of its warpgroup",
}
"""Stall reasons, by Nsight Compute's names."""

Value = float | int | str


@dataclasses.dataclass(frozen=True)
class LineProfile:
    """The cost of a source line: samples by stall reason, or instructions by class."""

    file: str
    line: int
    counts: dict[str, int]
    called: int = 0
    """The cost of functions that only this line calls."""

    @property
    def total(self) -> int:
        """The line's own cost."""
        return sum(self.counts.values())


def with_calls(lines: Sequence[LineProfile], calls: Sequence[Sequence[Any]]) -> list[LineProfile]:
    """Add the cost of called functions to lines; `calls` has lines of functions, each with a line that calls it.

    The cost of a function that several lines call is added to none: which of them it worked for is unknown.
    """
    callers: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for file, line, *caller in calls:
        callers.setdefault((file, line), set()).add((caller[0], caller[1]))
    called: Counter[tuple[str, int]] = Counter()
    for each in lines:
        place = (each.file, each.line)
        seen = {(each.file, each.line)}
        while len(callers.get(place, ())) == 1 and not callers[place] <= seen:
            (place,) = callers[place]
            seen.add(place)
            called[place] += each.total
    own = {(each.file, each.line): each for each in lines}
    own |= {place: LineProfile(*place, {}) for place in called if place not in own}
    return [dataclasses.replace(each, called=called[place]) for place, each in sorted(own.items())]


@dataclasses.dataclass
class KernelProfile:
    """A kernel. `metrics` are those of `METRICS` that are known, and others."""

    name: str
    metrics: dict[str, Value]
    lines: list[LineProfile] = dataclasses.field(default_factory=list[LineProfile])
    launches: int = 1
    sources: dict[str, str] = dataclasses.field(default_factory=dict[str, str], repr=False)
    """Contents of source files that the profile contains."""

    def source(self, line: LineProfile) -> str:
        """Return the text of a line, "" if it is unknown."""
        if line.file in self.sources:
            text = self.sources[line.file].splitlines()
            return text[line.line - 1].strip() if 0 < line.line <= len(text) else ""
        return linecache.getline(line.file, line.line).strip()

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON, without the sources."""
        record = dataclasses.asdict(self)
        del record["sources"]
        return record

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> KernelProfile:
        """Return the profile of `to_json`'s result."""
        return KernelProfile(**{**data, "lines": [LineProfile(**each) for each in data.get("lines", ())]})


@dataclasses.dataclass
class Profile(notebook.Shown):
    """The profile of a Case, or the one in a report."""

    prof_type: str
    """Its kind: "ncu", "static", ..."""
    name: str
    kernels: list[KernelProfile]
    counted: str = "samples"
    """The unit of line costs: "samples" or "instructions"."""
    notes: list[str] = dataclasses.field(default_factory=list[str])
    """Remarks; the first says why another kind of profile was made."""
    extra: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """More JSON, by kind of profile: `static`, `bank_conflicts`, `coalescing`, `timeline`, `trace`."""
    missing: str = ""
    """Why this machine could not make the profile; "" if it could."""
    failed: str = ""
    """The error of a kernel that failed; "" otherwise."""

    @property
    def lines(self) -> list[LineProfile]:
        """The lines of all kernels, the most expensive first."""
        return sorted((line for kernel in self.kernels for line in kernel.lines), key=lambda line: -line.total)

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON."""
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**record, "kernels": [kernel.to_json() for kernel in self.kernels]}

    def __str__(self) -> str:
        return _text(self.tables())

    def _as_html(self) -> str:
        return notebook.page(notebook.source(str(self)))

    def tables(self, lines: int = 10, kernel: str = "") -> list[RenderableType]:
        """Return what is shown of it, for rich to print."""
        return [part for each in self.kernels if kernel in each.name for part in self._of(each, lines)]

    def _of(self, kernel: KernelProfile, lines: int) -> list[RenderableType]:
        times = f", {kernel.launches} launches" if kernel.launches > 1 else ""
        parts: list[RenderableType] = [metrics_table(f"{kernel.name} ({self.prof_type}{times})", {"": kernel.metrics})]
        if kernel.lines and lines:
            parts.append(self._lines_table(kernel, lines))
            parts += self._reasons(kernel)
        return parts

    def _reasons(self, kernel: KernelProfile) -> list[RenderableType]:
        """Return the most frequent stall reasons of a kernel, with their meaning."""
        counted: Counter[str] = Counter()
        for line in kernel.lines:
            counted.update({reason: count for reason, count in line.counts.items() if reason in STALLS})
        if self.counted != "samples" or not counted:
            return []
        total = sum(counted.values())
        table = new_table("warps", "%", "", left=(0, 2))
        for reason, count in counted.most_common(4):
            add_row(table, reason, f"{100 * count / total:.0f}", STALLS[reason])
        return [table]

    def _lines_table(self, kernel: KernelProfile, count: int) -> RenderableType:
        total = sum(line.total for line in kernel.lines) or 1
        calls = any(line.called for line in kernel.lines)
        columns = ("line", self.counted, *(["in calls"] if calls else []), "%", "most of them", "source")
        table = new_table(*columns, left=(0, len(columns) - 2, len(columns) - 1))
        for line in sorted(kernel.lines, key=lambda line: (-line.total - line.called, line.file, line.line))[:count]:
            most = sorted(line.counts.items(), key=lambda item: -item[1])[:3]
            reasons = ", ".join(f"{name} {number}" for name, number in most)
            where = f"{shorter(line.file)}:{line.line}"
            share = f"{100 * (line.total + line.called) / total:.0f}"
            inner = [line.called or ""] if calls else []
            add_row(table, where, line.total, *inner, share, reasons, kernel.source(line)[:80])
        return table


def metrics_table(title: str, columns: Mapping[str, Mapping[str, Value]]) -> RenderableType:
    """Return a table with a row per metric and a column per profile; of two, also the difference."""
    headings = [name for name in columns if name]
    table = new_table(title, *(headings or ["value"]), *(["delta"] if len(columns) == 2 else []), left=(0,))
    profiles = list(columns.values())
    names = [*METRICS, *dict.fromkeys(name for one in profiles for name in one if name not in METRICS)]
    for name in names:
        if any(name in one for one in profiles):
            cells = [shown(one[name]) if name in one else "-" for one in profiles]
            if len(profiles) == 2:
                cells.append(_delta(profiles[0].get(name), profiles[1].get(name)))
            add_row(table, name, *cells)
    return table


def compared(first: Profile, second: Profile) -> list[RenderableType]:
    """Return tables of two profiles: kernels of the same name side by side, else those at the same index."""
    parts: list[RenderableType] = []
    for number, kernel in enumerate(first.kernels):
        same = [other for other in second.kernels if other.name == kernel.name]
        other = same[0] if same else second.kernels[number] if number < len(second.kernels) else None
        if other is None:
            parts.append(metrics_table(f"{kernel.name}: {first.name} only", {"": kernel.metrics}))
            continue
        title = kernel.name if kernel.name == other.name else f"{kernel.name} | {other.name}"
        names = (first.name, second.name) if first.name != second.name else ("first", "second")
        parts.append(metrics_table(title, {names[0]: kernel.metrics, names[1]: other.metrics}))
    if "static" in (first.prof_type, second.prof_type):
        parts.append(
            "Occupancy and code size do not say which is faster. The warps of the grid execute a loop's instructions "
            "once per iteration.\n"
        )
    return parts


def shown(value: Value) -> str:
    """Format a number with as many digits as matter."""
    if not isinstance(value, float):
        return str(value)
    if 0 < abs(value) < 1:
        return f"{value:.3g}"
    return f"{value:.{0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2}f}"


def _delta(first: Value | None, second: Value | None) -> str:
    if isinstance(first, str) or isinstance(second, str) or first is None or second is None:
        return ""
    change = f"{second - first:+.2f}" if isinstance(second - first, float) else f"{second - first:+d}"
    return f"{change} ({100 * (second / first - 1):+.1f} %)" if first else change


def shorter(file: str) -> str:
    """Return a path relative to the current directory if it is below it, else its last two parts."""
    near = near_path(file)
    return near if near != file or not os.path.isabs(file) else os.path.join(*file.split(os.sep)[-2:])


def new_table(*columns: str, left: Sequence[int] = ()) -> Table:
    """Return a table without rows."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number in left else "right", overflow="fold")
    return table


def add_row(table: Table, *cells: object) -> None:
    """Add a row of plain text: brackets in a line of a program are no style."""
    from rich.text import Text

    table.add_row(*(Text(str(cell)) for cell in cells))


def _text(parts: Sequence[RenderableType]) -> str:
    from rich.console import Console

    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        for part in parts:
            console.print(part, markup=False)
    return capture.get()
