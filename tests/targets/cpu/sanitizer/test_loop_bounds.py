"""Ranges of addresses that loops check once: findings and results are those of checks in every iteration."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

import kiln
from kiln import Constexpr, Float32, Int32, cute
from kiln.cute import arch
from kiln.targets.cpu.sanitizer import loop_bounds


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("KILN_CHECKS", "always")
    monkeypatch.setenv("KILN_CPU_OPT", "0")
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    with kiln.target("cpu"):
        yield


def kernels():
    """Return functions of new code, so that each is compiled once with and once without ranges."""

    @cute.kernel
    def strided(x: cute.Tensor, y: cute.Tensor, n: Int32, a: Int32, c: Int32, step: Constexpr):
        t = arch.thread_idx()[0]
        for p in range(t, n, step):
            if p != 5:
                y[t, (p + c) * a] += x[a * p + c]

    @cute.jit
    def run(x: cute.Tensor, y: cute.Tensor, n: Int32, a: Int32, c: Int32, step: Constexpr):
        strided(x, y, n, a, c, step).launch(grid=1, block=3)

    return run


SIZE = 40
NUMBERS = random.Random(3)
CASES = [
    *((n, a, c) for n in (0, 1, 2, 7) for a in (-2, -1, 0, 1, 5) for c in (-1, 0, 1, 36)),
    *((NUMBERS.randint(-2, 60), NUMBERS.randint(-3, 7), NUMBERS.randint(-40, 40)) for _ in range(60)),
    (5, 1 << 30, 0),
    (5, 1 << 28, 1 << 30),
    (3, -(1 << 31), 1),
]


def said(run, step):
    texts = []
    for n, a, c in CASES:
        x = np.arange(SIZE, dtype=np.float32)
        y = np.zeros((3, SIZE), np.float32)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run(x, y, n, a, c, step)
                error = ""
            except Exception as failure:
                error = str(failure)
        texts.append((n, a, c, error, [str(w.message) for w in caught], y.tobytes()))
    return texts


@pytest.mark.parametrize("step", [3])
def test_ranges_find_what_every_iteration_finds(step, monkeypatch):
    versions = []
    version = loop_bounds._version
    monkeypatch.setattr(loop_bounds, "_version", lambda *of: versions.append(of[3]) or version(*of))
    by_range = said(kernels(), step)
    assert [len(ranged) for ranged in versions] == [3]  # the loads and the store
    monkeypatch.setattr(loop_bounds, "hoist", lambda x, checks, written: checks)
    each = said(kernels(), step)
    assert by_range == each
    wrong = sum(bool(error or texts) for *_, error, texts, _ in each)
    assert 20 < wrong < len(CASES) - 20


def test_what_a_loop_looks_up_is_checked_each_time(monkeypatch):
    versions = []
    monkeypatch.setattr(loop_bounds, "_version", lambda *of: versions.append(of[3]) or of[2])

    @cute.kernel
    def gathered(x: cute.Tensor, index: cute.Tensor, y: cute.Tensor):
        total = Float32(0.0)
        for p in range(index.shape[0]):
            total += x[index[p]]
        y[0] = total

    @cute.jit
    def run(x: cute.Tensor, index: cute.Tensor, y: cute.Tensor):
        gathered(x, index, y).launch(grid=1, block=1)

    run(np.ones(4, np.float32), np.zeros(3, np.int32), np.zeros(1, np.float32))
    assert [[check.argument for check in ranged] for ranged in versions] == [[1]]
