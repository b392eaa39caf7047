"""Figures of an H200 that `decode_cost.py` reckons with.

`python benchmarks/choices.py fit decode` fits them to the measurements in `benchmarks/data/choices_h200.jsonl`, and writes this file.
Those measurements tell little of what a block of 16 rows of 8 bits, and one of 32 rows and 32 keys, takes alone: both figures are set so that no choice is more than 5 % behind.
"""

from __future__ import annotations

from typing import NamedTuple


class Figures(NamedTuple):
    """A config to choose from: bits of elements, rows, keys of a step, warps, blocks on a multiprocessor at most. Microseconds of a step, of heads of 128: of a warp of
    a scheduler, if all its warps issue one after the other, and of a block that is alone; and those of beginning and ending blocks."""

    bits: int
    tile_m: int
    tile_n: int
    warps: int
    blocks: int
    issue: float
    alone: float
    begin: float


FIGURES: tuple[Figures, ...] = (
    Figures(16, 16, 64, 1, 3, 1.01, 1.12, 2.75),
    Figures(16, 16, 32, 1, 6, 0.253, 1.27, 2.75),
    Figures(16, 32, 64, 2, 3, 0.992, 1.06, 2.7),
    Figures(16, 32, 32, 2, 5, 0.528, 1.0, 3.63),
    Figures(16, 32, 128, 2, 1, 1.71, 1.05, 3.63),
    Figures(16, 64, 64, 4, 2, 0.411, 1.05, 5.43),
    Figures(16, 64, 128, 4, 1, 1.52, 1.87, 4.54),
    Figures(16, 64, 32, 2, 4, 0.715, 0.346, 6.72),
    Figures(8, 16, 64, 1, 6, 0.631, 0.98, 4.44),
    Figures(8, 32, 64, 2, 5, 0.815, 0.45, 5.5),
    Figures(8, 32, 32, 1, 8, 0.777, 0.231, 8.29),
    Figures(8, 64, 64, 2, 4, 1.32, 0.461, 13.8),
    Figures(8, 64, 64, 4, 2, 0.809, 0.708, 5.47),
)
UNEVEN = 0.26
"""How often a multiprocessor has one block of threads more than evenly spread ones, and its warps to issue."""
LAUNCH = 1.59
"""Microseconds of a launch."""
PARTS = 4.39
"""Microseconds of the kernel that puts parts together."""
PART = 1.89e-06
"""Microseconds for an element of an output of a part, written and read."""
