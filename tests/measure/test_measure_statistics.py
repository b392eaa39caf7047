"""Statistics on made-up samples: intervals cover the truth as often as they say, and equal programs are the same."""

from __future__ import annotations

import numpy as np
import pytest

from kiln.measure import statistics
from kiln.measure.statistics import Interval, Stopping

TRIALS = 2000


def steady(random, shape):
    return random.normal(10.0, 0.1, shape)


def heavy(random, shape):
    """Mostly noise, sometimes much later: as a machine that does other things, too."""
    return 10.0 * np.exp(0.05 * random.standard_t(1.5, shape))


def two_modes(random, shape):
    return np.where(random.random(shape) < 0.7, 10.0, 11.0) + random.normal(0, 0.05, shape)


def drifting(random, shape):
    """1 % a second, over a second."""
    return 10.0 * (1 + 0.01 * np.linspace(0, 1, shape[-1])) + random.normal(0, 0.1, shape)


TRUTH = {
    steady: 10.0,
    heavy: 10.0,
    two_modes: float(np.median(two_modes(np.random.default_rng(7), 4_000_001))),
    drifting: 10.05,
}


def covered(made, n, seed=0):
    """In how many of the trials the interval of n samples covers the truth."""
    low, high, _ = statistics.ranks(n)
    ordered = np.sort(made(np.random.default_rng(seed), (TRIALS, n)), axis=1)
    return float(np.mean((ordered[:, low] <= TRUTH[made]) & (TRUTH[made] <= ordered[:, high])))


@pytest.mark.parametrize("made", TRUTH, ids=lambda made: made.__name__)
@pytest.mark.parametrize("n", [20, 101, 400])
def test_c17_intervals_cover_the_truth_in_95_percent(made, n):
    assert 0.93 <= covered(made, n) <= 0.98, "ranks are whole numbers: of 20 samples, 95.9 %"
    assert statistics.ranks(n)[2] >= 0.95


def test_c17_three_samples_say_how_little_they_know():
    assert abs(covered(steady, 3) - statistics.ranks(3)[2]) < 0.03 and statistics.ranks(3)[2] == 0.75
    few = statistics.median_interval([3.0, 1.0, 2.0])
    assert few == (1.0, 2.0, 3.0, 0.75)
    assert statistics.verdict(few._replace(low=1.5)) == "same", "three samples decide nothing"
    assert not Stopping(within=1.0, at_least=1, seconds=0).enough(few, 3, 1.0)


def test_the_interval_is_that_of_the_samples_ranks():
    samples = list(range(1, 101))
    found = statistics.median_interval(samples[::-1])
    assert found.median == 50.5 and (found.low, found.high) == (40, 61)  # 100/2 -+ 0.98 * 10
    with pytest.raises(ValueError, match="no samples"):
        statistics.median_interval([])


@pytest.mark.parametrize("made", [steady, heavy, two_modes, drifting], ids=lambda made: made.__name__)
def test_c17_equal_programs_are_the_same(made):
    """Twenty paired rounds of medians of five."""
    random = np.random.default_rng(1)
    said = []
    for _ in range(400):
        a, b = (np.median(made(random, (5, 20)), axis=0) for _ in range(2))
        said.append(statistics.verdict(statistics.median_interval(b / a)))
    assert said.count("same") >= 0.95 * len(said)


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ((0.97, 0.98, 0.99), "faster"), ((1.01, 1.02, 1.03), "slower"), ((0.99, 1.02, 1.03), "same"),
        ((1.001, 1.002, 1.004), "same"), ((1.001, 1.004, 1.009), "slower"),
    ],
)  # fmt: skip
def test_verdicts(interval, said):
    assert statistics.verdict(Interval(*interval)) == said


def test_two_clusters_are_seen_and_one_is_not():
    random = np.random.default_rng(2)
    found = statistics.clusters(two_modes(random, 400))
    assert found is not None and found == pytest.approx((10.0, 11.0), abs=0.05)
    for one in (steady(random, 400), heavy(random, 400), random.uniform(9, 11, 400), drifting(random, (400,))):
        assert statistics.clusters(one) is None
    assert statistics.clusters([10.0] * 400) is None and statistics.clusters([1.0, 2.0]) is None
    assert statistics.clusters([10.0] * 95 + [20.0] * 5) is None, "a few outliers are no mode"
    assert statistics.clusters([1.0, 1.03] * 50) is None, "a step of the clock is no mode"


def test_drift():
    random = np.random.default_rng(3)
    assert statistics.drift(steady(random, 300)) == 0.0
    assert statistics.drift([10.0 + i / 100 for i in range(300)]) == pytest.approx(0.18, abs=0.02)
    assert statistics.drift([1.0, 2.0]) == 0.0


def test_batches_that_differ_widen_the_interval():
    random = np.random.default_rng(4)
    alike = [list(random.normal(10, 0.1, 50)) for _ in range(20)]
    apart = [list(random.normal(10 + shift, 0.001, 50)) for shift in random.normal(0, 0.1, 20)]
    assert statistics.of_batches(alike).width < 0.002
    assert statistics.of_batches(apart).width > 3 * statistics.median_interval(sum(apart, [])).width / 2
    assert statistics.of_batches(apart).width > 0.003


def test_stopping():
    rule = Stopping(0.005, 20, 0.1, 10.0)
    narrow, wide = Interval(9.99, 10.0, 10.01), Interval(9, 10, 11)
    assert rule.enough(narrow, 20, 0.1) and rule.enough(wide, 20, 10.0) and rule.enough(None, 0, 10.0)
    assert not rule.enough(narrow, 19, 0.1) and not rule.enough(narrow, 20, 0.09) and not rule.enough(wide, 999, 9.0)
