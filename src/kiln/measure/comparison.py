"""Compares functions: they take turns in rounds; ratios within a round say "faster", "slower" or "same"."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._support import notebook
from . import statistics, timers
from .measurement import BURST, NORMAL, SUSTAINED, Effort, Measurement, Series, measure
from .statistics import Interval

if TYPE_CHECKING:
    from .timers import Timer

    Functions = Mapping[str, Callable[[], Any]]

ROUNDS = 20
"""The least rounds; up to `_MOST` times as many if the answer is open."""
_MOST = 5
_LEAST = 6
"""The least rounds of slow functions; fewer say nothing."""


@dataclasses.dataclass(frozen=True)
class Comparison(notebook.Shown):
    """Measurements of one run, by name; the others are compared with the first.

    A ratio is a time divided by the first's, so below 1 is faster; `verdict` is about the other.
    """

    measurements: dict[str, Measurement]
    ratios: dict[str, Interval]
    """The ratios of all but the first."""
    rounds: dict[str, list[float]] = dataclasses.field(default_factory=dict, repr=False)
    """Microseconds of each round, its batch's median: entries of one round were measured side by side."""

    @property
    def verdicts(self) -> dict[str, str]:
        """Whether each is "faster", "slower" or the "same" compared with the first."""
        return {name: statistics.verdict(ratio) for name, ratio in self.ratios.items()}

    def _second(self) -> Interval:
        if not self.ratios:
            raise ValueError("one candidate alone has no ratio")
        return next(iter(self.ratios.values()))

    @property
    def ratio(self) -> float:
        """The ratio of the second; `ratios` has the others."""
        return self._second().median

    @property
    def low(self) -> float:
        """The lower end of the confidence interval."""
        return self._second().low

    @property
    def high(self) -> float:
        """The upper end of the confidence interval."""
        return self._second().high

    @property
    def verdict(self) -> str:
        """The verdict on the second; `verdicts` has the others."""
        return statistics.verdict(self._second())

    def _as_html(self) -> str:
        rows: list[tuple[str, ...]] = []
        for name, measurement in self.measurements.items():
            ratio = self.ratios.get(name)
            than = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else ""
            rows.append((name, str(measurement), than, self.verdicts[name] if ratio else ""))
        return notebook.page(notebook.table(("", "time", "ratio to the first", "verdict"), rows))

    def __str__(self) -> str:
        width = max(map(len, self.measurements))
        lines = []
        for name, measurement in self.measurements.items():
            ratio = self.ratios.get(name)
            than = f"  {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] {self.verdicts[name]}" if ratio else ""
            lines.append(f"{name:{width}}  {measurement}{than}")
        return "\n".join(lines)


def compare(
    functions: Functions,
    *,
    l2: str = "cold",
    steady: bool = False,
    rounds: int = ROUNDS,
    seed: int = 0,
    effort: Effort = NORMAL,
    at_least_us: float = 0.0,
    clock: Timer | None = None,
) -> Comparison:
    """Measure functions without arguments in turns, in an order drawn anew for each round.

    Rounds go on, up to five times as many, while an interval of a ratio contains 1 and is wider than `MARGIN`.
    """
    if not functions:
        raise ValueError("compare() got nothing to compare")
    timer = clock or timers.timer()
    series = {name: Series(function, (), l2, steady, effort, timer) for name, function in functions.items()}
    return in_rounds(
        series, rounds=rounds, seed=seed, at_most=effort.stopping.at_most, at_least_us=at_least_us, now=timer.now
    )


class Turns(Protocol):
    """What takes part in rounds: a `Series`, or one that runs in another process."""

    batches: list[list[float]]

    def warm_up(self) -> None: ...
    def run(self) -> list[float]: ...
    def result(self, at_least_us: float = 0.0) -> Measurement: ...


def in_rounds(
    series: Mapping[str, Turns],
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    at_most: float = NORMAL.stopping.at_most,
    at_least_us: float = 0.0,
    now: Callable[[], float] = time.perf_counter,
    after_each: Callable[[], object] = lambda: None,
) -> Comparison:
    """Compare prepared series; for `at_most` seconds, but at least six rounds."""
    names = list(series)
    order = random.Random(seed)
    for one in series.values():
        one.warm_up()
    begun = now()
    for done in range(1, _MOST * rounds + 1):
        for name in order.sample(names, len(names)):
            series[name].run()
        after_each()
        late = now() - begun > at_most
        if (done >= rounds and (late or not _open(series))) or (late and done >= _LEAST):
            break
    measurements = {name: one.result(at_least_us) for name, one in series.items()}
    return Comparison(
        measurements, _ratios(series), {name: medians.tolist() for name, medians in _medians(series).items()}
    )


def _medians(series: Mapping[str, Turns]) -> dict[str, np.ndarray]:
    return {name: np.array([float(np.median(batch)) for batch in one.batches]) for name, one in series.items()}


def _ratios(series: Mapping[str, Turns]) -> dict[str, Interval]:
    """Return the ratios of a round's medians to the first's, by name."""
    medians = _medians(series)
    first, *others = medians
    return {name: statistics.median_interval(list(medians[name] / medians[first])) for name in others}


def _open(series: Mapping[str, Turns]) -> bool:
    """Return whether more rounds may change the answer; of a single series, whether its interval is still wide."""
    if len(series) == 1:
        return any(statistics.of_batches(one.batches).width > statistics.MARGIN for one in series.values())
    return any(
        ratio.low <= 1 <= ratio.high and max(1 - ratio.low, ratio.high - 1) > statistics.MARGIN
        for ratio in _ratios(series).values()
    )


@dataclasses.dataclass(frozen=True)
class Pace:
    """A function in bursts, before the power limit acts, and sustained."""

    burst: Measurement
    sustained: Measurement


def paces(
    functions: Functions, *, sustained: Effort = SUSTAINED, turns: int = 1, clock: Timer | None = None
) -> dict[str, Pace]:
    """Measure functions in turns: in bursts and sustained.

    A burst is five calls after 0.2 s of idleness, a sustained run the last second of three back to back. Caches are as
    calls leave them. Of several turns, the one with the median sustained time counts.
    """
    timer = clock or timers.timer()
    bursts = compare(functions, l2="warm", rounds=3, effort=BURST, clock=timer)
    long = {
        name: sorted(
            (measure(function, l2="warm", steady=True, effort=sustained, clock=timer) for _ in range(turns)),
            key=lambda m: m.us,
        )[turns // 2]
        for name, function in functions.items()
    }
    return {name: Pace(bursts.measurements[name], long[name]) for name in functions}
