"""Writes what was compiled as files: MLIR, LLVM, PTX, cubin and SASS of each kernel, and the resources it uses."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base_dsl.compiler import safe_name
from ...base_dsl.diagnostics import DSLBaseError
from ...hardware.occupancy import occupancy

if TYPE_CHECKING:
    from collections.abc import Iterable

KINDS = {"mlir": "mlir", "llvm": "ll", "ptx": "ptx", "cubin": "cubin", "sass": "sass"}
"""Artefacts and the suffixes of their files."""


def write_artifacts(launches: Iterable[Any], folder: Path) -> list[Path]:
    """Write the artefacts of a dry run's launches and `resources.json` to a folder; return the paths.

    A kernel that was launched several times is written once. `resources.json` says why an artefact is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    resources: dict[str, dict[str, Any]] = {}
    for launch in launches:
        name = safe_name(launch.kernel)
        if name in resources:
            resources[name]["launches"] += 1
            continue
        resources[name] = resources_of(launch)
        for kind, ending in KINDS.items():
            try:
                data = launch.artifacts.get(kind)
            except DSLBaseError as reason:
                resources[name].setdefault("missing", {})[kind] = str(reason)
                continue
            if data:
                written.append(folder / f"{name}.{ending}")
                written[-1].write_bytes(data.encode() if isinstance(data, str) else data)
    written.append(folder / "resources.json")
    written[-1].write_text(json.dumps(resources, indent=2) + "\n")
    return written


def resources_of(launch: Any) -> dict[str, Any]:
    """Return the resources that a launch needs, as JSON."""
    used = dataclasses.asdict(launch.resources)
    used |= {"smem": launch.resources.static_smem + launch.smem, "dynamic_smem": launch.smem}
    taken = (used[name] for name in ("registers", "smem", "barriers", "tmem_columns"))
    runs = occupancy(launch.arch, math.prod(launch.block), *taken)
    return {
        "arch": launch.arch,
        "grid": launch.grid,
        "block": launch.block,
        "cluster": launch.cluster,
        "launches": 1,
        **used,
        "blocks_per_sm": runs.blocks,
        "limited_by": runs.limiter,
    }
