"""Figures of an H200 that `sm90_cost.py` reckons with.

`python benchmarks/tune_products.py fit` fits them to the measurements in `benchmarks/data/products_h200.jsonl`, and writes this file.
"""

from __future__ import annotations

MODEL = {
    "launch": 0.5,
    "start": 0.0495,
    "meet": 0.426,
    "small": 0.878,
    "store": 0.811,
    "store_area": 0.1,
    "pieces": 0.0328,
    "staged": 1.05,
    "staged_area": 0.536,
    "parts": 0.097,
    "parts_area": 3.35,
    "apart": 1.04,
    "second": 0.724,
    "round": 0.241,
    "added": 9.61,
    "crowded": 0.232,
    "others": 0.5,
    "followed": 1.5,
    "shared": 5.23,
    "turns": 5.78,
    "operands": 17.6,
    "asked": 26.8,
    "bytes": 0.9,
    "promoted": 0.825,
    "alone": 0.8,
    "lines": 0.126,
    "between": 2.2,
    "cut": 1.67,
    "beyond": 0.697,
    "arrival": 0.106,
    "stage": 1.21,
    "memory": 4.2,
    "again": 0.0887,
    "latency": 1.73,
    "single": 0.184,
    "busy": 0.587,
    "paired": 1.08,
    "once_rows": 1.02,
    "once_columns": 1.01,
    "once_turns": 1.01,
    "once_swapped": 0.961,
    "once_turned": 1,
    "often_rows": 0.99,
    "often_columns": 0.98,
    "often_turns": 0.99,
    "often_swapped": 0.951,
    "often_turned": 1.01,
    "power": 745,
    "power_cache": 55,
}
"""Microseconds: of a launch; before the first product, and more for blocks of a cluster that `meet`, and for
`small` tiles of 8 or 16 columns of what stays in the L2 cache; to write a tile, and what is added for each 128 x 128 of it, or for each of the `pieces` of one that is turned around
(`staged`: without the copy engine; `parts`: sums of a cluster; `second`: a second kernel, for each `round` of 8 parts, at `added` TB/s, `crowded`:
where no multiprocessors are left for it; `others`: another tensor as large as the result; `followed`: anything that follows the sums); `stage`: until one has come.
`apart`: how much longer everything takes for each halving of K among blocks of a cluster, and products of warp groups that take turns in clusters (`paired`). `single`: microseconds at the end of warp groups that take turns, beside
which nobody multiplies. `busy`: the power of the share of multiprocessors that have tiles by which each waits longer for what it loads. `once`, `often`: how many times as long as all that configs take with one tile of each block, or with several, for twice the
`rows` and `columns` of a tile, for warp groups in `turns`, for `swapped` operands, for results that are `turned` around.
TFLOP/s of a multiprocessor in f16 whose warp groups have a tile in common (`shared`), or take `turns`; cycles for `operands` of 64 rows of shared memory beside those of
columns, and as many for what is `asked` of the tensor cores by one warp group alone; how many times as fast 8-bit integers (`bytes`) and floats (`promoted`; `alone`: in turns) are for the same bytes. TB/s: what comes into a multiprocessor (`arrival`), and out of the
L2 cache to it (`lines`), of which it takes longer for those that rows `cut` at multiples of 32 bytes, or `between` those, and for rows `beyond` the last; `memory`, after `latency` microseconds, and how much
of it is lost for what is read `again`. What the power limit lets large products do: TFLOP/s of all multiprocessors (`power`), TB/s of the L2 cache (`power_cache`), one after the other."""
