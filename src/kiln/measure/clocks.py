"""Clocks and power of a GPU while something is timed, and locking its clock.

A child process, which outlives its parent, unlocks the clock.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from ..hardware import driver, nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PERIOD = 0.02
"""Seconds between readings."""
_DRIFT = 0.015
"""By how much the median clock may change from the first third to the last."""


class Clocks(NamedTuple):
    """Medians of the readings, and the flags they give a measurement."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    flags: tuple[str, ...] = ("clock-unknown",)


UNKNOWN = Clocks()


def summary(readings: Sequence[nvml.Reading], own: int = 1) -> Clocks:
    """Return the summary of readings. `own` processes are expected on the GPU."""
    clocks = [one.sm_mhz for one in readings if one.sm_mhz is not None]
    if not clocks:
        return UNKNOWN

    def middle(values: list[float | None]) -> float | None:
        numbers = [value for value in values if value is not None]
        return statistics.median(numbers) if numbers else None

    flags: list[str] = []
    if any(one.reasons & nvml.THERMAL for one in readings):
        flags.append("thermal")
    if any(one.reasons & nvml.POWER for one in readings):
        flags.append("power-cap")
    third = len(clocks) // 3
    if third >= 2 and abs(statistics.median(clocks[-third:]) / statistics.median(clocks[:third]) - 1) > _DRIFT:
        flags.append("clock-drift")
    if any(one.processes > own for one in readings):
        flags.append("shared-gpu")
    return Clocks(
        middle([one.sm_mhz for one in readings]),
        middle([one.memory_mhz for one in readings]),
        middle([one.watts for one in readings]),
        middle([one.celsius for one in readings]),
        tuple(flags),
    )


class Watch:
    """Reads a GPU while it works: timers look between launching and waiting, and this reads at most 50 times a second.

    `read` returns a reading; None if NVML does not answer.
    """

    def __init__(self, read: Callable[[], nvml.Reading] | None, now: Callable[[], float] = time.perf_counter) -> None:
        self._read = read
        self._now = now
        self._last = float("-inf")
        self._readings: list[nvml.Reading] = []
        self.own = 1
        """How many processes are expected on the GPU."""

    def look(self) -> None:
        """Take a reading, if the last one is old enough."""
        if self._read is not None and self._now() - self._last >= PERIOD:
            self._readings.append(self._read())
            self._last = self._now()

    def restart(self) -> None:
        """Forget the readings."""
        self._readings.clear()

    def clocks(self) -> Clocks:
        """Return the summary of the readings since the restart."""
        return summary(self._readings, self.own)


def reader(device: int | None = None) -> Callable[[], nvml.Reading] | None:
    """Return a function that reads the current GPU, or that of a number; None if NVML does not answer."""
    try:
        return nvml.Gpu(driver.uuid(driver.current_device() if device is None else device)).reading
    except nvml.NvmlError:
        return None


# --- holding the clock -----------------------------------------------------------------------------------------------


def lock(gpu: nvml.Gpu, clock: str | int = "base") -> int:
    """Lock the clock of a GPU at "base", at "max" or at MHz; return the MHz."""
    if clock == "base":
        mhz = gpu.base_clock() or gpu.highest_clock()
    else:
        mhz = gpu.highest_clock() if clock == "max" else int(clock)
    if mhz is None:
        raise nvml.NvmlError(f"the GPU does not tell its {clock} clock: name one in MHz")
    gpu.lock(mhz)
    return mhz


WATCHDOG = "import sys; from kiln.measure import clocks; clocks.unlock_at_end(sys.argv[1])"
"""The program of the child."""


@contextlib.contextmanager
def locked(gpu: nvml.Gpu, clock: str | int = "base") -> Iterator[int]:
    """While open, lock the clock. If this process is killed, a child unlocks it."""
    # In its own session: signals to this process group do not reach the child.
    child = subprocess.Popen([sys.executable, "-c", WATCHDOG, gpu.uuid], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield lock(gpu, clock)
    finally:
        assert child.stdin is not None
        child.stdin.close()  # which ends it
        child.wait(timeout=30)


def unlock_at_end(uuid: str) -> None:
    """Wait until the other end of standard input is closed, and unlock the clock."""
    sys.stdin.read()
    try:
        nvml.Gpu(uuid).unlock()
    except nvml.NvmlError as refused:
        if not refused.permission:  # without permission it was not locked either
            print(f"the clock of {uuid} may still be held: {refused}", file=sys.stderr)
