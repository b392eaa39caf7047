"""Statistics of time samples: the median and its interval, clusters, drift, verdicts. Pure functions.

They assume only that samples are independent: intervals are between two of the sorted samples.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
MARGIN = 0.005
"""Ratios nearer to 1 than this are no difference."""


class Interval(NamedTuple):
    """The median of samples, and a confidence interval of the distribution's median."""

    low: float
    median: float
    high: float
    confidence: float = CONFIDENCE
    """Its probability; less than `CONFIDENCE` only for fewer than six samples."""

    @property
    def width(self) -> float:
        """Half its width, relative to the median: the 0.01 of "within 1 %"."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


@functools.lru_cache(maxsize=4096)
def ranks(n: int) -> tuple[int, int, float]:
    """Return the ranks of two of `n` sorted samples that enclose the median with `CONFIDENCE`, and the probability.

    The number of samples below the median is binomial. The ranks are close to n/2 -+ 0.98 sqrt(n); with fewer than six
    samples, they are the outermost.
    """
    below = 0.0
    rank = 0
    log_total = -n * math.log(2)
    while rank < (n - 1) // 2:
        term = math.exp(math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1) + log_total)
        if below + term > (1 - CONFIDENCE) / 2:
            break
        below = below + term
        rank = rank + 1
    if rank == 0:  # few samples
        return 0, n - 1, max(0.0, 1 - 2 ** (1 - n))
    return rank - 1, n - rank, 1 - 2 * below


def median_interval(samples: Sequence[float]) -> Interval:
    """Return the median of samples and its 95 % interval."""
    if not len(samples):
        raise ValueError("no samples: there is no median")
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    low, high, confidence = ranks(len(ordered))
    return Interval(float(ordered[low]), float(np.median(ordered)), float(ordered[high]), confidence)


def of_batches(batches: Sequence[Sequence[float]]) -> Interval:
    """Return the interval of samples in batches, widened by that of the batches' medians.

    Samples of one batch may resemble each other, so that there are in truth fewer than it seems.
    """
    interval = median_interval([sample for batch in batches for sample in batch])
    if len(batches) < 6:
        return interval
    between = median_interval([float(np.median(batch)) for batch in batches])
    return interval._replace(low=min(interval.low, between.low), high=max(interval.high, between.high))


class Stopping(NamedTuple):
    """When there are enough samples."""

    within: float = 0.005
    """The wanted width of the interval, relative to the median."""
    at_least: int = 20
    seconds: float = 0.1
    """The least time."""
    at_most: float = 10.0
    """The most time."""

    def enough(self, interval: Interval | None, samples: int, elapsed: float) -> bool:
        """Return whether to stop."""
        if elapsed >= self.at_most:
            return True
        converged = interval is not None and interval.width <= self.within and interval.confidence >= CONFIDENCE
        return converged and samples >= self.at_least and elapsed >= self.seconds


def clusters(samples: Sequence[float], gap: float = 0.02, resolution: float = 0.05) -> tuple[float, float] | None:
    """Return the medians of two clusters, if samples fall into two.

    The split has the least variance within. Each cluster has a tenth of the samples, their distance exceeds `gap` of
    the median and a clock's `resolution`, and they are narrow beside it (Ashman's D > 4.5; halves of a uniform
    distribution have 3.5).
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    n = len(ordered)
    least = max(3, n // 10)
    if n < 20:
        return None
    counts = np.arange(1, n)
    totals = np.cumsum(ordered)[:-1]
    squares = np.cumsum((ordered - ordered.mean()) ** 2)
    left = totals / counts
    right = (ordered.sum() - totals) / (n - counts)
    between = counts * (n - counts) * (left - right) ** 2
    split = int(np.argmax(between)) + 1
    if not least <= split <= n - least or squares[-1] == 0:
        return None
    lower = ordered[:split]
    upper = ordered[split:]
    first = float(np.median(lower))
    second = float(np.median(upper))
    apart = upper.mean() - lower.mean()
    spread = math.sqrt((lower.var() + upper.var()) / 2)
    if second - first <= max(gap * float(np.median(ordered)), resolution) or apart <= 4.5 * spread:
        return None
    return first, second


def drift(samples: Sequence[float]) -> float:
    """Return by how much the last third is slower than the first, relative; 0 if their intervals touch."""
    n = len(samples) // 3
    if n < 6:
        return 0.0
    first = median_interval(samples[:n])
    last = median_interval(samples[-n:])
    if first.high >= last.low and last.high >= first.low:
        return 0.0
    return last.median / first.median - 1


def verdict(ratio: Interval, margin: float = MARGIN) -> str:
    """Return "faster" or "slower" by the interval of a ratio of times, or "same" if it contains 1 or nearly so."""
    if ratio.confidence < CONFIDENCE or ratio.low <= 1 <= ratio.high:
        return "same"
    if 1 - margin <= ratio.low and ratio.high <= 1 + margin:
        return "same"
    return "faster" if ratio.high < 1 else "slower"
