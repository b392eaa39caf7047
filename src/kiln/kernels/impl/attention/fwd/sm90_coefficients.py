"""Figures of an H200 that `sm90_cost.py` reckons with.

`python benchmarks/tune_attention.py fit` fits them to the measurements in `benchmarks/data/attention_h200.jsonl`, and writes this file.
"""

from __future__ import annotations

from typing import NamedTuple


class Figures(NamedTuple):
    """A config to choose from (groups, tile_n, stages, pingpong, q_in_regs), TFLOP/s of a multiprocessor, and what beginning and
    ending a tile takes, in microseconds."""

    config: tuple[int, int, int, bool, bool]
    speed: float
    tile: float


FIGURES: dict[tuple[int, int, int], tuple[Figures, ...]] = {
    (16, 64, 64): (
        Figures((3, 128, 3, False, False), 4.575, 1.1),
        Figures((3, 128, 3, True, False), 4.575, 1.6),
    ),
    (16, 96, 96): (
        Figures((3, 112, 3, False, False), 5.5, 1.8),
        Figures((3, 80, 3, True, False), 5.45, 2.0),
        Figures((3, 112, 2, True, False), 5.525, 2.4),
    ),
    (16, 128, 128): (
        Figures((3, 80, 3, False, False), 6.075, 0.7),
        Figures((3, 64, 3, False, False), 5.925, 0.5),
        Figures((2, 128, 2, False, True), 5.6, 1.2),
    ),
    (16, 192, 128): (Figures((3, 80, 2, False, False), 6.2, 2.2),),
    (16, 192, 192): (
        Figures((2, 80, 2, True, True), 6.075, 2.1),
        Figures((2, 64, 2, False, True), 5.875, 2.2),
    ),
    (16, 256, 256): (
        Figures((2, 64, 2, False, False), 6.125, 4.1),
        Figures((2, 64, 2, True, False), 6.125, 4.1),
        Figures((2, 80, 2, False, False), 6.125, 3.9),
    ),
    (8, 64, 64): (Figures((3, 128, 3, False, False), 5.625, 2.8),),
    (8, 128, 128): (
        Figures((3, 96, 3, False, False), 9.1, 4.8),
        Figures((2, 192, 2, False, False), 8.65, 3.7),
        Figures((3, 64, 3, False, False), 8.825, 4.8),
    ),
    (8, 256, 256): (
        Figures((2, 128, 2, False, False), 11.225, 6.3),
        Figures((2, 128, 2, True, False), 11.15, 6.2),
    ),
}
"""By bits of an element and the most elements of a head of keys, and of values."""
