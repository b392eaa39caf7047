"""Figures of an H200 that `few_cost.py` reckons with.

`python benchmarks/choices.py fit decode` fits them to the measurements in `benchmarks/data/choices_h200.jsonl`, and writes this file.
"""

from __future__ import annotations

from typing import NamedTuple


class Figures(NamedTuple):
    """A tiling to choose from: bits of elements, rows, keys of a step, warps, blocks on a multiprocessor at most. Microseconds of a step, of heads of 128: of a warp of
    a scheduler, if all its warps issue one after the other, and of a block that is alone; and those of beginning and ending blocks."""

    bits: int
    block_q: int
    block_k: int
    warps: int
    blocks: int
    issue: float
    alone: float
    begin: float


FIGURES: tuple[Figures, ...] = (
    Figures(16, 16, 64, 1, 3, 0.581, 1.06, 1.7),
    Figures(16, 16, 32, 1, 6, 0.29, 0.6, 2.0),
    Figures(16, 32, 64, 2, 3, 1.08, 1.08, 1.54),
    Figures(16, 32, 32, 2, 5, 0.528, 0.529, 2.75),
    Figures(16, 32, 128, 2, 1, 1.71, 1.54, 2.75),
    Figures(16, 64, 64, 4, 2, 0.763, 1.05, 4.55),
    Figures(16, 64, 128, 4, 1, 1.83, 1.88, 3.7),
    Figures(16, 64, 32, 2, 4, 0.774, 0.529, 6.12),
    Figures(8, 16, 64, 1, 6, 1.47, 0.529, 1.89),
    Figures(8, 32, 64, 2, 5, 0.853, 0.529, 3.26),
    Figures(8, 32, 64, 2, 4, 0.87, 0.529, 7.88),
    Figures(8, 32, 96, 2, 4, 1.23, 0.793, 8.16),
    Figures(8, 32, 32, 1, 8, 0.819, 0.264, 8.97),
    Figures(8, 64, 64, 2, 4, 1.34, 0.529, 12.8),
    Figures(8, 64, 64, 4, 2, 0.827, 0.529, 4.44),
)
UNEVEN = 0.166
"""How often a multiprocessor has one block of threads more than evenly spread ones, and its warps to issue."""
LAUNCH = 2.35
"""Microseconds of a launch."""
PARTS = 4.67
"""Microseconds of the kernel that puts parts together."""
PART = 1.79e-06
"""Microseconds for an element of an output of a part, written and read."""
