"""Figures of an H200 that `hopper_cost.py` reckons with.

`python benchmarks/tune_products.py fit` fits them to the measurements in `benchmarks/data/products_h200.jsonl`, and writes this file.
"""

from __future__ import annotations

MODEL = {
    "launch": 0.5,
    "start": 0.0458,
    "meet": 0.636,
    "small": 1.5,
    "store": 0.639,
    "store_area": 0.0921,
    "staged": 1.44,
    "staged_area": 0.524,
    "parts": 0.0574,
    "parts_area": 2.33,
    "second": 1.3,
    "round": 0.3,
    "added": 10.6,
    "crowded": 0.763,
    "others": 0.5,
    "followed": 1.5,
    "shared": 5.51,
    "turns": 5.55,
    "operands": 26.8,
    "bytes": 0.9,
    "promoted": 0.825,
    "alone": 0.8,
    "lines": 0.133,
    "between": 2.26,
    "beyond": 0.58,
    "arrival": 0.122,
    "stage": 1.26,
    "memory": 4.48,
    "again": 0.192,
    "latency": 1.81,
    "power": 896,
    "power_cache": 61.2,
}
"""Microseconds: of a launch; before the first product, and more for blocks of a cluster that `meet`, and for
`small` tiles of 8 or 16 columns of what stays in the L2 cache; to write a tile, and what is added for each 128 x 128 of it
(`staged`: without the copy engine; `parts`: sums of a cluster; `second`: a second kernel, for each `round` of eight parts that it loads, at `added` TB/s, `crowded`:
where no multiprocessors are left for it; `others`: another tensor as large as the result; `followed`: anything that follows the sums); `stage`: until one has come.
TFLOP/s of a multiprocessor in f16 whose warp groups have a tile in common (`shared`), or take `turns`; cycles for `operands` of 64 rows of shared memory beside those of
columns; how many times as fast 8-bit integers (`bytes`) and floats (`promoted`; `alone`: in turns) are for the same bytes. TB/s: what comes into a multiprocessor (`arrival`), and out of the
L2 cache to it (`lines`), of which there are more where rows begin `between` lines, or are `beyond` the last; `memory`, after `latency` microseconds, and how much
of it is lost for what is read `again`. What the power limit lets large products do: TFLOP/s of all multiprocessors (`power`), TB/s of the L2 cache (`power_cache`), one after the other."""
