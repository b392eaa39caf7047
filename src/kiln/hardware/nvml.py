"""NVML by `nvidia-ml-py`: clocks, power, throttle reasons and processes of a GPU.

The package is optional (extras `cuda` and `workbench`). Without it, or without a driver, clocks are unknown.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any, NamedTuple

_NO_PERMISSION = 4
POWER = 0x4 | 0x80
"""Reasons of low clocks: the power limit, by software or by the supply."""
THERMAL = 0x8 | 0x20 | 0x40
"""Reasons of low clocks: heat, or a slowdown of the hardware."""


class NvmlError(Exception):
    """NVML is not there, or refused; `permission` if only an administrator may do that."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.permission: bool = status == _NO_PERMISSION


class Reading(NamedTuple):
    """What a GPU said at a moment; what it does not tell is None."""

    sm_mhz: int | None
    memory_mhz: int | None
    watts: float | None
    celsius: int | None
    reasons: int
    """Why the clocks are not higher, as NVML's bits."""
    processes: int
    """Processes that have a context on it, this one included."""


@functools.lru_cache(maxsize=1)
def library() -> Any:
    """Return the module `pynvml`, initialized; None if it is not installed, or finds no NVML."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def call(name: str, *arguments: object) -> Any:
    """Call a function of NVML and return its result; an error is raised as `NvmlError`."""
    nvml = library()
    if nvml is None:
        if importlib.util.find_spec("pynvml") is None:
            raise NvmlError("nvidia-ml-py, which reads NVML, is not on this machine: pip install nvidia-ml-py")
        raise NvmlError("NVML (libnvidia-ml.so.1) is not on this machine, or does not start")
    try:
        return getattr(nvml, name)(*arguments)
    except nvml.NVMLError as refused:
        raise NvmlError(f"{name}: {refused}", refused.value) from None


class Gpu:
    """A GPU by its UUID (`driver.uuid`)."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self._handle = call("nvmlDeviceGetHandleByUUID", uuid)

    def _number(self, name: str, *arguments: object) -> int | None:
        """Return what a function returns; None where the GPU does not tell."""
        try:
            return call(name, self._handle, *arguments)
        except NvmlError:
            return None

    def reading(self) -> Reading:
        """Return what it says now; takes some tens of microseconds."""
        nvml = library()
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        reasons = self._number("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before CUDA 12.2
            reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            self._number("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            self._number("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            None if milliwatts is None else milliwatts / 1e3,
            self._number("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            reasons or 0,
            self.processes(),
        )

    def processes(self) -> int:
        """Return the number of processes with a context on it; their ids may be of another namespace."""
        try:
            return len(call("nvmlDeviceGetComputeRunningProcesses", self._handle))
        except NvmlError:
            return 0

    def power_limit(self) -> float | None:
        """Return the power limit in watts."""
        limit = self._number("nvmlDeviceGetEnforcedPowerLimit")
        return None if limit is None else limit / 1e3

    def joules(self) -> float | None:
        """Return the energy used since the driver was loaded; the counter advances about ten times a second."""
        used = self._number("nvmlDeviceGetTotalEnergyConsumption")
        return None if used is None else used / 1e3

    def highest_clock(self) -> int | None:
        """Return the highest SM clock in MHz."""
        return self._number("nvmlDeviceGetMaxClockInfo", library().NVML_CLOCK_SM)

    def base_clock(self) -> int | None:
        """Return the base SM clock in MHz, NVML's default applications clock."""
        return self._number("nvmlDeviceGetDefaultApplicationsClock", library().NVML_CLOCK_SM)

    def lock(self, mhz: int) -> None:
        """Hold the clock of the SMs, for all processes and until `unlock`; needs an administrator."""
        call("nvmlDeviceSetGpuLockedClocks", self._handle, mhz, mhz)

    def unlock(self) -> None:
        """Let clocks be what the GPU makes them."""
        call("nvmlDeviceResetGpuLockedClocks", self._handle)


def driver_version() -> str | None:
    """Return the version of the driver, as in "580.65.06"."""
    try:
        return call("nvmlSystemGetDriverVersion")
    except NvmlError:
        return None
