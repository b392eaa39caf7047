"""Exercise 2 of lesson 0: predict a kernel's best time, and say what limits it."""

BANDWIDTH = 4.8e12
"""Bytes a second of an H200's memory, by its data sheet."""
PEAK = 989e12
"""Floating-point operations a second of its tensor cores in f16, by its data sheet."""


def least_time_us(moved: float, operations: float) -> float:
    """Return the least time in microseconds of a kernel that moves `moved` bytes and does `operations` operations.

    Memory and tensor cores work at the same time, so the slower of the two decides.
    """
    # TODO: the time of the memory, the time of the tensor cores, and the larger of them in microseconds
    least = max(moved / BANDWIDTH, operations / PEAK) * 1e6
    # END
    return least


def bound_by(moved: float, operations: float) -> str:
    """Return what limits such a kernel: "memory" or "compute"."""
    # TODO: compare the same two times
    answer = "memory" if moved / BANDWIDTH > operations / PEAK else "compute"
    # END
    return answer
