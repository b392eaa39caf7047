"""Checks of lesson 0."""

from __future__ import annotations

from typing import Any

from ...checking import Exercise, Wrong, same


def _count(module: Any) -> None:
    for n, threads in ((1, 32), (1000, 256), (1024, 256), (1025, 256), (4096, 1024)):
        got = module.launch_for(n, threads)
        expected = (-(-n // threads), -n % threads)
        if got != expected:
            raise Wrong(f"launch_for(n={n}, threads={threads})", expected=expected, got=got)


def _predict(module: Any) -> None:
    saxpy = ("saxpy of 2**28 elements", 12 * 2**28, 2 * 2**28)
    gemm = ("an f16 GEMM, 8192 cubed", 3 * 2**27, 2**40)
    for what, moved, operations in (saxpy, gemm, ("a GEMM with N = 8", 2**27 + 2**18, 2**30)):
        expected = max(moved / 4.8e12, operations / 989e12) * 1e6
        same(f"least_time_us of {what}", module.least_time_us(moved, operations), expected, tolerance=1e-3)
        bound = "compute" if what == gemm[0] else "memory"
        if (got := module.bound_by(moved, operations)) != bound:
            raise Wrong(f"bound_by of {what}", expected=bound, got=got)


EXERCISES = (
    Exercise(
        "count blocks and idle threads",
        _count,
        (
            "1000 elements and blocks of 256: three blocks are not enough, four have 24 threads to spare.",
            "Python's // rounds down; -(-n // threads) rounds up.",
        ),
    ),
    Exercise(
        "predict the best time",
        _predict,
        (
            "The time of the memory is bytes / BANDWIDTH, that of the tensor cores operations / PEAK.",
            "The kernel takes at least the longer of the two: max(). Multiply seconds by 1e6.",
        ),
    ),
)
