"""The resources of compiled kernels, registers, shared memory and occupancy, as a table."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...hardware.architectures import generation_of
from ...hardware.occupancy import occupancy
from ..core.text import table
from ..report.model import words
from .capture import Captured


def described(kernel: dict[str, Any], arch: str, launches: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    """Return a kernel with its first launch, or what of it is compiled in, its occupancy, and the most shared memory."""
    launched = [one for one in launches if one["kernel"] == kernel["name"] and one["arch"] == arch]
    first = launched[0] if launched else {}
    extents = {name: first.get(name) or kernel.get(name) for name in ("grid", "block", "cluster")}
    record = {**kernel, "launches": len(launched), **extents, "most_smem": generation_of(arch).smem_per_block}
    record["file"] = os.path.basename(kernel["file"])
    if first:
        record["dynamic"] = first["smem"]
    return record | resident(record, arch)


def resident(kernel: dict[str, Any], arch: str) -> dict[str, Any]:
    """Return the occupancy of a kernel, if its launch and its registers are known."""
    if not kernel.get("block") or not kernel.get("registers"):
        return {}
    threads = math.prod(kernel["block"])
    shared = kernel.get("smem", 0) + kernel.get("dynamic", 0)
    others = kernel.get("barriers", 0), kernel.get("tmem_columns", 0)
    limits_ = occupancy(arch, threads, kernel["registers"], shared, *others)
    return {
        "blocks": limits_.blocks,
        "warps": limits_.warps,
        "most_warps": limits_.most_warps,
        "limiter": limits_.limiter,
    }


def resources(runs: list[Captured]) -> str:
    """Return a table of the resources of kernels."""
    rows = [_HEAD]
    for captured in runs:
        for one in captured.compiled:
            kernels = [described(kernel, one.arch, captured.launches) for kernel in one.kernels]
            rows += [_row(kernel, one.arch, captured.config) for kernel in kernels]
    if all(not row[1] for row in rows[1:]):
        rows = [(row[0], *row[2:]) for row in rows]
    return "\n".join(table(rows, range(len(_HEAD))))


_HEAD: tuple[str, ...] = (
    "kernel",
    "config",
    "arch",
    "registers",
    "spills",
    "local",
    "shared",
    "threads",
    "blocks/SM",
    "occupancy",
    "limited by",
)


def _row(kernel: dict[str, Any], arch: str, config: Any) -> tuple[str, ...]:
    threads = kernel["block"] and math.prod(kernel["block"])
    has_resources = "registers" in kernel
    share = f"{100 * kernel['warps'] / kernel['most_warps']:.0f} %" if kernel.get("most_warps") else "?"
    return (
        kernel["name"],
        words(config),
        arch,
        str(kernel["registers"]) if has_resources else "no ptxas",
        str(kernel["spill_stores"] + kernel["spill_loads"]) if has_resources else "?",
        str(kernel["stack"]) if has_resources else "?",
        str(kernel.get("smem", 0) + kernel.get("dynamic", 0)),
        str(threads or "?"),
        str(kernel.get("blocks", "?")),
        share,
        kernel.get("limiter", "?"),
    )
