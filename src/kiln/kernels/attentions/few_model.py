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
    Figures(16, 16, 64, 1, 3, 0.581, 1.057, 1.56),
    Figures(16, 32, 64, 2, 3, 1.106, 1.057, 1.29),
    Figures(16, 32, 32, 2, 5, 0.688, 0.529, 2.39),
    Figures(16, 32, 128, 2, 1, 1.82, 1.535, 2.54),
    Figures(16, 64, 64, 4, 2, 0.82, 1.057, 4.11),
    Figures(16, 64, 128, 4, 1, 1.826, 1.915, 3.55),
    Figures(16, 64, 32, 2, 4, 0.678, 0.529, 5.87),
    Figures(8, 16, 64, 1, 6, 1.464, 0.529, 1.82),
    Figures(8, 32, 64, 2, 5, 0.815, 0.529, 3.81),
    Figures(8, 32, 64, 2, 4, 0.763, 0.529, 9.16),
    Figures(8, 32, 96, 2, 4, 1.073, 0.793, 9.55),
    Figures(8, 32, 32, 1, 8, 0.713, 0.264, 10.22),
    Figures(8, 64, 64, 2, 4, 1.306, 0.529, 12.89),
    Figures(8, 64, 64, 4, 2, 0.796, 0.529, 4.9),
)
UNEVEN = 0.3
"""How often a multiprocessor has one block of threads more than evenly spread ones, and its warps to issue."""
LAUNCH = 4.05
"""Microseconds of a launch."""
PARTS = 2.96
"""Microseconds of the kernel that puts parts together."""
PART = 2.0e-6
"""Microseconds for an element of an output of a part, written and read."""
