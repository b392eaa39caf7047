"""NVML by ctypes: clocks, power, throttle reasons and processes of a GPU, without a package."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

_SM, _MEMORY, _TEMPERATURE_OF_GPU = 1, 2, 0
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


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute", ctypes.c_uint),
    ]  # fmt: skip


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return NVML, initialized; None if it is not installed."""
    try:
        found = ctypes.CDLL("libnvidia-ml.so.1")
        return None if found.nvmlInit_v2() else found
    except (OSError, AttributeError):
        return None


def call(name: str, *arguments: Any) -> None:
    """Call a function; an error it returns is raised."""
    nvml = library()
    if nvml is None:
        raise NvmlError("NVML (libnvidia-ml.so.1) is not on this machine, or does not start")
    try:
        status = getattr(nvml, name)(*arguments)
    except AttributeError:
        raise NvmlError(f"NVML has no {name}: the driver is older than CUDA 12") from None
    if status:
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        raise NvmlError(f"{name}: {nvml.nvmlErrorString(status).decode()}", status)


class Gpu:
    """A GPU by its UUID (`driver.uuid`)."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self._handle = ctypes.c_void_p()
        call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))

    def _number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
        """Return what a function writes; None where the GPU does not tell."""
        value = kind()
        try:
            call(name, self._handle, *arguments, ctypes.byref(value))
        except NvmlError:
            return None
        return value.value

    def reading(self) -> Reading:
        """Return what it says now; takes some tens of microseconds."""
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        reasons = self._number("nvmlDeviceGetCurrentClocksEventReasons", kind=ctypes.c_ulonglong)
        if reasons is None:  # its name before CUDA 12.2
            reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong)
        return Reading(
            self._number("nvmlDeviceGetClockInfo", _SM),
            self._number("nvmlDeviceGetClockInfo", _MEMORY),
            None if milliwatts is None else milliwatts / 1e3,
            self._number("nvmlDeviceGetTemperature", _TEMPERATURE_OF_GPU),
            reasons or 0,
            self.processes(),
        )

    def processes(self) -> int:
        """Return the number of processes with a context on it; their ids may be of another namespace."""
        room = ctypes.c_uint(64)
        listed = (_Process * 64)()
        try:
            call("nvmlDeviceGetComputeRunningProcesses_v3", self._handle, ctypes.byref(room), listed)
        except NvmlError:
            return 0
        return room.value

    def power_limit(self) -> float | None:
        """Return the power limit in watts."""
        limit = self._number("nvmlDeviceGetEnforcedPowerLimit")
        return None if limit is None else limit / 1e3

    def joules(self) -> float | None:
        """Return the energy used since the driver was loaded; the counter advances about ten times a second."""
        used = self._number("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong)
        return None if used is None else used / 1e3

    def highest_clock(self) -> int | None:
        """Return the highest SM clock in MHz."""
        return self._number("nvmlDeviceGetMaxClockInfo", _SM)

    def base_clock(self) -> int | None:
        """Return the base SM clock in MHz, NVML's default applications clock."""
        return self._number("nvmlDeviceGetDefaultApplicationsClock", _SM)

    def lock(self, mhz: int) -> None:
        """Hold the clock of the SMs, for all processes and until `unlock`; needs an administrator."""
        call("nvmlDeviceSetGpuLockedClocks", self._handle, mhz, mhz)

    def unlock(self) -> None:
        """Let clocks be what the GPU makes them."""
        call("nvmlDeviceResetGpuLockedClocks", self._handle)


def driver_version() -> str | None:
    """Return the version of the driver, as in "580.65.06"."""
    text = ctypes.create_string_buffer(96)
    try:
        call("nvmlSystemGetDriverVersion", text, len(text))
    except NvmlError:
        return None
    return text.value.decode()
