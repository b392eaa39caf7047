"""Figures of an H200 that `sm90_cost.py` and `sm90_hd256_config.py` reckon with.

`python benchmarks/choices.py fit gradients` fits them to the measurements in `benchmarks/data/choices_h200.jsonl`, and writes this file.
"""

from __future__ import annotations

from typing import NamedTuple


class Figures(NamedTuple):
    """A config to choose from (tile_m, stages, held), microseconds of a step, and of beginning and ending a block of keys."""

    config: tuple[int, int, int]
    step: float
    block: float


FIGURES: dict[int, tuple[Figures, ...]] = {
    64: (
        Figures((96, 3, 2), 1.818, 4.6),
        Figures((64, 3, 0), 1.485, 1.5),
    ),
    128: (Figures((64, 2, 0), 2.05, 4.4),),
}
"""By elements of a head, filled up."""
DEEP_OVER = 1.306, 1.211
"""What steps of the pass of keys, and of that of queries, take, of what the unit takes that is busiest."""
DEEP_BLOCK = 4.8
"""Microseconds that beginning and ending a block of threads takes in either pass."""
