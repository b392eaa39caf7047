"""What clocks and power a GPU had while something was timed, and holding its clock.

A thread asks NVML every 20 ms. A held clock is given free by a child, which outlives whoever asked for it.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple

from ..hardware import driver, nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PERIOD = 0.02
_DRIFT = 0.015
"""By how much the median of the clock may change from the first third to the last."""


class Clocks(NamedTuple):
    """Medians of what was read, and what it makes of a measurement."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    flags: tuple[str, ...] = ("clock-unknown",)


UNKNOWN = Clocks()


def summary(readings: Sequence[nvml.Reading]) -> Clocks:
    """What readings say: pure, so that it is tested without a GPU."""
    known = [one.sm_mhz for one in readings if one.sm_mhz is not None]
    if not known:
        return UNKNOWN

    def middle(values: list[float | None]) -> float | None:
        told = [value for value in values if value is not None]
        return statistics.median(told) if told else None

    flags: list[str] = []
    if any(one.reasons & nvml.THERMAL for one in readings):
        flags.append("thermal")
    if any(one.reasons & nvml.POWER for one in readings):
        flags.append("power-cap")
    third = len(known) // 3
    if third >= 2 and abs(statistics.median(known[-third:]) / statistics.median(known[:third]) - 1) > _DRIFT:
        flags.append("clock-drift")
    if any(one.processes > 1 for one in readings):
        flags.append("shared-gpu")
    return Clocks(
        middle([one.sm_mhz for one in readings]),
        middle([one.memory_mhz for one in readings]),
        middle([one.watts for one in readings]),
        middle([one.celsius for one in readings]),
        tuple(flags),
    )


class Watch:
    """While open, a thread reads what the GPU says; `clocks()` sums it up, also before it is closed.

    `read` gives a reading, or is None where nothing can be asked. Readings within `idle()` are left out: clocks of an idle GPU
    say nothing about what was timed.
    """

    def __init__(self, read: Callable[[], nvml.Reading] | None, period: float = PERIOD) -> None:
        self._read, self._period = read, period
        self._readings: list[nvml.Reading] = []
        self._end = threading.Event()
        self._idle = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        if self._read is not None:
            self._thread = threading.Thread(target=self._run, name="kiln-clocks", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._read is not None
        while not self._end.is_set():
            idle = self._idle
            reading = self._read()
            if not (idle or self._idle):
                self._readings.append(reading)
            self._end.wait(self._period)

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """While open, the GPU is idle on purpose."""
        self._idle = True
        try:
            yield
        finally:
            self._idle = False

    def restart(self) -> None:
        """Forget what was read."""
        self._readings.clear()

    def clocks(self) -> Clocks:
        return summary(self._readings)


def reader(device: int | None = None) -> Callable[[], nvml.Reading] | None:
    """What reads the current GPU, or the one of a number; None where NVML does not answer."""
    try:
        return nvml.Gpu(driver.uuid(driver.current_device() if device is None else device)).reading
    except nvml.NvmlError:
        return None


# --- holding the clock -----------------------------------------------------------------------------------------------


def lock(gpu: nvml.Gpu, wanted: str | int = "base") -> int:
    """Hold the clock of a GPU at "base", at "max" or at MHz; which it is."""
    if wanted == "base":
        mhz = gpu.base_clock() or gpu.highest_clock()
    else:
        mhz = gpu.highest_clock() if wanted == "max" else int(wanted)
    if mhz is None:
        raise nvml.NvmlError(f"the GPU does not tell its {wanted} clock: name one in MHz")
    gpu.lock(mhz)
    return mhz


@contextlib.contextmanager
def locked(gpu: nvml.Gpu, wanted: str | int = "base") -> Iterator[int]:
    """While open, the clock is held. If this process is killed, a child gives it free."""
    code = "from kiln.measure import clocks; clocks.unlock_at_end(__import__('sys').argv[1])"
    # A session of its own: what ends this process and its group does not end the child.
    child = subprocess.Popen([sys.executable, "-c", code, gpu.uuid], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield lock(gpu, wanted)
    finally:
        assert child.stdin is not None
        child.stdin.close()  # which tells it
        child.wait(timeout=30)


def unlock_at_end(uuid: str) -> None:
    """Wait until whoever holds the other end of standard input is gone, and give the clock free."""
    sys.stdin.read()
    nvml.Gpu(uuid).unlock()
