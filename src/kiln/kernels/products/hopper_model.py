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


_ANY, _SOME = (1, 2, 4, 8), (2, 4, 8)

TILES = (
    Tile((128, 256), (2, 1), 5.68),
    Tile((128, 256), (1, 1), 6.31),
    Tile((256, 128), (1, 2), 5.63),
    Tile((256, 192), (1, 2), 5.6),
    Tile((128, 224), (2, 1), 5.54),
    Tile((128, 224), (1, 1), 5.2),
    Tile((128, 192), (2, 1), 5.66),
    Tile((128, 192), (2, 1), 5.6, pingpong=True),
    Tile((128, 192), (1, 1), 5.65),
    Tile((128, 160), (2, 1), 5.85, pingpong=True),
    Tile((128, 128), (2, 1), 5.53, pingpong=True),
    Tile((128, 128), (2, 1), 5.52),
    Tile((128, 128), (1, 1), 6.21, parts=_ANY),
    Tile((64, 256), (2, 1), 5.22, pingpong=True),
    Tile((128, 64), (1, 1), 5.73, parts=_ANY),
    Tile((128, 64), (2, 1), 5),
    Tile((128, 96), (1, 1), 5.89, parts=_ANY),
    Tile((128, 32), (1, 1), 3.82, parts=_ANY),
    Tile((128, 16), (1, 1), 2.12, parts=_ANY),
    Tile((64, 224), (1, 1), 4.99, pingpong=True),
    Tile((64, 128), (2, 1), 5.13, pingpong=True),
    Tile((64, 128), (1, 1), 6.56, pingpong=True, parts=_ANY),
    Tile((64, 96), (1, 1), 4.45, pingpong=True),
    Tile((64, 64), (1, 1), 5.46, pingpong=True, parts=_ANY),
    Tile((64, 32), (1, 1), 2.33, pingpong=True),
    Tile((128, 32), (1, 2), 2.92),
    Tile((64, 64), (1, 2), 4.23, pingpong=True),
    Tile((64, 8), (1, 1), 0.658, pingpong=True, swapped=True),
    Tile((64, 16), (1, 1), 1.32, pingpong=True, swapped=True),
    Tile((64, 24), (1, 1), 1.8, pingpong=True, swapped=True),
    Tile((64, 32), (1, 1), 3.31, pingpong=True, swapped=True, parts=_ANY),
    Tile((64, 48), (1, 1), 3.3, pingpong=True, swapped=True),
    Tile((64, 64), (1, 1), 5.06, pingpong=True, swapped=True, parts=_ANY),
    Tile((64, 96), (1, 1), 3.82, pingpong=True, swapped=True, parts=_ANY),
    Tile((64, 128), (1, 1), 3.9, pingpong=True, swapped=True, parts=_ANY),
    Tile((128, 16), (1, 1), 1.56, swapped=True, parts=_SOME),
    Tile((128, 32), (1, 1), 2.13, swapped=True, parts=_SOME),
    Tile((128, 96), (1, 1), 4.26, swapped=True, parts=_SOME),
)
MODEL = {
    "launch": 0.5,
    "start": 0.432,
    "store": 0.356,
    "store_area": 0.358,
    "staged": 0.523,
    "staged_area": 0.997,
    "parts": 0.808,
    "parts_area": 0.617,
    "second": 1.82,
    "crowded": 2.59,
    "others": 0.5,
    "followed": 1.5,
    "cache": 14.3,
    "between": 2.92,
    "beyond": 2.1,
    "memory": 4.11,
    "latency": 1.5,
    "power": 756,
    "power_cache": 127,
    "bytes": 1.8,
    "promoted": 1.65,
}
"""Microseconds: of a launch; before the first product; to write a tile, and what is added for each 128 x 128 of it (`staged`: without the
copy engine; `parts`: sums of a cluster; `second`: a second kernel, `crowded`: where no multiprocessors are left for it; `others`: another tensor as large as the result; `followed`: anything that follows the sums). TB/s: `cache`, what multiprocessors read of the
L2 cache, and how much more they do where rows begin `between` lines, or tiles reach `beyond` few rows; `memory`, after `latency` microseconds. What the power limit lets large products do: TFLOP/s of all multiprocessors (`power`), TB/s of the L2 cache (`power_cache`), one after the other. How much faster 8-bit integers are multiplied (`bytes`), and 8-bit floats (`promoted`)."""
