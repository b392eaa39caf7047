"""What samples of a time say: the median and how well it is known, clusters, drift, and which of two is faster. Pure functions.

Nothing is assumed of how samples are distributed but that they are independent: intervals are between two of the sorted samples.
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
    """The median of samples, and between which values that of the distribution lies."""

    low: float
    median: float
    high: float
    confidence: float = CONFIDENCE
    """With which probability; less than `CONFIDENCE` only for fewer than six samples."""

    @property
    def width(self) -> float:
        """Half of it, relative to the median: the 0.01 of "within 1 %"."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


@functools.lru_cache(maxsize=4096)
def ranks(n: int) -> tuple[int, int, float]:
    """Between which of `n` sorted samples, counted from 0, the median lies with `CONFIDENCE`; and its real probability.

    How many samples are below the median is binomial. Close to n/2 -+ 0.98 sqrt(n); with fewer than six samples, the outermost.
    """
    below, rank, log_total = 0.0, 0, -n * math.log(2)
    while rank < (n - 1) // 2:
        term = math.exp(math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1) + log_total)
        if below + term > (1 - CONFIDENCE) / 2:
            break
        below, rank = below + term, rank + 1
    if rank == 0:  # few samples
        return 0, n - 1, max(0.0, 1 - 2 ** (1 - n))
    return rank - 1, n - rank, 1 - 2 * below


def median_interval(samples: Sequence[float]) -> Interval:
    """The median of samples and its interval of 95 %."""
    if not len(samples):
        raise ValueError("no samples: there is no median")
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    low, high, confidence = ranks(len(ordered))
    return Interval(float(ordered[low]), float(np.median(ordered)), float(ordered[high]), confidence)


def of_batches(batches: Sequence[Sequence[float]]) -> Interval:
    """The interval of samples that came in batches, and of the batches' medians if those say less.

    Samples of one batch may resemble each other more than those of others, so that there are in truth fewer than it seems.
    """
    interval = median_interval([sample for batch in batches for sample in batch])
    if len(batches) < 6:
        return interval
    between = median_interval([float(np.median(batch)) for batch in batches])
    return interval._replace(low=min(interval.low, between.low), high=max(interval.high, between.high))


class Stopping(NamedTuple):
    """When there are enough samples."""

    within: float = 0.005
    """The width of the interval, relative to the median."""
    at_least: int = 20
    seconds: float = 0.1
    """Measured for so long at least."""
    at_most: float = 10.0
    """And no longer than this."""

    def enough(self, interval: Interval | None, samples: int, elapsed: float) -> bool:
        """Whether to stop."""
        if elapsed >= self.at_most:
            return True
        converged = interval is not None and interval.width <= self.within and interval.confidence >= CONFIDENCE
        return converged and samples >= self.at_least and elapsed >= self.seconds


def clusters(samples: Sequence[float], gap: float = 0.02, resolution: float = 0.05) -> tuple[float, float] | None:
    """The medians of two clusters that samples fall into, if they do.

    The split is the one with the least variance within. Two clusters have a tenth of the samples each, lie further apart than `gap` of
    the median and a clock's `resolution`, and are narrow beside their distance (Ashman's D > 4.5; halves of an even distribution: 3.5).
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    n = len(ordered)
    least = max(3, n // 10)
    if n < 20:
        return None
    counts = np.arange(1, n)
    sums = np.cumsum(ordered)[:-1]
    squares = np.cumsum((ordered - ordered.mean()) ** 2)
    left, right = sums / counts, (ordered.sum() - sums) / (n - counts)
    between = counts * (n - counts) * (left - right) ** 2
    split = int(np.argmax(between)) + 1
    if not least <= split <= n - least or squares[-1] == 0:
        return None
    lower, upper = ordered[:split], ordered[split:]
    first, second = float(np.median(lower)), float(np.median(upper))
    apart = upper.mean() - lower.mean()
    spread = math.sqrt((lower.var() + upper.var()) / 2)
    if second - first <= max(gap * float(np.median(ordered)), resolution) or apart <= 4.5 * spread:
        return None
    return first, second


def drift(samples: Sequence[float]) -> float:
    """By how much the last third is slower than the first, relative; 0 if their intervals touch."""
    n = len(samples) // 3
    if n < 6:
        return 0.0
    first, last = median_interval(samples[:n]), median_interval(samples[-n:])
    if first.high >= last.low and last.high >= first.low:
        return 0.0
    return last.median / first.median - 1


def verdict(ratio: Interval, margin: float = MARGIN) -> str:
    """What the interval of the ratio of a time to another's says: "faster", "slower", or "same" if it contains 1 or nearly so."""
    if ratio.confidence < CONFIDENCE or ratio.low <= 1 <= ratio.high:
        return "same"
    if 1 - margin <= ratio.low and ratio.high <= 1 + margin:
        return "same"
    return "faster" if ratio.high < 1 else "slower"
