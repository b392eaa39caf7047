"""What the CUDA driver says of this machine's GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from kiln import DSLCudaRuntimeError
from kiln.hardware import driver as cuda


@dataclass(frozen=True)
class Gpu:
    name: str
    arch: str
    """For example "sm_90"."""
    memory: int
    """Bytes."""
    multiprocessors: int


@dataclass(frozen=True)
class Driver:
    """`problem` is None when the driver answers; else it says why not, and `gpus` is empty."""

    problem: str | None
    version: str | None = None
    """The kernel driver's version, for example "580.65.06"."""
    cuda: str | None = None
    """The newest CUDA version the driver serves, for example "13.0"."""
    gpus: list[Gpu] = field(default_factory=list)


def driver() -> Driver:
    """Load the driver and list the GPUs it shows to this process (CUDA_VISIBLE_DEVICES applies). Creates no context."""
    version = _kernel_driver_version()
    try:
        gpus = [_gpu(number) for number in range(cuda.device_count())]
        return Driver(None, version, cuda.cuda_version(), gpus)
    except DSLCudaRuntimeError as failure:
        return Driver(failure.message, version)


def _gpu(number: int) -> Gpu:
    major, minor = cuda.capability(number)
    memory, multiprocessors = cuda.total_memory(number), cuda.attribute("multiprocessors", number)
    return Gpu(cuda.device_name(number), f"sm_{major}{minor}", memory, multiprocessors)


def _kernel_driver_version() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found.group(1) if found else None
