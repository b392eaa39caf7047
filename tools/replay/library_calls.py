"""Calls of the library's kernels in the configurations that users get by default.

A new kernel adds its calls to `SHIPPED`: they are compiled for GPUs that are not there and launch nothing, so arrays are as large as a
configuration needs to be chosen, and their contents do not matter. `SMALL` holds calls that the CPU target runs.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from config_names import with_config

from kiln import kernels

F16, BF16, F32, E4M3, I8 = np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e4m3fn, np.int8
_memory = np.zeros(1 << 26, np.uint8)


def array(dtype, *shape):
    """An array; all share their memory."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return _memory[:size].view(dtype).reshape(shape)


def large(dtype, layout, **options):
    """Multiply matrices large enough for the largest tiles; N: rows are contiguous, T: columns."""
    a, b = (array(dtype, 2048, 2048) for _ in range(2))
    a, b = (x if way == "N" else x.T for x, way in ((a, layout[0]), (b, layout[1])))
    return kernels.gemm(a, b, **options)


def attention(dim, **options):
    """Attention with more tiles of queries than a GPU runs at once."""
    q = np.broadcast_to(array(BF16, 1, 256, 1, dim), (4, 256, 128, dim))
    return kernels.flash_attention(q, q, q, **options)


def serving(dim, queries, **options):
    """Attention of few queries to a dense KV cache."""
    k = np.broadcast_to(array(BF16, 1, 1, 8, dim), (4, 8192, 8, dim))
    used = np.zeros(4, np.int32)
    return kernels.flash_attention(array(BF16, 4, queries, 32, dim), k, k, seqused_k=used, **options)


