"""Measures how long a call takes, how well that is known, and the state of the GPU during it.

The protocol `graph-flush/1`: a graph of repeated flush, event, call, event; samples until the 95 % interval of their
median is narrow; clocks and power read beside it. Doubts about a number are its flags; no sample is dropped.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from . import statistics, timers
from .clocks import UNKNOWN, Clocks
from .statistics import CONFIDENCE, Interval, Stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .clocks import Watch
    from .timers import Batch, Timer

FLAGS = {
    "noisy": "the interval of the median did not become as narrow as wanted",
    "few-samples": "fewer than six samples: they may all lie on one side of the median",
    "bimodal": "the samples fall into two clusters, and the median is in one of them",
    "drift": "the last third of the samples is slower or faster than the first by more than 1 %",
    "near-floor": "less than five times the time of an empty kernel: mostly the cost of launching and timing",
    "too-fast": "faster than the GPU can do the stated work: the statement or the kernel is wrong",
    "thermal": "the GPU lowered its clock because of heat",
    "power-cap": "the GPU lowered its clock because of its power limit",
    "clock-drift": "the clock changed while it was measured",
    "shared-gpu": "other processes have a context on the GPU",
    "clock-unknown": "NVML does not tell the clock",
    "host-bound": "the GPU waited for the host: calls synchronize, or take longer on the host than on the device",
    "other-streams": "calls work on other streams than the current one, which events do not see",
    "flush-failed": "memory is as near after the flush of the L2 cache as before",
}
"""The meaning of flags."""
UNTRUSTED = frozenset(FLAGS) - {"near-floor", "clock-unknown"}
"""Flags of numbers that should not be compared with those of other runs (`--strict`)."""


class Effort(NamedTuple):
    """How long something is measured."""

    stopping: Stopping = Stopping()
    warmup: float = 2.0
    """Seconds, at most, until two windows agree."""
    window: float = 0.05
    batch: float = 0.005
    """Seconds of a batch of calls, and of idleness before the next one."""
    calls: int | None = None
    """Calls of a batch; None: as many as fill it."""
    idle: float | None = None
    """Seconds between batches; None: as long as the previous one took."""


NORMAL = Effort()
QUICK = Effort(Stopping(0.02, 10, 0.02, 0.5), warmup=0.2, window=0.02)
"""The effort that separates what is far from the best."""
BURST = Effort(Stopping(0.01, 15, 0.0, 2.5), warmup=0.0, calls=5, idle=0.2)
"""Five calls after 0.2 s of idleness, at least three times: before the power limit acts."""


def sustained(seconds: float = 3.0) -> Effort:
    """Return the effort that measures the last third of some seconds back to back (with `steady`)."""
    third = seconds / 3
    return Effort(Stopping(1.0, 20, third, 1.5 * third), warmup=2 * third, window=2 * third, batch=min(0.05, third / 4))


SUSTAINED = sustained()
"""The last second of three."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Microseconds of one call: the median, and its 95 % interval."""

    us: float
    low: float
    high: float
    samples: list[float] = dataclasses.field(repr=False)
    protocol: str
    clocks: Clocks = UNKNOWN
    flags: list[str] = dataclasses.field(default_factory=list)
    floor: float = 0.0
    """Microseconds of an empty kernel, measured in the same way."""
    steady: bool = False
    error: str | None = None
    """Why the number says nothing; None if it does."""

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.samples)

    @property
    def clock_mhz(self) -> float | None:
        """The median clock of the SMs."""
        return self.clocks.sm_mhz

    @property
    def watts(self) -> float | None:
        """The power that the GPU drew while it was measured; None if it does not tell."""
        return self.clocks.watts

    @property
    def status(self) -> str:
        """The status of a record: "ok" or "error"."""
        return "error" if self.error else "ok"

    @property
    def trusted(self) -> bool:
        """Whether it can be compared with numbers of other runs."""
        expected = {"power-cap"} if self.steady else set[str]()  # a sustained run is at the power limit
        return self.error is None and not (UNTRUSTED - expected).intersection(self.flags)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; `status`, `us`, `n`, `protocol`, `clock` and `flags` are as in a record."""
        return {
            "status": self.status,
            "us": [self.low, self.us, self.high],
            "n": self.n,
            "protocol": self.protocol,
            "clock": {name: value for name, value in self.clocks._asdict().items() if name != "flags"},
            "flags": list(self.flags),
            "samples": list(self.samples),
            "floor": self.floor,
            "steady": self.steady,
            "error": self.error,
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Measurement:
        """Return the measurement of `to_json`'s result."""
        low, us, high = record["us"]
        own = {name: record[name] for name in ("samples", "protocol", "flags", "floor", "steady", "error")}
        return Measurement(us, low, high, clocks=Clocks(**record["clock"], flags=()), **own)

    def __str__(self) -> str:
        if self.error:
            return f"not measured: {self.error}"
        parts = [f"{self.us:.4g} us [{self.low:.4g}, {self.high:.4g}]", f"{self.n} samples, {self.protocol}"]
        if self.clock_mhz:
            parts.append(f"{self.clock_mhz:.0f} MHz" + (f", {self.watts:.0f} W" if self.watts else ""))
        return ", ".join([*parts, *self.flags])


