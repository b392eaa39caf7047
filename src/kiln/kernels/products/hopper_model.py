"""Figures of an H200 that `hopper_cost.py` reckons with.

`python benchmarks/tune_products.py fit` fits them to the measurements in `benchmarks/data/products_h200.jsonl`, and writes this file.
"""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """A tile to choose from, and how many TFLOP/s a multiprocessor does with it in f16; K may be cut into so many parts."""

    block_mn: tuple[int, int]
    cluster_mn: tuple[int, int]
    speed: float
    pingpong: bool = False
    swapped: bool = False
    parts: tuple[int, ...] = (1,)


_ANY, _SOME = (1, 2, 3, 4, 5, 6, 8), (2, 3, 4, 6, 8)

TILES = (
    Tile((128, 256), (2, 1), 5.62),
    Tile((128, 256), (1, 1), 6.25),
    Tile((256, 128), (1, 2), 5.57),
    Tile((256, 192), (1, 2), 5.77),
    Tile((128, 224), (2, 1), 5.49),
    Tile((128, 224), (1, 1), 5.2),
    Tile((128, 192), (2, 1), 5.28),
    Tile((128, 192), (2, 1), 5.6, pingpong=True),
    Tile((128, 192), (1, 1), 5.17, parts=_ANY),
    Tile((128, 160), (2, 1), 5.46, pingpong=True),
    Tile((128, 128), (2, 1), 5.48, pingpong=True),
    Tile((128, 128), (2, 1), 5.53),
    Tile((128, 128), (1, 1), 6.41, parts=_ANY),
    Tile((64, 256), (2, 1), 5.17, pingpong=True),
    Tile((128, 64), (1, 1), 5.9, parts=_ANY),
    Tile((128, 32), (1, 1), 3.36, parts=_ANY),
    Tile((128, 16), (1, 1), 1.71, parts=_ANY),
    Tile((64, 128), (1, 1), 5.97, pingpong=True),
    Tile((64, 64), (1, 1), 4.76, pingpong=True),
    Tile((128, 64), (1, 2), 3.82),
    Tile((128, 32), (1, 2), 2.86),
    Tile((64, 64), (1, 2), 5.1, pingpong=True),
    Tile((64, 8), (1, 1), 0.665, pingpong=True, swapped=True),
    Tile((64, 16), (1, 1), 1.34, pingpong=True, swapped=True),
    Tile((64, 24), (1, 1), 1.8, pingpong=True, swapped=True),
    Tile((64, 32), (1, 1), 3.28, pingpong=True, swapped=True),
    Tile((64, 48), (1, 1), 3.3, pingpong=True, swapped=True),
    Tile((64, 64), (1, 1), 5.9, pingpong=True, swapped=True),
    Tile((64, 64), (2, 1), 3.73, pingpong=True, swapped=True),
    Tile((64, 96), (1, 1), 4.4, pingpong=True, swapped=True),
    Tile((64, 96), (2, 1), 4.5, pingpong=True, swapped=True),
    Tile((64, 128), (1, 1), 3.9, pingpong=True, swapped=True),
    Tile((64, 128), (2, 1), 3.67, pingpong=True, swapped=True),
    Tile((128, 8), (1, 1), 0.751, swapped=True, parts=_SOME),
    Tile((128, 16), (1, 1), 1.56, swapped=True, parts=_SOME),
    Tile((128, 32), (1, 1), 2.13, swapped=True, parts=_SOME),
    Tile((128, 64), (1, 1), 5.11, swapped=True, parts=_SOME),
    Tile((128, 96), (1, 1), 4.4, swapped=True, parts=_SOME),
)
MODEL = {
    "launch": 0.5,
    "start": 0.788,
    "store": 0.456,
    "store_area": 0.408,
    "staged": 0.484,
    "staged_area": 0.959,
    "parts": 1.4,
    "parts_area": 1.01,
    "second": 4.58,
    "others": 0.5,
    "followed": 1.5,
    "cache": 14.5,
    "memory": 4.05,
    "latency": 1.5,
    "power": 749,
    "power_cache": 126,
    "bytes": 1.8,
    "promoted": 1.65,
}
"""Microseconds: of a launch; before the first product; to write a tile, and what is added for each 128 x 128 of it (`staged`: without the
copy engine; `parts`: sums of a cluster; `second`: a second kernel; `others`: another tensor as large as the result; `followed`: anything that follows the sums). TB/s: `cache`, what multiprocessors read of the
L2 cache; `memory`, after `latency` microseconds. What the power limit lets large products do: TFLOP/s of all multiprocessors (`power`), TB/s of the L2 cache (`power_cache`), one after the other. How much faster 8-bit integers are multiplied (`bytes`), and 8-bit floats (`promoted`)."""
