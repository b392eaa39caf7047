"""Figures of an H200 that `hopper_cost.py` reckons with.

`python benchmarks/tune_products.py fit` fits them to the measurements in `benchmarks/data/products_h200.jsonl`, and writes this file.
"""

from __future__ import annotations

MODEL = {
    "launch": 0.5,
    "start": 0.0495,
    "meet": 0.439,
    "small": 0.905,
    "store": 0.852,
    "store_area": 0.099,
    "pieces": 0.0325,
    "staged": 1.08,
    "staged_area": 0.52,
    "parts": 0.098,
    "parts_area": 3.35,
    "apart": 1.03,
    "second": 0.655,
    "round": 0.227,
    "added": 9.8,
    "crowded": 0.223,
    "others": 0.5,
    "followed": 1.5,
    "shared": 5.13,
    "turns": 5.78,
    "operands": 18.1,
    "asked": 27.1,
    "bytes": 0.9,
    "promoted": 0.825,
    "alone": 0.8,
    "lines": 0.119,
    "between": 2.11,
    "cut": 1.58,
    "beyond": 0.697,
    "arrival": 0.108,
    "stage": 1.19,
    "memory": 4.2,
    "again": 0.099,
    "latency": 1.49,
    "single": 0.199,
    "busy": 0.623,
    "paired": 1.08,
    "once_rows": 1.03,
    "once_columns": 1.01,
    "once_turns": 1.01,
    "once_swapped": 0.951,
    "once_turned": 1,
    "often_rows": 0.99,
    "often_columns": 0.98,
    "often_turns": 1,
    "often_swapped": 0.961,
    "often_turned": 1,
    "power": 745,
    "power_cache": 55,
}
"""Microseconds: of a launch; before the first product, and more for blocks of a cluster that `meet`, and for
`small` tiles of 8 or 16 columns of what stays in the L2 cache; to write a tile, and what is added for each 128 x 128 of it, or for each of the `pieces` of one that is turned around
(`staged`: without the copy engine; `parts`: sums of a cluster; `second`: a second kernel, for each `round` of 8 parts, at `added` TB/s, `crowded`:
where no multiprocessors are left for it; `others`: another tensor as large as the result; `followed`: anything that follows the sums); `stage`: until one has come.
`apart`: how much longer everything takes for each halving of K among blocks of a cluster, and products of warp groups that take turns in clusters (`paired`). `single`: microseconds at the end of warp groups that take turns, beside
which nobody multiplies. `busy`: the power of the share of multiprocessors that have tiles by which each waits longer for what it loads. `once`, `often`: how many times as long as all that plans take with one tile of each block, or with several, for twice the
`rows` and `columns` of a tile, for warp groups in `turns`, for `swapped` operands, for results that are `turned` around.
TFLOP/s of a multiprocessor in f16 whose warp groups have a tile in common (`shared`), or take `turns`; cycles for `operands` of 64 rows of shared memory beside those of
columns, and as many for what is `asked` of the tensor cores by one warp group alone; how many times as fast 8-bit integers (`bytes`) and floats (`promoted`; `alone`: in turns) are for the same bytes. TB/s: what comes into a multiprocessor (`arrival`), and out of the
L2 cache to it (`lines`), of which it takes longer for those that rows `cut` at multiples of 32 bytes, or `between` those, and for rows `beyond` the last; `memory`, after `latency` microseconds, and how much
of it is lost for what is read `again`. What the power limit lets large products do: TFLOP/s of all multiprocessors (`power`), TB/s of the L2 cache (`power_cache`), one after the other."""