def measure(
    function: Callable[..., object],
    *arguments: object,
    l2: str = "cold",
    steady: bool = False,
    effort: Effort = NORMAL,
    at_least_us: float = 0.0,
    clock: Timer | None = None,
) -> Measurement:
    """Measure how long a call takes on the device.

    `l2` is the state of the L2 cache before each call: empty ("cold"), as the previous call left it ("warm"), or as
    calls with other copies of the arguments left it ("rotate"). The GPU idles between batches of calls, unless
    `steady`. `at_least_us` is the roofline's time. `clock` replaces the GPU's timer (or, on the CPU target, this
    machine's).
    """
    series = Series(function, arguments, l2, steady, effort, clock or timers.timer())
    series.warm_up()
    begun = series.timer.now()
    interval = None
    while not effort.stopping.enough(interval, series.n, series.timer.now() - begun):
        series.run()
        interval = statistics.of_batches(series.batches)
    return series.result(at_least_us)


class Series:
    """Batches of one function's calls."""

    def __init__(
        self,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        l2: str,
        steady: bool,
        effort: Effort,
        timer: Timer,
    ) -> None:
        if l2 not in timers.L2_STATES:
            raise ValueError(f"l2={l2!r}: it is one of {', '.join(timers.L2_STATES)}")
        self.timer = timer
        self.l2 = l2
        self.steady = steady
        self.effort = effort
        call = functools.partial(function, *arguments) if arguments else function
        call()  # compiles and loads
        if l2 == "rotate":
            call = timers.rotated(function, arguments)
        self.flags: list[str] = timer.flags(l2)
        self.floor: float = timer.floor(l2)
        once = timer.prepare(call, 1, l2)
        (us,) = once.run()
        if us < 1e5:  # the first run of a process is slower
            us = min(us, *once.run(), *once.run())
        calls = effort.calls or round(min(256, max(1, effort.batch * 1e6 / max(us, 0.1))))
        self.batch: Batch = timer.prepare(call, calls, l2)
        self.compilations: int = timer.compilations()
        self.watch: Watch = timer.watch()
        self.batches: list[list[float]] = []

    @property
    def n(self) -> int:
        """The number of samples."""
        return sum(map(len, self.batches))

    def run(self) -> list[float]:
        """Time one batch, after some idleness unless `steady`."""
        if not self.steady and self.batch.protocol != "cpu-wall":
            last = sum(self.batches[-1]) * 1e-6 if self.batches else self.effort.batch
            self.timer.sleep(last if self.effort.idle is None else self.effort.idle)
        samples = self.batch.run(self.watch.look)
        self.batches.append(samples)
        return samples

    def warm_up(self) -> None:
        """Run windows until two medians in a row agree within 1 % and the clock is steady; then forget them."""
        begun = self.timer.now()
        before: tuple[float, float] | None = None
        while self.timer.now() - begun < self.effort.warmup:
            self.watch.restart()
            window = self.timer.now()
            samples = []
            while not samples or self.timer.now() - window < self.effort.window:
                samples += self.run()
            now = statistics.median_interval(samples).median, self.watch.clocks().sm_mhz or 0.0
            if before and all(abs(a - b) <= 0.01 * max(a, b) for a, b in zip(before, now, strict=True)):
                break
            before = now
        self.watch.restart()
        self.batches.clear()

    def result(self, at_least_us: float = 0.0) -> Measurement:
        """Return the measurement of all batches."""
        interval = statistics.of_batches(self.batches)
        clocks = self.watch.clocks()
        samples = [sample for batch in self.batches for sample in batch]
        flags = [*self.flags, *self._of_samples(interval, samples, at_least_us), *sorted(self.batch.flags)]
        if self.batch.protocol != "cpu-wall":
            flags += clocks.flags
        extra = self.timer.compilations() - self.compilations
        wrong = f"{extra} compilations while it was timed: call it once with such arguments first" if extra else None
        return Measurement(
            interval.median,
            interval.low,
            interval.high,
            samples,
            self.batch.protocol,
            clocks._replace(flags=()),
            flags,
            self.floor,
            self.steady,
            wrong,
        )

    def _of_samples(self, interval: Interval, samples: list[float], at_least_us: float) -> list[str]:
        by_flag = {
            "noisy": interval.width > self.effort.stopping.within,
            "few-samples": interval.confidence < CONFIDENCE,
            "bimodal": statistics.clusters(samples) is not None,
            "drift": abs(statistics.drift(samples)) > 0.01,
            "near-floor": interval.median < 5 * self.floor,
            "too-fast": interval.high < at_least_us,
        }
        return [name for name, is_so in by_flag.items() if is_so]
