"""Describes what results depend on besides the program: this machine, its GPUs and driver, versions of the tools."""

from __future__ import annotations

import functools
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kiln
from kiln import DSLCudaRuntimeError
from kiln.base_dsl import cache
from kiln.hardware import driver, toolchain


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine, as its driver describes it."""

    name: str
    arch: str
    """Its architecture, for example "sm_90"."""
    memory: int
    """Bytes."""
    sm_count: int


@dataclass(frozen=True)
class Driver:
    """The CUDA driver. `problem` is None if it answers; otherwise it says why not, and `gpus` is empty."""

    problem: str | None
    version: str | None = None
    """The version of the kernel driver, for example "580.65.06"."""
    cuda: str | None = None
    """The newest CUDA version that the driver supports, for example "13.0"."""
    gpus: list[Gpu] = field(default_factory=list)


def cuda_driver() -> Driver:
    """Load the driver and list the GPUs that this process sees (CUDA_VISIBLE_DEVICES applies). Creates no context."""
    version = _kernel_driver_version()
    try:
        gpus = [_gpu(number) for number in range(driver.device_count())]
        return Driver(None, version, driver.cuda_version(), gpus)
    except DSLCudaRuntimeError as failure:
        return Driver(failure.message, version)


def _gpu(number: int) -> Gpu:
    major, minor = driver.capability(number)
    memory = driver.total_memory(number)
    sm_count = driver.attribute("sm_count", number)
    return Gpu(driver.device_name(number), f"sm_{major}{minor}", memory, sm_count)


def _kernel_driver_version() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    version = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return version.group(1) if version else None


@functools.lru_cache(maxsize=1)
def _environment() -> dict[str, Any]:
    ptxas = toolchain.find("ptxas")
    cuda = cuda_driver()
    gpu = cuda.gpus[0] if cuda.gpus else None
    return {
        # Between releases the version alone does not identify the compiler.
        "kiln": f"{kiln.__version__}+{cache.sources_hash()[:8]}",
        "python": platform.python_version(),
        "ptxas": ptxas.version() if ptxas else None,
        "gpu": gpu.name if gpu else None,
        "uuid": driver.uuid(0) if gpu else None,
        "driver": cuda.version if gpu else None,
        "node": platform.node(),
    }


def environment() -> dict[str, Any]:
    """Return `kiln`, `python`, `ptxas`, `gpu`, `uuid`, `driver` and `node`, read once per process; None if missing."""
    return dict(_environment())
