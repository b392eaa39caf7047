"""Nsight Compute: runs a Case under `ncu`, and reads its reports, also those of other machines."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base_dsl import packages
from ..core.contracts import ContractError
from ..core.runners import child_environment
from .result import KernelProfile, LineProfile, Profile, Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECTIONS = (
    "SpeedOfLight",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "Occupancy",
    "LaunchStats",
    "WarpStateStats",
    "SourceCounters",
)
OPTIONS = (
    "--profile-from-start",
    "off",
    "--clock-control",
    "none",
    "--cache-control",
    "all",
    "--import-source",
    "yes",
    "--target-processes",
    "all",
    "--force-overwrite",
)
PLACES = {
    "ncu": ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"),
    "nsys": ("/usr/local/cuda*/bin/nsys", "/opt/nvidia/nsight-systems/*/bin/nsys"),
}
"""Paths of the profilers that are searched after PATH."""
PERMISSION = """\
the driver lets nobody but administrators read the GPU's counters (ERR_NVGPUCTRPERM). An administrator can allow it:
  options nvidia NVreg_RestrictProfilingToAdminUsers=0     in /etc/modprobe.d/nvidia.conf, then a restart of the machine
  docker run --cap-add=SYS_ADMIN ...                       in a container
Clouds often forbid it altogether."""


NO_GPU = "a process that was started under another program sees no GPU"
"""The message with which a process ends that sees no GPU."""
ON_GPU = {"KILN_TARGET": "nvidia"}
"""Variables for processes that use the GPU: `kiln.target` of this process is not in the environment."""


class CannotProfile(Exception):
    """A profiler cannot be used here; the message says why."""


def find(tool: str) -> str:
    """Return the path of "ncu" or "nsys"; raise CannotProfile if it is missing."""
    installed = [path for place in PLACES[tool] for path in sorted(glob.glob(place), reverse=True)]
    program = shutil.which(tool) or next(iter(installed), None)
    if program is None:
        package = {"ncu": "Nsight Compute", "nsys": "Nsight Systems"}[tool]
        raise CannotProfile(f"{tool} was not found: install {package} (developer.nvidia.com) or the CUDA toolkit")
    return program


def run_under(command: Sequence[str], job: Mapping[str, object], timeout: float, calls: int = 1) -> str:
    """Run one Case under a profiler and return the output; raise CannotProfile with the reason if it fails."""
    said, status = ended(command, job, timeout, calls)
    if "ERR_NVGPUCTRPERM" in said:
        raise CannotProfile(PERMISSION)
    if status and (message := re.search(rf"{NO_GPU}.*", said)):
        raise CannotProfile(message[0])
    if status:
        last = "\n  ".join(said.strip().splitlines()[-8:])
        raise CannotProfile(f"{Path(command[0]).name} ended with exit status {status}:\n  {last}")
    return said


def ended(command: Sequence[str], job: Mapping[str, object], timeout: float, calls: int) -> tuple[str, int]:
    """Run one Case under another program; return output and exit status. Raises CannotProfile if it does not end."""
    arguments = json.dumps({**job, "path": sys.path, "calls": calls})
    program = [sys.executable, "-m", "kiln.workbench.profile.jobs", arguments]
    process = subprocess.Popen(
        [*command, *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment(CUTE_DSL_LINEINFO="1", **ON_GPU),
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise CannotProfile(f"{Path(command[0]).name} did not end within {timeout:g} s, and was ended") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return said, process.returncode


def record(job: Mapping[str, object], report: Path, timeout: float) -> Profile:
    """Run a Case under ncu and read the report."""
    tool = find("ncu")
    report.parent.mkdir(parents=True, exist_ok=True)
    sections = [word for name in SECTIONS for word in ("--section", name)]
    metrics = ["--metrics", ",".join(_FIRST["TC%"])]
    said = run_under([tool, *OPTIONS, *sections, *metrics, "-o", str(report.with_suffix(""))], job, timeout)
    if not report.exists():
        message = re.search(r"==(?:ERROR|WARNING)== (.*)", said)
        raise CannotProfile(f"ncu wrote no report: {message.group(1) if message else 'it saw no kernel'}")
    return read(report)


# --- reports ---------------------------------------------------------------------------------------------------------

_OF_PEAK = "avg.pct_of_peak_sustained"
_FIRST = {
    "Duration (us)": ("gpu__time_duration.sum",),
    "TC%": (f"sm__pipe_tensor_cycles_active.{_OF_PEAK}_active", f"sm__inst_executed_pipe_tensor.{_OF_PEAK}_active"),
    "DRAM%": (f"gpu__dram_throughput.{_OF_PEAK}_elapsed", f"dram__throughput.{_OF_PEAK}_elapsed"),
    "L2 hit%": ("lts__t_sector_hit_rate.pct",),
    "Occupancy%": (f"sm__warps_active.{_OF_PEAK}_active",),
    "Theoretical%": ("sm__maximum_warps_per_active_cycle_pct",),
    "Registers/thread": ("launch__registers_per_thread",),
}
"""The metrics of ncu that give each number; the first in the report is used."""
_LIMITS = {
    "registers": "registers",
    "shared_mem": "shared memory",
    "warps": "warps",
    "blocks": "blocks",
    "barriers": "barriers",
}
_STALL = re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+?)$")


def read(path: str | Path) -> Profile:
    """Return the profile in a report of ncu."""
    reader = _reader()
    if not os.path.isfile(path):
        raise ContractError(f"there is no report {path}")
    try:
        report = reader.load_report(str(path))
        parts = [report.range_by_idx(number) for number in range(report.num_ranges())]
        kernels = [_kernel(part.action_by_idx(number)) for part in parts for number in range(part.num_actions())]
    except Exception as reason:
        raise ContractError(f"{path} is not a readable report of Nsight Compute: {reason}") from None
    if not kernels:
        raise ContractError(f"{path} is not a report of Nsight Compute, or has no kernel")
    return Profile("ncu", Path(path).stem, kernels)


def _reader() -> Any:
    """Return the module `ncu_report`: its own package, or the one in Nsight Compute."""
    with contextlib.suppress(ImportError):
        return packages.load("ncu_report")
    with contextlib.suppress(CannotProfile, ImportError):
        installed = [Path(find("ncu")).resolve(), *map(Path, sorted(glob.glob(PLACES["ncu"][1]), reverse=True))]
        for folder in (tool.parent / "extras" / "python" for tool in installed):
            if (folder / "ncu_report.py").is_file():
                sys.path.append(str(folder))
                return packages.load("ncu_report")
    raise CannotProfile("reading reports of ncu needs the package ncu-report: pip install ncu-report")


def _kernel(action: Any) -> KernelProfile:
    names = set(action.metric_names())

    def number(name: str) -> float | None:
        metric = action.metric_by_name(name) if name in names else None
        return metric.as_double() if metric is not None and metric.has_value() else None

    metrics: dict[str, Value] = {}
    for name, sources in _FIRST.items():
        value = next((value for value in map(number, sources) if value is not None), None)
        if value is not None:
            scale = 1e-3 if name == "Duration (us)" else 1.0  # ncu counts nanoseconds
            metrics[name] = int(value) if name.startswith("Registers") else scale * value
    limits = {text: number(f"launch__occupancy_limit_{name}") for name, text in _LIMITS.items()}
    there = {name: value for name, value in limits.items() if value is not None}
    if there:
        metrics["Limited by"] = ", ".join(name for name, value in there.items() if value == min(there.values()))
    parts = [number(f"launch__shared_mem_per_block_{kind}") for kind in ("static", "dynamic")]
    if any(part is not None for part in parts):
        metrics["SMEM/block (KB)"] = sum(part or 0.0 for part in parts) / 1024
    return KernelProfile(action.name(), metrics, _lines(action, names), sources=dict(action.source_files()))


def _lines(action: Any, names: set[str]) -> list[LineProfile]:
    """Return samples by line and by stall reason."""
    stalls: dict[tuple[str, int], Counter[str]] = {}
    for name in names:
        stall = _STALL.match(name)
        if not stall or stall.group(1).endswith("not_issued"):
            continue
        metric = action.metric_by_name(name)
        if not metric.has_correlation_ids():
            continue
        places = metric.correlation_ids()
        for index in range(metric.num_instances()):
            samples = metric.as_uint64(index)
            source = action.source_info(_waiting(action, places.as_uint64(index), stall.group(1))) if samples else None
            if source is not None:
                stalls.setdefault((source.file_name(), source.line()), Counter())[stall.group(1)] += samples
    return [LineProfile(*place, dict(counts.most_common())) for place, counts in sorted(stalls.items())]


_SIZE = 16
"""Bytes of an instruction."""


def _waiting(action: Any, address: int, reason: str) -> int:
    """Return the address of the instruction that a warp waits for.

    A warp that waits at a barrier, and one that ends, is already behind that instruction. The first poll of a loop
    that waits is apart from the others and has no line of its own.
    """
    before = action.sass_by_pc(address - _SIZE).strip()
    if (reason == "barrier" and before.startswith("BAR.")) or (reason == "drain" and before.startswith("EXIT")):
        return address - _SIZE
    asks = address if "TRYWAIT" in action.sass_by_pc(address) else address - _SIZE
    branch = re.search(r"\bBRA (0x[0-9a-f]+)", action.sass_by_pc(asks + _SIZE))
    again = int(branch.group(1), 16) if branch else None
    polls = "TRYWAIT" in action.sass_by_pc(asks)
    if again is not None and polls and action.sass_by_pc(again) == action.sass_by_pc(asks):
        return again
    return address
