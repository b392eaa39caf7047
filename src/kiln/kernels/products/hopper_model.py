"""Figures of an H200 that `hopper_cost.py` reckons with.

`python benchmarks/tune_products.py fit` writes this file, from the measurements in `benchmarks/data/products_h200.jsonl`.
"""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """A tile to choose from, and how many TFLOP/s a multiprocessor does with it in f16; `parts`: K may be cut among blocks."""

    block_mn: tuple[int, int]
    cluster_mn: tuple[int, int]
    speed: float
    pingpong: bool = False
    swapped: bool = False
    parts: bool = False


TILES = (
    Tile((128, 256), (2, 1), 5.85),
    Tile((128, 256), (1, 1), 5.6),
    Tile((256, 128), (1, 2), 5.8),
    Tile((256, 192), (1, 2), 5.8),
    Tile((256, 192), (2, 1), 5.8),
    Tile((128, 224), (2, 1), 5.7),
    Tile((128, 224), (1, 1), 5.5),
    Tile((128, 192), (2, 1), 5.6),
    Tile((128, 192), (2, 1), 5.6, pingpong=True),
    Tile((128, 192), (1, 1), 5.4, parts=True),
    Tile((128, 160), (2, 1), 5.4, pingpong=True),
    Tile((128, 128), (2, 1), 5.3, pingpong=True),
    Tile((128, 128), (2, 1), 5.2),
    Tile((128, 128), (1, 1), 5.0, parts=True),
    Tile((64, 256), (2, 1), 5.0, pingpong=True),
    Tile((128, 64), (1, 1), 3.6, parts=True),
    Tile((128, 32), (1, 1), 2.2, parts=True),
    Tile((128, 16), (1, 1), 1.2, parts=True),
    Tile((64, 128), (1, 1), 3.6, pingpong=True),
    Tile((64, 64), (1, 1), 2.6, pingpong=True),
    Tile((128, 8), (1, 1), 0.7, swapped=True, parts=True),
    Tile((128, 16), (1, 1), 1.2, swapped=True, parts=True),
    Tile((128, 32), (1, 1), 2.2, swapped=True, parts=True),
    Tile((128, 64), (1, 1), 3.6, swapped=True, parts=True),
    Tile((128, 128), (1, 1), 5.0, swapped=True, parts=True),
    Tile((256, 16), (1, 1), 1.2, swapped=True),
    Tile((256, 32), (1, 1), 2.2, swapped=True),
    Tile((256, 64), (1, 1), 3.6, swapped=True),
    Tile((64, 8), (1, 1), 0.7, True, True),
    Tile((64, 16), (1, 1), 1.2, True, True),
    Tile((64, 32), (1, 1), 2.2, True, True),
    Tile((64, 64), (1, 1), 2.6, True, True),
)
MODEL = {
    "launch": 0.5,
    "start": 2.2,
    "store": 0.5,
    "store_area": 0.5,
    "staged": 0.5,
    "staged_area": 1.0,
    "parts": 0.8,
    "parts_area": 1.0,
    "others": 0.5,
    "cache": 10.0,
    "memory": 4.2,
    "latency": 1.5,
    "bytes": 1.8,
    "promoted": 1.65,
}
"""Microseconds: of a launch; before the first product; to write a tile, and what is added for each 128 x 128 of it (`staged`: without the
copy engine; `parts`: sums of a cluster; `others`: another tensor as large as the result). TB/s: `cache`, what multiprocessors read of the
L2 cache; `memory`, after `latency` microseconds. How much faster 8-bit integers are multiplied (`bytes`), and 8-bit floats (`promoted`)."""
