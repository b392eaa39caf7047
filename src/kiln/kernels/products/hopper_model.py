"""Figures of an H200 that `hopper_cost.py` reckons with.

`python benchmarks/tune_products.py fit` fits them to the measurements in `benchmarks/data/products_h200.jsonl`, and writes this file.
"""

from __future__ import annotations

MODEL = {
    "launch": 0.5,
    "start": 0.05,
    "meet": 0.462,
    "small": 0.844,
    "store": 0.878,
    "store_area": 0.102,
    "pieces": 0.0283,
    "staged": 1.14,
    "staged_area": 0.51,
    "parts": 0.099,
    "parts_area": 3.25,
    "apart": 1.03,
    "second": 0.642,
    "round": 0.274,
    "added": 8.27,
    "crowded": 0.23,
    "others": 0.5,
    "followed": 1.5,
    "shared": 5.45,
    "turns": 5.9,
    "operands": 15.3,
    "asked": 26.3,
    "bytes": 0.9,
    "promoted": 0.825,
    "alone": 0.8,
    "lines": 0.125,
    "between": 2.05,
    "cut": 1.63,
    "beyond": 0.676,
    "arrival": 0.106,
    "stage": 1,
    "memory": 4.33,
    "again": 0.0905,
    "latency": 1.5,
    "busy": 0.53,
    "paired": 1.07,
    "power": 1.05e+03,
    "power_cache": 48.5,
}
"""Microseconds: of a launch; before the first product, and more for blocks of a cluster that `meet`, and for
`small` tiles of 8 or 16 columns of what stays in the L2 cache; to write a tile, and what is added for each 128 x 128 of it, or for each of the `pieces` of one that is turned around
(`staged`: without the copy engine; `parts`: sums of a cluster; `second`: a second kernel, for each `round` of parts that it loads, at `added` TB/s, `crowded`:
where no multiprocessors are left for it; `others`: another tensor as large as the result; `followed`: anything that follows the sums); `stage`: until one has come.
`apart`: how much longer everything takes for each halving of K among blocks of a cluster.
TFLOP/s of a multiprocessor in f16 whose warp groups have a tile in common (`shared`), or take `turns`; cycles for `operands` of 64 rows of shared memory beside those of
columns, and as many for what is `asked` of the tensor cores by one warp group alone; how many times as fast 8-bit integers (`bytes`) and floats (`promoted`; `alone`: in turns) are for the same bytes. TB/s: what comes into a multiprocessor (`arrival`), and out of the
L2 cache to it (`lines`), of which it takes longer for those that rows `cut` at multiples of 32 bytes, or `between` those, and for rows `beyond` the last; `memory`, after `latency` microseconds, and how much
of it is lost for what is read `again`. What the power limit lets large products do: TFLOP/s of all multiprocessors (`power`), TB/s of the L2 cache (`power_cache`), one after the other."""