def paged(size, queries):
    """Attention of few queries to a paged KV cache."""
    cache = array(BF16, 8192 // size, size, 8, 128)
    table, lengths = np.zeros((4, 8192 // size), np.int32), np.zeros(4, np.int32)
    return kernels.paged_attention(array(BF16, 4, queries, 32, 128), cache, cache, table, lengths)


def mla(heads):
    """MLA decode of one token."""
    table, lengths = np.zeros((4, 128), np.int32), np.zeros(4, np.int32)
    return kernels.mla_decode(array(BF16, 4, 1, heads, 576), array(BF16, 128, 64, 576), table, lengths, return_lse=True)


def sequences(dim):
    """Varlen attention."""
    q, starts = array(BF16, 1024, 16, dim), np.array([0, 512, 1024], np.int32)
    return kernels.flash_attention(q, q, q, causal=True, cu_seqlens_q=starts, cu_seqlens_k=starts, return_lse=True)


SHIPPED = {
    "gemm f16 NN": lambda: large(F16, "NN"),
    "gemm f16 NT": lambda: large(F16, "NT"),
    "gemm f16 TN": lambda: large(F16, "TN"),
    "gemm bf16 TT": lambda: large(BF16, "TT"),
    "gemm f32 NN": lambda: large(F32, "NN"),
    "gemm f32 NT": lambda: large(F32, "NT"),
    "gemm f32 TN, smaller": lambda: kernels.gemm(array(F32, 64, 512).T, array(F32, 64, 512)),
    "gemm tf32 NN": lambda: large(F32, "NN", precision="tf32"),
    "gemm tf32 NT": lambda: large(F32, "NT", precision="tf32"),
    "gemm e4m3 NT": lambda: large(E4M3, "NT"),
    "grouped_gemm bf16": lambda: kernels.grouped_gemm(
        array(BF16, 512, 1024),
        array(BF16, 8, 1024, 1024).swapaxes(1, 2),
        offsets=np.zeros(8, np.int32),
        activation="silu",
    ),
    "gemm e4m3 TN": lambda: large(E4M3, "TN"),
    "gemm i8 NT": lambda: large(I8, "NT"),
    "gemm i8 TN": lambda: large(I8, "TN"),
    "gemm f16 NT, mma.sync": lambda: large(
        F16, "NT", **with_config(kernels.gemm, "sm80_gemm", (128, 256, 64), (2, 4), 3)
    ),
    "gemm bf16 NN, mma.sync": lambda: large(
        BF16, "NN", **with_config(kernels.gemm, "sm80_gemm", (128, 128, 64), (2, 2), 3)
    ),
    "gemm bf16 NT, pingpong": lambda: large(
        BF16, "NT", **with_config(kernels.gemm, "sm90_gemm", (128, 128, 64), (2, 1), 6, 8, True)
    ),
    "gemm f16 3072": lambda: kernels.gemm(array(F16, 3072, 3072), array(F16, 3072, 3072).T),
    "gemm f16, narrow": lambda: kernels.gemm(array(F16, 64, 4096), array(F16, 4096, 4096).T),
    "gemm f16, one row": lambda: kernels.gemm(array(F16, 1, 4096), array(F16, 4096, 4096).T),
    "gemm f16, large, everything after it": lambda: large(
        F16,
        "NT",
        c=array(F32, 2048, 2048),
        bias=array(F16, 2048),
        activation="gelu",
        epilogue=lambda value, gate: value * gate,
        extras=[array(F16, 2048, 1)],
    ),
    "gemm f16, small": lambda: kernels.gemm(array(F16, 64, 64), array(F16, 64, 64)),
    "gemm f16, bias and gelu": lambda: kernels.gemm(
        array(F16, 64, 64), array(F16, 64, 64), bias=array(F16, 64), activation="gelu"
    ),
    "attention bf16 128, causal": lambda: attention(128, causal=True),
    "attention bf16 104, causal": lambda: attention(104, causal=True),
    "attention bf16 96, windows and logarithms": lambda: attention(96, window=(64, 64), softcap=9.0, return_lse=True),
    "attention bf16 64, windows and logarithms": lambda: attention(64, window=(64, 64), softcap=9.0, return_lse=True),
    "attention bf16 128": lambda: attention(128),
    "attention bf16 128, windows and logarithms": lambda: attention(128, window=(64, 64), softcap=9.0, return_lse=True),
    "attention bf16 64, causal": lambda: attention(64, causal=True),
    "attention bf16 192, causal": lambda: attention(192, causal=True),
    "attention bf16 256, causal": lambda: attention(256, causal=True),
    "attention bf16 256, windows and logarithms": lambda: attention(256, window=(64, 64), softcap=9.0, return_lse=True),
    "attention bf16 128, sequences": lambda: sequences(128),
    "attention bf16 128, one query": lambda: serving(128, 1),
    "attention bf16 128, 16 queries, causal": lambda: serving(128, 16, causal=True, return_lse=True),
    "attention bf16 256, 4 queries, causal": lambda: serving(256, 4, causal=True),
    "attention bf16 128, one query, pages of 1": lambda: paged(1, 1),
    "attention bf16 128, 16 queries, pages of 64": lambda: paged(64, 16),
    "mla bf16": lambda: mla(128),
    "softmax bf16": lambda: kernels.softmax(array(BF16, 4, 8192)),
    "softmax f32, long": lambda: kernels.softmax(array(F32, 4, 65536)),
    "rms_norm bf16": lambda: kernels.rms_norm(array(BF16, 4, 8192), array(BF16, 8192)),
    "layer_norm f16": lambda: kernels.layer_norm(array(F16, 4, 4096), array(F16, 4096), array(F16, 4096)),
    "layer_norm f32, odd": lambda: kernels.layer_norm(array(F32, 4, 1023), array(F32, 1023), array(F32, 1023)),
    "layer_norm_backward bf16, odd": lambda: kernels.layer_norm_backward(
        array(BF16, 4, 8191), array(BF16, 4, 8191), array(BF16, 8191), bias=True
    ),
    "fused_add_layer_norm bf16, to e4m3": lambda: kernels.fused_add_layer_norm(
        array(BF16, 4, 8192), array(BF16, 4, 8192), array(BF16, 8192), array(BF16, 8192), quantize=E4M3
    ),
    "swiglu_backward bf16": lambda: kernels.swiglu_backward(array(BF16, 4, 14336), array(BF16, 4, 28672)),
    "rotary_embedding bf16": lambda: kernels.rotary_embedding(
        array(BF16, 4, 32, 128), array(F32, 4, 64), array(F32, 4, 64)
    ),
    "topk_softmax f32": lambda: kernels.topk_softmax(array(F32, 4, 256), 8, True),
}


def ones(dtype, *shape):
    return np.ones(shape, dtype)


SMALL = {
    "gemm f16": lambda: kernels.gemm(ones(F16, 96, 40), ones(F16, 40, 72)),
    "gemm f16, one row": lambda: kernels.gemm(ones(F16, 1, 256), ones(F16, 256, 64)),
    "gemm f16, warpgroups": lambda: kernels.gemm(
        ones(F16, 136, 40), ones(F16, 72, 40).T, **with_config(kernels.gemm, "sm90_gemm", (128, 32, 32), (2, 1), 2, 2)
    ),
    "gemm f32": lambda: kernels.gemm(ones(F32, 40, 24), ones(F32, 24, 40).T.copy().T),
    "gemm tf32": lambda: kernels.gemm(ones(F32, 64, 32), ones(F32, 32, 64), precision="tf32"),
    "gemm e4m3": lambda: kernels.gemm(ones(E4M3, 64, 64), ones(E4M3, 64, 64).T),
    "gemm i8": lambda: kernels.gemm(ones(I8, 64, 64), ones(I8, 64, 64).T),
    "gemm f16, bias and gelu": lambda: kernels.gemm(
        ones(F16, 64, 64), ones(F16, 64, 64), bias=ones(F16, 64), activation="gelu"
    ),
    "attention bf16": lambda: kernels.flash_attention(*[ones(BF16, 1, 96, 2, 64)] * 3, causal=True, return_lse=True),
    "attention bf16, warpgroups": lambda: kernels.flash_attention(
        *[ones(BF16, 1, 96, 2, 64)] * 3, causal=True, **with_config(kernels.flash_attention, "sm90_attention", 2, 32)
    ),
    "attention bf16, one query": lambda: kernels.flash_attention(
        ones(BF16, 2, 1, 4, 64), *[ones(BF16, 2, 300, 2, 64)] * 2
    ),
    "attention bf16 128, one query, pages of 1": lambda: paged(1, 1),
    "attention bf16 128, 16 queries, pages of 64": lambda: paged(64, 16),
    "softmax bf16": lambda: kernels.softmax(ones(BF16, 3, 2048)),
    "softmax f32, odd": lambda: kernels.softmax(ones(F32, 3, 1001)),
    "rms_norm bf16": lambda: kernels.rms_norm(ones(BF16, 3, 512), ones(BF16, 512)),
    "layer_norm f16": lambda: kernels.layer_norm(ones(F16, 3, 512), ones(F16, 512), ones(F16, 512)),
    "sum f32": lambda: kernels.sum(ones(F32, 37, 129), axis=1),
    "cross_entropy f32": lambda: kernels.cross_entropy(ones(F32, 5, 1000), np.zeros(5, np.int64)),
    "elementwise f16": lambda: kernels.elementwise(lambda a, b: a * b + a, ones(F16, 1000), ones(F16, 1000)),
}
