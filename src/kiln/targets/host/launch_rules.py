"""The sizes that a launch may have, and which rule one broke."""

from __future__ import annotations

MAX_SMEM = 232_448
"""Bytes of shared memory of a block on the largest device."""
LIMITS = (0x7FFFFFFF, 65535, 65535, 1024, 1024, 64)
"""Largest grid and block along x, y, z."""
MAX_THREADS = 1024
MAX_COOPERATIVE = 132 * 2048
"""Threads of a cooperative launch: what an H200 can hold at a time. Here it is memory that is limited."""


def broken_rule(kernel: str, numbers: list[int]) -> tuple[str, str]:
    """Which rule a launch broke, and a hint: grid, block, cluster, bytes of shared memory, whether it is cooperative."""
    grid, block, cluster, smem = numbers[:3], numbers[3:6], numbers[6:9], numbers[9]
    start = f"cannot launch kernel {kernel} with grid={tuple(grid)}, block={tuple(block)}"
    for name, sizes, limits in (("grid", grid, LIMITS[:3]), ("block", block, LIMITS[3:])):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if size < 1:
                return f"{start}: {name} {axis} is {size}", f"every size of a {name} is at least 1"
            if size > limit:
                return f"{start}: {name} {axis} is {size}", f"{name} {axis} is at most {limit}"
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS:
        return f"{start}: {threads} threads per block", f"a block has at most {MAX_THREADS} threads"
    for axis, size, part in zip("xyz", grid, cluster, strict=True):
        if part < 1:
            return (
                f"{start}, cluster={tuple(cluster)}: cluster {axis} is {part}",
                "every size of a cluster is at least 1",
            )
        if size % part:
            return (
                f"{start}, cluster={tuple(cluster)}: grid {axis} is no multiple of cluster {axis}",
                "a grid consists of whole clusters",
            )
    everyone = threads * grid[0] * grid[1] * grid[2]
    if numbers[10] == 1 and everyone > MAX_COOPERATIVE:
        return (
            f"{start}, cooperative: {everyone} threads cannot be resident together",
            f"a cooperative launch has at most {MAX_COOPERATIVE} threads",
        )
    return (
        f"{start}, smem={smem}: too much shared memory",
        f"a block has at most {MAX_SMEM} bytes of it, static and dynamic",
    )
