"""Nsight Systems: runs a Case under `nsys`, and summarises the timeline in its SQLite export."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contracts import ContractError
from .ncu import CannotProfile, find, run_under
from .result import KernelProfile, Profile, Value, add_row, new_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import RenderableType

CALLS = 10
"""Calls in the timeline: gaps are between them."""
_OPTIONS = (
    "profile",
    "--trace=cuda,nvtx",
    "--capture-range=cudaProfilerApi",
    "--capture-range-end=stop",
    "--sample=none",
    "--cpuctxsw=none",
    "--export=sqlite",
    "--force-overwrite=true",
)
_COPIES = {
    1: "host to device",
    2: "device to host",
    8: "device to device",
    10: "device to device (peer)",
    11: "unified memory",
}


def record(job: Mapping[str, object], export: Path, timeout: float) -> Profile:
    """Run some calls of a Case under nsys and read the export."""
    tool = find("nsys")
    export.parent.mkdir(parents=True, exist_ok=True)
    run_under([tool, *_OPTIONS, f"--output={export.with_suffix('')}"], job, timeout, CALLS)
    if not export.exists():
        raise CannotProfile("nsys exported no timeline: it saw no kernel")
    return read(export)


def read(path: str | Path) -> Profile:
    """Return the timeline of an export."""
    if not os.path.isfile(path):
        raise ContractError(f"there is no export {path}")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return _profile(database, Path(path).stem)
    except sqlite3.Error as reason:
        raise ContractError(f"{path} is not a readable SQLite export of Nsight Systems: {reason}") from None


def _profile(database: sqlite3.Connection, name: str) -> Profile:
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "StringIds" not in tables:
        raise sqlite3.DatabaseError("it has no table StringIds")

    def rows(table: str, columns: str, more: str = "") -> list[tuple[Any, ...]]:
        return database.execute(f"SELECT {columns} FROM {table} {more}").fetchall() if table in tables else []

    texts = dict(rows("StringIds", "id, value"))
    columns = "start, end, shortName, registersPerThread, staticSharedMemory + dynamicSharedMemory"
    kernels = rows("CUPTI_ACTIVITY_KIND_KERNEL", columns, "ORDER BY start")
    copies = rows("CUPTI_ACTIVITY_KIND_MEMCPY", "start, end, copyKind, bytes")
    sets = rows("CUPTI_ACTIVITY_KIND_MEMSET", "start, end")
    calls = rows("CUPTI_ACTIVITY_KIND_RUNTIME", "start, end, nameId")
    ranges = rows("NVTX_EVENTS", "start, end, text, textId", "WHERE end IS NOT NULL")
    busy, gaps = _busy([(start, end) for start, end, *_ in [*kernels, *copies, *sets]])
    timeline = {
        "span_us": busy + sum(gaps),
        "busy_us": busy,
        "gaps": {"count": len(gaps), "total_us": sum(gaps), "largest_us": max(gaps, default=0.0)},
        "kernels": _summed((texts.get(which, "?"), start, end) for start, end, which, *_ in kernels),
        "copies": _summed((_COPIES.get(kind, f"kind {kind}"), start, end) for start, end, kind, _ in copies),
        "bytes_per_us": sum(size for *_, size in copies),
        "calls": _summed((texts.get(which, "?"), start, end) for start, end, which in calls),
        "ranges": _summed((text or texts.get(which, "?"), start, end) for start, end, text, which in ranges),
    }
    by_kernel: dict[str, KernelProfile] = {}
    for _, _, which, registers, smem in kernels:
        name_ = texts.get(which, "?")
        metrics: dict[str, Value] = {"Registers/thread": registers, "SMEM/block (KB)": smem / 1024}
        by_kernel.setdefault(name_, KernelProfile(name_, metrics, launches=0)).launches += 1
    for each in timeline["kernels"]:
        by_kernel[each["name"]].metrics["Duration (us)"] = each["median_us"]
    return Profile("nsys", name, list(by_kernel.values()), extra={"timeline": timeline})


def _busy(spans: list[tuple[int, int]]) -> tuple[float, list[float]]:
    """Return the microseconds in which the GPU was busy, and the gaps between them; overlaps count once."""
    busy = 0.0
    gaps = []
    last = None
    for start, end in sorted(spans):
        if last is not None and start > last:
            gaps.append((start - last) / 1e3)
        busy += max(0, end - (start if last is None else max(start, last))) / 1e3
        last = end if last is None else max(last, end)
    return busy, gaps


def _summed(spans: Iterable[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Return count, total and median by name, the longest in total first."""
    durations: dict[str, list[float]] = {}
    for name, start, end in spans:
        durations.setdefault(name, []).append((end - start) / 1e3)
    rows = [
        {"name": name, "count": len(times), "total_us": sum(times), "median_us": statistics.median(times)}
        for name, times in durations.items()
    ]
    return sorted(rows, key=lambda each: (-each["total_us"], each["name"]))


def tables(timeline: Mapping[str, Any] | None) -> list[RenderableType]:
    """Return what is printed of a timeline."""
    if timeline is None:
        return []
    gaps = timeline["gaps"]
    span = timeline["span_us"]
    share = f" ({100 * timeline['busy_us'] / span:.0f} %)" if span else ""
    table = new_table("what", "count", "total us", "median us", left=(0,))
    for kind in ("kernels", "copies", "calls", "ranges"):
        for each in timeline[kind][:10]:
            name = f"{kind.removesuffix('s') if kind != 'copies' else 'copy'}: {each['name']}"
            add_row(table, name, str(each["count"]), f"{each['total_us']:.1f}", f"{each['median_us']:.2f}")
    idle = f"{gaps['count']} gaps, {gaps['total_us']:.1f} us in all, the largest {gaps['largest_us']:.1f} us"
    return [table, f"The GPU was busy for {timeline['busy_us']:.1f} of {span:.1f} us{share}; {idle}.\n"]
