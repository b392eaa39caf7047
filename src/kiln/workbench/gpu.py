"""What the CUDA driver says of this machine's GPUs, asked through `libcuda` itself so that no package is needed."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from pathlib import Path

_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute


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


def driver(library: str = "libcuda.so.1") -> Driver:
    """Load the driver and list the GPUs it shows to this process (CUDA_VISIBLE_DEVICES applies). Creates no context."""
    version = _kernel_driver_version()
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        return Driver(f"no CUDA driver ({error})", version)
    try:
        _call(cuda, "cuInit", 0)
        served, count = ctypes.c_int(), ctypes.c_int()
        _call(cuda, "cuDriverGetVersion", ctypes.byref(served))
        _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
        gpus = [_gpu(cuda, ordinal) for ordinal in range(count.value)]
    except (OSError, AttributeError) as error:
        return Driver(str(error), version)
    return Driver(None, version, f"{served.value // 1000}.{served.value % 1000 // 10}", gpus)


def _gpu(cuda: ctypes.CDLL, ordinal: int) -> Gpu:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    _call(cuda, "cuDeviceGet", ctypes.byref(device), ordinal)
    _call(cuda, "cuDeviceGetName", name, len(name), device)
    _call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        _call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    arch = f"sm_{attribute(_MAJOR)}{attribute(_MINOR)}"
    return Gpu(name.value.decode(errors="replace"), arch, memory.value, attribute(_MULTIPROCESSORS))


def _call(cuda: ctypes.CDLL, function: str, *arguments: object) -> None:
    status = getattr(cuda, function)(*arguments)
    if status:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(status, ctypes.byref(name))
        raise OSError(f"{function} failed: {name.value.decode() if name.value else status}")


def _kernel_driver_version() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found.group(1) if found else None
