"""The order in which blocks and threads run, and the random numbers of a group.

The numbers come from the seed and the number of the group, so that a seed means the same schedule whatever number of OS
threads there is.
"""
# pyright: reportReturnType=false

from __future__ import annotations

from ....native import Library, Ptr, i32, i64, native, u32, u64

launching: Library = Library("launch", prefix="kiln_cpu_", passes=0, opt=1)
schedule = launching.variable("schedule", i64)
"""The seed; 0: threads and blocks run in order, and engines work at once."""


@launching.export
def seed(number: u32, random: Ptr[u64]) -> i32:
    """Seed the random numbers of a group, and return whether there is a seed."""
    mixed = (u64(schedule.value) ^ u64(number) * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9
    random[0] = mixed ^ mixed >> 29
    return schedule.value != 0


@launching.export
def random(state: Ptr[u64], limit: u32) -> u32:
    """Return a number from 0 to limit - 1: the high bits of a linear congruential generator."""
    state[0] = state[0] * 6364136223846793005 + 1442695040888963407
    return u32((state[0] >> 33) % limit)


@launching.export
def order(state: Ptr[u64], count: u32, first: Ptr[u32], stride: Ptr[u32]) -> None:
    """Draw a random start and a random stride that is coprime to `count`, so that it reaches all of them."""
    first[0] = random(state, count)
    step = random(state, count) + 1
    while common_divisor(count, step) != 1:
        step += 1
    stride[0] = step - count if step >= count else step  # more only where there is one thing


@native
def common_divisor(a: u32, b: u32) -> u32:
    while b != 0:
        a, b = b, a % b
    return a
