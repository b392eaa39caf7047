"""A call of every family of the kernel library, on arrays that nobody reads, with what bounds it on an H200."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from kiln import kernels
from kiln.kernels.dispatch import registry

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32


def blank(*shape: int, dtype: type = BF16) -> np.ndarray:
    """An array that nobody reads: it takes no memory."""
    return np.zeros(shape, dtype)


ROWS, WEIGHT, LOGITS = blank(4096, 4096), blank(4096), blank(65536, 256, dtype=F32)
HEADS, TABLE = blank(2, 2048, 16, 128), blank(2048, 64, dtype=F32)
ONE, PAGES = blank(4, 1, 32, 128), blank(512, 64, 8, 128)
TOKENS, EXPERTS = blank(8192, 4096), blank(8, 4096, 4096)
WHICH, LENGTHS = blank(4, 128, dtype=np.int32), np.full(4, 8192, np.int32)

CALLS = {
    "softmax": ("memory", lambda of: of(kernels.softmax, ROWS)),
    "layer_norm": ("memory", lambda of: of(kernels.layer_norm, ROWS, WEIGHT, WEIGHT)),
    "layer_norm_backward": ("memory", lambda of: of(kernels.layer_norm_backward, ROWS, ROWS, WEIGHT)),
    "fused_add_rms_norm": ("memory", lambda of: of(kernels.fused_add_rms_norm, ROWS, ROWS, WEIGHT)),
    "swiglu": ("memory", lambda of: of(kernels.swiglu, ROWS, ROWS)),
    "cross_entropy": ("memory", lambda of: of(kernels.cross_entropy, ROWS, blank(4096, dtype=np.int64))),
    "sum": ("memory", lambda of: of(kernels.sum, ROWS, 0)),
    "argmax": ("memory", lambda of: of(kernels.argmax, ROWS, 1)),
    "elementwise": ("memory", lambda of: of(kernels.elementwise, lambda a, b: a + b, ROWS, ROWS)),
    "rotary_embedding": ("memory", lambda of: of(kernels.rotary_embedding, HEADS, TABLE, TABLE)),
    "topk_softmax": ("memory", lambda of: of(kernels.topk_softmax, LOGITS, 8)),
    "softmax of one row": ("launch", lambda of: of(kernels.softmax, ROWS[:1])),
    "flash_attention": ("tensor cores", lambda of: of(kernels.flash_attention, HEADS, HEADS, HEADS)),
    "flash_attention of few": ("launch", lambda of: of(kernels.flash_attention, *[HEADS[:1, :64, :2]] * 3)),
    "flash_attention_backward": (
        "shared memory",
        lambda of: of(kernels.flash_attention_backward, *[HEADS] * 5, blank(2, 16, 2048, dtype=F32)),
    ),
    "paged_attention": ("memory", lambda of: of(kernels.paged_attention, ONE, PAGES, PAGES, WHICH, LENGTHS)),
    "mla_decode": (
        "memory",
        lambda of: of(kernels.mla_decode, blank(4, 1, 16, 576), blank(512, 64, 576), WHICH, LENGTHS),
    ),
    "gemm": ("tensor cores", lambda of: of(kernels.gemm, *[blank(2048, 2048)] * 2)),
    "gemm of many": ("tensor cores", lambda of: of(kernels.gemm, *[blank(8192, 8192)] * 2)),
    "gemm of f32": ("arithmetic", lambda of: of(kernels.gemm, *[blank(2048, 2048, dtype=F32)] * 2)),
    "gemm of int8": ("tensor cores", lambda of: of(kernels.gemm, blank(64, 4096), blank(4096, 4096, dtype=np.int8).T)),
    "grouped_gemm": (
        "tensor cores",
        lambda of: of(kernels.grouped_gemm, TOKENS, EXPERTS, offsets=np.zeros(8, np.int32)),
    ),
    "softmax of unaligned rows": ("memory", lambda of: of(kernels.softmax, blank(4096, 4097))),
    "flash_attention_backward of long heads": (
        "shared memory",
        lambda of: of(kernels.flash_attention_backward, *[blank(2, 2048, 4, 256)] * 5, blank(2, 4, 2048, dtype=F32)),
    ),
}
"""What bounds a call, and a function that passes the library's function and its arguments to another."""


def problem_of(name: str) -> tuple[registry.Registry, Any]:
    """Return the registry and the problem that a call of `CALLS` states."""
    with registry.collecting_problems() as collected:
        CALLS[name][1](lambda function, *arguments, **options: function(*arguments, **options))
    return collected[0]
