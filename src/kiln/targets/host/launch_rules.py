"""The rule that a refused launch broke."""

from __future__ import annotations

from ...hardware import architectures, limits

MAX_COOPERATIVE = 132 * 2048
"""The most threads of a cooperative launch: as many as an H200 can hold. The CPU target limits them for memory."""


def refused_launch(kernel: str, needs: str, numbers: list[int]) -> tuple[str, str, bool]:
    """Return which rule a launch broke, a hint, and whether it is the one of cooperative launches.

    `needs` are those of the kernel, encoded; `numbers` are grid, block, cluster, bytes of shared memory, whether it is
    cooperative.
    """
    of, needs_of_kernel = architectures.decoded_needs(needs)
    sizes = limits.Sizes(numbers[:3], numbers[3:6], numbers[6:9], numbers[9])
    broken = limits.broken_rule(of, sizes, needs_of_kernel)
    if broken is not None:
        return limits.refusal(kernel, sizes, broken[0]), broken[1], False
    threads = 1
    for extent in (*numbers[:6],):
        threads *= extent
    return (
        limits.refusal(kernel, sizes, f"{threads} threads cannot be resident together, as a cooperative launch needs"),
        f"a cooperative launch has at most {MAX_COOPERATIVE} threads",
        True,
    )
