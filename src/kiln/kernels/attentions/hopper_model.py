"""Figures of an H200 that `hopper_cost.py` reckons with.

`python benchmarks/tune_attention.py fit` fits them to the measurements in `benchmarks/data/attention_h200.jsonl`, and writes this file.
"""

from __future__ import annotations

from typing import NamedTuple


class Figures(NamedTuple):
    """A tiling to choose from (groups, block_k, stages, in_turns, queries_held), TFLOP/s of a multiprocessor, and what beginning and
    ending a tile takes, in microseconds."""

    tiling: tuple[int, int, int, bool, bool]
    speed: float
    tile: float


FIGURES: dict[tuple[int, int, int], tuple[Figures, ...]] = {
    (16, 64, 64): (Figures((3, 128, 3, False, False), 4.6, 2.2),),
    (16, 96, 96): (
        Figures((3, 112, 2, True, False), 5.65, 6.7),
        Figures((3, 112, 2, False, False), 5.375, 3.3),
    ),
    (16, 128, 128): (
        Figures((3, 80, 3, False, False), 6.15, 1.8),
        Figures((2, 128, 2, False, True), 5.625, 1.6),
        Figures((2, 128, 2, False, False), 5.575, 1.5),
    ),
    (16, 192, 192): (
        Figures((2, 112, 2, True, False), 6.5, 8.0),
        Figures((2, 96, 2, True, False), 6.475, 8.0),
    ),
    (16, 256, 256): (Figures((2, 64, 2, False, False), 6.2, 4.9),),
    (8, 64, 64): (Figures((3, 128, 3, True, False), 5.0, 1.5),),
    (8, 128, 128): (Figures((3, 96, 3, False, False), 8.4, 2.0),),
    (8, 256, 256): (Figures((2, 96, 2, True, False), 8.5, 3.0),),
}
"""By bits of an element and the most elements of a head of keys, and of values."""
