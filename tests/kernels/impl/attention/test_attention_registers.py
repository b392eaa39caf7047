"""Attention by warp groups keeps to registers in its loops, whatever it is asked for: what ptxas says and the machine code, without a GPU.

A few numbers of a tile may be in local memory between its beginning and its end: that takes nothing. Loops have none.
"""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nvidia_testing import needs_nvdisasm
from sass import loops

from kiln import kernels
from kiln.targets.nvidia.remarks import FENCE_ADDED
from kiln.testing import dry_run

E4M3, F16 = ml_dtypes.float8_e4m3fn, np.float16
BATCH, ROWS, HEADS, SHARED = 8, 1024, 8, 2


def changed(s, b, h, q, k):
    return s + 0.1 * h if q > k else s * 0.5


SLOPES = {"alibi_slopes": np.ones(HEADS, np.float32)}
SINKS = {"sinks": np.ones(HEADS, np.float32)}
MANY: dict[str, Any] = {"softcap": 30.0, "window": (256, 0), "return_lse": True, "packed": True, **SLOPES, **SINKS}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "slopes": SLOPES,
    "cap": {"softcap": 30.0},
    "window": {"window": (256, 0)},
    "function": {"score": changed},
    "sinks": {"packed": True, **SINKS},
    "pages": {"packed": True, "page": 16},
    "rows": {"packed": True, "page": 1},
    "many": MANY,
    "all": {"page": 64, "score": changed, **MANY},
}
DIMS = [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)]
SPILLED = {(E4M3, (256, 256), name): 5 for name in ("none", "cap")}
"""Loads of spilled registers in a step, where the kernel without them is slower."""
TIGHT = [(E4M3, (256, 256), "window"), (F16, (256, 256), "all")]
"""With the fewest registers left: the others are in the long stage."""


def call(dtype: Any, dims: tuple[int, int], packed: bool = False, page: int = 0, **options: Any) -> None:
    q, k, v = (
        np.zeros((BATCH, ROWS, n, dim), dtype) for n, dim in ((HEADS, dims[0]), (SHARED, dims[0]), (SHARED, dims[1]))
    )
    starts = np.arange(BATCH + 1, dtype=np.int32) * ROWS
    if packed:
        q, options = q.reshape(-1, *q.shape[2:]), {**options, "cu_seqlens_q": starts, "max_seqlen_q": ROWS}
    if page:
        k, v = (x.reshape(-1, page, *x.shape[2:]) for x in (k, v))
        table, used = np.zeros((BATCH, ROWS // page), np.int32), np.full(BATCH, ROWS, np.int32)
        options = {**options, "page_table": table, "seqused_k": used}
    elif packed:
        k, v = (x.reshape(-1, *x.shape[2:]) for x in (k, v))
        options = {**options, "cu_seqlens_k": starts}
    if dtype is E4M3:
        names = ("q_descale", "k_descale", "v_descale")
        options = {**options, **{name: np.ones((BATCH, SHARED), np.float32) for name in names}}
    kernels.flash_attention(q, k, v, causal=True, **options)


@pytest.mark.quick(0)
@needs_nvdisasm
@pytest.mark.parametrize(
    ("dtype", "dims", "name"),
    [(dtype, dims, name) for dtype in (F16, E4M3) for dims in DIMS for name in OPTIONS]
    if os.environ.get("KILN_LONG_TESTS")
    else TIGHT,
)
def test_loops_keep_to_registers(dtype, dims, name):
    with dry_run("sm_90a") as made:
        call(dtype, dims, **OPTIONS[name])
    found = [one for one in made if one.kernel.startswith("Sm90ForwardKernel")]
    if not found:
        pytest.skip("warp groups do not compute it: rows of pages would be laid in succession first")
    assert len(found) == 1
    assert not [text for text in found[0].resources.messages if not text.startswith(FENCE_ADDED)]
    made_loops = loops(found[0].artifacts["sass"])
    step = max(len(loop.products) for loop in made_loops)
    steps = [
        loop for loop in made_loops if len(loop.products) == step
    ]  # others are retries of waits at the end of a tile
    # masked and unmasked KV tiles have a loop each, but with a window, a function or deep heads
    assert len(steps) >= (1 if dims[1] > 128 or OPTIONS[name].keys() & {"score", "window"} else 2)
    for loop in steps:
        assert len([one for one in loop.instructions if one.name.startswith(("LDL", "STL"))]) <= SPILLED.get(
            (dtype, dims, name), 0
        )
